package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
)

// Prints how the library signs the examples of the unit tests in src/provider/alibabacloud/tests.rs: with a key, and with the temporary
// key of a role.
func record(notes *notebook) {
	const query = "InstanceIds=%5B%22i-2zebgzk74po3gx1dwvuo%22%5D&InstanceName=podvm-%2A&RegionId=cn-beijing"
	request := httptest.NewRequest(http.MethodPost, "http://ecs.cn-beijing.aliyuncs.com/?"+query, nil)
	for name, value := range map[string]string{
		"x-acs-action": "DescribeInstances", "x-acs-date": "2026-11-23T06:00:00Z",
		"x-acs-signature-nonce": "0123456789abcdef0123456789abcdef",
	} {
		request.Header.Set(name, value)
	}
	for _, token := range []string{"", "token"} {
		// It is not answered as it should be.
		_ = notes.send(request, &key{ID: "id", Secret: "secret", Token: token}, answer{http.StatusInternalServerError, []byte("{}")})
		fmt.Println(notes.noted.URL)
		fmt.Println(notes.noted.Header.Get("Authorization"))
	}
}
