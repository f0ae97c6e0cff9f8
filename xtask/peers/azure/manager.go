package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/authorization/armauthorization/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources"
)

// The suffix that Microsoft's fake servers give to the path of a further page.
var furtherPage = regexp.MustCompile(`/fake_page_(\d+)$`)

// What a request may ask for beside the version.
var parameters = map[string]bool{"api-version": true, "$filter": true, "$expand": true, "forceDeletion": true}

// Azure Resource Manager.
type manager struct {
	cloud  *cloud
	routes []route
}

// One call of the interface, as Microsoft's client makes it.
type route struct {
	// The client's name for it.
	name, method, version string
	// The right that it takes.
	action string
	// The path with placeholders, and what it looks like with any case, as Resource Manager takes it.
	template string
	path     *regexp.Regexp
}

// Notes a request instead of sending it.
type notebook struct{ noted *http.Request }

var errNoted = errors.New("noted")

func (n *notebook) Do(request *http.Request) (*http.Response, error) {
	n.noted = request
	return nil, errNoted
}

func newManager(c *cloud) (*manager, error) {
	m := &manager{cloud: c}
	ctx, notes := context.Background(), &notebook{}
	options := &arm.ClientOptions{
		ClientOptions:         policy.ClientOptions{Transport: notes, Retry: policy.RetryOptions{MaxRetries: -1}},
		DisableRPRegistration: true,
	}
	credential := &fake.TokenCredential{}
	compute, err := armcompute.NewClientFactory("{S}", credential, options)
	if err != nil {
		return nil, err
	}
	resources, err := armresources.NewClientFactory("{S}", credential, options)
	if err != nil {
		return nil, err
	}
	authorization, err := armauthorization.NewClientFactory("{S}", credential, options)
	if err != nil {
		return nil, err
	}
	for _, call := range []struct {
		action string
		make   func() error
	}{
		{vmType + "/read", func() error {
			_, err := compute.NewVirtualMachinesClient().Get(ctx, "{G}", "{N}", nil)
			return err
		}},
		{vmType + "/delete", func() error {
			_, err := compute.NewVirtualMachinesClient().BeginDelete(ctx, "{G}", "{N}", nil)
			return err
		}},
		{diskType + "/read", func() error {
			_, err := compute.NewDisksClient().Get(ctx, "{G}", "{N}", nil)
			return err
		}},
		{diskType + "/delete", func() error {
			_, err := compute.NewDisksClient().BeginDelete(ctx, "{G}", "{N}", nil)
			return err
		}},
		{"Microsoft.Resources/subscriptions/resourceGroups/resources/read", func() error {
			_, err := resources.NewClient().NewListByResourceGroupPager("{G}", nil).NextPage(ctx)
			return err
		}},
		{"Microsoft.Authorization/permissions/read", func() error {
			_, err := authorization.NewPermissionsClient().NewListForResourceGroupPager("{G}", nil).NextPage(ctx)
			return err
		}},
	} {
		if err := call.make(); !errors.Is(err, errNoted) {
			return nil, fmt.Errorf("Microsoft's client made no request: %w", err)
		}
		r, err := read(notes.noted, call.action)
		if err != nil {
			return nil, err
		}
		m.routes = append(m.routes, r)
	}
	return m, nil
}

func read(noted *http.Request, action string) (route, error) {
	name, _ := noted.Context().Value(runtime.CtxAPINameKey{}).(string)
	template := noted.URL.Path
	pattern := regexp.QuoteMeta(template)
	for _, placeholder := range []string{"S", "G", "N"} {
		pattern = strings.Replace(pattern, regexp.QuoteMeta("{"+placeholder+"}"), "(?P<"+placeholder+">[^/]+)", 1)
	}
	path, err := regexp.Compile("(?i)^" + pattern + "$")
	version := noted.URL.Query().Get("api-version")
	return route{name: name, method: noted.Method, version: version, action: action, template: template, path: path}, err
}

func (m *manager) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	m.cloud.Lock()
	defer m.cloud.Unlock()
	out.Header().Set("x-ms-request-id", newID())
	out.Header().Set("x-ms-correlation-request-id", newID())
	answer, failure := m.answer(request)
	if failure != nil {
		failure.write(out)
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusAccepted {
		operation := m.cloud.address + "/subscriptions/operations/" + newID()
		out.Header().Set("Azure-AsyncOperation", operation+"?api-version=2024-07-01")
		out.Header().Set("Location", operation+"?monitor=true&api-version=2024-07-01")
		out.Header().Set("Retry-After", "1")
		out.WriteHeader(http.StatusAccepted)
		return
	}
	if kind := answer.Header.Get("Content-Type"); kind != "" && answer.StatusCode != http.StatusNoContent {
		out.Header().Set("Content-Type", kind+"; charset=utf-8")
	}
	out.WriteHeader(answer.StatusCode)
	if answer.StatusCode != http.StatusNoContent {
		// A caller that went away reads no answer.
		_, _ = io.Copy(out, answer.Body)
	}
}

// The checks in Resource Manager's order: the path, the version, the token, the subscription, its tenant, the right, the group.
func (m *manager) answer(request *http.Request) (*http.Response, *refusal) {
	path, page := request.URL.Path, 0
	if further := furtherPage.FindStringSubmatch(path); further != nil {
		page, _ = strconv.Atoi(further[1])
		path = furtherPage.ReplaceAllString(path, "")
	}
	r, names := m.route(request.Method, path)
	if r == nil {
		return nil, refuse(404, "InvalidResourceType", "there is no %s %s", request.Method, path)
	}
	for name := range request.URL.Query() {
		if !parameters[name] {
			return nil, refuse(400, "InvalidQueryParameter", "the parameter %s is not known", name)
		}
	}
	if version := request.URL.Query().Get("api-version"); version == "" {
		return nil, refuse(400, "MissingApiVersionParameter", "the parameter api-version is missing")
	} else if version != r.version {
		return nil, refuse(400, "InvalidApiVersionParameter", "%s is not the version %s", version, r.version)
	}
	caller, failure := m.cloud.authenticate(request.Header.Get("Authorization"))
	if failure != nil {
		return nil, failure
	}
	s := m.cloud.subscriptions[strings.ToLower(names["S"])]
	if s == nil {
		return nil, refuse(404, "SubscriptionNotFound", "The subscription '%s' could not be found.", names["S"])
	}
	if s.tenant != caller.Tenant {
		return nil, refuse(401, "InvalidAuthenticationTokenTenant", "The access token is from the wrong issuer.")
	}
	g := s.groups[strings.ToLower(names["G"])]
	if !caller.may(r.action) || g.refuses(names["N"]) {
		return nil, refuse(403, "AuthorizationFailed", "The client '%s' does not have authorization to perform action '%s'.",
			caller.Client, r.action)
	}
	if g == nil {
		return nil, refuse(404, "ResourceGroupNotFound", "Resource group '%s' could not be found.", names["G"])
	}
	return m.dispatch(request, r, names, &call{m.cloud, caller, g}, page)
}

func (m *manager) dispatch(request *http.Request, r *route, names map[string]string, c *call, page int) (*http.Response, *refusal) {
	// Microsoft's fake servers know one spelling alone.
	path := r.template
	for name, value := range names {
		path = strings.Replace(path, "{"+name+"}", value, 1)
	}
	// They answer on another goroutine, and leave it behind if the request's context ends. It would then use the cloud unlocked.
	ctx := context.WithoutCancel(request.Context())
	request = request.Clone(context.WithValue(ctx, runtime.CtxAPINameKey{}, r.name))
	request.URL.Scheme, request.URL.Host, request.URL.Path, request.URL.RawPath = "http", request.Host, path, ""
	client, _, _ := strings.Cut(r.name, ".")
	server := c.server(client)
	answer, err := server.Do(request)
	for ; page > 0 && err == nil; page-- {
		answer, err = server.Do(request)
	}
	var failed *azcore.ResponseError
	if errors.As(err, &failed) {
		return nil, refuse(failed.StatusCode, failed.ErrorCode, "The request on '%s' failed.", names["N"])
	}
	if err != nil {
		return nil, refuse(500, "InternalServerError", "%s", err)
	}
	return answer, nil
}

func (m *manager) route(method, path string) (*route, map[string]string) {
	for i := range m.routes {
		r := &m.routes[i]
		match := r.path.FindStringSubmatch(path)
		if match == nil || r.method != method {
			continue
		}
		names := map[string]string{}
		for index, name := range r.path.SubexpNames()[1:] {
			names[name] = match[index+1]
		}
		return r, names
	}
	return nil, nil
}

// An error as Resource Manager writes it.
type refusal struct {
	status        int
	code, message string
}

func refuse(status int, code, format string, values ...any) *refusal {
	return &refusal{status, code, fmt.Sprintf(format, values...)}
}

func (r *refusal) write(out http.ResponseWriter) {
	out.Header().Set("x-ms-failure-cause", "gateway")
	out.Header().Set("Content-Type", "application/json; charset=utf-8")
	out.WriteHeader(r.status)
	// A caller that went away reads no answer.
	_ = json.NewEncoder(out).Encode(map[string]any{"error": map[string]string{"code": r.code, "message": r.message}})
}
