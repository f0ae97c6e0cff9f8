package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Adds the calls by which a test arranges things. Each takes a JSON object.
func (c *cloud) control(routes *http.ServeMux) {
	add := func(name string, act func(decode func(any) error) (any, error)) {
		routes.HandleFunc("POST /_control/"+name, func(out http.ResponseWriter, request *http.Request) {
			c.Lock()
			defer c.Unlock()
			c.settle()
			decoder := json.NewDecoder(request.Body)
			decoder.DisallowUnknownFields()
			answer, err := act(decoder.Decode)
			if err != nil {
				http.Error(out, err.Error(), http.StatusBadRequest)
				return
			}
			reply(out, http.StatusOK, answer)
		})
	}
	// Sets the URL by which callers reach Resource Manager: tokens are for it.
	add("address", func(decode func(any) error) (any, error) {
		return struct{}{}, decode(&c.address)
	})
	// Adds or changes a principal.
	add("principal", func(decode func(any) error) (any, error) {
		var p principal
		err := decode(&p)
		c.principals[p.Client] = &p
		return struct{}{}, err
	})
	// Gives a token of a cluster for a principal, good for so many seconds.
	add("assertion", func(decode func(any) error) (any, error) {
		var asked struct {
			Client  string
			Seconds int
		}
		err := decode(&asked)
		text := "eyJ." + newID() + ".signature"
		c.assertions[text] = assertion{asked.Client, time.Now().Add(time.Duration(asked.Seconds) * time.Second)}
		return text, err
	})
	// Lets every token that was given out expire.
	add("expire", func(func(any) error) (any, error) {
		for text, t := range c.tokens {
			t.expires = time.Time{}
			c.tokens[text] = t
		}
		return struct{}{}, nil
	})
	// Adds a subscription, and a group in it if one is named.
	add("group", func(decode func(any) error) (any, error) {
		var o order
		err := decode(&o)
		c.group(o.Subscription, o.Tenant, o.Group)
		return struct{}{}, err
	})
	// Makes a VM, and gives its identifier.
	add("vm", func(decode func(any) error) (any, error) {
		var o order
		if err := decode(&o); err != nil {
			return nil, err
		}
		return c.addVM(o).id, nil
	})
	// Removes a VM with what goes with it, or any other resource.
	add("remove", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
		if g, r := c.find(id); r != nil {
			g.end(r)
		}
		return struct{}{}, err
	})
	// Makes the cloud behave so to one resource.
	add("behave", func(decode func(any) error) (any, error) {
		var asked struct {
			ID       string
			Behavior behavior
		}
		err := decode(&asked)
		if _, r := c.find(asked.ID); r != nil {
			r.behavior = asked.Behavior
		}
		return struct{}{}, err
	})
	// The identifiers of all that is there.
	add("resources", func(func(any) error) (any, error) {
		ids := []string{}
		for _, s := range c.subscriptions {
			for _, g := range s.groups {
				for _, r := range g.resources {
					ids = append(ids, r.id)
				}
			}
		}
		slices.Sort(ids)
		return ids, nil
	})
}

// Whether the caller may not act on the VM of this name.
func (g *group) refuses(name string) bool {
	if g == nil {
		return false
	}
	r := g.find(vmType, strings.ToLower(name))
	return r != nil && r.behavior == unauthorized
}
