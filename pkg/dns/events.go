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
	// next reads an event as the API server encodes it; nil before the first.
	next   func() (watch.EventType, runtime.Object, error)
	frame  []byte // the last event in protobuf
	begun  bool   // there was an event
	closed atomic.Bool
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
	if e.next == nil {
		first, err := e.in.Peek(1)
		if err != nil {
			return "", nil, err
		}
		e.next = e.protobuf
		if first[0] == '{' { // an event in protobuf begins with its length, in four octets
			in := json.NewDecoder(e.in)
			e.next = func() (watch.EventType, runtime.Object, error) { return e.json(in) }
		}
	}
	return e.next()
}

func (e *eventReader[T]) json(in *json.Decoder) (watch.EventType, runtime.Object, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := in.Decode(&event); err != nil {
		return "", nil, err
	}
	var object metav1.TypeMeta
	if err := json.Unmarshal(event.Object, &object); err != nil {
		return e.received(event.Type, nil, err)
	}
	if event.Type == watch.Error {
		return e.status(object.Kind, event.Object, statusFromJSON)
	}
	return e.object(event.Type, object.Kind, event.Object, e.resource.fromJSON)
}

func (e *eventReader[T]) protobuf() (watch.EventType, runtime.Object, error) {
	if err := e.read(); err != nil {
		return "", nil, err
	}
	kind, of, data, err := decodeEvent(e.frame)
	if err != nil {
		return e.received(kind, nil, err)
	}
	if kind == watch.Error {
		return e.status(string(of), data, decodeStatus)
	}
	return e.object(kind, string(of), data, e.resource.protobuf)
}

// object is the event with what is kept of its object.
func (e *eventReader[T]) object(kind watch.EventType, of string, data []byte, decode func([]byte) (T, error)) (watch.EventType, runtime.Object, error) {
	if err := checkKind(of, e.resource.kind); err != nil {
		return e.received(kind, nil, err)
	}
	t, err := decode(data)
	switch {
	case err != nil:
	case kind != watch.Added && kind != watch.Modified && kind != watch.Deleted && kind != watch.Bookmark:
		err = fmt.Errorf("of type %q", kind)
	case t.version() == "":
		err = errors.New("no resource version")
	default:
		return kind, &received[T]{ObjectMeta: metav1.ObjectMeta{ResourceVersion: t.version()}, kept: t}, nil
	}
	return e.received(kind, nil, err)
}

// status is the event of an error.
func (e *eventReader[T]) status(of string, data []byte, decode func([]byte) (*metav1.Status, error)) (watch.EventType, runtime.Object, error) {
	if err := checkKind(of, kindStatus); err != nil {
		return e.received(watch.Error, nil, err)
	}
	status, err := decode(data)
	return e.received(watch.Error, status, err)
}

// received is the event, or the error that says that it is none.
func (e *eventReader[T]) received(kind watch.EventType, object runtime.Object, err error) (watch.EventType, runtime.Object, error) {
	if err != nil {
		return "", nil, fmt.Errorf("in an event: %w", err)
	}
	return kind, object, nil
}

// read reads a frame: its length in four octets, and what is as long as that.
func (e *eventReader[T]) read() error {
	var length [4]byte
	if _, err := io.ReadFull(e.in, length[:]); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n > largestEvent {
		return errLargeEvent
	}
	if n > cap(e.frame) {
		e.frame = make([]byte, n)
	}
	e.frame = e.frame[:n]
	_, err := io.ReadFull(e.in, e.frame)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeEvent reads a WatchEvent: its type, and the object in it with its kind
// and without its envelope. Both are parts of frame.
func decodeEvent(frame []byte) (kind watch.EventType, of, object []byte, err error) {
	m := message{rest: frame}
	for m.next() {
		switch m.field {
		case 1:
			kind = eventType(m.bytes())
		case 2: // a RawExtension
			r := message{rest: m.bytes()}
			for r.next() {
				if r.field == 1 {
					var err error
					of, object, err = unwrap(r.bytes())
					r.fail(err)
				}
			}
			m.fail(r.err)
		}
	}
	return kind, of, object, m.err
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
