package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/IBM/go-sdk-core/v5/core"
	"github.com/IBM/platform-services-go-sdk/globalsearchv2"
)

// What Global Search shows if a search names no fields.
var usualFields = []string{"crn", "name", "family", "type", "account_id"}

// What a search asks for.
type searched struct {
	Query  *string  `json:"query"`
	Fields []string `json:"fields"`
	Cursor *string  `json:"search_cursor"`
	limit  *int64
}

// Answers searches that IBM's library could have sent.
func (c *cloud) search(out http.ResponseWriter, request *http.Request) {
	c.Lock()
	defer c.Unlock()
	caller := c.authenticate(request.Header.Get("Authorization"))
	if caller == nil {
		reply(out, vpcError(http.StatusUnauthorized, "unauthorized", "The token is not valid."))
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	var asked searched
	// What is no search differs from what the library sends.
	_ = json.Unmarshal(body, &asked)
	if limit, err := strconv.ParseInt(request.URL.Query().Get("limit"), 10, 64); err == nil {
		asked.limit = &limit
	}
	notes, _, _ := asked.send(request, vpcError(http.StatusInternalServerError, "internal_error", "not sent"))
	if err := notes.judge(request, string(body)); err != nil {
		reply(out, vpcError(http.StatusBadRequest, "bad_request", "unlike IBM's library: "+err.Error()))
		return
	}
	given := c.found(caller, &asked)
	_, found, err := asked.send(request, given)
	if given.status < 300 && err == nil {
		err = core.ValidateStruct(found, "answer")
	}
	if isGood := given.status < 300; isGood != (err == nil) {
		http.Error(out, fmt.Sprintf("IBM's library cannot read the answer: %v", err), http.StatusInternalServerError)
		return
	}
	reply(out, given)
}

// Has the library search, with this answer.
func (s *searched) send(request *http.Request, given answer) (*notebook, *globalsearchv2.ScanResult, error) {
	notes, bearer := &notebook{answer: given}, strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")
	library, err := globalsearchv2.NewGlobalSearchV2(&globalsearchv2.GlobalSearchV2Options{
		URL: "http://" + request.Host, Authenticator: &core.BearerTokenAuthenticator{BearerToken: bearer},
	})
	if err != nil {
		return notes, nil, err
	}
	library.Service.SetHTTPClient(notes.client())
	found, _, err := library.Search(&globalsearchv2.SearchOptions{
		Query: s.Query, Fields: s.Fields, SearchCursor: s.Cursor, Limit: s.limit,
	})
	return notes, found, err
}

// A page of what is found. With a cursor it is the next one of the search that gave the cursor, whatever else is asked for.
func (c *cloud) found(caller *token, asked *searched) answer {
	limit := 10
	if asked.limit != nil {
		limit = int(*asked.limit)
	}
	if limit < 1 {
		return vpcError(http.StatusBadRequest, "bad_request", "The limit is not positive.")
	}
	if c.pageSize > 0 {
		limit = min(limit, c.pageSize)
	}
	var all []map[string]any
	if asked.Cursor == nil {
		all = c.instances(caller, asked)
	} else if left, isKnown := c.searches[*asked.Cursor]; isKnown {
		all = left
	} else {
		return vpcError(http.StatusBadRequest, "bad_request", "The search cursor is not known.")
	}
	page := all[:min(limit, len(all))]
	answer := map[string]any{"limit": limit, "items": append([]map[string]any{}, page...)}
	if len(page) > 0 {
		cursor := newID()
		c.searches[cursor], answer["search_cursor"] = all[len(page):], cursor
	}
	return answerOf(http.StatusOK, answer)
}

// The instances of VPC that the query is for, in all regions, and none that the caller may not see.
func (c *cloud) instances(caller *token, asked *searched) []map[string]any {
	shown, fields := []map[string]any{}, asked.Fields
	if fields == nil {
		fields = usualFields
	}
	for _, i := range c.machines {
		isHidden := i.behavior == hidden || !caller.principal.may("global-search-tagging.resource.read")
		if i.Workspace != "" || i.Account != caller.account || isHidden {
			continue
		}
		item := map[string]any{
			"crn": i.crn("instance", i.id), "name": i.Name, "family": "is", "type": "instance", "account_id": i.Account,
			"region": i.Region, "resource_id": i.id,
		}
		if len(i.Tags) > 0 {
			item["tags"] = i.Tags
		}
		if asked.Query != nil && !matches(*asked.Query, item) {
			continue
		}
		for field := range item {
			if field != "crn" && !slices.Contains(fields, field) && !slices.Contains(fields, "*") {
				delete(item, field)
			}
		}
		shown = append(shown, item)
	}
	return shown
}

// Whether a query is for this. Of Lucene's language it may have `FIELD:VALUE AND FIELD:VALUE` alone.
func matches(query string, item map[string]any) bool {
	for clause := range strings.SplitSeq(query, " AND ") {
		field, value, _ := strings.Cut(clause, ":")
		if item[field] != value {
			return false
		}
	}
	return true
}
