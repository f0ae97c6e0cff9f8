package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (call *call) isHere(account, region string) bool {
	return account == call.key.Account && region == call.region
}

// The instances that the caller is shown, all of which are looked at.
func (call *call) shown(wanted func(*instance) bool) []*instance {
	var shown []*instance
	for _, i := range slices.Clone(call.instances) {
		isShown := call.isHere(i.Account, i.Region) && i.behavior != hidden && wanted(i)
		if isShown && !call.look(i) {
			shown = append(shown, i)
		}
	}
	return shown
}

// A page of things, and the token of the next one.
func page[T any](call *call, all []T) ([]T, string) {
	size, _ := strconv.Atoi(call.query.Get("MaxResults"))
	if size == 0 {
		size = 10
	}
	if call.pageSize > 0 {
		size = min(size, call.pageSize)
	}
	start, _ := strconv.Atoi(strings.TrimPrefix(call.query.Get("NextToken"), "from-"))
	start = min(start, len(all))
	if end := start + size; end < len(all) {
		return all[start:end], "from-" + strconv.Itoa(end)
	}
	return all[start:], ""
}

func (call *call) describeInstances() answer {
	wanted := func(*instance) bool { return true }
	if text := call.query.Get("InstanceIds"); text != "" {
		var ids []string
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			return problem(http.StatusBadRequest, "InvalidInstanceIds.Malformed", "The specified InstanceIds is malformed.")
		}
		for _, i := range call.instances {
			if i.behavior == unauthorized && slices.Contains(ids, i.id) {
				return forbidden()
			}
		}
		wanted = func(i *instance) bool { return slices.Contains(ids, i.id) }
	} else if name := call.query.Get("InstanceName"); name != "" {
		begin, isPattern := strings.CutSuffix(name, "*")
		wanted = func(i *instance) bool { return i.Name == name || isPattern && strings.HasPrefix(i.Name, begin) }
	}
	found, token := page(call, call.shown(wanted))
	return instancesAnswer(call.describe(found), token)
}

// What cloud-api-adaptor tags every instance with.
var tag = map[string]any{"TagKey": "cluster", "TagValue": "test"}

func (call *call) describe(instances []*instance) []any {
	var described []any
	for _, i := range instances {
		interfaces := []any{map[string]any{"NetworkInterfaceId": newID("eni-"), "Type": "Primary", "PrimaryIpAddress": "10.0.0.1"}}
		for _, n := range call.nics {
			if n.instance == i.id {
				interfaces = append(interfaces, map[string]any{"NetworkInterfaceId": n.id, "Type": "Secondary"})
			}
		}
		locks := []any{}
		if i.Locked {
			locks = append(locks, map[string]any{"LockReason": "security"})
		}
		described = append(described, map[string]any{
			"InstanceId": i.id, "InstanceName": i.Name, "Status": i.status, "RegionId": i.Region,
			"CreationTime":      i.created.UTC().Format("2006-01-02T15:04Z"),
			"Tags":              map[string]any{"Tag": []any{tag}},
			"NetworkInterfaces": map[string]any{"NetworkInterface": interfaces},
			"OperationLocks":    map[string]any{"LockReason": locks},
		})
	}
	return described
}

func instancesAnswer(instances []any, token string) answer {
	if instances == nil {
		instances = []any{}
	}
	return answerOf(http.StatusOK, map[string]any{
		"RequestId": newID(""), "Instances": map[string]any{"Instance": instances}, "NextToken": token,
		"PageNumber": 1, "PageSize": 10, "TotalCount": len(instances),
	})
}

func (call *call) describeInstanceAttribute() answer {
	found := call.shown(func(i *instance) bool { return i.id == call.query.Get("InstanceId") })
	if len(found) == 0 {
		return noInstance()
	}
	if found[0].behavior == unauthorized {
		return forbidden()
	}
	return answerOf(http.StatusOK, map[string]any{
		"RequestId": newID(""), "InstanceId": found[0].id, "InstanceName": found[0].Name, "Status": found[0].status,
	})
}

func noInstance() answer {
	return problem(http.StatusNotFound, "InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
}

func (call *call) deleteInstance() answer {
	i := call.find(call.query.Get("InstanceId"))
	switch {
	case i == nil || !call.isHere(i.Account, i.Region) || i.behavior == hidden:
		return noInstance()
	case i.behavior == unauthorized || !slices.Contains(call.key.Actions, "ecs:DeleteInstance"):
		return forbidden()
	case call.query.Get("DryRun") == "true":
		return problem(http.StatusBadRequest, "DryRunOperation", "Request validation has been passed with DryRun flag set.")
	case i.status == "Stopping", i.status == "Running" && call.query.Get("Force") != "true":
		return problem(http.StatusForbidden, "IncorrectInstanceStatus", "The current status of the resource does not support this operation.")
	}
	i.status, i.looks = "Stopping", 1
	return done()
}

func (call *call) describeNetworkInterfaces() answer {
	name, status := call.query.Get("NetworkInterfaceName"), call.query.Get("Status")
	var found []*nic
	for _, n := range call.nics {
		if call.isHere(n.account, n.region) && (name == "" || n.name == name) && (status == "" || n.status == status) {
			found = append(found, n)
		}
	}
	found, token := page(call, found)
	sets := []any{}
	for _, n := range found {
		sets = append(sets, map[string]any{
			"NetworkInterfaceId": n.id, "NetworkInterfaceName": n.name, "Status": n.status, "Type": "Secondary", "InstanceId": n.instance,
			"CreationTime": n.created.UTC().Format(time.RFC3339),
		})
	}
	return answerOf(http.StatusOK, map[string]any{
		"RequestId": newID(""), "NetworkInterfaceSets": map[string]any{"NetworkInterfaceSet": sets}, "NextToken": token,
	})
}

func (call *call) deleteNetworkInterface() answer {
	for _, n := range call.nics {
		if n.id != call.query.Get("NetworkInterfaceId") || !call.isHere(n.account, n.region) {
			continue
		}
		if !slices.Contains(call.key.Actions, "ecs:DeleteNetworkInterface") {
			return forbidden()
		}
		if n.status != "Available" || call.isHeld(n.made) {
			return problem(http.StatusBadRequest, "InvalidOperation.InvalidEniState", "The operation is not allowed in the current status.")
		}
		call.free(n)
		call.nics = slices.DeleteFunc(call.nics, func(other *nic) bool { return other == n })
		return done()
	}
	return problem(http.StatusNotFound, "InvalidEniId.NotFound", "The specified eni id is not found.")
}
