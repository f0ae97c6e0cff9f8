package main

import (
	"net/http"
	"time"
)

func (call *call) getCallerIdentity() answer {
	return answerOf(http.StatusOK, map[string]any{
		"RequestId": newID(""), "AccountId": call.key.Account, "Arn": "acs:ram::" + call.key.Account + ":user/operator",
		"IdentityType": "RAMUser", "PrincipalId": "2", "UserId": "2",
	})
}

func (call *call) assumeRole() answer {
	for _, r := range call.roles {
		isRole := r.Role == call.query.Get("RoleArn") && r.Provider == call.query.Get("OIDCProviderArn")
		if !isRole || r.Subject != call.query.Get("OIDCToken") || call.query.Get("RoleSessionName") == "" {
			continue
		}
		k := &key{
			ID: newID("STS."), Secret: newID(""), Token: newID("CAIS"), Account: r.Account, Actions: r.Actions,
			expires: time.Now().Add(time.Hour),
		}
		call.keys = append(call.keys, k)
		return answerOf(http.StatusOK, map[string]any{
			"RequestId": newID(""),
			"Credentials": map[string]any{
				"AccessKeyId": k.ID, "AccessKeySecret": k.Secret, "SecurityToken": k.Token,
				"Expiration": k.expires.UTC().Format("2006-01-02T15:04:05Z"),
			},
		})
	}
	return problem(http.StatusBadRequest, "AuthenticationFail.OIDCToken.Invalid", "This JSON Web Token is invalid.")
}
