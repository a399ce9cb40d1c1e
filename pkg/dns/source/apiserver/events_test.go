package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/objects"
)

// An encodeEvent encodes an event of a watch.
type encodeEvent func(*testing.T, watch.EventType, runtime.Object) string

// event is an event of a watch in protobuf.
func event(t *testing.T, kind watch.EventType, o runtime.Object) string {
	t.Helper()
	e := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: clustertest.Encode(t, o)}}
	data, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) + string(data)
}

// eventJSON is the same in JSON.
func eventJSON(t *testing.T, kind watch.EventType, o runtime.Object) string {
	t.Helper()
	clustertest.Encode(t, o) // gives it its kind
	return string(marshal(map[string]any{"type": kind, "object": o})) + "\n"
}

// body is a response that is given in pieces, and ends with err.
type body struct {
	pieces []string
	err    error
	closed chan struct{}
}

func (b *body) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		<-b.closed
		return 0, errors.New("read on closed response body")
	}
	n := copy(p, b.pieces[0])
	if b.pieces[0] = b.pieces[0][n:]; b.pieces[0] == "" {
		b.pieces = b.pieces[1:]
	}
	return n, nil
}

func (b *body) Close() error {
	close(b.closed)
	return nil
}

// TestEvents: the events of a watch in either encoding, and what is recorded of
// the contact with the API server.
func TestEvents(t *testing.T) {
	web := func(version string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", ResourceVersion: version},
			Spec:       corev1.ServiceSpec{ClusterIP: "192.0.2.1"},
		}
	}
	gone := &metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old"}
	for _, tt := range []struct {
		name   string
		stream func(encode encodeEvent) string
		end    error
		want   string // the events
		failed string // the last error; "" for none, or contact after it
		heard  bool
	}{
		{
			"each kind", func(encode encodeEvent) string {
				return encode(t, watch.Added, web("1")) + encode(t, watch.Modified, web("2")) + encode(t, watch.Deleted, web("3")) +
					encode(t, watch.Bookmark, &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "4"}})
			}, io.EOF, "ADDED web 1, MODIFIED web 2, DELETED web 3, BOOKMARK  4", "", true,
		},
		{
			"an error of the API's", func(encode encodeEvent) string {
				return encode(t, watch.Added, web("1")) + encode(t, watch.Error, gone)
			}, io.EOF, "ADDED web 1, ERROR Expired", "too old", true,
		},
		{
			"cut within an event", func(encode encodeEvent) string {
				second := encode(t, watch.Added, web("2"))
				return encode(t, watch.Added, web("1")) + second[:len(second)-9]
			}, io.EOF, "ADDED web 1", "", true,
		},
		{
			"nothing", func(encodeEvent) string { return "" },
			io.EOF, "", errEmptyWatch.Error(), false,
		},
		{
			"an error of the connection's after an event", func(encode encodeEvent) string {
				return encode(t, watch.Added, web("1"))
			}, errors.New("the connection is odd"), "ADDED web 1, ERROR InternalError", "the connection is odd", true,
		},
		{
			"stopped", func(encode encodeEvent) string {
				return encode(t, watch.Added, web("1"))
			}, nil, "ADDED web 1", "", true,
		},
		{
			"stopped before the first", func(encodeEvent) string { return "" },
			nil, "", "", false,
		},
		{
			"a reset within an event", func(encode encodeEvent) string {
				second := encode(t, watch.Added, web("2"))
				return encode(t, watch.Added, web("1")) + second[:len(second)-9]
			}, errors.New("stream error"), "ADDED web 1, ERROR InternalError", "stream error", true,
		},
		{
			"a reset before the first", func(encodeEvent) string { return "" },
			syscall.ECONNRESET, "", errEmptyWatch.Error(), false,
		},
		{
			"an object of another kind", func(encode encodeEvent) string {
				return encode(t, watch.Added, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "1"}})
			}, io.EOF, "ERROR InternalError", `in an event: an object of kind "Node" in place of Service`, false,
		},
		{
			"an error that is none", func(encode encodeEvent) string {
				return encode(t, watch.Error, web("1"))
			}, io.EOF, "ERROR InternalError", `in an event: an object of kind "Service" in place of Status`, false,
		},
		{
			"an object without a version", func(encode encodeEvent) string {
				return encode(t, watch.Added, web(""))
			}, io.EOF, "ERROR InternalError", "in an event: no resource version", false,
		},
		{
			"an event of no type", func(encode encodeEvent) string {
				return encode(t, "", web("1"))
			}, io.EOF, "ERROR InternalError", `in an event: of type ""`, false,
		},
	} {
		for name, encode := range map[string]encodeEvent{"protobuf": event, "JSON": eventJSON} {
			for _, size := range []int{1, 7, 1 << 20} {
				t.Run(fmt.Sprintf("%s/%s/%d", tt.name, name, size), func(t *testing.T) {
					b := &body{err: tt.end, closed: make(chan struct{})}
					for piece := range slices.Chunk([]byte(tt.stream(encode)), size) {
						b.pieces = append(b.pieces, string(piece))
					}
					c := newContact()
					w := watchEvents(t.Context(), c, "services", decodersOf(objects.Services()), b)
					want := strings.FieldsFunc(tt.want, func(r rune) bool { return r == ',' })
					if tt.end == nil && len(want) == 0 {
						w.Stop()
					}
					var got []string
					for e := range w.ResultChan() {
						got = append(got, describe(t, e))
						if tt.end == nil && len(got) == len(want) {
							w.Stop()
						}
					}
					w.Stop()
					<-b.closed
					if text := strings.Join(got, ", "); text != tt.want {
						t.Errorf("events %q, want %q", text, tt.want)
					}
					failed := c.failure("services").Err
					if failed != tt.failed {
						t.Errorf("the failure is %q, want %q", failed, tt.failed)
					}
					if heard := !c.status().LastContact.IsZero(); heard != tt.heard {
						t.Errorf("contact %v, want %v", heard, tt.heard)
					}
				})
			}
		}
	}
}

// describe is an event in words.
func describe(t *testing.T, e watch.Event) string {
	t.Helper()
	if e.Type == watch.Error {
		return fmt.Sprintf("ERROR %s", apierrors.ReasonForError(apierrors.FromObject(e.Object)))
	}
	r, ok := e.Object.(*watchObject[*objects.Service])
	if !ok {
		t.Fatalf("a %T", e.Object)
	}
	if r.object.Version() != r.ResourceVersion {
		t.Errorf("version %q for the reflector, %q in the object", r.ResourceVersion, r.object.Version())
	}
	return fmt.Sprintf("%s %s %s", e.Type, r.object.Name, r.ResourceVersion)
}

// TestNoEvents: anything but an event ends the watch, is a failure, and is no
// contact.
func TestNoEvents(t *testing.T) {
	created := event(t, watch.Added, &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", CreationTimestamp: metav1.Unix(1<<40, 0)}})
	status := event(t, watch.Error, &metav1.Status{Reason: "Expired"})
	for _, tt := range []struct{ name, stream, failed string }{
		{"garbage in a frame", "\x00\x00\x00\x03\xff\xff\xff", "in an event: malformed protobuf"},
		{"an empty frame", "\x00\x00\x00\x00", `in an event: an object of kind "" in place of Service`},
		{"a frame that is too long", string(binary.BigEndian.AppendUint32(nil, largestEvent+1)), errLargeEvent.Error()},
		{"HTML", "<html>", errLargeEvent.Error()},
		{"JSON that is none", "{]", "invalid character ']' looking for beginning of object key string"},
		{"an object in JSON that is none", `{"type": "ADDED", "object": 7}`, "in an event: json: cannot unmarshal number into Go value of type v1.TypeMeta"},
		{"a time that is none", strings.Replace(created, " \x10\x00", " \x10\x80", 1), "in an event: malformed protobuf"},
		{"a Status that is none", strings.Replace(status, "\x07Expired", "\x7fExpired", 1), "in an event: in a Status: malformed protobuf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newContact()
			w := watchEvents(t.Context(), c, "services", decodersOf(objects.Services()), &body{pieces: []string{tt.stream}, err: io.EOF, closed: make(chan struct{})})
			var got []string
			for e := range w.ResultChan() {
				got = append(got, describe(t, e))
			}
			if text := strings.Join(got, ", "); text != "ERROR InternalError" {
				t.Errorf("events %q, want an error", text)
			}
			if failed := c.failure("services").Err; failed != tt.failed || !c.status().LastContact.IsZero() {
				t.Errorf("the failure is %q, want %q; contact at %v", failed, tt.failed, c.status().LastContact)
			}
		})
	}
}

// TestLargeEvent: no room is made for what claims to be longer than any event.
func TestLargeEvent(t *testing.T) {
	e := &protobufFrames{in: bufio.NewReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, largestEvent+1)))}
	if _, err := e.next(); !errors.Is(err, errLargeEvent) || cap(e.frame) > 0 {
		t.Errorf("error %v, room for %d octets", err, cap(e.frame))
	}
}

// TestEventsStop: a watch that is stopped with an event that nobody takes
// leaves no goroutine, and one whose context is done has not failed.
func TestEventsStop(t *testing.T) {
	before := goleak.IgnoreCurrent()
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "1"}}
	c := newContact()
	b := &body{pieces: []string{event(t, watch.Added, web)}, closed: make(chan struct{})}
	w := watchEvents(t.Context(), c, "services", decodersOf(objects.Services()), b)
	clustertest.Eventually(t, "the event is read", func() bool { return !c.status().LastContact.IsZero() })
	w.Stop()
	w.Stop()
	<-b.closed
	goleak.VerifyNone(t, before)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c = newContact()
	w = watchEvents(ctx, c, "services", decodersOf(objects.Services()), &body{err: context.Canceled, closed: make(chan struct{})})
	if e, open := <-w.ResultChan(); open {
		t.Errorf("an event %v of a watch that is over", e)
	}
	if failed := c.failure("services"); failed.Err != "" {
		t.Errorf("the end is the failure %q", failed.Err)
	}
}
