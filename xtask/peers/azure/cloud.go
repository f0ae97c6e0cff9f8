package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// How long a deletion that was accepted takes.
const deletionTime = 300 * time.Millisecond

// Where all resources are.
const location = "eastus"

// The types of resources.
const (
	vmType      = "Microsoft.Compute/virtualMachines"
	diskType    = "Microsoft.Compute/disks"
	nicType     = "Microsoft.Network/networkInterfaces"
	addressType = "Microsoft.Network/publicIPAddresses"
)

// How the cloud behaves to one VM.
type behavior string

const (
	well         behavior = ""
	unauthorized behavior = "unauthorized"
	deletesLater behavior = "deletes-later"
	// The VM goes, its interface stays and cannot be deleted.
	holdsDisk behavior = "holds-disk"
	// A lock forbids to delete it.
	locked behavior = "locked"
	// It is not shown. What belongs to it is.
	hidden behavior = "hidden"
	// The list of its group, which lags behind, does not have it.
	unlisted behavior = "unlisted"
)

// A cloud. Its lock is held while a request is answered.
type cloud struct {
	sync.Mutex
	// The URL by which callers reach it.
	address       string
	principals    map[string]*principal
	subscriptions map[string]*subscription
	tokens        map[string]token
	assertions    map[string]assertion
}

type subscription struct {
	id     string
	tenant string
	// By their names in lower case.
	groups map[string]*group
}

type group struct {
	name string
	// By type and name in lower case.
	resources map[string]*resource
}

type resource struct {
	id, kind, name string
	created        time.Time
	deleting       time.Time
	behavior       behavior
	// Its full model, if it is a VM.
	vm *armcompute.VirtualMachine
	// The identifier of what uses it.
	user string
}

func newCloud() *cloud {
	return &cloud{
		principals:    map[string]*principal{},
		subscriptions: map[string]*subscription{},
		tokens:        map[string]token{},
		assertions:    map[string]assertion{},
	}
}

// The group in this subscription, made if need be.
func (c *cloud) group(subscriptionID, tenant, name string) (*subscription, *group) {
	key := strings.ToLower(subscriptionID)
	if c.subscriptions[key] == nil {
		c.subscriptions[key] = &subscription{id: subscriptionID, tenant: tenant, groups: map[string]*group{}}
	}
	s := c.subscriptions[key]
	key = strings.ToLower(name)
	if name != "" && s.groups[key] == nil {
		s.groups[key] = &group{name: name, resources: map[string]*resource{}}
	}
	return s, s.groups[key]
}

// The resource with this identifier, and its group.
func (c *cloud) find(id string) (*group, *resource) {
	for _, s := range c.subscriptions {
		for _, g := range s.groups {
			for _, r := range g.resources {
				if strings.EqualFold(r.id, id) {
					return g, r
				}
			}
		}
	}
	return nil, nil
}

func (g *group) find(kind, name string) *resource {
	return g.resources[strings.ToLower(kind+"/"+name)]
}

func (g *group) remove(r *resource) {
	delete(g.resources, strings.ToLower(r.kind+"/"+r.name))
}

func (g *group) add(s *subscription, kind, name string) *resource {
	id := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s", s.id, g.name, kind, name)
	r := &resource{id: id, kind: kind, name: name, created: time.Now()}
	g.resources[strings.ToLower(kind+"/"+name)] = r
	return r
}

// What a VM is made of.
type order struct {
	Subscription, Tenant, Group, Name string
	// Whether its interface has a public address.
	Address bool
	// The name of a disk of a user, which is attached to it.
	DataDisk string
	// Whether its interface and its disk stay when it goes.
	Detach bool
}

// Makes a VM as cloud-api-adaptor does.
func (c *cloud) addVM(o order) *resource {
	s, g := c.group(o.Subscription, o.Tenant, o.Group)
	vm := g.add(s, vmType, o.Name)
	// Azure adds digits to the names in the configuration of an interface and of its address.
	disk, nic := g.add(s, diskType, o.Name+"-disk"), g.add(s, nicType, fmt.Sprintf("%s-net-%08x", o.Name, rand.Uint32()))
	disk.user, nic.user = vm.id, vm.id
	if o.Address {
		g.add(s, addressType, nic.name).user = nic.id
	}
	diskOption, nicOption := armcompute.DiskDeleteOptionTypesDelete, armcompute.DeleteOptionsDelete
	if o.Detach {
		diskOption, nicOption = armcompute.DiskDeleteOptionTypesDetach, armcompute.DeleteOptionsDetach
	}
	storage := &armcompute.StorageProfile{OSDisk: &armcompute.OSDisk{
		Name:         to.Ptr(disk.name),
		ManagedDisk:  &armcompute.ManagedDiskParameters{ID: to.Ptr(disk.id)},
		DeleteOption: to.Ptr(diskOption),
		CreateOption: to.Ptr(armcompute.DiskCreateOptionTypesFromImage),
	}}
	if o.DataDisk != "" {
		data := g.add(s, diskType, o.DataDisk)
		data.user = vm.id
		storage.DataDisks = []*armcompute.DataDisk{{
			Name:         to.Ptr(data.name),
			Lun:          to.Ptr[int32](0),
			ManagedDisk:  &armcompute.ManagedDiskParameters{ID: to.Ptr(data.id)},
			DeleteOption: to.Ptr(armcompute.DiskDeleteOptionTypesDetach),
			CreateOption: to.Ptr(armcompute.DiskCreateOptionTypesAttach),
		}}
	}
	vm.vm = &armcompute.VirtualMachine{
		ID: to.Ptr(vm.id), Name: to.Ptr(vm.name), Type: to.Ptr(vmType), Location: to.Ptr(location),
		// What cloud-api-adaptor tags every VM with.
		Tags: map[string]*string{"cluster": to.Ptr("test")},
		Properties: &armcompute.VirtualMachineProperties{
			ProvisioningState: to.Ptr("Succeeded"),
			TimeCreated:       to.Ptr(vm.created),
			StorageProfile:    storage,
			NetworkProfile: &armcompute.NetworkProfile{NetworkInterfaces: []*armcompute.NetworkInterfaceReference{{
				ID:         to.Ptr(nic.id),
				Properties: &armcompute.NetworkInterfaceReferenceProperties{DeleteOption: to.Ptr(nicOption)},
			}}},
		},
	}
	return vm
}

// Lock also ends the deletions whose time has come.
func (c *cloud) Lock() {
	c.Mutex.Lock()
	for _, s := range c.subscriptions {
		for _, g := range s.groups {
			for _, r := range g.resources {
				due := !r.deleting.IsZero() && time.Since(r.deleting) >= deletionTime
				if due && r.behavior != deletesLater {
					g.end(r)
				}
			}
		}
	}
}

// Removes a resource, and with a VM what its delete options say.
func (g *group) end(r *resource) {
	g.remove(r)
	if r.vm == nil {
		g.release(r.id)
		return
	}
	properties := r.vm.Properties
	for _, reference := range properties.NetworkProfile.NetworkInterfaces {
		nic := g.byID(*reference.ID)
		switch {
		case nic == nil:
		case *reference.Properties.DeleteOption == armcompute.DeleteOptionsDelete:
			// An address that came with the interface goes with it.
			if address := g.find(addressType, nic.name); address != nil {
				g.remove(address)
			}
			g.remove(nic)
		}
	}
	if os := properties.StorageProfile.OSDisk; *os.DeleteOption == armcompute.DiskDeleteOptionTypesDelete {
		switch disk := g.byID(*os.ManagedDisk.ID); {
		case disk == nil:
		case r.behavior == holdsDisk:
			disk.behavior = holdsDisk
		default:
			g.remove(disk)
		}
	}
	g.release(r.id)
}

// What this one used is free.
func (g *group) release(id string) {
	for _, r := range g.resources {
		if r.user == id {
			r.user = ""
		}
	}
}

func (g *group) byID(id string) *resource {
	for _, r := range g.resources {
		if strings.EqualFold(r.id, id) {
			return r
		}
	}
	return nil
}
