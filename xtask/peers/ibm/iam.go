package main

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/IBM/go-sdk-core/v5/core"
)

// The endpoint for tokens.
func (c *cloud) issueToken(out http.ResponseWriter, request *http.Request) {
	c.Lock()
	defer c.Unlock()
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		reply(out, noToken("BXNIM0109E", err.Error()))
		return
	}
	notes := &notebook{answer: answer{http.StatusInternalServerError, []byte("{}")}}
	if _, err := requestToken(notes, form); err == nil {
		err = errors.New("the library takes a failure for a token")
	}
	if err := notes.judge(request, string(body)); err != nil {
		reply(out, noToken("BXNIM0109E", "unlike IBM's library: "+err.Error()))
		return
	}
	p := c.holder(form)
	if p == nil {
		reply(out, noToken("BXNIM0415E", "Provided API key could not be found."))
		return
	}
	notes.answer = answerOf(http.StatusOK, map[string]any{
		"access_token": c.newToken(p), "refresh_token": "not_supported", "token_type": "Bearer",
		"expires_in": int(tokenTime.Seconds()), "scope": "ibm openid",
	})
	if read, err := requestToken(notes, form); err != nil || read.AccessToken == "" || read.ExpiresIn == 0 {
		http.Error(out, "IBM's library cannot read the answer", http.StatusInternalServerError)
		return
	}
	reply(out, notes.answer)
}

// Has the library ask for a token by what is in a form.
func requestToken(notes *notebook, form url.Values) (*core.IamTokenServerResponse, error) {
	if form.Get("profile_id") == "" {
		key := &core.IamAuthenticator{ApiKey: form.Get("apikey"), URL: "http://iam.example", Client: notes.client()}
		return key.RequestToken()
	}
	file, err := os.CreateTemp("", "token")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if _, err = file.WriteString(form.Get("cr_token")); err != nil {
		return nil, err
	}
	profile := &core.ContainerAuthenticator{
		CRTokenFilename: file.Name(), IAMProfileID: form.Get("profile_id"), URL: "http://iam.example", Client: notes.client(),
	}
	return profile.RequestToken()
}

// Whom a form stands for.
func (c *cloud) holder(form url.Values) *principal {
	for _, p := range c.principals {
		isKey := p.Key != "" && p.Key == form.Get("apikey")
		isProfile := p.Profile != "" && p.Profile == form.Get("profile_id") && p.Subject == form.Get("cr_token")
		if isKey || isProfile {
			return p
		}
	}
	return nil
}

func noToken(code, message string) answer {
	return answerOf(http.StatusBadRequest, map[string]any{
		"errorCode": code, "errorMessage": message, "context": map[string]string{"requestId": newID()},
	})
}
