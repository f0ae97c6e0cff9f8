package main

import (
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const (
	view = "System.View"
	read = "System.Read"
)

// What each method needs on the object whose method it is. Others are refused: the operator has no need for them.
var needed = map[string]string{
	"RetrieveServiceContent":       "",
	"Login":                        "",
	"Logout":                       "",
	"FindAllByUuid":                "",
	"FindByInventoryPath":          "",
	"HasPrivilegeOnEntities":       "",
	"RetrieveEntityPermissions":    "",
	"RetrievePropertiesEx":         "",
	"ContinueRetrievePropertiesEx": "",
	"PowerOffVM_Task":              "VirtualMachine.Interact.PowerOff",
	"Destroy_Task":                 "VirtualMachine.Inventory.Delete",
}

// Comes before every call.
func (c *cloud) handle(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
	isInside := ctx.Session != nil && ctx.Session.UserName == ""
	if isInside {
		return nil, nil
	}
	privilege, known := needed[method.Name]
	if !known {
		return nil, new(types.NotSupported)
	}
	isOpen := method.Name == "RetrieveServiceContent" || method.Name == "Login"
	if !isOpen && (ctx.Session == nil || c.hasExpired(ctx.Session.Key)) {
		return nil, &types.NotAuthenticated{NoPermission: types.NoPermission{Object: &method.This, PrivilegeId: view}}
	}
	if vm, ok := c.model.Map().Get(method.This).(mo.Entity); ok && privilege != "" {
		for _, entity := range []types.ManagedObjectReference{method.This, *vm.Entity().Parent} {
			if !c.may(ctx.Session.UserName, entity, privilege) {
				return nil, c.lacks(entity, privilege)
			}
		}
	}
	return nil, nil
}

// The fault for a user who may not. An entity that was removed meanwhile is missing for everybody.
func (c *cloud) lacks(entity types.ManagedObjectReference, privilege string) types.BaseMethodFault {
	if c.model.Map().Get(entity) == nil {
		return &types.ManagedObjectNotFound{Obj: entity}
	}
	return &types.NoPermission{Object: &entity, PrivilegeId: privilege}
}

// Whether a user has a privilege: by the permission of the entity itself, or else by the nearest one above that propagates. Nobody has
// one in an entity that is gone.
func (c *cloud) may(user string, entity types.ManagedObjectReference, privilege string) bool {
	if user == "" {
		return true
	}
	for at, own := &entity, true; at != nil; own = false {
		it, ok := c.model.Map().Get(*at).(mo.Entity)
		if !ok {
			return false
		}
		if privileges, ok := c.permitted(user, *at, own); ok {
			return slices.Contains(privileges, privilege)
		}
		at = it.Entity().Parent
	}
	return false
}

// The privileges that a permission of this entity gives a user there. Below it (not own), only one that propagates counts.
func (c *cloud) permitted(user string, entity types.ManagedObjectReference, own bool) ([]string, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, p := range c.permissions[entity] {
		if strings.EqualFold(p.user, user) && (own || p.propagate) {
			return p.privileges, true
		}
	}
	return nil, false
}

// Finds only what the caller may see.
type searchIndex struct {
	*simulator.SearchIndex
	cloud *cloud
}

func (s *searchIndex) FindAllByUuid(ctx *simulator.Context, req *types.FindAllByUuid) soap.HasFault {
	body := s.SearchIndex.FindAllByUuid(ctx, req).(*methods.FindAllByUuidBody)
	body.Res.Returnval = slices.DeleteFunc(body.Res.Returnval, func(vm types.ManagedObjectReference) bool {
		return !s.cloud.may(ctx.Session.UserName, vm, read) || s.cloud.isHidden(vm)
	})
	return body
}

func (s *searchIndex) FindByInventoryPath(ctx *simulator.Context, req *types.FindByInventoryPath) soap.HasFault {
	body := s.SearchIndex.FindByInventoryPath(ctx, req).(*methods.FindByInventoryPathBody)
	if found := body.Res.Returnval; found != nil && !s.cloud.may(ctx.Session.UserName, *found, view) {
		body.Res.Returnval = nil
	}
	return body
}

// Shows only what the caller may read. The simulator makes one for each session.
type collector struct {
	simulator.PropertyCollector
}

func (p *collector) RetrievePropertiesEx(ctx *simulator.Context, req *types.RetrievePropertiesEx) soap.HasFault {
	for _, spec := range req.SpecSet {
		for _, set := range spec.ObjectSet {
			if _, ok := ctx.Map.Get(set.Obj).(mo.Entity); ok && !theCloud.may(ctx.Session.UserName, set.Obj, view) {
				return &methods.RetrievePropertiesExBody{Fault_: simulator.Fault("", theCloud.lacks(set.Obj, view))}
			}
		}
	}
	if size := theCloud.pageSize(); ctx.Session.UserName != "" && size != 0 && req.Options.MaxObjects > size {
		req.Options.MaxObjects = size
	}
	body := p.PropertyCollector.RetrievePropertiesEx(ctx, req).(*methods.RetrievePropertiesExBody)
	if body.Res != nil && body.Res.Returnval != nil {
		theCloud.keep(body.Res.Returnval.Token, ctx.Session.Key)
		body.Res.Returnval.Objects = readable(ctx, body.Res.Returnval.Objects)
	}
	return body
}

func (p *collector) ContinueRetrievePropertiesEx(ctx *simulator.Context, req *types.ContinueRetrievePropertiesEx) soap.HasFault {
	// The simulator gives the rest of a list to every session.
	if !theCloud.isOf(req.Token, ctx.Session.Key) {
		unknown := &types.InvalidArgument{InvalidProperty: "token"}
		return &methods.ContinueRetrievePropertiesExBody{Fault_: simulator.Fault("", unknown)}
	}
	body := p.PropertyCollector.ContinueRetrievePropertiesEx(ctx, req).(*methods.ContinueRetrievePropertiesExBody)
	if body.Res != nil {
		theCloud.keep(body.Res.Returnval.Token, ctx.Session.Key)
		body.Res.Returnval.Objects = readable(ctx, body.Res.Returnval.Objects)
	}
	return body
}

func readable(ctx *simulator.Context, objects []types.ObjectContent) []types.ObjectContent {
	return slices.DeleteFunc(objects, func(content types.ObjectContent) bool {
		return content.Obj.Type == "VirtualMachine" && !theCloud.may(ctx.Session.UserName, content.Obj, read)
	})
}

// Tells of the caller's privileges.
type authorizationManager struct {
	*simulator.AuthorizationManager
	cloud *cloud
}

func (m *authorizationManager) HasPrivilegeOnEntities(ctx *simulator.Context, req *types.HasPrivilegeOnEntities) soap.HasFault {
	var all []types.EntityPrivilege
	for _, entity := range req.Entity {
		if !m.cloud.may(ctx.Session.UserName, entity, view) {
			return &methods.HasPrivilegeOnEntitiesBody{Fault_: simulator.Fault("", m.cloud.lacks(entity, view))}
		}
		result := types.EntityPrivilege{Entity: entity}
		for _, id := range req.PrivId {
			granted := req.SessionId == ctx.Session.Key && m.cloud.may(ctx.Session.UserName, entity, id)
			result.PrivAvailability = append(result.PrivAvailability, types.PrivilegeAvailability{PrivId: id, IsGranted: granted})
		}
		all = append(all, result)
	}
	return &methods.HasPrivilegeOnEntitiesBody{Res: &types.HasPrivilegeOnEntitiesResponse{Returnval: all}}
}

func (m *authorizationManager) RetrieveEntityPermissions(ctx *simulator.Context, req *types.RetrieveEntityPermissions) soap.HasFault {
	if !m.cloud.may(ctx.Session.UserName, req.Entity, read) {
		return &methods.RetrieveEntityPermissionsBody{Fault_: simulator.Fault("", m.cloud.lacks(req.Entity, read))}
	}
	return m.AuthorizationManager.RetrieveEntityPermissions(ctx, req)
}
