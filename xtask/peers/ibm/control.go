package main

import (
	"encoding/json"
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
	// Adds a principal, or changes the one with this key or profile.
	add("principal", func(decode func(any) error) (any, error) {
		var p principal
		err := decode(&p)
		c.principals = slices.DeleteFunc(c.principals, func(other *principal) bool {
			return other.Key == p.Key && other.Profile == p.Profile
		})
		c.principals = append(c.principals, &p)
		return struct{}{}, err
	})
	// Lets every token that was given out expire.
	add("expire", func(func(any) error) (any, error) {
		for text, t := range c.tokens {
			t.expires = time.Time{}
			c.tokens[text] = t
		}
		return struct{}{}, nil
	})
	// Adds a workspace.
	add("workspace", func(decode func(any) error) (any, error) {
		var w workspace
		err := decode(&w)
		c.workspaces = append(c.workspaces, &w)
		return struct{}{}, err
	})
	// Makes a machine, and gives its identifier.
	add("machine", func(decode func(any) error) (any, error) {
		var i machine
		err := decode(&i)
		return c.add(&i).id, err
	})
	// Removes an instance with what goes with it.
	add("remove", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
		if i := c.find(id); i != nil {
			c.end(i)
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
		if i := c.find(asked.ID); i != nil {
			i.behavior = asked.Behavior
		}
		return struct{}{}, err
	})
	// Sets the most instances on a page.
	add("pages", func(decode func(any) error) (any, error) {
		return struct{}{}, decode(&c.pageSize)
	})
	// What is there of an instance.
	add("left", func(decode func(any) error) (any, error) {
		var id string
		err := decode(&id)
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
		return map[string]any{"vm": i != nil, "deleting": i != nil && i.deleting, "boot": boot, "data": data}, err
	})
}
