package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"
)

// Adds the calls by which a test arranges things. Each takes JSON.
func (c *cloud) control(routes *http.ServeMux) {
	add := func(name string, act func(decode func(any) error) (any, error)) {
		routes.HandleFunc("POST /_control/"+name, func(out http.ResponseWriter, request *http.Request) {
			c.Lock()
			defer c.Unlock()
			decoder := json.NewDecoder(request.Body)
			decoder.DisallowUnknownFields()
			made, err := act(decoder.Decode)
			if err != nil {
				http.Error(out, err.Error(), http.StatusBadRequest)
				return
			}
			reply(out, answerOf(http.StatusOK, made))
		})
	}
	// Adds an access key, or changes the one with this identifier.
	add("key", func(decode func(any) error) (any, error) {
		var k key
		err := decode(&k)
		c.keys = slices.DeleteFunc(c.keys, func(other *key) bool { return other.ID == k.ID })
		c.keys = append(c.keys, &k)
		return struct{}{}, err
	})
	// Adds a role.
	add("role", func(decode func(any) error) (any, error) {
		var r role
		err := decode(&r)
		c.roles = append(c.roles, &r)
		return struct{}{}, err
	})
	// Lets every temporary key expire.
	add("expire", func(func(any) error) (any, error) {
		for _, k := range c.keys {
			if !k.expires.IsZero() {
				k.expires = time.Now().Add(-time.Second)
			}
		}
		return struct{}{}, nil
	})
	// Says of which region a host is the endpoint.
	add("endpoint", func(decode func(any) error) (any, error) {
		var asked struct{ Host, Region string }
		err := decode(&asked)
		c.regions[asked.Host] = asked.Region
		return struct{}{}, err
	})
	// Makes an instance, and gives its identifier.
	add("instance", func(decode func(any) error) (any, error) {
		var i instance
		err := decode(&i)
		return c.add(&i).id, err
	})
	// Changes the address that an instance has.
	add("address", func(decode func(any) error) (any, error) {
		var asked struct{ Instance, Description, Charge, Nic string }
		if err := decode(&asked); err != nil {
			return nil, err
		}
		for _, a := range c.addresses {
			if a.made == asked.Instance {
				a.description, a.charge = asked.Description, asked.Charge
				if asked.Nic != "" {
					a.nic, a.status = asked.Nic, "InUse"
				}
				return struct{}{}, nil
			}
		}
		return nil, errors.New("it has no address")
	})
	// Lets the interface of an instance stay when that goes.
	add("keep", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
		for _, n := range c.nics {
			n.goes = n.goes && n.made != id
		}
		return struct{}{}, err
	})
	// Removes an instance with what goes with it, and with its addresses and interfaces if that is asked for.
	add("remove", func(decode func(any) error) (any, error) {
		var asked struct {
			ID         string
			Belongings bool
		}
		err := decode(&asked)
		if i := c.find(asked.ID); i != nil {
			c.end(i)
		}
		if asked.Belongings {
			c.nics = slices.DeleteFunc(c.nics, func(n *nic) bool { return n.made == asked.ID })
			c.addresses = slices.DeleteFunc(c.addresses, func(a *address) bool { return a.made == asked.ID })
		}
		return struct{}{}, err
	})
	// Gives the address of an instance the name that the operator gives it.
	add("name", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
		for _, a := range c.addresses {
			if a.made == id {
				a.name = "peerpod-eip-" + id
			}
		}
		return struct{}{}, err
	})
	// Makes the cloud behave so to one instance.
	add("behave", func(decode func(any) error) (any, error) {
		var asked struct {
			ID       string
			Behavior behavior
		}
		err := decode(&asked)
		c.held = slices.DeleteFunc(c.held, func(id string) bool { return id == asked.ID })
		if asked.Behavior == holdsBelongings {
			c.held = append(c.held, asked.ID)
		} else if i := c.find(asked.ID); i != nil {
			i.behavior = asked.Behavior
		}
		return struct{}{}, err
	})
	// Sets the most things on a page.
	add("pages", func(decode func(any) error) (any, error) {
		return struct{}{}, decode(&c.pageSize)
	})
	// What is there of an instance.
	add("left", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
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
		}, err
	})
}
