package main

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/authorization/armauthorization/v2"
	authorization "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/authorization/armauthorization/v2/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	compute "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources"
	resources "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/fake"
)

// So many things are on a page of a list.
const pageSize = 2

// The one filter of lists that this cloud knows.
var nameFilter = regexp.MustCompile(`^substringof\('([^']+)', ?name\)$`)

// What a request is about. The lock of the cloud is held.
type call struct {
	cloud     *cloud
	principal *principal
	group     *group
}

// Microsoft's fake server for that client, with the state of this cloud behind it.
func (c *call) server(client string) policy.Transporter {
	switch client {
	case "VirtualMachinesClient":
		return compute.NewVirtualMachinesServerTransport(&compute.VirtualMachinesServer{Get: c.getVM, BeginDelete: c.deleteVM})
	case "DisksClient":
		return compute.NewDisksServerTransport(&compute.DisksServer{Get: c.getDisk, BeginDelete: c.deleteDisk})
	case "PermissionsClient":
		return authorization.NewPermissionsServerTransport(&authorization.PermissionsServer{
			NewListForResourceGroupPager: c.listPermissions,
		})
	default:
		return resources.NewServerTransport(&resources.Server{NewListByResourceGroupPager: c.listResources})
	}
}

func (c *call) getVM(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientGetOptions) (
	answer fake.Responder[armcompute.VirtualMachinesClientGetResponse], failure fake.ErrorResponder,
) {
	vm := c.shown(vmType, name, &failure)
	if vm == nil {
		return
	}
	if !vm.deleting.IsZero() {
		vm.vm.Properties.ProvisioningState = to.Ptr("Deleting")
	}
	answer.SetResponse(http.StatusOK, armcompute.VirtualMachinesClientGetResponse{VirtualMachine: *vm.vm}, nil)
	return
}

func (c *call) getDisk(_ context.Context, _, name string, _ *armcompute.DisksClientGetOptions) (
	answer fake.Responder[armcompute.DisksClientGetResponse], failure fake.ErrorResponder,
) {
	if r := c.shown(diskType, name, &failure); r != nil {
		disk := armcompute.Disk{ID: to.Ptr(r.id), Name: to.Ptr(r.name), Type: to.Ptr(r.kind), Location: to.Ptr(location)}
		answer.SetResponse(http.StatusOK, armcompute.DisksClientGetResponse{Disk: disk}, nil)
	}
	return
}

// The resource of this type and name, or a refusal.
func (c *call) shown(kind, name string, failure *fake.ErrorResponder) *resource {
	r := c.group.find(kind, name)
	if r == nil || r.behavior == hidden {
		failure.SetResponseError(http.StatusNotFound, "ResourceNotFound")
		return nil
	}
	return r
}

func (c *call) deleteVM(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientBeginDeleteOptions) (
	answer fake.PollerResponder[armcompute.VirtualMachinesClientDeleteResponse], failure fake.ErrorResponder,
) {
	begin(c, vmType, name, &answer, &failure)
	return
}

func (c *call) deleteDisk(_ context.Context, _, name string, _ *armcompute.DisksClientBeginDeleteOptions) (
	answer fake.PollerResponder[armcompute.DisksClientDeleteResponse], failure fake.ErrorResponder,
) {
	begin(c, diskType, name, &answer, &failure)
	return
}

// Accepts a deletion. One of these answers ends the exchange, so that each request comes here.
func begin[T any](c *call, kind, name string, answer *fake.PollerResponder[T], failure *fake.ErrorResponder) {
	r := c.group.find(kind, name)
	var done T
	switch {
	case r == nil:
		answer.SetTerminalResponse(http.StatusNoContent, done, nil)
	case r.behavior == locked:
		failure.SetResponseError(http.StatusConflict, "ScopeLocked")
	case kind == diskType && (r.user != "" || r.behavior == holdsDisk):
		failure.SetResponseError(http.StatusConflict, "OperationNotAllowed")
	default:
		if r.deleting.IsZero() {
			r.deleting = time.Now()
		}
		answer.SetTerminalResponse(http.StatusAccepted, done, nil)
	}
}

func (c *call) listPermissions(_ string, _ *armauthorization.PermissionsClientListForResourceGroupOptions) (
	answer fake.PagerResponder[armauthorization.PermissionsClientListForResourceGroupResponse],
) {
	page := armauthorization.PermissionsClientListForResourceGroupResponse{}
	page.Value = []*armauthorization.Permission{{
		Actions: to.SliceOfPtrs(c.principal.Actions...), NotActions: to.SliceOfPtrs(c.principal.NotActions...),
	}}
	answer.AddPage(http.StatusOK, page, nil)
	return
}

// Lists what the caller may read, but for what the list does not have yet.
func (c *call) listResources(_ string, options *armresources.ClientListByResourceGroupOptions) (
	answer fake.PagerResponder[armresources.ClientListByResourceGroupResponse],
) {
	part := ""
	if options != nil && options.Filter != nil {
		match := nameFilter.FindStringSubmatch(*options.Filter)
		if match == nil {
			answer.AddResponseError(http.StatusBadRequest, "InvalidFilterInQueryString")
			return
		}
		part = match[1]
	}
	expands := func(property string) bool {
		return options != nil && options.Expand != nil && slices.Contains(strings.Split(*options.Expand, ","), property)
	}
	// Resource Manager writes an empty list, too.
	found := []*armresources.GenericResourceExpanded{}
	for _, r := range c.group.resources {
		named := strings.Contains(strings.ToLower(r.name), strings.ToLower(part))
		if !named || r.behavior == hidden || r.behavior == unlisted || !c.principal.may(r.kind+"/read") {
			continue
		}
		it := &armresources.GenericResourceExpanded{
			ID: to.Ptr(r.id), Name: to.Ptr(r.name), Type: to.Ptr(r.kind), Location: to.Ptr(location),
		}
		if r.kind == diskType && r.user != "" {
			it.ManagedBy = to.Ptr(r.user)
		}
		if r.vm != nil {
			it.Tags = r.vm.Tags
		}
		if expands("createdTime") {
			it.CreatedTime = to.Ptr(r.created)
		}
		if expands("provisioningState") {
			it.ProvisioningState = to.Ptr("Succeeded")
			if !r.deleting.IsZero() {
				it.ProvisioningState = to.Ptr("Deleting")
			}
		}
		found = append(found, it)
	}
	slices.SortFunc(found, func(a, b *armresources.GenericResourceExpanded) int { return strings.Compare(*a.ID, *b.ID) })
	for first := true; first || len(found) > 0; first = false {
		some := min(pageSize, len(found))
		page := armresources.ClientListByResourceGroupResponse{}
		page.Value, found = found[:some], found[some:]
		answer.AddPage(http.StatusOK, page, nil)
	}
	return
}
