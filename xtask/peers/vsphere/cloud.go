package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Where pod VMs are made, and what they are cloned from.
const (
	datacenter = "/DC0"
	template   = "/DC0/vm/DC0_H0_VM0"
	datastore  = "LocalDS_0"
	// The folder with disks that users own.
	users = "users"
)

// The simulator makes a property collector for each session, so this is where that finds the rest.
var theCloud *cloud

type cloud struct {
	model         *simulator.Model
	encrypted     *simulator.Server
	client        *vim25.Client
	finder        *find.Finder
	authorization *simulator.AuthorizationManager
	// Held while a test arranges something: a change of permissions reads what the one before wrote.
	arranging sync.Mutex

	mutex sync.Mutex
	// A copy of the simulator's permissions: those are guarded by the lock of its authorization manager, which few calls hold.
	permissions map[types.ManagedObjectReference][]permission
	passwords   map[string]string
	logins      int
	// The keys of sessions that ended.
	sessions, expired map[string]bool
	// The sessions of lists that have further pages, by the tokens that ask for these.
	lists map[string]string
	// VMs that no search shows, and VMs whose deletion does not end, with the task.
	hidden map[types.ManagedObjectReference]bool
	held   map[types.ManagedObjectReference]*simulator.Task
	fails  map[types.ManagedObjectReference]bool
	page   int32
}

// What a user may do in an entity, and whether also in all below it.
type permission struct {
	user       string
	privileges []string
	propagate  bool
}

// A VM to be made.
type machine struct {
	Name, Folder string
	// Its BIOS UUID, if it is not to be a new one.
	UUID              string
	Stopped, Template bool
	// Whether a user's disk is attached to it, and whether it has a snapshot.
	UserData, Snapshot bool
}

func newCloud(model *simulator.Model, encrypted *simulator.Server) *cloud {
	client, err := vim25.NewClient(background, model.Service)
	check(err)
	registry, content := model.Map(), model.ServiceContent
	c := &cloud{
		model: model, encrypted: encrypted, client: client,
		finder:        find.NewFinder(client),
		authorization: registry.Get(*content.AuthorizationManager).(*simulator.AuthorizationManager),
		permissions:   map[types.ManagedObjectReference][]permission{},
		passwords:     map[string]string{}, sessions: map[string]bool{}, expired: map[string]bool{}, lists: map[string]string{},
		hidden: map[types.ManagedObjectReference]bool{},
		held:   map[types.ManagedObjectReference]*simulator.Task{},
		fails:  map[types.ManagedObjectReference]bool{},
	}
	theCloud = c
	registry.SessionManager().ValidLogin = c.validLogin
	registry.Handler = c.handle
	registry.Put(&searchIndex{registry.Get(*content.SearchIndex).(*simulator.SearchIndex), c})
	registry.Put(&authorizationManager{c.authorization, c})
	shows := new(collector)
	shows.Self = content.PropertyCollector
	registry.Put(shows)
	return c
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (c *cloud) context() *simulator.Context { return c.model.Service.Context }

func (c *cloud) validLogin(login *types.Login) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.logins++
	password, known := c.passwords[login.UserName]
	return known && password == login.Password
}

func (c *cloud) hasExpired(key string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.sessions[key] = true
	return c.expired[key]
}

// Keeps the session of a list that has a further page.
func (c *cloud) keep(token, session string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.lists[token] = session
}

// Whether this session has a list with this further page.
func (c *cloud) isOf(token, session string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.lists[token] == session
}

func (c *cloud) isHidden(vm types.ManagedObjectReference) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.hidden[vm]
}

func (c *cloud) pageSize() int32 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.page
}

// Makes a VM as cloud-api-adaptor does, and gives what that records.
func (c *cloud) make(m machine) (string, error) {
	folder, err := c.finder.Folder(background, m.Folder)
	if err != nil {
		return "", err
	}
	from, err := c.finder.VirtualMachine(background, template)
	if err != nil {
		return "", err
	}
	spec := types.VirtualMachineCloneSpec{PowerOn: !m.Stopped && !m.Template}
	task, err := from.Clone(background, folder, m.Name, spec)
	if err != nil {
		return "", err
	}
	info, err := task.WaitForResult(background)
	if err != nil {
		return "", err
	}
	ref := info.Result.(types.ManagedObjectReference)
	vm := object.NewVirtualMachine(c.client, ref)
	if !m.Stopped && !m.Template {
		if err := wait(vm.PowerOn(background)); err != nil && !strings.Contains(err.Error(), "PowerState") {
			return "", err
		}
	}
	if m.UserData {
		if err := c.attach(vm, m.Name); err != nil {
			return "", err
		}
	}
	if m.Snapshot {
		if err := wait(vm.CreateSnapshot(background, "snapshot", "", false, false)); err != nil {
			return "", err
		}
	}
	if m.UUID != "" {
		if err := wait(vm.Reconfigure(background, types.VirtualMachineConfigSpec{Uuid: m.UUID})); err != nil {
			return "", err
		}
	}
	if m.Template {
		if err := vm.MarkAsTemplate(background); err != nil {
			return "", err
		}
	}
	uuid := vm.UUID(background)
	c.model.Map().Put(&podVM{c.model.Map().Get(ref).(*simulator.VirtualMachine), c})
	return uuid, nil
}

func wait(task *object.Task, err error) error {
	if err != nil {
		return err
	}
	return task.Wait(background)
}

// Attaches a disk that has a folder of its own.
func (c *cloud) attach(vm *object.VirtualMachine, name string) error {
	check(os.MkdirAll(filepath.Join(c.storage(), users), 0o700))
	devices, err := vm.Device(background)
	if err != nil {
		return err
	}
	controller, err := devices.FindDiskController("")
	if err != nil {
		return err
	}
	store, err := c.finder.Datastore(background, datacenter+"/datastore/"+datastore)
	if err != nil {
		return err
	}
	disk := devices.CreateDisk(controller, store.Reference(), fmt.Sprintf("[%s] %s/%s.vmdk", datastore, users, name))
	disk.CapacityInKB = 1024
	return vm.AddDevice(background, disk)
}

// The folder with the files of the datastore.
func (c *cloud) storage() string {
	for _, entity := range c.model.Map().All("Datastore") {
		if store := entity.(*simulator.Datastore); store.Name == datastore {
			return store.Info.GetDatastoreInfo().Url
		}
	}
	panic("there is no " + datastore)
}

// The VMs with this BIOS UUID.
func (c *cloud) find(uuid string) []types.ManagedObjectReference {
	body := (&simulator.SearchIndex{}).FindAllByUuid(c.context(), &types.FindAllByUuid{Uuid: uuid, VmSearch: true})
	return body.(*methods.FindAllByUuidBody).Res.Returnval
}

// What is there of a VM with this UUID and this name.
func (c *cloud) left(uuid, name string) map[string]any {
	count := func(folder string, pattern string) int {
		files, err := filepath.Glob(filepath.Join(c.storage(), folder, pattern))
		check(err)
		return len(files)
	}
	return map[string]any{
		"vm": len(c.find(uuid)) != 0, "own": count(name, "*.vmdk"), "data": count(users, name+".vmdk"),
	}
}

// Removes a VM at once.
func (c *cloud) remove(uuid string) error {
	for _, ref := range c.find(uuid) {
		vm := object.NewVirtualMachine(c.client, ref)
		if entity := c.model.Map().Get(ref).(*podVM); entity.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
			if err := wait(vm.PowerOff(background)); err != nil {
				return err
			}
		}
		if err := wait(vm.Destroy(background)); err != nil {
			return err
		}
	}
	return nil
}

// Gives a user these privileges in the entity at this path. Without any, the user has no permission there.
func (c *cloud) grant(user, path string, privileges []string, propagate bool) error {
	ref, err := object.NewSearchIndex(c.client).FindByInventoryPath(background, path)
	if err != nil || ref == nil {
		return fmt.Errorf("%s: %v", path, err)
	}
	manager, name := object.NewAuthorizationManager(c.client), "for "+strings.Join(privileges, " ")
	roles := object.AuthorizationRoleList(c.authorization.RoleList)
	if len(privileges) != 0 && roles.ByName(name) == nil {
		if _, err := manager.AddRole(background, name, privileges); err != nil {
			return err
		}
	}
	all, err := manager.RetrieveEntityPermissions(background, ref.Reference(), false)
	if err != nil {
		return err
	}
	// This is the simulator's own list, which an answer may be written from.
	all = slices.DeleteFunc(slices.Clone(all), func(p types.Permission) bool { return p.Principal == user })
	entity := ref.Reference()
	var granted []permission
	if role := object.AuthorizationRoleList(c.authorization.RoleList).ByName(name); len(privileges) != 0 {
		all = append(all, types.Permission{Entity: &entity, Principal: user, RoleId: role.RoleId, Propagate: propagate})
		// The role also has what the simulator adds to every role.
		granted = []permission{{user, slices.Clone(role.Privilege), propagate}}
	}
	if err := manager.SetEntityPermissions(background, entity, all); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	others := slices.DeleteFunc(c.permissions[entity], func(p permission) bool { return p.user == user })
	c.permissions[entity] = append(others, granted...)
	return nil
}

// A VM whose deletion may not end, or fail.
type podVM struct {
	*simulator.VirtualMachine
	cloud *cloud
}

func (vm *podVM) DestroyTask(ctx *simulator.Context, req *types.Destroy_Task) soap.HasFault {
	c := vm.cloud
	c.mutex.Lock()
	held, isHeld := c.held[vm.Self]
	fails := c.fails[vm.Self]
	c.mutex.Unlock()
	switch {
	case held != nil:
		return &methods.Destroy_TaskBody{Fault_: simulator.Fault("", new(types.TaskInProgress))}
	case isHeld:
		task := vm.task("held", types.TaskInfoStateRunning)
		c.mutex.Lock()
		c.held[vm.Self] = task
		c.mutex.Unlock()
		ctx.Map.Put(task)
		return &methods.Destroy_TaskBody{Res: &types.Destroy_TaskResponse{Returnval: task.Self}}
	case fails:
		task := vm.task("failed", types.TaskInfoStateError)
		task.Info.Error = &types.LocalizedMethodFault{Fault: new(types.FileLocked), LocalizedMessage: "a file is locked"}
		ctx.Map.Put(task)
		return &methods.Destroy_TaskBody{Res: &types.Destroy_TaskResponse{Returnval: task.Self}}
	}
	return vm.VirtualMachine.DestroyTask(ctx, req)
}

func (vm *podVM) task(name string, state types.TaskInfoState) *simulator.Task {
	ref := types.ManagedObjectReference{Type: "Task", Value: fmt.Sprintf("task-%s-%d", name, time.Now().UnixNano())}
	entity := vm.Self
	info := types.TaskInfo{
		Key: ref.Value, Task: ref, DescriptionId: "VirtualMachine.destroy", Entity: &entity, State: state,
		QueueTime: time.Now(), Reason: new(types.TaskReasonUser),
	}
	return &simulator.Task{Task: mo.Task{ExtensibleManagedObject: mo.ExtensibleManagedObject{Self: ref}, Info: info}}
}

// Makes the cloud behave so to a VM.
func (c *cloud) behave(uuid, behavior string) error {
	for _, vm := range c.find(uuid) {
		c.mutex.Lock()
		_, wasHeld := c.held[vm]
		begun := c.held[vm] != nil
		delete(c.hidden, vm)
		delete(c.held, vm)
		delete(c.fails, vm)
		switch behavior {
		case "hidden":
			c.hidden[vm] = true
		case "deletes-later":
			c.held[vm] = nil
		case "fails":
			c.fails[vm] = true
		}
		c.mutex.Unlock()
		if wasHeld && begun {
			if err := wait(object.NewVirtualMachine(c.client, vm).Destroy(background)); err != nil {
				return err
			}
		}
		if behavior == "forgets" {
			// Its host or its datastore is down, and vCenter was restarted.
			entity := c.model.Map().Get(vm).(*podVM)
			c.model.Map().WithLock(c.context(), entity, func() { entity.Config.Uuid = "" })
		}
	}
	return nil
}
