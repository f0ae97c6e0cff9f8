package main

import (
	"net/http"
	"slices"
	"time"

	"peers/control"
)

// Adds the calls by which a test arranges things.
func (c *cloud) control(routes *http.ServeMux) {
	calls := control.Calls{Routes: routes, Lock: c}
	// Adds a principal, or changes the one with this key or profile.
	control.Do(calls, "principal", func(p principal) {
		c.principals = slices.DeleteFunc(c.principals, func(other *principal) bool {
			return other.Key == p.Key && other.Profile == p.Profile
		})
		c.principals = append(c.principals, &p)
	})
	// Lets every token that was given out expire.
	control.Do(calls, "expire", func(struct{}) {
		for text, t := range c.tokens {
			t.expires = time.Time{}
			c.tokens[text] = t
		}
	})
	// Adds a workspace.
	control.Do(calls, "workspace", func(w workspace) {
		c.workspaces = append(c.workspaces, &w)
	})
	// Makes a machine, and gives its identifier.
	control.Ask(calls, "machine", func(m machine) (any, error) {
		return c.add(&m).id, nil
	})
	// Removes an instance with what goes with it.
	control.Do(calls, "remove", func(id string) {
		if i := c.find(id); i != nil {
			c.end(i)
		}
	})
	// Makes the cloud behave so to one instance.
	control.Do(calls, "behave", func(asked struct {
		ID       string
		Behavior behavior
	}) {
		if i := c.find(asked.ID); i != nil {
			i.behavior = asked.Behavior
		}
	})
	// Sets the most instances on a page.
	control.Do(calls, "pages", func(size int) { c.pageSize = size })
	// What is there of an instance.
	control.Ask(calls, "left", func(id string) (any, error) {
		boot, data := 0, 0
		for _, v := range c.volumes {
			switch {
			case v.instance == id && v.goes:
				boot++
			case v.instance == id:
				data++
			}
		}
		i := c.find(id)
		return map[string]any{"vm": i != nil, "deleting": i != nil && i.deleting, "boot": boot, "data": data}, nil
	})
}
