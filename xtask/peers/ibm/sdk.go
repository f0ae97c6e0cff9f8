package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
)

// Headers in which a library says which one it is, or gives a request a number. Their values may differ.
var ofLibrary = map[string]bool{"User-Agent": true, "X-Ibmcloud-Sdk-Analytics": true, "X-Request-Id": true}

// Notes what a library sends, and answers in the place of a server.
type notebook struct {
	noted  *http.Request
	body   string
	answer answer
}

// What a request is answered.
type answer struct {
	status int
	body   []byte
}

func (n *notebook) RoundTrip(request *http.Request) (*http.Response, error) {
	n.noted = request
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		n.body = string(body)
	}
	return &http.Response{
		StatusCode: n.answer.status,
		Status:     http.StatusText(n.answer.status),
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(n.answer.body)),
		Request:    request,
	}, nil
}

func (n *notebook) client() *http.Client {
	return &http.Client{Transport: n}
}

// Says what in a request is not as the library sends it for the same call.
func (n *notebook) judge(request *http.Request, body string) error {
	if n.noted == nil {
		return errors.New("the library sends no such request")
	}
	if request.Method != n.noted.Method || request.RequestURI != n.noted.URL.RequestURI() {
		return fmt.Errorf("%s %s instead of %s %s", request.Method, request.RequestURI, n.noted.Method, n.noted.URL.RequestURI())
	}
	if !isSame(body, n.body) {
		return fmt.Errorf("the body %q instead of %q", body, n.body)
	}
	if request.UserAgent() == "" {
		return errors.New("the header User-Agent is missing")
	}
	for name := range n.noted.Header {
		if given, expected := request.Header.Get(name), n.noted.Header.Get(name); !ofLibrary[name] && given != expected {
			return fmt.Errorf("%s: %s instead of %s", name, given, expected)
		}
	}
	return nil
}

// Whether two bodies are the same. IBM's libraries do not agree on the spaces in JSON.
func isSame(given, expected string) bool {
	var one, other any
	areJSON := json.Unmarshal([]byte(given), &one) == nil && json.Unmarshal([]byte(expected), &other) == nil
	return given == expected || areJSON && reflect.DeepEqual(one, other)
}
