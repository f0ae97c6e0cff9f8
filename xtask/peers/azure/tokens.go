package main

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

// How long a token is good for.
const tokenTime = time.Hour

// The way in which a federated token is handed over.
const jwtBearer = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

// Who may have tokens, and what it may do.
type principal struct {
	Tenant, Client string
	// Its secret. Empty: it has none.
	Secret string
	// Whether it is the managed identity of the VM that asks.
	Managed             bool
	Actions, NotActions []string
}

type token struct {
	principal *principal
	audience  string
	expires   time.Time
}

// A token of a cluster, which stands for a principal.
type assertion struct {
	client  string
	expires time.Time
}

func newID() string {
	text := strings.ToLower(rand.Text() + rand.Text())
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:32]
}

// Whether a role of the principal contains this action.
func (p *principal) may(action string) bool {
	return matches(p.Actions, action) && !matches(p.NotActions, action)
}

func matches(patterns []string, action string) bool {
	for _, pattern := range patterns {
		// A star stands for slashes as well.
		pattern, action := flat(pattern), flat(action)
		if ok, _ := path.Match(pattern, action); ok {
			return true
		}
	}
	return false
}

func flat(action string) string {
	return strings.ReplaceAll(strings.ToLower(action), "/", "|")
}

// Who shows this header.
func (c *cloud) authenticate(header string) (*principal, *refusal) {
	text, isBearer := strings.CutPrefix(header, "Bearer ")
	if !isBearer {
		return nil, refuse(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
	}
	t, known := c.tokens[text]
	switch {
	case !known:
		return nil, refuse(401, "InvalidAuthenticationToken", "The access token is invalid.")
	case time.Now().After(t.expires):
		return nil, refuse(401, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current UTC time.")
	case t.audience != c.address:
		return nil, refuse(401, "InvalidAuthenticationTokenAudience", "The access token has been obtained for wrong audience '%s'.",
			t.audience)
	}
	return t.principal, nil
}

func (c *cloud) newToken(p *principal, audience string) string {
	text := "token-" + newID()
	c.tokens[text] = token{p, audience, time.Now().Add(tokenTime)}
	return text
}

// The client credentials flow of the endpoint for tokens.
func (c *cloud) issueToken(out http.ResponseWriter, request *http.Request) {
	c.Lock()
	defer c.Unlock()
	if request.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || request.ParseForm() != nil {
		denied(out, 400, "invalid_request", "AADSTS900144: The request body is no form.", 900144)
		return
	}
	form, tenant := request.PostForm, request.PathValue("tenant")
	if form.Get("grant_type") != "client_credentials" {
		denied(out, 400, "unsupported_grant_type", "AADSTS70003: The app requested an unsupported grant type.", 70003)
		return
	}
	audience, isDefault := strings.CutSuffix(form.Get("scope"), "/.default")
	if !isDefault {
		denied(out, 400, "invalid_scope", "AADSTS1002012: The provided value for scope is not valid.", 1002012)
		return
	}
	p := c.principals[form.Get("client_id")]
	if !c.hasTenant(tenant) {
		denied(out, 400, "invalid_request", "AADSTS90002: Tenant '"+tenant+"' not found.", 90002)
		return
	}
	if p == nil || p.Tenant != tenant {
		denied(out, 400, "unauthorized_client", "AADSTS700016: Application was not found in the directory.", 700016)
		return
	}
	if secret := form.Get("client_secret"); secret != "" || form.Get("client_assertion") == "" {
		if secret == "" || secret != p.Secret {
			denied(out, 401, "invalid_client", "AADSTS7000215: Invalid client secret provided.", 7000215)
			return
		}
	} else if a := c.assertions[form.Get("client_assertion")]; form.Get("client_assertion_type") != jwtBearer || a.client != p.Client {
		denied(out, 401, "invalid_client", "AADSTS70021: No matching federated identity record found for presented assertion.", 70021)
		return
	} else if time.Now().After(a.expires) {
		denied(out, 401, "invalid_client", "AADSTS700024: Client assertion is not within its valid time range.", 700024)
		return
	}
	reply(out, 200, map[string]any{
		"token_type": "Bearer", "expires_in": int(tokenTime.Seconds()), "ext_expires_in": int(tokenTime.Seconds()),
		"access_token": c.newToken(p, audience),
	})
}

// The metadata service of a VM, which gives tokens of its managed identity.
func (c *cloud) issueIdentityToken(out http.ResponseWriter, request *http.Request) {
	c.Lock()
	defer c.Unlock()
	query := request.URL.Query()
	if request.Header.Get("Metadata") != "true" {
		denied(out, 400, "invalid_request", "Required metadata header not specified", 0)
		return
	}
	if query.Get("api-version") != "2018-02-01" || query.Get("resource") == "" {
		denied(out, 400, "invalid_request", "Required parameter not specified: resource and api-version", 0)
		return
	}
	for _, p := range c.principals {
		if asked := query.Get("client_id"); p.Managed && (asked == "" || asked == p.Client) {
			expires := time.Now().Add(tokenTime)
			resource := strings.TrimSuffix(query.Get("resource"), "/")
			// All of them are text here.
			reply(out, 200, map[string]any{
				"access_token": c.newToken(p, resource), "client_id": p.Client, "token_type": "Bearer", "resource": resource,
				"expires_in": strconv.Itoa(int(tokenTime.Seconds())), "expires_on": strconv.FormatInt(expires.Unix(), 10),
			})
			return
		}
	}
	denied(out, 400, "invalid_request", "Identity not found", 0)
}

func (c *cloud) hasTenant(tenant string) bool {
	for _, p := range c.principals {
		if p.Tenant == tenant {
			return true
		}
	}
	return false
}

func denied(out http.ResponseWriter, status int, failure, description string, code int) {
	body := map[string]any{"error": failure, "error_description": description}
	if code != 0 {
		body["error_codes"] = []int{code}
	}
	reply(out, status, body)
}

func reply(out http.ResponseWriter, status int, body any) {
	out.Header().Set("Content-Type", "application/json; charset=utf-8")
	out.WriteHeader(status)
	// A caller that went away reads no answer.
	_ = json.NewEncoder(out).Encode(body)
}
