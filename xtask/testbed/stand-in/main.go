// A stand-in for cloud-api-adaptor: what that was seen to do on a node, without Kata Containers. Where Kata's shim would call it for
// a Pod, a test does, by HTTP.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	probe := &Probe{
		Client:       kubernetes.NewForConfigOrDie(config),
		Node:         os.Getenv("NODE_NAME"),
		RuntimeClass: cmp.Or(os.Getenv("RUNTIMECLASS_NAME"), "kata-remote"),
		Started:      time.Now(),
	}
	adaptor := &Adaptor{
		Client:  probe.Client,
		Dynamic: dynamic.NewForConfigOrDie(config),
		URI:     os.Getenv("LIBVIRT_URI"),
		VMs:     map[string]VM{},
	}
	go serve("127.0.0.1:"+cmp.Or(os.Getenv("PROBE_PORT"), "8000"), probe.Handler())
	fmt.Println("A stand-in for cloud-api-adaptor: it makes the VMs that it is told to make, and records them.")
	serve(":8001", adaptor.Handler())
}

// serve listens as cloud-api-adaptor does: one that takes over listens beside the one before.
func serve(address string, handler http.Handler) {
	shared := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var failed error
		err := socket.Control(func(file uintptr) {
			failed = unix.SetsockoptInt(int(file), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return cmp.Or(err, failed)
	}}
	listener, err := shared.Listen(context.Background(), "tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, handler))
}

// answer makes a handler of a call that may fail. It answers in JSON.
func answer(call func(ctx context.Context, request *http.Request) (any, error)) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		value, err := call(request.Context(), request)
		if err != nil {
			log.Printf("%s %s: %s", request.Method, request.URL, err)
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		json.NewEncoder(writer).Encode(value)
	}
}
