package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	govmomi "github.com/vmware/govmomi/vim25/xml"
)

// An element of a request.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

// Fails unless the body of a request has the elements, in this order, that govmomi makes of what it has read in it. So an element
// that govmomi does not know, or knows elsewhere, is noticed.
func sameShape(method *simulator.Method, body []byte) error {
	var given struct {
		Body struct {
			Method element `xml:",any"`
		}
	}
	if err := xml.Unmarshal(body, &given); err != nil {
		return err
	}
	var text bytes.Buffer
	start := govmomi.StartElement{Name: govmomi.Name{Local: method.Name}}
	if err := govmomi.NewEncoder(&text).EncodeElement(method.Body, start); err != nil {
		return err
	}
	var expected element
	if err := xml.Unmarshal(text.Bytes(), &expected); err != nil {
		return err
	}
	return compare(given.Body.Method, expected, method.Name)
}

func compare(given, expected element, path string) error {
	if given.XMLName.Local != expected.XMLName.Local || strings.TrimSpace(given.Text) != strings.TrimSpace(expected.Text) {
		return fmt.Errorf("%s: %s %q instead of %s %q", path, given.XMLName.Local, given.Text, expected.XMLName.Local, expected.Text)
	}
	for _, attr := range given.Attrs {
		same := func(other xml.Attr) bool { return other.Name.Local == attr.Name.Local && other.Value == attr.Value }
		if attr.Name.Local == "type" && !slices.ContainsFunc(expected.Attrs, same) {
			return fmt.Errorf("%s: %s is no %s", path, given.XMLName.Local, attr.Value)
		}
	}
	if len(given.Children) != len(expected.Children) {
		return fmt.Errorf("%s: %d elements instead of %d", path, len(given.Children), len(expected.Children))
	}
	for i, child := range given.Children {
		if err := compare(child, expected.Children[i], path+"/"+child.XMLName.Local); err != nil {
			return err
		}
	}
	return nil
}
