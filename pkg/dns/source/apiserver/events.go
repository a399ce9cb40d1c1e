package apiserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"kubedns/pkg/dns/objects"
)

// largestEvent is the largest event in protobuf, as in client-go. A frame that
// claims to be longer is not an event.
const largestEvent = 16 << 20 // octets

var errLargeEvent = errors.New("an event is longer than 16 MiB")

// eventReader reads the response to a watch and reports to contact. It is a
// watch.Decoder.
type eventReader[T objects.Object] struct {
	ctx      context.Context //nolint:containedctx // the request's
	contact  *contact
	resource objects.Resource[T]
	body     io.Closer
	in       *bufio.Reader
	next     func() (objects.Event[T], error) // nil before the first event
	begun    bool                             // there was an event
	closed   atomic.Bool
}

// watchEvents makes a watch of the response to a watch request. The watch closes
// body when it ends.
func watchEvents[T objects.Object](ctx context.Context, c *contact, r objects.Resource[T], body io.ReadCloser) watch.Interface {
	return watch.NewStreamWatcher(
		&eventReader[T]{ctx: ctx, contact: c, resource: r, body: body, in: bufio.NewReader(body)},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"),
	)
}

// Close implements watch.Decoder.
func (e *eventReader[T]) Close() {
	e.closed.Store(true)
	_ = e.body.Close() // reading from it fails then, which is noticed where it matters
}

// Decode implements watch.Decoder. An event is contact with the API server. The
// beginning of a watch is not, as a proxy may accept that.
func (e *eventReader[T]) Decode() (watch.EventType, runtime.Object, error) {
	event, err := e.event()
	if err == nil {
		e.begun = true
		if event.Type == watch.Error {
			e.contact.failed(e.resource.Name, apierrors.FromObject(event.Status))
			return event.Type, event.Status, nil
		}
		e.contact.heard(e.resource.Name)
		return event.Type, &watchObject[T]{ObjectMeta: metav1.ObjectMeta{ResourceVersion: event.Object.Version()}, object: event.Object}, nil
	}
	if e.closed.Load() || e.ctx.Err() != nil {
		return "", nil, io.EOF
	}
	// The watcher ignores the errors that are just an end, and makes an event of
	// all others.
	ended := err == io.EOF || err == io.ErrUnexpectedEOF || //nolint:errorlint // the watcher compares them so
		utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)
	switch {
	case !ended:
		e.contact.failed(e.resource.Name, err)
	case !e.begun:
		e.contact.failed(e.resource.Name, errEmptyWatch)
	}
	return "", nil, err
}

// event reads the next event. The first octet says which encoding the API
// server has chosen: an event in protobuf begins with its length, in four
// octets.
func (e *eventReader[T]) event() (objects.Event[T], error) {
	if e.next == nil {
		first, err := e.in.Peek(1)
		if err != nil {
			return objects.Event[T]{}, err
		}
		if first[0] == '{' {
			e.next = decoded(jsonFrames{json.NewDecoder(e.in)}.next, e.resource.DecodeJSONEvent)
		} else {
			e.next = decoded((&protobufFrames{in: e.in}).next, e.resource.DecodeEvent)
		}
	}
	return e.next()
}

// decoded decodes each frame that next returns.
func decoded[T objects.Object](next func() ([]byte, error), decode func([]byte) (objects.Event[T], error)) func() (objects.Event[T], error) {
	return func() (objects.Event[T], error) {
		frame, err := next()
		if err != nil {
			return objects.Event[T]{}, err
		}
		return decode(frame)
	}
}

// jsonFrames reads one JSON value after the other.
type jsonFrames struct{ in *json.Decoder }

func (j jsonFrames) next() ([]byte, error) {
	var frame json.RawMessage
	err := j.in.Decode(&frame)
	return frame, err
}

// protobufFrames reads frames: a length in four octets, and as many octets.
type protobufFrames struct {
	in    *bufio.Reader
	frame []byte // the last one
}

// next reads a frame, which is valid until the next call.
func (p *protobufFrames) next() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(p.in, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n > largestEvent {
		return nil, errLargeEvent
	}
	if n > cap(p.frame) {
		p.frame = make([]byte, n)
	}
	p.frame = p.frame[:n]
	_, err := io.ReadFull(p.in, p.frame)
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	return p.frame, err
}
