package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Serves a method of the API with verb and path of Google's own description of it. The method is called with the lock held.
func serve[T any, P interface {
	*T
	proto.Message
}](c *cloud, mux *http.ServeMux, name string, call func(*cloud, P, *account) (proto.Message, error)) {
	service, short, _ := strings.Cut(name, ".")
	services := computepb.File_google_cloud_compute_v1_compute_proto.Services()
	described := services.ByName(protoreflect.Name(service)).Methods().ByName(protoreflect.Name(short))
	rule := proto.GetExtension(described.Options(), annotations.E_Http).(*annotations.HttpRule)
	verb, path := "GET", rule.GetGet()
	switch {
	case rule.GetDelete() != "":
		verb, path = "DELETE", rule.GetDelete()
	case rule.GetPost() != "":
		verb, path = "POST", rule.GetPost()
	}
	mux.HandleFunc(verb+" "+path, func(w http.ResponseWriter, r *http.Request) {
		c.Lock()
		defer c.Unlock()
		answer, err := func() (proto.Message, error) {
			caller, err := c.authenticate(r, "https://www.googleapis.com/auth/compute")
			if err != nil {
				return nil, err
			}
			if err := c.admit(r.PathValue("project"), r.PathValue("zone")); err != nil {
				return nil, err
			}
			asked := P(new(T))
			if err := decode(r, asked, path, rule.GetBody()); err != nil {
				return nil, err
			}
			return call(c, asked, caller)
		}()
		if err != nil {
			fail(w, err)
			return
		}
		text, err := encode(answer, r.URL.Query().Get("fields"))
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		w.Write(text)
	})
}

// Refuses projects and zones that there are not.
func (c *cloud) admit(project, zone string) error {
	if project == c.behavior.Disabled {
		return refuse(403, "accessNotConfigured", "Compute Engine API has not been used in project "+project+" before or it is disabled.")
	}
	if !slices.Contains(projects, project) {
		return refuse(404, "notFound", "The resource 'projects/"+project+"' was not found")
	}
	if zone != "" && !slices.Contains(zones, zone) {
		return refuse(404, "notFound", "The resource 'projects/"+project+"/zones/"+zone+"' was not found")
	}
	return nil
}

// What stands for a value in a path.
var variable = regexp.MustCompile(`\{(\w+)\}`)

// Decodes path, query and body into the type that Google's own client sends.
func decode(r *http.Request, into proto.Message, path, body string) error {
	fields := map[string]json.RawMessage{}
	known := into.ProtoReflect().Descriptor().Fields()
	set := func(field protoreflect.FieldDescriptor, text string) {
		value, _ := json.Marshal(text)
		if field.Kind() == protoreflect.BoolKind {
			value = []byte(text)
		}
		fields[field.JSONName()] = value
	}
	for _, name := range variable.FindAllStringSubmatch(path, -1) {
		set(known.ByName(protoreflect.Name(name[1])), r.PathValue(name[1]))
	}
	for name, values := range r.URL.Query() {
		if name == "fields" {
			continue
		}
		field := known.ByJSONName(name)
		if field == nil || fields[name] != nil || len(values) != 1 {
			return refuse(400, "invalidParameter", "Invalid parameter: "+name)
		}
		set(field, values[0])
	}
	content, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return err
	}
	if body != "" {
		fields[known.ByName(protoreflect.Name(body)).JSONName()] = content
	} else if len(content) != 0 {
		return refuse(400, "badRequest", "The request has a body.")
	}
	whole, err := json.Marshal(fields)
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: false}.Unmarshal(whole, into)
	}
	if err != nil {
		return refuse(400, "parseError", "Invalid JSON payload received: "+err.Error())
	}
	return nil
}

func (a *account) require(permission, path string) error {
	if !a.permissions[permission] {
		return refuse(403, "forbidden", "Required '"+permission+"' permission for '"+path+"'")
	}
	return nil
}

func (c *cloud) shown(at place) (*computepb.Instance, error) {
	found := c.instances[at]
	if found == nil || at.name == c.behavior.Hidden {
		return nil, refuse(404, "notFound", "The resource '"+at.path("instances")+"' was not found")
	}
	return found, nil
}

func getInstance(c *cloud, asked *computepb.GetInstanceRequest, caller *account) (proto.Message, error) {
	at := place{asked.Project, asked.Zone, asked.Instance}
	if err := caller.require("compute.instances.get", at.path("instances")); err != nil {
		return nil, err
	}
	return c.shown(at)
}

func deleteInstance(c *cloud, asked *computepb.DeleteInstanceRequest, caller *account) (proto.Message, error) {
	at := place{asked.Project, asked.Zone, asked.Instance}
	if err := caller.require("compute.instances.delete", at.path("instances")); err != nil {
		return nil, err
	}
	found, err := c.shown(at)
	if err != nil {
		return nil, err
	}
	if found.GetDeletionProtection() {
		return nil, refuse(400, "invalidResourceUsage", "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.")
	}
	if found.GetStatus() == "STOPPING" {
		return nil, refuse(400, "resourceNotReady", "The resource '"+at.path("instances")+"' is not ready")
	}
	found.Status = proto.String("STOPPING")
	c.made++
	name := fmt.Sprintf("operation-%d", c.made)
	op := &computepb.Operation{
		Kind:          proto.String("compute#operation"),
		Id:            proto.Uint64(5_000_000_000_000_000_000 + c.made),
		Name:          proto.String(name),
		OperationType: proto.String("delete"),
		TargetId:      found.Id,
		TargetLink:    found.SelfLink,
		Zone:          found.Zone,
		Status:        computepb.Operation_RUNNING.Enum(),
		Progress:      proto.Int32(0),
		SelfLink:      proto.String("https://www.googleapis.com/compute/v1/" + place{at.project, at.zone, name}.path("operations")),
		InsertTime:    proto.String(time.Now().Format(time.RFC3339)),
	}
	c.operations[place{at.project, at.zone, name}] = &operation{op, at, time.Now().Add(operationTime)}
	return op, nil
}

func getOperation(c *cloud, asked *computepb.GetZoneOperationRequest, caller *account) (proto.Message, error) {
	at := place{asked.Project, asked.Zone, asked.Operation}
	if err := caller.require("compute.zoneOperations.get", at.path("operations")); err != nil {
		return nil, err
	}
	op := c.operations[at]
	if op == nil {
		return nil, refuse(404, "notFound", "The resource '"+at.path("operations")+"' was not found")
	}
	return op.message, nil
}

func testPermissions(c *cloud, asked *computepb.TestIamPermissionsInstanceRequest, caller *account) (proto.Message, error) {
	at := place{asked.Project, asked.Zone, asked.Resource}
	if err := caller.require("compute.instances.list", at.path("instances")); err != nil {
		return nil, err
	}
	if _, err := c.shown(at); err != nil {
		return nil, err
	}
	var granted []string
	for _, permission := range asked.GetTestPermissionsRequestResource().GetPermissions() {
		if caller.permissions[permission] {
			granted = append(granted, permission)
		}
	}
	return &computepb.TestPermissionsResponse{Permissions: granted}, nil
}

// The two kinds of filters that the operator uses, as the API documents them: AIP-160, and a regular expression for all of a field.
var (
	nameEquals  = regexp.MustCompile(`^name = "([^"]*)"$`)
	nameMatches = regexp.MustCompile(`^name eq "([^"]*)"$`)
)

func filter(text string) (func(string) bool, error) {
	if found := nameEquals.FindStringSubmatch(text); found != nil {
		return func(name string) bool { return name == found[1] }, nil
	}
	if found := nameMatches.FindStringSubmatch(text); found != nil {
		if whole, err := regexp.Compile("^(?:" + found[1] + ")$"); err == nil {
			return whole.MatchString, nil
		}
	}
	if text == "" {
		return func(string) bool { return true }, nil
	}
	return nil, refuse(400, "invalid", "Invalid value for field 'filter': '"+text+"'. Invalid list filter expression.")
}

func listInstances(c *cloud, asked *computepb.AggregatedListInstancesRequest, caller *account) (proto.Message, error) {
	if err := caller.require("compute.instances.list", "projects/"+asked.Project); err != nil {
		return nil, err
	}
	matches, err := filter(asked.GetFilter())
	if err != nil {
		return nil, err
	}
	size := usualPage
	if asked.MaxResults != nil {
		size = int(asked.GetMaxResults())
	}
	if c.behavior.PageSize > 0 {
		size = min(size, c.behavior.PageSize)
	}
	first := 0
	if asked.PageToken != nil {
		text, err := base64.StdEncoding.DecodeString(asked.GetPageToken())
		number, sameFilter := strings.CutSuffix(string(text), " "+asked.GetFilter())
		first, _ = strconv.Atoi(number)
		if err != nil || !sameFilter {
			return nil, refuse(400, "invalid", "Invalid value for field 'pageToken': '"+asked.GetPageToken()+"'.")
		}
	}
	answer := &computepb.InstanceAggregatedList{
		Kind:  proto.String("compute#instanceAggregatedList"),
		Id:    proto.String("projects/" + asked.Project + "/aggregated/instances"),
		Items: map[string]*computepb.InstancesScopedList{},
	}
	if c.behavior.Warning != "" {
		answer.Warning = &computepb.Warning{Code: &c.behavior.Warning}
	}
	if c.behavior.Skipped != "" {
		answer.Unreachables = []string{c.behavior.Skipped}
	}
	for _, zone := range zones {
		scope, code := "zones/"+zone, "NO_RESULTS_ON_PAGE"
		if zone == c.behavior.Unreachable {
			code = "UNREACHABLE"
		}
		answer.Items[scope] = &computepb.InstancesScopedList{Warning: &computepb.Warning{
			Code: &code,
			Data: []*computepb.Data{{Key: proto.String("scope"), Value: &scope}},
		}}
	}
	all := slices.SortedFunc(maps.Keys(c.instances), func(a, b place) int {
		return strings.Compare(a.path("instances"), b.path("instances"))
	})
	all = slices.DeleteFunc(all, func(at place) bool {
		unreachable := at.zone == c.behavior.Unreachable || at.zone == c.behavior.Skipped
		return at.project != asked.Project || unreachable || at.name == c.behavior.Hidden
	})
	// As the real one does, it filters what is on a page: pages may be empty, and more may follow.
	for _, at := range all[min(first, len(all)):min(first+size, len(all))] {
		if matches(at.name) {
			scoped := answer.Items["zones/"+at.zone]
			scoped.Warning = nil
			scoped.Instances = append(scoped.Instances, c.instances[at])
		}
	}
	if first+size < len(all) {
		next := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(first+size) + " " + asked.GetFilter()))
		answer.NextPageToken = &next
	}
	return answer, nil
}

// An answer that is no success, in the shape of Google's JSON APIs.
type refusal struct {
	status          int
	reason, message string
}

func (r *refusal) Error() string { return r.message }

func refuse(status int, reason, message string) error { return &refusal{status, reason, message} }

func fail(w http.ResponseWriter, err error) {
	var known *refusal
	if !errors.As(err, &known) {
		known = &refusal{500, "backendError", err.Error()}
	}
	text, _ := json.Marshal(map[string]any{"error": map[string]any{
		"code":    known.status,
		"message": known.message,
		"errors":  []map[string]string{{"message": known.message, "domain": "global", "reason": known.reason}},
	}})
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(known.status)
	w.Write(text)
}
