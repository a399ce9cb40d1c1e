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

// largestEvent is how long an event may be, as for client-go: what claims to be
// longer is none.
const largestEvent = 16 << 20 // octets

var errLargeEvent = errors.New("an event is longer than 16 MiB")

// events reads the response to a watch, and tells the cluster what comes. It is
// a watch.Decoder.
type events[T keptObject] struct {
	ctx      context.Context //nolint:containedctx // the request's
	cluster  *cluster
	resource resource[T]
	body     io.Closer
	in       *bufio.Reader
	json     *json.Decoder // where the API server speaks that
	frame    []byte        // the last event
	begun    bool          // there was an event
	closed   atomic.Bool
}

// watchEvents makes a watch of the response to one, which the watch closes when
// it ends.
func watchEvents[T keptObject](ctx context.Context, c *cluster, r resource[T], body io.ReadCloser) watch.Interface {
	return watch.NewStreamWatcher(
		&events[T]{ctx: ctx, cluster: c, resource: r, body: body, in: bufio.NewReader(body)},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"),
	)
}

// Close implements watch.Decoder.
func (e *events[T]) Close() {
	e.closed.Store(true)
	_ = e.body.Close() // what is read from it fails, if that matters to anybody
}

// Decode implements watch.Decoder. An event is contact with the API server;
// that a watch begins is not, as whatever stands before it may accept that.
func (e *events[T]) Decode() (watch.EventType, runtime.Object, error) {
	kind, object, err := e.next()
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
	// The watcher passes on as an event whatever is not just an end.
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)
	switch {
	case !ended:
		e.cluster.failed(e.resource.name, err)
	case !e.begun:
		e.cluster.failed(e.resource.name, errEmptyWatch)
	}
	return "", nil, err
}

// next is the next event with what its object is.
func (e *events[T]) next() (watch.EventType, runtime.Object, error) {
	if e.json == nil {
		first, err := e.in.Peek(1)
		if err != nil {
			return "", nil, err
		}
		if first[0] == 0 { // an event in protobuf begins with its length in four octets
			return e.nextProtobuf()
		}
		e.json = json.NewDecoder(e.in)
	}
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := e.json.Decode(&event); err != nil {
		return "", nil, err
	}
	if event.Type == watch.Error {
		status := &metav1.Status{}
		err := json.Unmarshal(event.Object, status)
		return event.Type, status, err
	}
	t, err := e.resource.fromJSON(event.Object)
	return e.event(event.Type, t, err)
}

func (e *events[T]) nextProtobuf() (watch.EventType, runtime.Object, error) {
	if err := e.read(); err != nil {
		return "", nil, err
	}
	kind, object, err := decodeEvent(e.frame)
	if err != nil {
		return "", nil, fmt.Errorf("in an event: %w", err)
	}
	if kind == watch.Error {
		status := &metav1.Status{}
		err := status.Unmarshal(object)
		return kind, status, err
	}
	t, err := e.resource.protobuf(object)
	return e.event(kind, t, err)
}

func (e *events[T]) event(kind watch.EventType, t T, err error) (watch.EventType, runtime.Object, error) {
	if err != nil {
		return "", nil, fmt.Errorf("in an event: %w", err)
	}
	return kind, &received[T]{ObjectMeta: metav1.ObjectMeta{ResourceVersion: t.version()}, kept: t}, nil
}

// read reads a frame: its length in four octets, and what is as long as that.
func (e *events[T]) read() error {
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
	if _, err := io.ReadFull(e.in, e.frame); err != nil {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// decodeEvent reads a WatchEvent: its type, and the object in it without its
// envelope, which is a part of frame.
func decodeEvent(frame []byte) (kind watch.EventType, object []byte, err error) {
	m := message{rest: frame}
	for m.next() {
		switch m.field {
		case 1:
			kind = eventType(m.bytes())
		case 2: // a RawExtension
			r := message{rest: m.bytes()}
			for r.next() {
				if r.field == 1 {
					_, o, err := unwrap(r.bytes())
					r.fail(err)
					object = o
				}
			}
			m.fail(r.err)
		}
	}
	return kind, object, m.err
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
