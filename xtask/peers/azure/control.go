package main

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"peers/control"
)

// Adds the calls by which a test arranges things.
func (c *cloud) control(routes *http.ServeMux) {
	calls := control.Calls{Routes: routes, Lock: c}
	// Sets the URL by which callers reach Resource Manager: tokens are for it.
	control.Do(calls, "address", func(address string) { c.address = address })
	// Adds or changes a principal.
	control.Do(calls, "principal", func(p principal) { c.principals[p.Client] = &p })
	// Gives a token of a cluster for a principal, good for so many seconds.
	control.Ask(calls, "assertion", func(asked struct {
		Client  string
		Seconds int
	}) (any, error) {
		text := "eyJ." + newID() + ".signature"
		c.assertions[text] = assertion{asked.Client, time.Now().Add(time.Duration(asked.Seconds) * time.Second)}
		return text, nil
	})
	// Lets every token that was given out expire.
	control.Do(calls, "expire", func(struct{}) {
		for text, t := range c.tokens {
			t.expires = time.Time{}
			c.tokens[text] = t
		}
	})
	// Adds a subscription, and a group in it if one is named.
	control.Do(calls, "group", func(o order) { c.group(o.Subscription, o.Tenant, o.Group) })
	// Makes a VM, and gives its identifier.
	control.Ask(calls, "vm", func(o order) (any, error) { return c.addVM(o).id, nil })
	// Removes a VM with what goes with it, or any other resource.
	control.Do(calls, "remove", func(id string) {
		if g, r := c.find(id); r != nil {
			g.end(r)
		}
	})
	// Makes the cloud behave so to one resource.
	control.Do(calls, "behave", func(asked struct {
		ID       string
		Behavior behavior
	}) {
		if _, r := c.find(asked.ID); r != nil {
			r.behavior = asked.Behavior
		}
	})
	// The identifiers of all that is there.
	control.Ask(calls, "resources", func(struct{}) (any, error) {
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
