package dns

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
)

// received is what is kept of an object, in the shape that a reflector takes:
// it reads the resource version.
type received[T keptObject] struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	kept T
}

// DeepCopyObject implements runtime.Object.
func (r *received[T]) DeepCopyObject() runtime.Object {
	c := *r
	return &c
}

// largestEvent is how long an event in protobuf may be, as for client-go: what
// claims to be longer is none.
const largestEvent = 16 << 20 // octets

var errLargeEvent = errors.New("an event is longer than 16 MiB")

// eventReader reads the response to a watch, and tells the cluster what comes.
// It is a watch.Decoder.
type eventReader[T keptObject] struct {
	ctx      context.Context //nolint:containedctx // the request's
	cluster  *cluster
	resource resource[T]
	body     io.Closer
	in       *bufio.Reader
	format   *format[T] // nil before the first event
	begun    bool       // there was an event
	closed   atomic.Bool
}

// A format is how the API server encodes events: next reads one, the others
// decode what is in it.
type format[T keptObject] struct {
	next   func() (encodedEvent, error)
	object func([]byte) (T, error)
	status func([]byte) (*metav1.Status, error)
}

// An encodedEvent is an event whose object is still as it came.
type encodedEvent struct {
	kind   watch.EventType
	of     string // the object's kind
	object []byte // without the envelope of protobuf; valid until the next event
}

// watchEvents makes a watch of the response to one, which the watch closes when
// it ends.
func watchEvents[T keptObject](ctx context.Context, c *cluster, r resource[T], body io.ReadCloser) watch.Interface {
	return watch.NewStreamWatcher(
		&eventReader[T]{ctx: ctx, cluster: c, resource: r, body: body, in: bufio.NewReader(body)},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"),
	)
}

// Close implements watch.Decoder.
func (e *eventReader[T]) Close() {
	e.closed.Store(true)
	_ = e.body.Close() // what is read from it fails, if that matters to anybody
}

// Decode implements watch.Decoder. An event is contact with the API server;
// that a watch begins is not, as whatever stands before it may accept that.
func (e *eventReader[T]) Decode() (watch.EventType, runtime.Object, error) {
	kind, object, err := e.event()
	if err == nil {
		e.begun = true
		if kind == watch.Error {
			e.cluster.failed(e.resource.name, apierrors.FromObject(object))
		} else {
			e.cluster.heard(e.resource.name)
		}
		return kind, object, nil
	}
	if e.closed.Load() || e.ctx.Err() != nil {
		return "", nil, io.EOF
	}
	// What is just an end, the watcher keeps to itself; of all else it makes an
	// event.
	ended := err == io.EOF || err == io.ErrUnexpectedEOF || //nolint:errorlint // as the watcher has it
		utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)
	switch {
	case !ended:
		e.cluster.failed(e.resource.name, err)
	case !e.begun:
		e.cluster.failed(e.resource.name, errEmptyWatch)
	}
	return "", nil, err
}

func (e *eventReader[T]) event() (watch.EventType, runtime.Object, error) {
	if e.format == nil {
		first, err := e.in.Peek(1)
		if err != nil {
			return "", nil, err
		}
		if first[0] == '{' { // an event in protobuf begins with its length, in four octets
			e.format = &format[T]{jsonEvents{json.NewDecoder(e.in)}.next, e.resource.fromJSON, statusFromJSON}
		} else {
			e.format = &format[T]{(&protobufEvents{in: e.in}).next, e.resource.protobuf, decodeStatus}
		}
	}
	event, err := e.format.next()
	if err != nil {
		return "", nil, err
	}
	object, err := e.decode(event)
	if err != nil {
		return "", nil, inEvent(err)
	}
	return event.kind, object, nil
}

// decode is the event's object as a reflector takes it.
func (e *eventReader[T]) decode(event encodedEvent) (runtime.Object, error) {
	if event.kind == watch.Error {
		if err := checkKind(event.of, kindStatus); err != nil {
			return nil, err
		}
		return e.format.status(event.object)
	}
	if err := checkKind(event.of, e.resource.kind); err != nil {
		return nil, err
	}
	t, err := e.format.object(event.object)
	if err != nil {
		return nil, err
	}
	switch event.kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return nil, fmt.Errorf("of type %q", event.kind)
	}
	if t.version() == "" {
		return nil, errors.New("no resource version")
	}
	return &received[T]{ObjectMeta: metav1.ObjectMeta{ResourceVersion: t.version()}, kept: t}, nil
}

// inEvent says that it is not the connection that failed.
func inEvent(err error) error { return fmt.Errorf("in an event: %w", err) }

// jsonEvents reads one JSON object after the other.
type jsonEvents struct{ in *json.Decoder }

func (j jsonEvents) next() (encodedEvent, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := j.in.Decode(&event); err != nil {
		return encodedEvent{}, err
	}
	var object metav1.TypeMeta
	if err := json.Unmarshal(event.Object, &object); err != nil {
		return encodedEvent{}, inEvent(err)
	}
	return encodedEvent{event.Type, object.Kind, event.Object}, nil
}

// protobufEvents reads frames: the length of an event in four octets, and what
// is as long as that.
type protobufEvents struct {
	in    *bufio.Reader
	frame []byte // the last event
}

func (p *protobufEvents) next() (encodedEvent, error) {
	if err := p.read(); err != nil {
		return encodedEvent{}, err
	}
	event, err := decodeEvent(p.frame)
	if err != nil {
		return encodedEvent{}, inEvent(err)
	}
	return event, nil
}

func (p *protobufEvents) read() error {
	var length [4]byte
	if _, err := io.ReadFull(p.in, length[:]); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n > largestEvent {
		return errLargeEvent
	}
	if n > cap(p.frame) {
		p.frame = make([]byte, n)
	}
	p.frame = p.frame[:n]
	_, err := io.ReadFull(p.in, p.frame)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeEvent reads a WatchEvent; its object is a part of frame.
func decodeEvent(frame []byte) (event encodedEvent, err error) {
	m := message{rest: frame}
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

// eventType makes nothing anew for the usual ones.
func eventType(b []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return t
		}
	}
	return watch.EventType(b)
}
