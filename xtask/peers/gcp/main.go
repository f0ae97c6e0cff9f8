// A private Compute Engine for tests: instances of a few projects, and the places that give tokens. Paths, verbs, parameters and
// bodies are those of Google's own types, which decode each request and encode each answer. What these types do not know is refused.
//
// What tests need beside the API is below /_control/.
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
	server := &http.Server{Handler: newCloud().routes(), ReadHeaderTimeout: 10 * time.Second}
	fmt.Println("listening at", listener.Addr())
	log.Fatal(server.Serve(listener))
}

func (c *cloud) routes() http.Handler {
	mux := http.NewServeMux()
	serve(c, mux, "Instances.Get", getInstance)
	serve(c, mux, "Instances.Delete", deleteInstance)
	serve(c, mux, "Instances.AggregatedList", listInstances)
	serve(c, mux, "Instances.TestIamPermissions", testPermissions)
	serve(c, mux, "ZoneOperations.Get", getOperation)

	mux.HandleFunc("POST /token", c.serviceAccountToken)
	mux.HandleFunc("POST /v1/token", c.exchangedToken)
	mux.HandleFunc("POST /v1/projects/-/serviceAccounts/{method}", c.impersonatedToken)
	mux.HandleFunc("GET /computeMetadata/v1/instance/service-accounts/default/token", c.metadataToken)

	mux.HandleFunc("POST /_control/accounts", c.control(c.setAccount))
	mux.HandleFunc("POST /_control/pools", c.control(c.setPool))
	mux.HandleFunc("POST /_control/behavior", c.control(c.setBehavior))
	mux.HandleFunc("POST /_control/instances", c.control(c.makeInstance))
	mux.HandleFunc("POST /_control/remove", c.control(c.removeInstance))
	mux.HandleFunc("POST /_control/state", c.control(c.state))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusNotFound, "notFound", "there is no "+r.Method+" "+r.URL.Path))
	})
	return mux
}
