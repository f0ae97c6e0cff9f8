// A vCenter for tests: VMware's own simulator of it, with what that lacks.
//
// The simulator reads each request with the types of govmomi, VMware's library for Go, which cloud-api-adaptor uses as well. This
// program refuses a request that govmomi would not send, and sees to it that users see and do what they may and no more. The API is
// at the address that it prints, without TLS, for a relay; and at another one, with TLS.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"peers/control"
)

func main() {
	model := simulator.VPX()
	// The simulator gives all of them the same one.
	model.ServiceContent.About.InstanceUuid = uuid.NewString()
	if err := model.Create(); err != nil {
		log.Fatal(err)
	}
	service := model.Service
	service.TLS = new(tls.Config)
	service.Listen = &url.URL{Host: "127.0.0.1:0", User: url.UserPassword("nobody", "nothing")}
	encrypted := service.NewServer()
	cloud := newCloud(model, encrypted)
	routes := http.NewServeMux()
	routes.HandleFunc("POST /sdk", func(out http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err == nil {
			err = cloud.judge(request, body)
		}
		if err != nil {
			log.Print(err)
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		service.ServeSDK(out, request)
	})
	cloud.control(routes)
	control.Serve(routes)
}

// Refuses what govmomi would not send.
func (c *cloud) judge(request *http.Request, body []byte) error {
	if kind := request.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/xml") {
		return fmt.Errorf("the content is %q", kind)
	}
	method, err := simulator.UnmarshalBody(types.TypeFunc(), body)
	if err != nil {
		return err
	}
	action, version := request.Header.Get("SOAPAction"), "urn:vim25/"+c.model.ServiceContent.About.ApiVersion
	if method.Name == "RetrieveServiceContent" {
		if !showsInstance(action) {
			return fmt.Errorf("a vCenter does not show its instanceUuid to the action %q", action)
		}
	} else if action != version {
		return fmt.Errorf("the action is %q, not %q", action, version)
	}
	return sameShape(method, body)
}

// Whether the answer to this action has an instanceUuid, which exists since 4.0. A vCenter answers in the form of the version in the
// action; without one, in that of 2.5.
func showsInstance(action string) bool {
	version, named := strings.CutPrefix(action, "urn:vim25/")
	major, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(major)
	return named && err == nil && number >= 4
}

var background = context.Background()
