package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/go-sdk-core/v5/core"
	"github.com/IBM/vpc-go-sdk/vpcv1"
	"github.com/go-openapi/strfmt"
)

// One call of the VPC API.
type vpcCall struct {
	cloud  *cloud
	caller *token
	region string
	// The URL of the region's API.
	url     string
	request *http.Request
}

// How a call is made by IBM's library, and how it is answered.
type vpcOperation struct {
	send func(*vpcv1.VpcV1, *http.Request) (any, error)
	act  func(*vpcCall) answer
}

var (
	listInstances = vpcOperation{
		send: func(library *vpcv1.VpcV1, request *http.Request) (any, error) {
			options, query := library.NewListInstancesOptions(), request.URL.Query()
			if start := query.Get("start"); start != "" {
				options.SetStart(start)
			}
			if limit, err := strconv.ParseInt(query.Get("limit"), 10, 64); err == nil {
				options.SetLimit(limit)
			}
			page, _, err := library.ListInstances(options)
			return page, err
		},
		act: (*vpcCall).list,
	}
	getInstance = vpcOperation{
		send: func(library *vpcv1.VpcV1, request *http.Request) (any, error) {
			found, _, err := library.GetInstance(library.NewGetInstanceOptions(request.PathValue("id")))
			return found, err
		},
		act: (*vpcCall).get,
	}
	deleteInstance = vpcOperation{
		send: func(library *vpcv1.VpcV1, request *http.Request) (any, error) {
			_, err := library.DeleteInstance(library.NewDeleteInstanceOptions(request.PathValue("id")))
			return nil, err
		},
		act: (*vpcCall).delete,
	}
)

// Answers calls of this kind that IBM's library could have sent.
func (c *cloud) vpc(operation vpcOperation) http.HandlerFunc {
	return func(out http.ResponseWriter, request *http.Request) {
		c.Lock()
		defer c.Unlock()
		call := &vpcCall{cloud: c, region: request.PathValue("region"), request: request}
		call.url = "http://" + request.Host + "/vpc/" + call.region + "/v1"
		if call.region == "" {
			call.region, call.url = strings.TrimSuffix(request.Host, ".iaas.cloud.ibm.com"), "http://"+request.Host+"/v1"
		}
		library := func(given answer) (*notebook, any, error) {
			notes, version := &notebook{answer: given}, request.URL.Query().Get("version")
			bearer := &core.BearerTokenAuthenticator{BearerToken: strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")}
			made, err := vpcv1.NewVpcV1(&vpcv1.VpcV1Options{URL: call.url, Authenticator: bearer, Version: &version})
			if err != nil {
				return notes, nil, err
			}
			made.Service.SetHTTPClient(notes.client())
			read, err := operation.send(made, request)
			return notes, read, err
		}
		call.caller = c.authenticate(request.Header.Get("Authorization"))
		if call.caller == nil {
			reply(out, vpcError(http.StatusUnauthorized, "not_authorized", "The request is not authorized."))
			return
		}
		notes, _, _ := library(vpcError(http.StatusInternalServerError, "internal_error", "not sent"))
		if err := notes.judge(request, ""); err != nil {
			reply(out, vpcError(http.StatusBadRequest, "bad_request", "unlike IBM's library: "+err.Error()))
			return
		}
		version, err := time.Parse(time.DateOnly, request.URL.Query().Get("version"))
		if err != nil || version.After(time.Now()) || version.Year() < 2019 {
			reply(out, vpcError(http.StatusBadRequest, "invalid_version_range", "The `version` value is no date that can be."))
			return
		}
		given := operation.act(call)
		_, read, err := library(given)
		if given.status < 300 && err == nil && read != nil {
			err = core.ValidateStruct(read, "answer")
		}
		if isGood := given.status < 300; isGood != (err == nil) {
			http.Error(out, fmt.Sprintf("IBM's library cannot read the answer: %v", err), http.StatusInternalServerError)
			return
		}
		reply(out, given)
	}
}

// Whether the caller may do this to the instance, which it must be able to see.
func (call *vpcCall) may(i *machine, action string) bool {
	return call.caller.principal.may(action) && i.behavior != unauthorized
}

// The instances that the caller is shown: in this region, of its account, and none that it may not see.
func (call *vpcCall) shows(i *machine, action string) bool {
	isHere := i.Region == call.region && i.Account == call.caller.account
	return isHere && i.behavior != hidden && call.caller.principal.may(action)
}

func (call *vpcCall) list() answer {
	shown, next := []vpcv1.Instance{}, (*vpcv1.PageLink)(nil)
	query := call.request.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit < 1 || limit > 100 {
		return vpcError(http.StatusBadRequest, "invalid_value", "The `limit` is no number from 1 to 100.")
	}
	if size := call.cloud.pageSize; size > 0 {
		limit = min(limit, size)
	}
	start := query.Get("start")
	all := slices.DeleteFunc(slices.Clone(call.cloud.machines), func(i *machine) bool {
		// What goes is not where a further page starts.
		return !call.shows(i, "is.instance.instance.list") || start == "" && call.cloud.look(i)
	})
	begin := 0
	if start != "" {
		begin = slices.IndexFunc(all, func(i *machine) bool { return i.id == start })
		if begin < 0 {
			return vpcError(http.StatusBadRequest, "invalid_value", "The `start` is not known.")
		}
	}
	for _, i := range all[begin:min(begin+limit, len(all))] {
		shown = append(shown, call.show(i))
	}
	if begin+limit < len(all) {
		next = &vpcv1.PageLink{Href: text("%s/instances?limit=%d&start=%s", call.url, limit, all[begin+limit].id)}
	}
	return answerOf(http.StatusOK, vpcv1.InstanceCollection{
		First: &vpcv1.PageLink{Href: text("%s/instances?limit=%d", call.url, limit)}, Instances: shown, Next: next,
		Limit: number(limit), TotalCount: number(len(all)),
	})
}

// The instance of the call, or why there is none. VPC hides what a caller may not see.
func (call *vpcCall) instance() (*machine, *answer) {
	i := call.cloud.find(call.request.PathValue("id"))
	if i == nil || !call.shows(i, "is.instance.instance.read") {
		missing := vpcError(http.StatusNotFound, "not_found", "Instance not found")
		return nil, &missing
	}
	return i, nil
}

func (call *vpcCall) get() answer {
	i, missing := call.instance()
	if missing != nil {
		return *missing
	}
	if !call.may(i, "is.instance.instance.read") {
		return forbidden(i)
	}
	if call.cloud.look(i) {
		_, missing = call.instance()
		return *missing
	}
	return answerOf(http.StatusOK, call.show(i))
}

func (call *vpcCall) delete() answer {
	i, missing := call.instance()
	switch {
	case missing != nil:
		return *missing
	case !call.may(i, "is.instance.instance.delete"):
		return forbidden(i)
	case i.deleting:
		return vpcError(http.StatusConflict, "instance_status_conflict", "The instance is being deleted.")
	}
	i.deleting, i.looks = true, call.cloud.looks
	return answer{status: http.StatusNoContent}
}

func forbidden(i *machine) answer {
	message := "the provided token is not authorized to the specified instance (ID:" + i.id + ") in this account"
	return vpcError(http.StatusForbidden, "not_authorized", message)
}

func vpcError(status int, code, message string) answer {
	problem := map[string]any{"code": code, "message": message, "more_info": "https://cloud.ibm.com/docs/vpc"}
	return answerOf(status, map[string]any{"errors": []any{problem}, "trace": newID()})
}

func text(format string, arguments ...any) *string {
	return core.StringPtr(fmt.Sprintf(format, arguments...))
}

func number(value int) *int64 {
	return core.Int64Ptr(int64(value))
}

// The instance as VPC shows it, with all that IBM's library requires.
func (call *vpcCall) show(i *machine) vpcv1.Instance {
	status, lifecycle := "running", "stable"
	switch {
	case i.deleting:
		status, lifecycle = "deleting", "deleting"
	case i.Stopped:
		status = "stopped"
	}
	href := func(what, id string) *string { return text("%s/%s/%s", call.url, what, id) }
	crn := func(what, id string) *string { return core.StringPtr(i.crn(what, id)) }
	attachments := []vpcv1.VolumeAttachmentReferenceInstanceContext{}
	var boot *vpcv1.VolumeAttachmentReferenceInstanceContext
	for id, v := range call.cloud.volumes {
		if v.instance != i.id {
			continue
		}
		attachment := vpcv1.VolumeAttachmentReferenceInstanceContext{
			Device: &vpcv1.VolumeAttachmentDevice{ID: text("%s-abc", id)}, Href: href("volume_attachments", id), ID: &id, Name: &id,
			Volume: &vpcv1.VolumeReferenceVolumeAttachmentContext{
				CRN: crn("volume", id), Href: href("volumes", id), ID: &id, Name: &id, ResourceType: text("volume"),
			},
		}
		attachments = append(attachments, attachment)
		if v.goes {
			boot = &attachment
		}
	}
	nic := vpcv1.NetworkInterfaceInstanceContextReference{
		Href: href("network_interfaces", i.id), ID: &i.id, Name: text("primary"), ResourceType: text("network_interface"),
		PrimaryIP: &vpcv1.ReservedIPReference{
			Address: text("10.240.0.5"), Href: href("reserved_ips", "1"), ID: text("1"), Name: text("a"), ResourceType: text("subnet_reserved_ip"),
		},
		Subnet: &vpcv1.SubnetReference{
			CRN: crn("subnet", "0717-1"), Href: href("subnets", "0717-1"), ID: text("0717-1"), Name: text("a"), ResourceType: text("subnet"),
		},
	}
	created, yes, no := strfmt.DateTime(i.created), true, false
	return vpcv1.Instance{
		Availability:              &vpcv1.InstanceAvailability{Class: text("standard")},
		AvailabilityPolicy:        &vpcv1.InstanceAvailabilityPolicy{HostFailure: text("restart"), Preemption: text("stop")},
		Bandwidth:                 number(4000),
		BootVolumeAttachment:      boot,
		ClusterNetworkAttachments: []vpcv1.InstanceClusterNetworkAttachmentReference{},
		ConfidentialComputeMode:   text("disabled"),
		CreatedAt:                 &created,
		CRN:                       crn("instance", i.id),
		Disks:                     []vpcv1.InstanceDisk{},
		EnableSecureBoot:          &no,
		HealthReasons:             []vpcv1.InstanceHealthReason{},
		HealthState:               text("ok"),
		Href:                      href("instances", i.id),
		ID:                        &i.id,
		LifecycleReasons:          []vpcv1.InstanceLifecycleReason{},
		LifecycleState:            &lifecycle,
		Memory:                    number(8),
		MetadataService:           &vpcv1.InstanceMetadataService{Enabled: &yes, Protocol: text("http"), ResponseHopLimit: number(1)},
		Name:                      &i.Name,
		NetworkAttachments:        []vpcv1.InstanceNetworkAttachmentReference{},
		NetworkInterfaces:         []vpcv1.NetworkInterfaceInstanceContextReference{nic},
		PrimaryNetworkInterface:   &nic,
		Profile:                   &vpcv1.InstanceProfileReference{Href: href("profiles", "bx2-2x8"), Name: text("bx2-2x8"), ResourceType: text("instance_profile")},
		ReservationAffinity:       &vpcv1.InstanceReservationAffinity{Policy: text("disabled"), Pool: []vpcv1.ReservationReference{}},
		ResourceGroup:             &vpcv1.ResourceGroupReference{Href: href("resource_groups", i.Group), ID: &i.Group, Name: text("a")},
		ResourceType:              text("instance"),
		SoftwareAttachments:       []vpcv1.InstanceSoftwareAttachmentReference{},
		Startable:                 &yes,
		Status:                    &status,
		StatusReasons:             []vpcv1.InstanceStatusReason{},
		ThreadsPerCore:            number(2),
		TotalNetworkBandwidth:     number(3000),
		TotalVolumeBandwidth:      number(1000),
		Vcpu: &vpcv1.InstanceVcpu{
			Architecture: text("amd64"), Count: number(2), Manufacturer: text("intel"), Percentage: number(100),
		},
		VolumeAttachments:      attachments,
		VolumeBandwidthQosMode: text("weighted"),
		VPC: &vpcv1.VPCReference{
			CRN: crn("vpc", "r006-1"), Href: href("vpcs", "r006-1"), ID: text("r006-1"), Name: text("a"), ResourceType: text("vpc"),
		},
		Zone: &vpcv1.ZoneReference{Href: href("zones", i.Region+"-1"), Name: text("%s-1", i.Region)},
	}
}
