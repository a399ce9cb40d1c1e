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
type eventReader struct {
	ctx      context.Context //nolint:containedctx // the request's
	contact  *contact
	resource string
	body     io.Closer
	in       *bufio.Reader
	decoders decoders
	next     func() ([]byte, error) // the next frame; nil before the first event
	decode   decodeFrame            // of what next returns
	begun    bool                   // there was an event
	closed   atomic.Bool
}

// A decodeFrame decodes an event. Its object is a *watchObject, or a
// *metav1.Status where the type is watch.Error.
type decodeFrame func([]byte) (watch.EventType, runtime.Object, error)

// decoders are those of both encodings.
type decoders struct{ protobuf, json decodeFrame }

// watchEvents makes a watch of the response to a watch request. The watch closes
// body when it ends.
func watchEvents(ctx context.Context, c *contact, resource string, d decoders, body io.ReadCloser) watch.Interface {
	return watch.NewStreamWatcher(
		&eventReader{ctx: ctx, contact: c, resource: resource, decoders: d, body: body, in: bufio.NewReader(body)},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"),
	)
}

// decodersOf are those of a resource's events.
func decodersOf[T objects.Object](r objects.Resource[T]) decoders {
	return decoders{forReflector(r.DecodeEvent), forReflector(r.DecodeJSONEvent)}
}

// forReflector has decode return events in the shape that a reflector takes.
func forReflector[T objects.Object](decode func([]byte) (objects.Event[T], error)) decodeFrame {
	return func(frame []byte) (watch.EventType, runtime.Object, error) {
		e, err := decode(frame)
		switch {
		case err != nil:
			return "", nil, err
		case e.Type == watch.Error:
			return e.Type, e.Status, nil
		}
		return e.Type, &watchObject[T]{ObjectMeta: metav1.ObjectMeta{ResourceVersion: e.Object.Version()}, object: e.Object}, nil
	}
}

// Close implements watch.Decoder.
func (e *eventReader) Close() {
	e.closed.Store(true)
	_ = e.body.Close() // reading from it fails then, which is noticed where it matters
}

// Decode implements watch.Decoder. An event is contact with the API server. The
// beginning of a watch is not, as a proxy may accept that.
func (e *eventReader) Decode() (watch.EventType, runtime.Object, error) {
	kind, object, err := e.event()
	if err == nil {
		e.begun = true
		if kind == watch.Error {
			e.contact.failed(e.resource, apierrors.FromObject(object))
		} else {
			e.contact.heard(e.resource)
		}
		return kind, object, nil
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
		e.contact.failed(e.resource, err)
	case !e.begun:
		e.contact.failed(e.resource, errEmptyWatch)
	}
	return "", nil, err
}

// event reads the next event. The first octet says which encoding the API
// server has chosen: an event in protobuf begins with its length, in four
// octets.
func (e *eventReader) event() (watch.EventType, runtime.Object, error) {
	if e.next == nil {
		first, err := e.in.Peek(1)
		if err != nil {
			return "", nil, err
		}
		if first[0] == '{' {
			e.next, e.decode = jsonFrames{json.NewDecoder(e.in)}.next, e.decoders.json
		} else {
			e.next, e.decode = (&protobufFrames{in: e.in}).next, e.decoders.protobuf
		}
	}
	frame, err := e.next()
	if err != nil {
		return "", nil, err
	}
	return e.decode(frame)
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
