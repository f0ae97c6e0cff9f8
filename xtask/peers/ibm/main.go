// An IBM Cloud for tests: its endpoint for tokens, its VPC API, that of Power Virtual Server and Global Search, at one address.
//
// IBM's own libraries for Go, which cloud-api-adaptor uses as well, judge what goes in and out: each request must be, byte for byte,
// the one that the library sends for the same call (but for spaces in JSON), and the library must be able to read each answer. This program adds what they
// lack: a state, an HTTP listener, and who may do what.
package main

import (
	"net/http"

	"peers/control"
)

func main() {
	cloud := newCloud()
	routes := http.NewServeMux()
	routes.HandleFunc("POST /identity/token", cloud.issueToken)
	// The second one is for requests that were sent to IBM's own host of a region.
	for _, api := range []string{"/vpc/{region}/v1", "/v1"} {
		routes.HandleFunc("GET "+api+"/instances", cloud.vpc(listInstances))
		routes.HandleFunc("GET "+api+"/instances/{id}", cloud.vpc(getInstance))
		routes.HandleFunc("DELETE "+api+"/instances/{id}", cloud.vpc(deleteInstance))
	}
	const servers = "/pcloud/v1/cloud-instances/{workspace}/pvm-instances"
	routes.HandleFunc("GET "+servers, cloud.power(listServers))
	routes.HandleFunc("GET "+servers+"/{id}", cloud.power(getServer))
	routes.HandleFunc("DELETE "+servers+"/{id}", cloud.power(deleteServer))
	routes.HandleFunc("POST /v3/resources/search", cloud.search)
	cloud.control(routes)
	control.Serve(routes)
}
