package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	openapi "github.com/alibabacloud-go/darabonba-openapi/v2/client"
	ecs "github.com/alibabacloud-go/ecs-20140526/v4/client"
	sts "github.com/alibabacloud-go/sts-20150401/v2/client"
	util "github.com/alibabacloud-go/tea-utils/v2/service"
	"github.com/alibabacloud-go/tea/tea"
	vpc "github.com/alibabacloud-go/vpc-20160428/v6/client"
)

// What a request is answered.
type answer struct {
	status int
	body   []byte
}

// Notes what a library sends, and answers in the place of a server: it is the proxy of the library.
type notebook struct {
	url    string
	noted  *http.Request
	body   string
	answer answer
}

func newNotebook() (*notebook, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	notes := &notebook{url: "http://" + listener.Addr().String()}
	server := &http.Server{Handler: notes, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return notes, nil
}

func (n *notebook) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	n.noted, n.body = request, string(body)
	reply(out, n.answer)
}

// Has the library send the call that a request is for, with this key, and answers it so. Gives what the library makes of the answer.
func (n *notebook) send(request *http.Request, key *key, given answer) (err error) {
	// The libraries panic at answers that they do not understand.
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("the library panics: %v", problem)
		}
	}()
	n.noted, n.body, n.answer = nil, "", given
	config := &openapi.Config{
		Protocol: tea.String("HTTP"), Endpoint: tea.String(request.Host), HttpProxy: tea.String(n.url), RegionId: tea.String("any"),
	}
	if key != nil {
		config.AccessKeyId, config.AccessKeySecret = tea.String(key.ID), tea.String(key.Secret)
		config.SecurityToken = tea.String(key.Token)
	}
	runtime := &util.RuntimeOptions{ExtendsParameters: &util.ExtendsParameters{Headers: map[string]*string{
		"x-acs-date":            tea.String(request.Header.Get("x-acs-date")),
		"x-acs-signature-nonce": tea.String(request.Header.Get("x-acs-signature-nonce")),
	}}}
	parameters := map[string]any{}
	for name, values := range request.URL.Query() {
		parameters[name] = values[0]
	}
	call, known := operations[request.Header.Get("x-acs-action")]
	if !known {
		return errors.New("this cloud has no such action")
	}
	return call.send(config, parameters, runtime)
}

// Says what in a request is not as the library sends it for the same call.
func (n *notebook) judge(request *http.Request, body string) error {
	if n.noted == nil {
		return errors.New("the library sends no such request")
	}
	if request.Method != n.noted.Method || request.URL.Path != n.noted.URL.Path || request.URL.RawQuery != n.noted.URL.RawQuery {
		return fmt.Errorf("%s %s instead of %s %s", request.Method, request.URL, n.noted.Method, n.noted.URL)
	}
	if request.Host != n.noted.Host || body != n.body {
		return fmt.Errorf("%s, %q instead of %s, %q", request.Host, body, n.noted.Host, n.body)
	}
	names := map[string]bool{"Accept": true, "Authorization": true, "Content-Type": true}
	for _, headers := range []http.Header{request.Header, n.noted.Header} {
		for name := range headers {
			names[name] = names[name] || strings.HasPrefix(name, "X-Acs-")
		}
	}
	for name, counts := range names {
		if given, expected := request.Header.Get(name), n.noted.Header.Get(name); counts && given != expected {
			return fmt.Errorf("%s: %s instead of %s", name, given, expected)
		}
	}
	return nil
}

// How a call is sent by a library, and how it is answered.
type operation struct {
	version string
	// The right that it takes; empty for none.
	right string
	send  func(*openapi.Config, map[string]any, *util.RuntimeOptions) error
	act   func(*call) answer
}

// An operation that a typed method of a library sends.
func typed[Client, Request, Response any](
	service, action, version string,
	open func(*openapi.Config) (*Client, error),
	method func(*Client, *Request, *util.RuntimeOptions) (*Response, error),
	act func(*call) answer,
) operation {
	send := func(config *openapi.Config, parameters map[string]any, runtime *util.RuntimeOptions) error {
		client, err := open(config)
		if err != nil {
			return err
		}
		request := new(Request)
		if err := tea.Convert(parameters, request); err != nil {
			return err
		}
		_, err = method(client, request, runtime)
		return err
	}
	right := ""
	if service != "" {
		right = service + ":" + action
	}
	return operation{version, right, send, act}
}

var operations = map[string]operation{}

func init() {
	const ecsVersion, vpcVersion, stsVersion = "2014-05-26", "2016-04-28", "2015-04-01"
	operations["DescribeInstances"] = typed("ecs", "DescribeInstances", ecsVersion,
		ecs.NewClient, (*ecs.Client).DescribeInstancesWithOptions, (*call).describeInstances)
	operations["DescribeInstanceAttribute"] = typed("ecs", "DescribeInstanceAttribute", ecsVersion,
		ecs.NewClient, (*ecs.Client).DescribeInstanceAttributeWithOptions, (*call).describeInstanceAttribute)
	operations["DeleteInstance"] = typed("ecs", "DeleteInstance", ecsVersion,
		ecs.NewClient, (*ecs.Client).DeleteInstanceWithOptions, (*call).deleteInstance)
	operations["DescribeNetworkInterfaces"] = typed("ecs", "DescribeNetworkInterfaces", ecsVersion,
		ecs.NewClient, (*ecs.Client).DescribeNetworkInterfacesWithOptions, (*call).describeNetworkInterfaces)
	operations["DeleteNetworkInterface"] = typed("ecs", "DeleteNetworkInterface", ecsVersion,
		ecs.NewClient, (*ecs.Client).DeleteNetworkInterfaceWithOptions, (*call).deleteNetworkInterface)
	operations["DescribeEipAddresses"] = typed("vpc", "DescribeEipAddresses", vpcVersion,
		vpc.NewClient, (*vpc.Client).DescribeEipAddressesWithOptions, (*call).describeEipAddresses)
	operations["ModifyEipAddressAttribute"] = typed("vpc", "ModifyEipAddressAttribute", vpcVersion,
		vpc.NewClient, (*vpc.Client).ModifyEipAddressAttributeWithOptions, (*call).modifyEipAddressAttribute)
	operations["UnassociateEipAddress"] = typed("vpc", "UnassociateEipAddress", vpcVersion,
		vpc.NewClient, (*vpc.Client).UnassociateEipAddressWithOptions, (*call).unassociateEipAddress)
	operations["ReleaseEipAddress"] = typed("vpc", "ReleaseEipAddress", vpcVersion,
		vpc.NewClient, (*vpc.Client).ReleaseEipAddressWithOptions, (*call).releaseEipAddress)
	// This version of the library asks for the signatures of old, unlike the other ones.
	identities := func(config *openapi.Config) (*sts.Client, error) {
		client, err := sts.NewClient(config)
		if err == nil {
			client.SignatureAlgorithm = nil
		}
		return client, err
	}
	operations["AssumeRoleWithOIDC"] = typed("", "AssumeRoleWithOIDC", stsVersion,
		identities, (*sts.Client).AssumeRoleWithOIDCWithOptions, (*call).assumeRole)
	type nothing struct{}
	caller := func(client *sts.Client, _ *nothing, runtime *util.RuntimeOptions) (*sts.GetCallerIdentityResponse, error) {
		return client.GetCallerIdentityWithOptions(runtime)
	}
	operations["GetCallerIdentity"] = typed("", "GetCallerIdentity", stsVersion, identities, caller, (*call).getCallerIdentity)
}
