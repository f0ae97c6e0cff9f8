package main

import (
	"crypto/rsa"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"
)

// How long Compute Engine is busy with an operation.
const operationTime = 200 * time.Millisecond

// How many instances a page has unless a test says otherwise.
const usualPage = 500

type cloud struct {
	sync.Mutex
	instances  map[place]*computepb.Instance
	disks      map[place]bool
	operations map[place]*operation
	accounts   map[string]*account
	pools      map[string]*rsa.PublicKey
	tokens     map[string]*token
	behavior   behavior
	made       uint64
}

// A thing of one name in one zone.
type place struct{ project, zone, name string }

func (p place) path(kind string) string {
	return fmt.Sprintf("projects/%s/zones/%s/%s/%s", p.project, p.zone, kind, p.name)
}

type operation struct {
	message *computepb.Operation
	target  place
	ends    time.Time
}

// A service account.
type account struct {
	key         *rsa.PrivateKey
	permissions map[string]bool
}

// How the cloud behaves.
type behavior struct {
	// Operations stay under way.
	HoldOperations bool
	// Instances of this name are not shown.
	Hidden string
	// This zone does not answer: a list says so in a warning of its own.
	Unreachable string
	// This zone does not answer: a list names it apart from the zones that it has.
	Skipped string
	// So many instances are on a page, if not 0.
	PageSize int
	// The API is off in this project.
	Disabled string
	// A list that lacks some instances says so in its own warning.
	Warning string
}

// The projects that exist, and the zones of each.
var (
	projects = []string{"peer-pods", "elsewhere-1"}
	zones    = []string{"europe-west4-a", "europe-west4-b", "us-central1-a"}
)

// What cloud-api-adaptor labels every instance with.
var labels = map[string]string{"cluster": "test"}

func newCloud() *cloud {
	return &cloud{
		instances:  map[place]*computepb.Instance{},
		disks:      map[place]bool{},
		operations: map[place]*operation{},
		accounts:   map[string]*account{},
		pools:      map[string]*rsa.PublicKey{},
		tokens:     map[string]*token{},
	}
}

// Lock also ends the operations whose time has come.
func (c *cloud) Lock() {
	c.Mutex.Lock()
	if c.behavior.HoldOperations {
		return
	}
	for _, op := range c.operations {
		if op.message.GetStatus() != computepb.Operation_DONE && time.Now().After(op.ends) {
			op.message.Status = computepb.Operation_DONE.Enum()
			op.message.Progress = proto.Int32(100)
			c.forget(op.target)
		}
	}
}

// Removes an instance with the disks that go with it.
func (c *cloud) forget(at place) {
	for _, disk := range c.instances[at].GetDisks() {
		if disk.GetAutoDelete() {
			delete(c.disks, place{at.project, at.zone, disk.GetDeviceName()})
		}
	}
	delete(c.instances, at)
}

func (c *cloud) make(wanted order) {
	at := wanted.place()
	c.made++
	var protected *bool
	if wanted.Protected {
		protected = &wanted.Protected
	}
	disks := []*computepb.AttachedDisk{c.disk(at, at.name, true)}
	if wanted.UserDisk {
		disks = append(disks, c.disk(at, "data-of-"+at.name, false))
	}
	c.instances[at] = &computepb.Instance{
		Kind:               proto.String("compute#instance"),
		Id:                 proto.Uint64(4_000_000_000_000_000_000 + c.made),
		Name:               proto.String(at.name),
		Zone:               proto.String("https://www.googleapis.com/compute/v1/projects/" + at.project + "/zones/" + at.zone),
		SelfLink:           proto.String("https://www.googleapis.com/compute/v1/" + at.path("instances")),
		Status:             proto.String(wanted.Status),
		CreationTimestamp:  proto.String(time.Now().Format("2006-01-02T15:04:05.000-07:00")),
		Labels:             labels,
		Disks:              disks,
		DeletionProtection: protected,
	}
}

func (c *cloud) disk(of place, name string, autoDelete bool) *computepb.AttachedDisk {
	at := place{of.project, of.zone, name}
	c.disks[at] = true
	return &computepb.AttachedDisk{
		Kind:       proto.String("compute#attachedDisk"),
		AutoDelete: proto.Bool(autoDelete),
		Boot:       proto.Bool(autoDelete),
		DeviceName: proto.String(name),
		Source:     proto.String("https://www.googleapis.com/compute/v1/" + at.path("disks")),
	}
}
