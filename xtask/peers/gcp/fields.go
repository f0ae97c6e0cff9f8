package main

import (
	"encoding/json"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The fields of an answer that a caller selects, and those in each of them; all if there are none. Google's APIs document the
// parameter `fields`: a,b for two fields, a/b for b in a, a(b,c) for b and c in a, and * for each entry of a map.
type selection map[string]selection

var fieldName = regexp.MustCompile(`^(?:\w+|\*)`)

// The answer in JSON, with the selected fields.
func encode(answer proto.Message, fields string) ([]byte, error) {
	text, err := protojson.Marshal(answer)
	if err != nil || fields == "" {
		return text, err
	}
	selected, whole := selection{}, map[string]any{}
	rest, known := selected.add(fields)
	if !known || rest != "" || !selected.isOf(answer.ProtoReflect().Descriptor()) {
		return nil, refuse(400, "invalidParameter", "Invalid field selection "+fields)
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	return json.Marshal(selected.from(whole))
}

// Adds the fields at the beginning of a text. Gives the rest of the text, and whether there were fields.
func (s selection) add(text string) (string, bool) {
	rest, known := s.addOne(text)
	for known && strings.HasPrefix(rest, ",") {
		rest, known = s.addOne(rest[1:])
	}
	return rest, known
}

func (s selection) addOne(text string) (string, bool) {
	name := fieldName.FindString(text)
	if name == "" {
		return text, false
	}
	if s[name] == nil {
		s[name] = selection{}
	}
	text = text[len(name):]
	if inside, found := strings.CutPrefix(text, "/"); found {
		return s[name].addOne(inside)
	}
	if inside, found := strings.CutPrefix(text, "("); found {
		rest, known := s[name].add(inside)
		after, closed := strings.CutPrefix(rest, ")")
		return after, known && closed
	}
	return text, true
}

// Whether a message of this kind has all of these fields.
func (s selection) isOf(kind protoreflect.MessageDescriptor) bool {
	for name, inner := range s {
		field := kind.Fields().ByJSONName(name)
		if field == nil {
			return false
		}
		if field.IsMap() {
			if len(inner) != 0 && (len(inner) != 1 || inner["*"] == nil) {
				return false
			}
			field, inner = field.MapValue(), inner["*"]
		}
		if len(inner) != 0 && (field.Message() == nil || !inner.isOf(field.Message())) {
			return false
		}
	}
	return true
}

// The selected fields of a value.
func (s selection) from(value any) any {
	if len(s) == 0 {
		return value
	}
	switch value := value.(type) {
	case []any:
		for index, entry := range value {
			value[index] = s.from(entry)
		}
	case map[string]any:
		for name, entry := range value {
			inner, known := s[name]
			if !known {
				inner, known = s["*"]
			}
			if known {
				value[name] = inner.from(entry)
			} else {
				delete(value, name)
			}
		}
	}
	return value
}
