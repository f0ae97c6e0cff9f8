// Package control is what the stand-ins of clouds have in common: how each is started, and how a test arranges things in it.
package control

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve serves these routes at a free port, and prints the address. It does not return.
func Serve(routes http.Handler) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	fmt.Println("listening at", listener.Addr())
	log.Fatal(server.Serve(listener))
}

// Calls are the calls by which a test arranges things, beside the API of the cloud. Each takes JSON, and answers with JSON.
type Calls struct {
	Routes *http.ServeMux
	// Held during each call.
	Lock sync.Locker
}

// Do adds a call without an answer.
func Do[Asked any](calls Calls, name string, act func(Asked)) {
	Ask(calls, name, func(asked Asked) (any, error) {
		act(asked)
		return nil, nil
	})
}

// Ask adds a call with an answer.
func Ask[Asked any](calls Calls, name string, act func(Asked) (any, error)) {
	calls.Routes.HandleFunc("POST /_control/"+name, func(out http.ResponseWriter, request *http.Request) {
		calls.Lock.Lock()
		defer calls.Lock.Unlock()
		var asked Asked
		decoder := json.NewDecoder(request.Body)
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&asked)
		var answer any
		if err == nil {
			answer, err = act(asked)
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		// A caller that went away reads no answer.
		_ = json.NewEncoder(out).Encode(answer)
	})
}
