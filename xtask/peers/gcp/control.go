package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"time"

	"golang.org/x/oauth2/jws"

	"peers/control"
)

// An instance to be made, or one that was.
type order struct {
	Project, Zone, Name, Status string
	UserDisk, Protected         bool
}

func (o order) place() place { return place{o.Project, o.Zone, o.Name} }

// Adds the calls by which a test arranges things.
func (c *cloud) control(routes *http.ServeMux) {
	calls := control.Calls{Routes: routes, Lock: c}
	// Makes a service account, or changes what it may do. Answers with its key, as Google gives it.
	control.Ask(calls, "account", func(asked struct {
		Email, TokenURI string
		Permissions     []string
	}) (any, error) {
		made := c.accounts[asked.Email]
		if made == nil {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				return nil, err
			}
			made = &account{key: key}
			c.accounts[asked.Email] = made
		}
		made.permissions = map[string]bool{}
		for _, permission := range asked.Permissions {
			made.permissions[permission] = true
		}
		der, err := x509.MarshalPKCS8PrivateKey(made.key)
		return map[string]string{
			"type":           "service_account",
			"client_email":   asked.Email,
			"private_key_id": "key-of-" + asked.Email,
			"private_key":    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
			"token_uri":      asked.TokenURI,
		}, err
	})
	// Makes a workload identity pool's provider, which trusts the issuer of the token that it answers with.
	control.Ask(calls, "pool", func(asked struct{ Audience, Subject string }) (any, error) {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, err
		}
		c.pools[asked.Audience] = &key.PublicKey
		now := time.Now()
		claims := &jws.ClaimSet{
			Iss: "https://kubernetes.example", Sub: asked.Subject, Aud: "https:" + asked.Audience,
			Iat: now.Unix(), Exp: now.Add(lifetime).Unix(),
		}
		return jws.Encode(&jws.Header{Algorithm: "RS256", Typ: "JWT"}, claims, key)
	})
	control.Do(calls, "instance", c.make)
	// Removes an instance with the disks that go with it.
	control.Do(calls, "remove", func(o order) { c.forget(o.place()) })
	// What is there of a name: its instance, and all disks with that name in theirs.
	control.Ask(calls, "left", func(o order) (any, error) {
		at := o.place()
		own, data := c.disks[at], c.disks[place{at.project, at.zone, "data-of-" + at.name}]
		return map[string]bool{"instance": c.instances[at] != nil, "disk": own, "user_disk": data}, nil
	})
	control.Do(calls, "behave", func(b behavior) { c.behavior = b })
}
