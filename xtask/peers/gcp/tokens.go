package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/iam/credentials/apiv1/credentialspb"
	"golang.org/x/oauth2/jws"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	lifetime      = time.Hour
	federated     = "principal/"
	cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"
	// The account of the machine that asks the metadata server.
	nodeAccount = "node@peer-pods.iam.gserviceaccount.com"
)

// What a token is for.
type token struct {
	// The service account, or principal/SUBJECT for a federated identity.
	account string
	scopes  []string
	expires time.Time
}

func (c *cloud) issue(account string, scopes []string) string {
	c.made++
	name := fmt.Sprintf("ya29.token-%d", c.made)
	c.tokens[name] = &token{account, scopes, time.Now().Add(lifetime)}
	return name
}

func (c *cloud) bearer(r *http.Request) (*token, error) {
	name, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	found := c.tokens[name]
	if found == nil || time.Now().After(found.expires) {
		return nil, refuse(401, "authError", "Request had invalid authentication credentials.")
	}
	return found, nil
}

// The service account that asks, if its token is for this scope.
func (c *cloud) authenticate(r *http.Request, scope string) (*account, error) {
	found, err := c.bearer(r)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(found.scopes, scope) && !slices.Contains(found.scopes, cloudPlatform) {
		return nil, refuse(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
	}
	caller := c.accounts[found.account]
	if caller == nil {
		caller = &account{}
	}
	return caller, nil
}

// A form with exactly these fields.
func form(r *http.Request, names ...string) (url.Values, error) {
	if err := r.ParseForm(); err != nil {
		return nil, err
	}
	if given := slices.Sorted(maps.Keys(r.PostForm)); !slices.Equal(given, slices.Sorted(slices.Values(names))) {
		return nil, fmt.Errorf("the request has the fields %v", given)
	}
	return r.PostForm, nil
}

// Answers as an OAuth token endpoint does.
func (c *cloud) oauth(w http.ResponseWriter, give func() (map[string]any, error)) {
	c.Lock()
	defer c.Unlock()
	answer, err := give()
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		answer = map[string]any{"error": "invalid_grant", "error_description": err.Error()}
	}
	json.NewEncoder(w).Encode(answer)
}

func (c *cloud) serviceAccountToken(w http.ResponseWriter, r *http.Request) {
	c.oauth(w, func() (map[string]any, error) {
		asked, err := form(r, "grant_type", "assertion")
		if err != nil {
			return nil, err
		}
		assertion := asked.Get("assertion")
		claims, err := jws.Decode(assertion)
		if err != nil {
			return nil, err
		}
		signer := c.accounts[claims.Iss]
		now := time.Now().Unix()
		switch {
		case asked.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
			return nil, errors.New("unsupported grant_type")
		case signer == nil:
			return nil, errors.New("Invalid grant: account not found")
		case jws.Verify(assertion, &signer.key.PublicKey) != nil:
			return nil, errors.New("Invalid JWT Signature.")
		case claims.Aud != "http://"+r.Host+r.URL.Path:
			return nil, errors.New("Invalid JWT: Failed audience check.")
		case claims.Iat > now+5 || claims.Exp < now || claims.Exp > claims.Iat+3600:
			return nil, errors.New("Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.")
		case claims.Scope == "":
			return nil, errors.New("Invalid OAuth scope or ID token audience provided.")
		}
		given := c.issue(claims.Iss, strings.Fields(claims.Scope))
		return map[string]any{"access_token": given, "expires_in": 3599, "token_type": "Bearer"}, nil
	})
}

func (c *cloud) exchangedToken(w http.ResponseWriter, r *http.Request) {
	c.oauth(w, func() (map[string]any, error) {
		asked, err := form(r, "grant_type", "audience", "scope", "requested_token_type", "subject_token", "subject_token_type")
		if err != nil {
			return nil, err
		}
		subject := asked.Get("subject_token")
		claims, err := jws.Decode(subject)
		if err != nil {
			return nil, err
		}
		key := c.pools[asked.Get("audience")]
		switch {
		case asked.Get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange",
			asked.Get("requested_token_type") != "urn:ietf:params:oauth:token-type:access_token",
			asked.Get("subject_token_type") != "urn:ietf:params:oauth:token-type:jwt":
			return nil, errors.New("Invalid grant_type or token type")
		case key == nil:
			return nil, errors.New("Invalid value for \"audience\".")
		case jws.Verify(subject, key) != nil:
			return nil, errors.New("Error connecting to the given credential's issuer: the signature is invalid.")
		case "https:"+asked.Get("audience") != claims.Aud:
			return nil, errors.New("The audience in ID Token does not match the expected audience.")
		case claims.Exp < time.Now().Unix():
			return nil, errors.New("ID Token is stale to sign-in.")
		}
		given := c.issue(federated+claims.Sub, strings.Fields(asked.Get("scope")))
		return map[string]any{
			"access_token": given, "expires_in": 3600, "token_type": "Bearer",
			"issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
		}, nil
	})
}

func (c *cloud) impersonatedToken(w http.ResponseWriter, r *http.Request) {
	c.Lock()
	defer c.Unlock()
	email, known := strings.CutSuffix(r.PathValue("method"), ":generateAccessToken")
	caller, err := c.bearer(r)
	var body []byte
	var asked credentialspb.GenerateAccessTokenRequest
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(r.Body, 1<<20))
	}
	if err == nil {
		if wrong := protojson.Unmarshal(body, &asked); wrong != nil {
			err = refuse(400, "invalid", wrong.Error())
		}
	}
	if err == nil && !slices.Contains(caller.scopes, cloudPlatform) {
		err = refuse(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
	}
	if err == nil && (!known || c.accounts[email] == nil || !strings.HasPrefix(caller.account, federated) || len(asked.Scope) == 0) {
		err = refuse(403, "forbidden", "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).")
	}
	if err != nil {
		fail(w, err)
		return
	}
	answer := &credentialspb.GenerateAccessTokenResponse{
		AccessToken: c.issue(email, asked.Scope),
		ExpireTime:  timestamppb.New(time.Now().Add(lifetime)),
	}
	text, _ := protojson.Marshal(answer)
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Write(text)
}

func (c *cloud) metadataToken(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Metadata-Flavor", "Google")
	if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	}
	c.oauth(w, func() (map[string]any, error) {
		given := c.issue(nodeAccount, []string{cloudPlatform})
		return map[string]any{"access_token": given, "expires_in": 3599, "token_type": "Bearer"}, nil
	})
}
