// An Azure for tests: Resource Manager, the endpoint for tokens and the metadata service of a VM, at one address.
//
// Microsoft's own packages decide what a request may look like and how an answer is written: the routes and the versions of the
// interface are asked of its clients, and requests are parsed and answered by its fake servers. This program adds what they lack:
// a state, an HTTP listener, and who may do what.
package main

import (
	"log"
	"net/http"

	"peers/control"
)

func main() {
	cloud := newCloud()
	manager, err := newManager(cloud)
	if err != nil {
		log.Fatal(err)
	}
	routes := http.NewServeMux()
	routes.Handle("/", manager)
	routes.HandleFunc("POST /{tenant}/oauth2/v2.0/token", cloud.issueToken)
	routes.HandleFunc("GET /metadata/identity/oauth2/token", cloud.issueIdentityToken)
	cloud.control(routes)
	control.Serve(routes)
}
