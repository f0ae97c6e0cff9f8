// An Azure for tests: Resource Manager, the endpoint for tokens and the metadata service of a VM, at one address.
//
// Microsoft's own packages decide what a request may look like and how an answer is written: the routes and the versions of the
// interface are asked of its clients, and requests are parsed and answered by its fake servers. This program adds what they lack:
// a state, an HTTP listener, and who may do what.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"
)

func main() {
	address := flag.String("listen", "127.0.0.1:0", "the `address` to listen at")
	flag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	cloud := newCloud("http://" + listener.Addr().String())
	manager, err := newManager(cloud)
	if err != nil {
		log.Fatal(err)
	}
	routes := http.NewServeMux()
	routes.Handle("/", manager)
	routes.HandleFunc("POST /{tenant}/oauth2/v2.0/token", cloud.issueToken)
	routes.HandleFunc("GET /metadata/identity/oauth2/token", cloud.issueIdentityToken)
	cloud.control(routes)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	fmt.Println("listening at", listener.Addr())
	log.Fatal(server.Serve(listener))
}
