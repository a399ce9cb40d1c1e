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
	object []byte // without protobuf's envelope
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

func eventFromProtobuf(data []byte) (encodedEvent, error) {
	var event metav1.WatchEvent
	if err := unmarshal(&event, data); err != nil {
		return encodedEvent{}, err
	}
	if len(event.Object.Raw) == 0 {
		return encodedEvent{kind: watch.EventType(event.Type)}, nil
	}
	object, err := unwrap(event.Object.Raw)
	if err != nil {
		return encodedEvent{}, err
	}
	return encodedEvent{watch.EventType(event.Type), object.Kind, object.Raw}, nil
}
