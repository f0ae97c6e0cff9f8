// An Alibaba Cloud for tests: instances and interfaces of ECS, elastic addresses of VPC, and identities.
//
// Alibaba Cloud's own libraries for Go, of the versions that cloud-api-adaptor uses, judge what goes in and out: each request must be
// the one that the library sends for the same call at the same time with the same nonce, signature included, and the library must be
// able to read each answer. This program adds what they lack: a state, an HTTP listener, and who may do what.
package main

import (
	"flag"
	"log"
	"net/http"

	"peers/control"
)

func main() {
	records := flag.Bool("record", false, "print how the library signs the examples of the unit tests, and end")
	flag.Parse()
	notes, err := newNotebook()
	if err != nil {
		log.Fatal(err)
	}
	if *records {
		record(notes)
		return
	}
	cloud := newCloud(notes)
	routes := http.NewServeMux()
	routes.HandleFunc("POST /{$}", cloud.serve)
	cloud.control(routes)
	control.Serve(routes)
}
