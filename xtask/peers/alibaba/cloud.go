package main

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// How the cloud behaves to one instance.
type behavior string

const (
	// The caller may not act on it.
	unauthorized behavior = "unauthorized"
	// Its deletion does not end.
	deletesLater behavior = "deletes-later"
	// It is not shown.
	hidden behavior = "hidden"
	// What belongs to it cannot be deleted.
	holdsBelongings behavior = "holds-belongings"
)

type cloud struct {
	sync.Mutex
	notes     *notebook
	keys      []*key
	roles     []*role
	nonces    map[string]bool
	regions   map[string]string
	instances []*instance
	nics      []*nic
	addresses []*address
	disks     []*disk
	// The instances whose belongings cannot be deleted.
	held []string
	// The most things on a page; 0 for as many as are asked for.
	pageSize int
}

// An access key, or the temporary one of a role.
type key struct {
	ID, Secret, Token, Account string
	Actions                    []string
	// Lists are empty where a right is missing, as they were before December 2025.
	Quiet bool

	expires time.Time
}

// Who gets temporary keys for the token of a Pod.
type role struct {
	Role, Provider, Subject, Account string
	Actions                          []string
}

type instance struct {
	Account, Region, Name string
	Stopped               bool
	// Whether it has an interface and an address for it, as cloud-api-adaptor makes them.
	External bool
	// Whether a user's disk is attached to it, which stays when it goes.
	UserData bool
	// Whether it is locked for security reasons.
	Locked bool

	id, status string
	created    time.Time
	looks      int
	behavior   behavior
}

type nic struct {
	id, name, status, instance, account, region string
	// Whose it is, whether it is attached or not.
	made    string
	created time.Time
	// Whether it goes with its instance.
	goes bool
}

type address struct {
	id, name, description, charge, status, nic, account, region string
	// Whose it is, whether it is associated or not.
	made    string
	created time.Time
	looks   int
}

type disk struct {
	instance string
	goes     bool
}

func newCloud(notes *notebook) *cloud {
	return &cloud{notes: notes, nonces: map[string]bool{}, regions: map[string]string{}}
}

func newID(prefix string) string {
	return prefix + strings.ToLower(rand.Text())[:20]
}

func (c *cloud) add(i *instance) *instance {
	i.id, i.created, i.status = newID("i-"), time.Now(), "Running"
	if i.Stopped {
		i.status = "Stopped"
	}
	c.instances = append(c.instances, i)
	c.disks = append(c.disks, &disk{i.id, true})
	if i.UserData {
		c.disks = append(c.disks, &disk{i.id, false})
	}
	if i.External {
		n := &nic{
			id: newID("eni-"), name: "peerpod-nic-" + i.id, status: "InUse", instance: i.id,
			account: i.Account, region: i.Region, created: i.created, made: i.id, goes: true,
		}
		c.nics = append(c.nics, n)
		c.addresses = append(c.addresses, &address{
			id: newID("eip-"), description: "Peerpod External Network EIP", charge: "PostPaid", status: "InUse", nic: n.id,
			account: i.Account, region: i.Region, created: i.created, made: i.id,
		})
	}
	return i
}

func (c *cloud) find(id string) *instance {
	for _, i := range c.instances {
		if i.id == id {
			return i
		}
	}
	return nil
}

// Ends an instance, with what goes with it.
func (c *cloud) end(i *instance) {
	c.instances = slices.DeleteFunc(c.instances, func(other *instance) bool { return other == i })
	c.disks = slices.DeleteFunc(c.disks, func(d *disk) bool { return d.instance == i.id && d.goes })
	for _, n := range c.nics {
		if n.instance == i.id {
			n.instance, n.status = "", "Available"
			if n.goes {
				c.free(n)
			}
		}
	}
	c.nics = slices.DeleteFunc(c.nics, func(n *nic) bool { return n.made == i.id && n.goes })
}

// Takes the addresses from an interface.
func (c *cloud) free(n *nic) {
	for _, a := range c.addresses {
		if a.nic == n.id {
			a.nic, a.status = "", "Available"
		}
	}
}

// Notes that somebody looks at an instance. Tells whether it is gone now, as it was being deleted.
func (c *cloud) look(i *instance) bool {
	if i.status != "Stopping" || i.behavior == deletesLater {
		return false
	}
	i.looks--
	if i.looks < 0 {
		c.end(i)
		return true
	}
	return false
}

// One call.
type call struct {
	*cloud
	key     *key
	region  string
	request *http.Request
	query   url.Values
}

func (c *cloud) serve(out http.ResponseWriter, request *http.Request) {
	c.Lock()
	defer c.Unlock()
	reply(out, c.respond(request))
}

func (c *cloud) respond(request *http.Request) answer {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return problem(http.StatusBadRequest, "InvalidParameter", err.Error())
	}
	action := request.Header.Get("x-acs-action")
	operation, known := operations[action]
	if !known || request.Header.Get("x-acs-version") != operation.version {
		return problem(http.StatusNotFound, "InvalidAction.NotFound", "Specified api is not found.")
	}
	var caller *key
	if action != "AssumeRoleWithOIDC" {
		_, rest, _ := strings.Cut(request.Header.Get("Authorization"), " Credential=")
		id, _, _ := strings.Cut(rest, ",")
		caller = c.keyOf(id)
		if caller == nil {
			return problem(http.StatusNotFound, "InvalidAccessKeyId.NotFound", "Specified access key is not found.")
		}
		if token := request.Header.Get("x-acs-security-token"); token != caller.Token {
			return problem(http.StatusBadRequest, "InvalidSecurityToken.Malformed", "Specified SecurityToken is malformed.")
		}
	}
	// The library does not take a failure for a success.
	unsent := problem(http.StatusInternalServerError, "InternalError", "not sent")
	if err := c.notes.send(request, caller, unsent); err == nil {
		return problem(http.StatusBadRequest, "InvalidParameter", "the library takes a failure for an answer")
	}
	if err := c.notes.judge(request, string(body)); err != nil {
		return problem(http.StatusBadRequest, "SignatureDoesNotMatch", "unlike Alibaba Cloud's library: "+err.Error())
	}
	if caller != nil && !caller.expires.IsZero() && time.Now().After(caller.expires) {
		return problem(http.StatusBadRequest, "InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")
	}
	date, err := time.Parse("2006-01-02T15:04:05Z", request.Header.Get("x-acs-date"))
	if err != nil || time.Since(date).Abs() > 15*time.Minute {
		return problem(http.StatusBadRequest, "InvalidTimeStamp.Expired", "Specified time stamp is expired.")
	}
	nonce := request.Header.Get("x-acs-signature-nonce")
	if nonce == "" || c.nonces[nonce] {
		return problem(http.StatusBadRequest, "SignatureNonceUsed", "Specified signature nonce was used already.")
	}
	c.nonces[nonce] = true
	call := &call{cloud: c, key: caller, region: c.regions[request.Host], request: request, query: request.URL.Query()}
	if named := call.query.Get("RegionId"); named != "" && named != call.region {
		return problem(http.StatusNotFound, "InvalidRegionId.NotFound", "The specified region is not at this endpoint.")
	}
	given := operation.act(call)
	if operation.right != "" && !slices.Contains(caller.Actions, operation.right) {
		given = forbidden()
		if caller.Quiet && action == "DescribeInstances" {
			given = instancesAnswer(nil, "")
		}
	}
	err = c.notes.send(request, caller, given)
	if isGood := given.status < 300; isGood != (err == nil) {
		return problem(http.StatusInternalServerError, "InternalError", "the library cannot read the answer: "+errorText(err))
	}
	return given
}

func errorText(err error) string {
	if err == nil {
		return "it takes it for a success"
	}
	return err.Error()
}

func (c *cloud) keyOf(id string) *key {
	for _, k := range c.keys {
		if k.ID == id {
			return k
		}
	}
	return nil
}

func forbidden() answer {
	return problem(http.StatusForbidden, "Forbidden.RAM", "User not authorized to operate on the specified resource.")
}

func problem(status int, code, message string) answer {
	return answerOf(status, map[string]any{
		"RequestId": newID(""), "HostId": "aliyuncs.example", "Code": code, "Message": message, "Recommend": "none",
	})
}

func done() answer {
	return answerOf(http.StatusOK, map[string]any{"RequestId": newID("")})
}

func answerOf(status int, body any) answer {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{http.StatusInternalServerError, []byte(err.Error())}
	}
	return answer{status, text}
}

func reply(out http.ResponseWriter, a answer) {
	out.Header().Set("Content-Type", "application/json;charset=utf-8")
	out.WriteHeader(a.status)
	// A caller that went away reads no answer.
	_, _ = out.Write(a.body)
}
