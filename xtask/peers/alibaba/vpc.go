package main

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Whether what belongs to this instance cannot be deleted now.
func (c *cloud) isHeld(instance string) bool {
	return slices.Contains(c.held, instance)
}

func (call *call) describeEipAddresses() answer {
	// One that is being released, or taken from its interface, is seen once more.
	for _, a := range slices.Clone(call.addresses) {
		if a.status != "Releasing" && a.status != "Unassociating" {
			continue
		}
		if a.looks--; a.looks < 0 && a.status == "Unassociating" {
			a.status, a.nic = "Available", ""
		} else if a.looks < 0 {
			call.addresses = slices.DeleteFunc(call.addresses, func(other *address) bool { return other == a })
		}
	}
	size, _ := strconv.Atoi(call.query.Get("PageSize"))
	if size == 0 {
		size = 10
	}
	if call.pageSize > 0 {
		size = min(size, call.pageSize)
	}
	number, _ := strconv.Atoi(call.query.Get("PageNumber"))
	number = max(number, 1)
	is := func(name, value string) bool { return call.query.Get(name) == "" || call.query.Get(name) == value }
	found := []any{}
	for _, a := range call.addresses {
		kind := ""
		if a.nic != "" {
			kind = "NetworkInterface"
		}
		if call.isHere(a.account, a.region) && is("AllocationId", a.id) && is("EipName", a.name) && is("Status", a.status) &&
			is("AssociatedInstanceId", a.nic) && is("AssociatedInstanceType", kind) {
			found = append(found, map[string]any{
				"AllocationId": a.id, "Name": a.name, "Descritpion": a.description, "Description": a.description,
				"ChargeType": a.charge, "Status": a.status, "InstanceId": a.nic, "InstanceType": kind, "RegionId": a.region,
				"AllocationTime": a.created.UTC().Format(time.RFC3339),
			})
		}
	}
	total, start := len(found), min((number-1)*size, len(found))
	return answerOf(http.StatusOK, map[string]any{
		"RequestId": newID(""), "EipAddresses": map[string]any{"EipAddress": found[start:min(start+size, total)]},
		"PageNumber": number, "PageSize": size, "TotalCount": total,
	})
}

// Does this with the address that a call names, if the caller may.
func (call *call) change(right string, act func(*address) answer) answer {
	for _, a := range call.addresses {
		if a.id == call.query.Get("AllocationId") && call.isHere(a.account, a.region) {
			if !slices.Contains(call.key.Actions, right) {
				return forbidden()
			}
			return act(a)
		}
	}
	return problem(http.StatusNotFound, "InvalidAllocationId.NotFound", "Specified allocation ID is not found.")
}

func incorrectStatus() answer {
	return problem(http.StatusBadRequest, "IncorrectEipStatus", "Current elastic IP status does not support this operation.")
}

func (call *call) modifyEipAddressAttribute() answer {
	return call.change("vpc:ModifyEipAddressAttribute", func(a *address) answer {
		name := call.query.Get("Name")
		if name == "" || len(name) > 128 || strings.HasPrefix(name, "http") {
			return problem(http.StatusBadRequest, "InvalidName.Malformed", "The specified Name is not valid.")
		}
		a.name = name
		return done()
	})
}

func (call *call) unassociateEipAddress() answer {
	return call.change("vpc:UnassociateEipAddress", func(a *address) answer {
		if a.status != "InUse" || call.query.Get("InstanceId") != a.nic || call.query.Get("InstanceType") != "NetworkInterface" {
			return incorrectStatus()
		}
		a.status, a.looks = "Unassociating", 1
		return done()
	})
}

func (call *call) releaseEipAddress() answer {
	return call.change("vpc:ReleaseEipAddress", func(a *address) answer {
		switch {
		case a.status != "Available" || call.isHeld(a.made):
			return incorrectStatus()
		case a.charge != "PostPaid":
			return problem(http.StatusBadRequest, "Forbidden.ChargeTypeIsPrepaid", "It's forbidden to release a prepaid EIP.")
		}
		a.status, a.looks = "Releasing", 1
		return done()
	})
}
