package objects

import (
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// An Event is an event of a watch.
type Event[T Object] struct {
	// Type is one of watch.Added, Modified, Deleted, Bookmark and Error.
	Type watch.EventType
	// Object has a resource version; of a bookmark's it has nothing else. It is
	// nil where Type is watch.Error.
	Object T
	// Status is set where Type is watch.Error, and nil otherwise.
	Status *metav1.Status
}

// An encodedEvent is an event whose object is not decoded yet.
type encodedEvent struct {
	kind   watch.EventType
	of     string // the object's kind
	object []byte // without protobuf's envelope; a part of what was decoded
}

// DecodeEvent decodes a WatchEvent in protobuf. It does not keep data. Its
// errors say that they are in an event, as opposed to the connection's.
func (r Resource[T]) DecodeEvent(data []byte) (Event[T], error) {
	e, err := eventFromProtobuf(data)
	if err != nil {
		return Event[T]{}, inEvent(err)
	}
	return r.decodeEvent(e, r.protobuf, decodeStatus)
}

// DecodeJSONEvent decodes a WatchEvent in JSON, as DecodeEvent does.
func (r Resource[T]) DecodeJSONEvent(data []byte) (Event[T], error) {
	e, err := eventFromJSON(data)
	if err != nil {
		return Event[T]{}, inEvent(err)
	}
	return r.decodeEvent(e, r.fromJSON, statusFromJSON)
}

func (r Resource[T]) decodeEvent(e encodedEvent, object func([]byte) (T, error), status func([]byte) (*metav1.Status, error)) (Event[T], error) {
	event := Event[T]{Type: e.kind}
	var err error
	if e.kind == watch.Error {
		if err = checkKind(e.of, kindStatus); err == nil {
			event.Status, err = status(e.object)
		}
	} else {
		event.Object, err = r.eventObject(e, object)
	}
	if err != nil {
		return Event[T]{}, inEvent(err)
	}
	return event, nil
}

// eventObject decodes the object of any event but an error.
func (r Resource[T]) eventObject(e encodedEvent, decode func([]byte) (T, error)) (none T, err error) {
	if err := checkKind(e.of, r.Kind); err != nil {
		return none, err
	}
	object, err := decode(e.object)
	if err != nil {
		return none, err
	}
	switch e.kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return none, fmt.Errorf("of type %q", e.kind)
	}
	if object.Version() == "" {
		return none, errors.New("no resource version")
	}
	return object, nil
}

func inEvent(err error) error { return fmt.Errorf("in an event: %w", err) }

func eventFromJSON(data []byte) (encodedEvent, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return encodedEvent{}, err
	}
	var object metav1.TypeMeta
	if err := json.Unmarshal(event.Object, &object); err != nil {
		return encodedEvent{}, err
	}
	return encodedEvent{event.Type, object.Kind, event.Object}, nil
}

func eventFromProtobuf(data []byte) (event encodedEvent, err error) {
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			event.kind = eventType(m.bytes())
		case 2: // a RawExtension
			r := message{rest: m.bytes()}
			for r.next() {
				if r.field == 1 {
					of, object, err := unwrap(r.bytes())
					r.fail(err)
					event.of, event.object = string(of), object
				}
			}
			m.fail(r.err)
		}
	}
	return event, m.err
}

// eventType allocates only for unknown types.
func eventType(b []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return t
		}
	}
	return watch.EventType(b)
}
