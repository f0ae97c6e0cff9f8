package main

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"peers/control"
)

// Adds the calls by which a test arranges things.
func (c *cloud) control(routes *http.ServeMux) {
	calls := control.Calls{Routes: routes, Lock: c}
	// Adds an access key, or changes the one with this identifier.
	control.Do(calls, "key", func(k key) {
		c.keys = slices.DeleteFunc(c.keys, func(other *key) bool { return other.ID == k.ID })
		c.keys = append(c.keys, &k)
	})
	// Adds a role.
	control.Do(calls, "role", func(r role) {
		c.roles = append(c.roles, &r)
	})
	// Lets every temporary key expire.
	control.Do(calls, "expire", func(struct{}) {
		for _, k := range c.keys {
			if !k.expires.IsZero() {
				k.expires = time.Now().Add(-time.Second)
			}
		}
	})
	// Says of which region a host is the endpoint.
	control.Do(calls, "endpoint", func(asked struct{ Host, Region string }) {
		c.regions[asked.Host] = asked.Region
	})
	// Makes an instance, and gives its identifier.
	control.Ask(calls, "instance", func(i instance) (any, error) {
		return c.add(&i).id, nil
	})
	// Changes the address that an instance has.
	control.Ask(calls, "address", func(asked struct{ Instance, Description, Charge, Nic string }) (any, error) {
		for _, a := range c.addresses {
			if a.made == asked.Instance {
				a.description, a.charge = asked.Description, asked.Charge
				if asked.Nic != "" {
					a.nic, a.status = asked.Nic, "InUse"
				}
				return nil, nil
			}
		}
		return nil, errors.New("it has no address")
	})
	// Lets the interface of an instance stay when that goes.
	control.Do(calls, "keep", func(id string) {
		for _, n := range c.nics {
			n.goes = n.goes && n.made != id
		}
	})
	// Removes an instance with what goes with it, and with its addresses and interfaces if that is asked for.
	control.Do(calls, "remove", func(asked struct {
		ID         string
		Belongings bool
	}) {
		if i := c.find(asked.ID); i != nil {
			c.end(i)
		}
		if asked.Belongings {
			c.nics = slices.DeleteFunc(c.nics, func(n *nic) bool { return n.made == asked.ID })
			c.addresses = slices.DeleteFunc(c.addresses, func(a *address) bool { return a.made == asked.ID })
		}
	})
	// Gives the address of an instance the name that the operator gives it.
	control.Do(calls, "name", func(id string) {
		for _, a := range c.addresses {
			if a.made == id {
				a.name = "peerpod-eip-" + id
			}
		}
	})
	// Makes the cloud behave so to one instance.
	control.Do(calls, "behave", func(asked struct {
		ID       string
		Behavior behavior
	}) {
		c.held = slices.DeleteFunc(c.held, func(id string) bool { return id == asked.ID })
		if asked.Behavior == holdsBelongings {
			c.held = append(c.held, asked.ID)
		} else if i := c.find(asked.ID); i != nil {
			i.behavior = asked.Behavior
		}
	})
	// Sets the most things on a page.
	control.Do(calls, "pages", func(size int) { c.pageSize = size })
	// What is there of an instance.
	control.Ask(calls, "left", func(id string) (any, error) {
		nics, addresses, system, data := 0, 0, 0, 0
		for _, n := range c.nics {
			if n.made == id {
				nics++
			}
		}
		for _, a := range c.addresses {
			if a.made == id && a.status != "Releasing" {
				addresses++
			}
		}
		for _, d := range c.disks {
			switch {
			case d.instance == id && d.goes:
				system++
			case d.instance == id:
				data++
			}
		}
		i := c.find(id)
		return map[string]any{
			"vm": i != nil, "deleting": i != nil && i.status == "Stopping", "nics": nics, "addresses": addresses,
			"system": system, "data": data,
		}, nil
	})
}
