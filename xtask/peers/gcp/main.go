// A private Compute Engine for tests: instances of a few projects, and the places that give tokens. Paths, verbs, parameters and
// bodies are those of Google's own types, which decode each request and encode each answer. What these types do not know is refused.
package main

import (
	"net/http"

	"peers/control"
)

func main() {
	c, mux := newCloud(), http.NewServeMux()
	serve(c, mux, "Instances.Get", getInstance)
	serve(c, mux, "Instances.Delete", deleteInstance)
	serve(c, mux, "Instances.AggregatedList", listInstances)
	serve(c, mux, "Instances.TestIamPermissions", testPermissions)
	serve(c, mux, "ZoneOperations.Get", getOperation)

	mux.HandleFunc("POST /token", c.serviceAccountToken)
	mux.HandleFunc("POST /v1/token", c.exchangedToken)
	mux.HandleFunc("POST /v1/projects/-/serviceAccounts/{method}", c.impersonatedToken)
	mux.HandleFunc("GET /computeMetadata/v1/instance/service-accounts/default/token", c.metadataToken)

	c.control(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusNotFound, "notFound", "there is no "+r.Method+" "+r.URL.Path))
	})
	control.Serve(mux)
}
