package main

import (
	"net/http"

	"github.com/vmware/govmomi/vim25/soap"

	"peers/control"
)

// Adds the calls by which a test arranges things.
func (c *cloud) control(routes *http.ServeMux) {
	calls := control.Calls{Routes: routes, Lock: &c.arranging}
	// Adds a user, or changes the password of one.
	control.Do(calls, "user", func(user struct{ Name, Password string }) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.passwords[user.Name] = user.Password
	})
	// Gives a user privileges in the entity at a path of the inventory, or takes them.
	control.Ask(calls, "grant", func(asked struct {
		User, Path string
		Privileges []string
		Propagate  bool
	}) (any, error) {
		return nil, c.grant(asked.User, asked.Path, asked.Privileges, asked.Propagate)
	})
	// Makes a folder of VMs.
	control.Ask(calls, "folder", func(asked struct{ Parent, Name string }) (any, error) {
		parent, err := c.finder.Folder(background, asked.Parent)
		if err == nil {
			_, err = parent.CreateFolder(background, asked.Name)
		}
		return nil, err
	})
	// Makes a VM, and gives its BIOS UUID.
	control.Ask(calls, "machine", func(asked machine) (any, error) { return c.make(asked) })
	// Removes a VM with what goes with it.
	control.Ask(calls, "remove", func(uuid string) (any, error) { return nil, c.remove(uuid) })
	// Makes the cloud behave so to one VM.
	control.Ask(calls, "behave", func(asked struct{ UUID, Behavior string }) (any, error) {
		return nil, c.behave(asked.UUID, asked.Behavior)
	})
	// What is there of a VM.
	control.Ask(calls, "left", func(asked struct{ UUID, Name string }) (any, error) {
		return c.left(asked.UUID, asked.Name), nil
	})
	// Sets the most objects on a page of a list.
	control.Do(calls, "pages", func(size int32) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.page = size
	})
	// Lets every session end.
	control.Do(calls, "expire", func(struct{}) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		for key := range c.sessions {
			c.expired[key] = true
		}
	})
	// What tells this vCenter from others, how often somebody logged in, and where it is reached with TLS.
	control.Ask(calls, "about", func(struct{}) (any, error) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		certificate := c.encrypted.Certificate()
		return map[string]any{
			"id": c.model.ServiceContent.About.InstanceUuid, "logins": c.logins, "address": c.encrypted.URL.Host,
			"sha1": soap.ThumbprintSHA1(certificate), "sha256": soap.ThumbprintSHA256(certificate),
		}, nil
	})
}
