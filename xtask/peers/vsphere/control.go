package main

import (
	"encoding/json"
	"net/http"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/soap"
)

// Adds the calls by which a test arranges things. Each takes JSON.
func (c *cloud) control(routes *http.ServeMux) {
	add := func(name string, act func(decode func(any) error) (any, error)) {
		routes.HandleFunc("POST /_control/"+name, func(out http.ResponseWriter, request *http.Request) {
			decoder := json.NewDecoder(request.Body)
			decoder.DisallowUnknownFields()
			made, err := act(decoder.Decode)
			if err != nil {
				http.Error(out, err.Error(), http.StatusBadRequest)
				return
			}
			check(json.NewEncoder(out).Encode(made))
		})
	}
	done := struct{}{}
	// Adds a user, or changes the password of one.
	add("user", func(decode func(any) error) (any, error) {
		var user struct{ Name, Password string }
		err := decode(&user)
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.passwords[user.Name] = user.Password
		return done, err
	})
	// Gives a user privileges in the entity at a path of the inventory, or takes them.
	add("grant", func(decode func(any) error) (any, error) {
		var asked struct {
			User, Path string
			Privileges []string
			Propagate  bool
		}
		if err := decode(&asked); err != nil {
			return done, err
		}
		return done, c.grant(asked.User, asked.Path, asked.Privileges, asked.Propagate)
	})
	// Makes a folder of VMs.
	add("folder", func(decode func(any) error) (any, error) {
		var asked struct{ Parent, Name string }
		if err := decode(&asked); err != nil {
			return done, err
		}
		parent, err := c.finder.Folder(background, asked.Parent)
		if err == nil {
			_, err = parent.CreateFolder(background, asked.Name)
		}
		return done, err
	})
	// Makes a VM, and gives its BIOS UUID.
	add("machine", func(decode func(any) error) (any, error) {
		var asked machine
		if err := decode(&asked); err != nil {
			return done, err
		}
		return c.make(asked)
	})
	// Removes a VM with what goes with it.
	add("remove", func(decode func(any) error) (any, error) {
		var uuid string
		if err := decode(&uuid); err != nil {
			return done, err
		}
		return done, c.remove(uuid)
	})
	// Makes the cloud behave so to one VM.
	add("behave", func(decode func(any) error) (any, error) {
		var asked struct{ UUID, Behavior string }
		if err := decode(&asked); err != nil {
			return done, err
		}
		return done, c.behave(asked.UUID, asked.Behavior)
	})
	// What is there of a VM.
	add("left", func(decode func(any) error) (any, error) {
		var asked struct{ UUID, Name string }
		if err := decode(&asked); err != nil {
			return done, err
		}
		return c.left(asked.UUID, asked.Name), nil
	})
	// Sets the most objects on a page of a list.
	add("pages", func(decode func(any) error) (any, error) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		return done, decode(&c.page)
	})
	// Lets every session end.
	add("expire", func(func(any) error) (any, error) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		for key := range c.sessions {
			c.expired[key] = true
		}
		return done, nil
	})
	// What tells this vCenter from others, how often somebody logged in, and where it is reached with TLS.
	add("about", func(func(any) error) (any, error) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		certificate := c.encrypted.Certificate()
		var info object.HostCertificateInfo
		info.FromCertificate(certificate)
		return map[string]any{
			"id": c.model.ServiceContent.About.InstanceUuid, "logins": c.logins, "address": c.encrypted.URL.Host,
			"sha1": soap.ThumbprintSHA1(certificate), "sha256": soap.ThumbprintSHA256(certificate),
		}, nil
	})
}
