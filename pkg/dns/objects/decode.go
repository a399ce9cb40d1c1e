package objects

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
)

// What the API server sends is decoded straight into the trimmed objects.
// client-go's decoders would first build whole objects, most of which is of no
// use here (managed fields, owners, status), and copy their encoding three
// times.
//
// Most API servers speak protobuf. Its field numbers are those of the files
// generated.proto in k8s.io/api and k8s.io/apimachinery. JSON is for servers
// that do not, and need not be fast.

// A Resource is a resource of the API whose objects are kept.
type Resource[T Object] struct {
	Name string // in paths, errors and metrics: "services"
	Kind string // of its objects: "Service"

	protobuf, fromJSON func([]byte) (T, error)
}

// Services is the resource of Services.
func Services() Resource[*Service] {
	return Resource[*Service]{"services", "Service", decodeService, trimJSON(TrimService)}
}

// Slices is the resource of EndpointSlices.
func Slices() Resource[*EndpointSlice] {
	return Resource[*EndpointSlice]{"endpointslices", "EndpointSlice", decodeSlice, trimJSON(TrimSlice)}
}

// Nodes is the resource of Nodes.
func Nodes() Resource[*Node] {
	return Resource[*Node]{"nodes", "Node", decodeNode, trimJSON(TrimNode)}
}

// trimJSON returns a decoder of JSON.
func trimJSON[A, T any](trim func(*A) T) func([]byte) (T, error) {
	return func(data []byte) (T, error) {
		a := new(A)
		err := json.UnmarshalCaseSensitivePreserveInts(data, a)
		return trim(a), err
	}
}

// kindStatus is the kind of what an API server sends in place of a list or
// object: an error.
const kindStatus = "Status"

// DecodeList decodes a page of a list, in protobuf or JSON, and calls each with
// every object in it. Where the page is a Status the error is the API's.
// Anything else, such as a proxy's error page, is an error as well: read as an
// empty list it would delete every record. After an error, each may have been
// called.
func (r Resource[T]) DecodeList(page []byte, each func(T)) (metav1.ListMeta, error) {
	item := func(decode func([]byte) (T, error)) func([]byte) error {
		return func(data []byte) error {
			t, err := decode(data)
			if err == nil {
				each(t)
			}
			return err
		}
	}
	var meta metav1.ListMeta
	var err error
	if bytes.HasPrefix(page, magic) {
		meta, err = protobufList(page, r.Kind+"List", item(r.protobuf))
	} else {
		meta, err = jsonList(page, r.Kind+"List", item(r.fromJSON))
	}
	if err == nil && meta.ResourceVersion == "" {
		err = errors.New("no resource version")
	}
	if err != nil {
		err = fmt.Errorf("in a list of %s: %w", r.Name, err)
	}
	return meta, err
}

// jsonList decodes a page of a list of the kind, each item with item.
func jsonList(page []byte, kind string, item func([]byte) error) (metav1.ListMeta, error) {
	var list struct {
		Kind     string               `json:"kind"`
		Metadata metav1.ListMeta      `json:"metadata"`
		Items    []stdjson.RawMessage `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(page, &list); err != nil {
		return metav1.ListMeta{}, err
	}
	if list.Kind == kindStatus {
		return metav1.ListMeta{}, statusError(statusFromJSON(page))
	}
	if err := checkKind(list.Kind, kind); err != nil {
		return metav1.ListMeta{}, err
	}
	for _, data := range list.Items {
		if err := item(data); err != nil {
			return metav1.ListMeta{}, err
		}
	}
	return list.Metadata, nil
}

// protobufList decodes a page of a list of the kind, each item with item.
func protobufList(page []byte, kind string, item func([]byte) error) (meta metav1.ListMeta, err error) {
	of, object, err := unwrap(page)
	if err != nil {
		return meta, err
	}
	if string(of) == kindStatus {
		return meta, statusError(decodeStatus(object))
	}
	if err := checkKind(of, kind); err != nil {
		return meta, err
	}
	m := message{rest: object}
	for m.next() {
		switch m.field {
		case 1: // metadata
			m.fail(meta.Unmarshal(m.bytes()))
		case 2: // items
			if data := m.bytes(); m.err == nil {
				m.fail(item(data))
			}
		}
	}
	return meta, m.err
}

// checkKind returns an error unless kind is the one wanted.
func checkKind[T ~string | ~[]byte](kind T, want string) error {
	if string(kind) != want {
		return fmt.Errorf("an object of kind %q in place of %s", kind, want)
	}
	return nil
}

func decodeStatus(object []byte) (*metav1.Status, error) {
	status := &metav1.Status{}
	if status.Unmarshal(object) != nil {
		return nil, fmt.Errorf("in a Status: %w", errMalformed)
	}
	return status, nil
}

func statusFromJSON(object []byte) (*metav1.Status, error) {
	status := &metav1.Status{}
	if err := json.UnmarshalCaseSensitivePreserveInts(object, status); err != nil {
		return nil, fmt.Errorf("in a Status: %w", err)
	}
	return status, nil
}

// statusError is the error that a Status describes; err is that of decoding it.
func statusError(status *metav1.Status, err error) error {
	if err != nil {
		return err
	}
	return apierrors.FromObject(status)
}

// magic starts every object in protobuf (Kubernetes documentation, "Kubernetes
// API Concepts", Protobuf encoding).
var magic = []byte("k8s\x00")

// unwrap returns the kind and the encoding of an object from its envelope,
// which is magic and a runtime.Unknown. Both are parts of data.
func unwrap(data []byte) (kind, object []byte, err error) {
	data, ok := bytes.CutPrefix(data, magic)
	if !ok {
		return nil, nil, errors.New("not an object in protobuf")
	}
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1: // typeMeta
			t := message{rest: m.bytes()}
			for t.next() {
				if t.field == 2 { // kind
					kind = t.bytes()
				}
			}
			m.fail(t.err)
		case 2: // raw
			object = m.bytes()
		}
	}
	return kind, object, m.err
}

// A message reads a protobuf message field by field.
type message struct {
	rest  []byte // after the field
	field protowire.Number
	wire  protowire.Type
	value []byte // of the field, as it is encoded
	err   error  // the first; nothing is read after it
}

// next reads the next field and reports whether there is one.
func (m *message) next() bool {
	if m.err != nil || len(m.rest) == 0 {
		return false
	}
	field, wire, n := protowire.ConsumeTag(m.rest)
	if n < 0 {
		m.err = errMalformed
		return false
	}
	size := protowire.ConsumeFieldValue(field, wire, m.rest[n:])
	if size < 0 {
		m.err = errMalformed
		return false
	}
	m.field, m.wire = field, wire
	m.value, m.rest = m.rest[n:n+size], m.rest[n+size:]
	return true
}

// fail keeps the first error.
func (m *message) fail(err error) {
	if m.err == nil {
		m.err = err
	}
	if errors.Is(m.err, io.ErrUnexpectedEOF) {
		m.err = errMalformed
	}
}

// errMalformed replaces the errors of protowire and of the API's own types. One
// of these is io.ErrUnexpectedEOF, which would be taken for the end of a
// connection.
var errMalformed = errors.New("malformed protobuf")

var errWireType = errors.New("a field has the wrong wire type")

// bytes is the field's value, a string or a message.
func (m *message) bytes() []byte {
	if m.wire != protowire.BytesType {
		m.fail(errWireType)
		return nil
	}
	b, _ := protowire.ConsumeBytes(m.value) // next has checked that it is whole
	return b
}

func (m *message) string() string { return string(m.bytes()) }

// varint is the field's value, a number.
func (m *message) varint() uint64 {
	if m.wire != protowire.VarintType {
		m.fail(errWireType)
		return 0
	}
	v, _ := protowire.ConsumeVarint(m.value) // next has checked that it is whole
	return v
}

func (m *message) bool() bool { return m.varint() != 0 }

// entry is the field's value, an entry of a map of strings.
func (m *message) entry() (key, value []byte) {
	e := message{rest: m.bytes()}
	for e.next() {
		switch e.field {
		case 1:
			key = e.bytes()
		case 2:
			value = e.bytes()
		}
	}
	m.fail(e.err)
	return key, value
}

// objectMeta has the fields needed of an ObjectMeta.
type objectMeta struct {
	Meta
	created           metav1.Time
	label, annotation string // the values of the ones that decodeMeta was asked for
}

// decodeMeta decodes an ObjectMeta with the values of one label and one
// annotation, given their keys; "" for none.
func decodeMeta(data []byte, o *objectMeta, label, annotation string) error {
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			o.Name = m.string()
		case 3:
			o.Namespace = m.string()
		case 6:
			o.ResourceVersion = m.string()
		case 8:
			m.fail(o.created.Unmarshal(m.bytes()))
		case 11: // labels
			if key, value := m.entry(); label != "" && string(key) == label {
				o.label = string(value)
			}
		case 12: // annotations
			if key, value := m.entry(); annotation != "" && string(key) == annotation {
				o.annotation = string(value)
			}
		}
	}
	return m.err
}

// decodeService decodes a Service in protobuf as TrimService would trim it.
func decodeService(data []byte) (*Service, error) {
	var s corev1.Service
	var o objectMeta
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			m.fail(decodeMeta(m.bytes(), &o, "", tolerateUnready))
		case 2:
			m.fail(decodeServiceSpec(m.bytes(), &s.Spec))
		}
	}
	if m.err != nil {
		return nil, m.err
	}
	s.Namespace, s.Name, s.ResourceVersion, s.CreationTimestamp = o.Namespace, o.Name, o.ResourceVersion, o.created
	if o.annotation != "" {
		s.Annotations = map[string]string{tolerateUnready: o.annotation}
	}
	return TrimService(&s), nil
}

func decodeServiceSpec(data []byte, s *corev1.ServiceSpec) error {
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			p, err := decodePort(m.bytes())
			m.fail(err)
			s.Ports = append(s.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: int32(p.Number)})
		case 3:
			s.ClusterIP = m.string()
		case 4:
			s.Type = corev1.ServiceType(m.string())
		case 10:
			s.ExternalName = m.string()
		case 13:
			s.PublishNotReadyAddresses = m.bool()
		case 18:
			s.ClusterIPs = append(s.ClusterIPs, m.string())
		}
	}
	return m.err
}

// decodeSlice decodes an EndpointSlice in protobuf as TrimSlice would trim it.
func decodeSlice(data []byte) (*EndpointSlice, error) {
	t := &EndpointSlice{}
	var o objectMeta
	endpoints := 0
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			m.fail(decodeMeta(m.bytes(), &o, discoveryv1.LabelServiceName, corev1.EndpointsLastChangeTriggerTime))
		case 2:
			endpoints++
		case 4:
			t.AddressType = addressType(m.bytes())
		}
	}
	t.Meta, t.Service = o.Meta, o.label
	t.trigger(o.annotation)
	if m.err != nil || !t.hasAddresses() {
		return t, m.err
	}
	t.Endpoints = make([]Endpoint, 0, endpoints) // hardly any endpoint has several addresses
	m = message{rest: data}
	for m.next() {
		switch m.field {
		case 2:
			m.fail(t.decodeEndpoint(m.bytes()))
		case 3:
			p, err := decodePort(m.bytes())
			m.fail(err)
			t.Ports = append(t.Ports, p)
		}
	}
	return t, m.err
}

// addressType allocates only for unknown types.
func addressType(b []byte) discoveryv1.AddressType {
	switch string(b) {
	case string(discoveryv1.AddressTypeIPv4):
		return discoveryv1.AddressTypeIPv4
	case string(discoveryv1.AddressTypeIPv6):
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressType(b)
}

func (s *EndpointSlice) decodeEndpoint(data []byte) error {
	q := Endpoint{Ready: true}
	var room [2][]byte
	addresses := room[:0]
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			addresses = append(addresses, m.bytes())
		case 2: // conditions
			c := message{rest: m.bytes()}
			for c.next() {
				if c.field == 1 {
					q.Ready = c.bool()
				}
			}
			m.fail(c.err)
		case 3:
			q.Hostname = strings.ToLower(m.string())
		case 4: // targetRef
			r := message{rest: m.bytes()}
			for r.next() {
				if r.field == 1 { // kind
					q.Pod = string(r.bytes()) == kindPod
				}
			}
			m.fail(r.err)
		}
	}
	for _, a := range addresses {
		if addr, err := netip.ParseAddr(string(a)); err == nil {
			s.addEndpoint(q, addr)
		}
	}
	return m.err
}

// decodePort decodes an EndpointPort or a ServicePort: the fields needed have
// the same numbers in both.
func decodePort(data []byte) (Port, error) {
	q := Port{Protocol: corev1.ProtocolTCP}
	m := message{rest: data}
	for m.next() {
		switch m.field {
		case 1:
			q.Name = m.string()
		case 2:
			q.Protocol = protocolOf(m.bytes())
		case 3:
			q.Number = uint16(m.varint())
		}
	}
	return q, m.err
}

// decodeNode decodes a Node in protobuf as TrimNode would trim it.
func decodeNode(data []byte) (*Node, error) {
	var n corev1.Node
	m := message{rest: data}
	for m.next() {
		if m.field == 1 {
			m.fail(n.ObjectMeta.Unmarshal(m.bytes()))
		}
	}
	return TrimNode(&n), m.err
}
