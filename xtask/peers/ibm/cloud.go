package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// How long a token is good for.
const tokenTime = time.Hour

// How the cloud behaves to one instance.
type behavior string

const (
	// The caller may not act on it.
	unauthorized behavior = "unauthorized"
	// Its deletion does not end.
	deletesLater behavior = "deletes-later"
	// It is not shown.
	hidden behavior = "hidden"
)

type cloud struct {
	sync.Mutex
	principals []*principal
	tokens     map[string]token
	machines   []*machine
	volumes    map[string]*volume
	workspaces []*workspace
	// What is left of each search, by its cursor.
	searches map[string][]map[string]any
	// The most instances and results on a page; 0 for as many as are asked for.
	pageSize int
	// How often an instance is seen while it is being deleted.
	looks int
}

// Who may have tokens, and what it may do.
type principal struct {
	// Its API key, or its trusted profile and the token of a Pod for which that is given.
	Key, Profile, Subject string
	Account               string
	Actions               []string
}

type token struct {
	principal *principal
	account   string
	expires   time.Time
}

// An instance of VPC, which is in a region of an account, or a server of Power Virtual Server, which is in a workspace.
type machine struct {
	Account, Region, Name string
	Group                 string
	Workspace, Status     string
	// Whether a user's volume is attached to it, which stays when it goes.
	UserData bool
	Stopped  bool
	// The tags that users gave to it.
	Tags []string
	// Whether it was made long ago.
	Old bool

	id       string
	created  time.Time
	deleting bool
	looks    int
	behavior behavior
}

// A volume, by the instance to which it is attached.
type volume struct {
	instance string
	// Whether it goes with the instance.
	goes bool
}

func newCloud() *cloud {
	return &cloud{
		tokens: map[string]token{}, volumes: map[string]*volume{}, searches: map[string][]map[string]any{}, looks: 1,
	}
}

func newID() string {
	text := strings.ToLower(rand.Text() + rand.Text())
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:32]
}

func newUUID() string {
	var bytes [16]byte
	_, _ = rand.Read(bytes[:])
	text := hex.EncodeToString(bytes[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

func (c *cloud) add(i *machine) *machine {
	i.id, i.created = "0717_"+newID(), time.Now()
	if i.Old {
		i.created = i.created.Add(-24 * time.Hour)
	}
	if i.Workspace != "" {
		i.id = newUUID()
	}
	c.machines = append(c.machines, i)
	c.volumes["r006-"+newID()] = &volume{i.id, true}
	if i.UserData {
		c.volumes["r006-"+newID()] = &volume{i.id, false}
	}
	return i
}

// The name in all of IBM Cloud of something that is where an instance is.
func (i *machine) crn(what, id string) string {
	return fmt.Sprintf("crn:v1:bluemix:public:is:%s-1:a/%s::%s:%s", i.Region, i.Account, what, id)
}

func (c *cloud) find(id string) *machine {
	for _, i := range c.machines {
		if i.id == id {
			return i
		}
	}
	return nil
}

// Ends an instance, with the volumes that go with it.
func (c *cloud) end(i *machine) {
	c.machines = slices.DeleteFunc(c.machines, func(other *machine) bool { return other == i })
	for id, v := range c.volumes {
		if v.instance == i.id && v.goes {
			delete(c.volumes, id)
		}
	}
}

// Notes that somebody looks at a machine. Tells whether that is gone now, as it was being deleted.
func (c *cloud) look(m *machine) bool {
	if !m.deleting || m.behavior == deletesLater {
		return false
	}
	m.looks--
	if m.looks < 0 {
		c.end(m)
		return true
	}
	return false
}

// Whether the principal may do this.
func (p *principal) may(action string) bool {
	return slices.Contains(p.Actions, action)
}

// A token that says, as IBM's do, of which account it is.
func (c *cloud) newToken(p *principal) string {
	part := func(value any) string {
		text, _ := json.Marshal(value)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	claims := map[string]any{
		"iam_id": "iam-ServiceId-" + newID(), "account": map[string]any{"valid": true, "bss": p.Account},
		"iat": now.Unix(), "exp": now.Add(tokenTime).Unix(), "jti": newID(),
	}
	text := part(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + part(claims) + "." + part(newID())
	c.tokens[text] = token{p, p.Account, now.Add(tokenTime)}
	return text
}

// Who shows this header, if anybody.
func (c *cloud) authenticate(header string) *token {
	text, isBearer := strings.CutPrefix(header, "Bearer ")
	t, known := c.tokens[text]
	if !isBearer || !known || time.Now().After(t.expires) {
		return nil
	}
	return &t
}

func reply(out http.ResponseWriter, a answer) {
	out.Header().Set("Content-Type", "application/json; charset=utf-8")
	out.Header().Set("X-Request-Id", newID())
	out.WriteHeader(a.status)
	// A caller that went away reads no answer.
	_, _ = out.Write(a.body)
}

func answerOf(status int, body any) answer {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{http.StatusInternalServerError, []byte(err.Error())}
	}
	return answer{status, text}
}
