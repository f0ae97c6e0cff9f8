package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/IBM-Cloud/power-go-client/clients/instance"
	"github.com/IBM-Cloud/power-go-client/ibmpisession"
	"github.com/IBM-Cloud/power-go-client/power/client"
	"github.com/IBM-Cloud/power-go-client/power/models"
	"github.com/IBM/go-sdk-core/v5/core"
	httptransport "github.com/go-openapi/runtime/client"
	"github.com/go-openapi/strfmt"
)

// Where servers of Power Virtual Server are.
type workspace struct {
	ID, Account, Zone string
}

// A call about the servers of a workspace.
type powerCall struct {
	cloud   *cloud
	caller  *token
	in      *workspace
	request *http.Request
}

// How a call is made by IBM's library, and how it is answered.
type powerOperation struct {
	send func(*instance.IBMPIInstanceClient, *http.Request) (validated, error)
	act  func(*powerCall) answer
}

// What the library reads, and can judge.
type validated interface {
	Validate(strfmt.Registry) error
}

var (
	listServers = powerOperation{
		send: func(library *instance.IBMPIInstanceClient, _ *http.Request) (validated, error) {
			return library.GetAll()
		},
		act: (*powerCall).list,
	}
	getServer = powerOperation{
		send: func(library *instance.IBMPIInstanceClient, request *http.Request) (validated, error) {
			return library.Get(request.PathValue("id"))
		},
		act: (*powerCall).get,
	}
	deleteServer = powerOperation{
		send: func(library *instance.IBMPIInstanceClient, request *http.Request) (validated, error) {
			return &models.PVMInstances{PvmInstances: []*models.PVMInstanceReference{}}, library.Delete(request.PathValue("id"))
		},
		act: (*powerCall).delete,
	}
)

// Answers calls of this kind that IBM's library could have sent.
func (c *cloud) power(operation powerOperation) http.HandlerFunc {
	return func(out http.ResponseWriter, request *http.Request) {
		c.Lock()
		defer c.Unlock()
		call := &powerCall{cloud: c, caller: c.authenticate(request.Header.Get("Authorization")), request: request}
		if call.caller == nil {
			reply(out, powerError(http.StatusUnauthorized, "unauthorized", "token is invalid"))
			return
		}
		for _, w := range c.workspaces {
			if w.ID == request.PathValue("workspace") {
				call.in = w
			}
		}
		if call.in == nil {
			reply(out, powerError(http.StatusNotFound, "not found", "cloud-instance does not exist"))
			return
		}
		notes, _, _ := call.library(operation, powerError(http.StatusInternalServerError, "", "not sent"))
		if err := notes.judge(request, ""); err != nil {
			reply(out, powerError(http.StatusBadRequest, "bad request", "unlike IBM's library: "+err.Error()))
			return
		}
		if call.in.Account != call.caller.account || !call.caller.principal.may("power-iaas.cloud-instance.read") {
			reply(out, powerError(http.StatusForbidden, "forbidden", "user does not have any access authority"))
			return
		}
		given := operation.act(call)
		_, read, err := call.library(operation, given)
		if given.status < 300 && err == nil {
			err = read.Validate(strfmt.Default)
		}
		if isGood := given.status < 300; isGood != (err == nil) {
			http.Error(out, fmt.Sprintf("IBM's library cannot read the answer: %v", err), http.StatusInternalServerError)
			return
		}
		reply(out, given)
	}
}

// Has the library make the call, with this answer.
func (call *powerCall) library(operation powerOperation, given answer) (*notebook, validated, error) {
	notes, bearer := &notebook{answer: given}, strings.TrimPrefix(call.request.Header.Get("Authorization"), "Bearer ")
	// The account and the zone make the header CRN.
	session, err := ibmpisession.NewIBMPISession(&ibmpisession.IBMPIOptions{
		Authenticator: &core.BearerTokenAuthenticator{BearerToken: bearer}, UserAccount: call.caller.account, Zone: call.in.Zone,
	})
	if err != nil {
		return notes, nil, err
	}
	transport := httptransport.New(call.request.Host, "/", []string{"http"})
	transport.Transport = notes
	session.Power = client.New(transport, nil)
	read, err := operation.send(instance.NewIBMPIInstanceClient(context.Background(), session, call.in.ID), call.request)
	return notes, read, err
}

func (call *powerCall) shows(i *machine) bool {
	return i.Workspace == call.in.ID && i.behavior != hidden
}

// Why the caller may not do this, if so.
func (call *powerCall) refuses(action string, i *machine) *answer {
	if call.caller.principal.may(action) && (i == nil || i.behavior != unauthorized) {
		return nil
	}
	refused := powerError(http.StatusForbidden, "forbidden", "user is not authorized for "+action)
	return &refused
}

func (call *powerCall) list() answer {
	if refused := call.refuses("power-iaas.pvm-instance.list", nil); refused != nil {
		return *refused
	}
	all := []*models.PVMInstanceReference{}
	for _, i := range slices.Clone(call.cloud.machines) {
		if call.shows(i) && !call.cloud.look(i) {
			all = append(all, i.reference())
		}
	}
	return answerOf(http.StatusOK, models.PVMInstances{PvmInstances: all})
}

func (call *powerCall) server() (*machine, *answer) {
	i := call.cloud.find(call.request.PathValue("id"))
	if i == nil || !call.shows(i) {
		missing := powerError(http.StatusNotFound, "not found", "pvm-instance does not exist")
		return nil, &missing
	}
	return i, nil
}

func (call *powerCall) get() answer {
	i, missing := call.server()
	if missing != nil {
		return *missing
	}
	if refused := call.refuses("power-iaas.pvm-instance.read", i); refused != nil {
		return *refused
	}
	if call.cloud.look(i) {
		_, missing = call.server()
		return *missing
	}
	return answerOf(http.StatusOK, i.server())
}

func (call *powerCall) delete() answer {
	i, missing := call.server()
	if missing != nil {
		return *missing
	}
	if refused := call.refuses("power-iaas.pvm-instance.delete", i); refused != nil {
		return *refused
	}
	switch {
	case i.deleting:
		return powerError(http.StatusConflict, "conflict", "pvm-instance is being deleted")
	case i.Status == "BUILD":
		return powerError(http.StatusBadRequest, "bad request", "server is still initializing, wait a few minutes and try again")
	}
	i.deleting, i.looks = true, call.cloud.looks
	return answerOf(http.StatusOK, struct{}{})
}

func (i *machine) status() (status, task string) {
	if i.deleting {
		return i.Status, "deleting"
	}
	return i.Status, ""
}

// The server as it is shown, with all that IBM's library requires.
func (i *machine) server() models.PVMInstance {
	status, task := i.status()
	size, image, os, processors, storage := 20.0, newID(), "rhel", "shared", "tier3"
	return models.PVMInstance{
		PvmInstanceID: &i.id, ServerName: &i.Name, Status: &status, TaskState: task, CreationDate: strfmt.DateTime(i.created.UTC().Truncate(time.Millisecond)),
		DiskSize: &size, ImageID: &image, Memory: &size, NetworkIDs: []string{}, Networks: []*models.PVMInstanceNetwork{},
		Addresses: []*models.PVMInstanceNetwork{}, OsType: &os, ProcType: &processors, Processors: &size, StorageType: &storage,
		VolumeIDs: []string{}, Srcs: [][]*models.SRC{}, SysType: "s922",
	}
}

// The server as a list shows it.
func (i *machine) reference() *models.PVMInstanceReference {
	status, task := i.status()
	href := "/pcloud/v1/cloud-instances/" + i.Workspace + "/pvm-instances/" + i.id
	size, image, os, processors := 20.0, newID(), "rhel", "shared"
	return &models.PVMInstanceReference{
		PvmInstanceID: &i.id, ServerName: &i.Name, Status: &status, TaskState: task, CreationDate: strfmt.DateTime(i.created.UTC().Truncate(time.Millisecond)),
		DiskSize: &size, Href: &href, ImageID: &image, Memory: &size, OsType: &os, ProcType: &processors, Processors: &size,
		Addresses: []*models.PVMInstanceNetwork{}, Networks: []*models.PVMInstanceNetwork{}, Srcs: [][]*models.SRC{}, SysType: "s922",
	}
}

func powerError(status int, failure, description string) answer {
	return answerOf(status, models.Error{Code: int64(status), Error: failure, Description: description})
}
