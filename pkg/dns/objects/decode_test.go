package objects

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apijson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/randfill"

	"kubedns/pkg/dns/internal/clustertest"
)

// compareDecoded compares trimmed objects.
var compareDecoded = cmp.Options{
	compareAddrs, cmpopts.EquateEmpty(),
}

// randomObjects fills every field there is, so that what stands beside those
// that are read is there as well; what records come from has values that mean
// something, and some that do not.
func randomObjects(seed int64) *randfill.Filler {
	one := func(c randfill.Continue, of ...string) string { return of[c.Intn(len(of))] }
	address := func(c randfill.Continue) string {
		return one(c, "192.0.2.1", "10.0.0.255", "2001:db8::1", "::ffff:192.0.2.7", "fe80::1%eth0", "192.0.2.256", "", "None")
	}
	protocol := func(c randfill.Continue) corev1.Protocol {
		return corev1.Protocol(one(c, "TCP", "UDP", "SCTP", "", "QUIC"))
	}
	return randfill.NewWithSeed(seed).NilChance(0.2).NumElements(0, 4).Funcs(
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			for _, key := range []string{discoveryv1.LabelServiceName, corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
				if m.Labels != nil && c.Bool() {
					m.Labels[key] = one(c, "web", "db", "")
				}
			}
			if m.Annotations != nil && c.Bool() {
				m.Annotations[tolerateUnready] = one(c, "true", "false", "")
				m.Annotations[corev1.EndpointsLastChangeTriggerTime] = one(c, "2024-05-01T12:00:00.123456789Z", "yesterday", "")
			}
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString(`{"f:spec":{}}`) },
		func(s *corev1.ServiceSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			s.Type = corev1.ServiceType(one(c, "ClusterIP", "ExternalName", "NodePort", ""))
			s.ClusterIP = address(c)
			for i := range s.ClusterIPs {
				s.ClusterIPs[i] = address(c)
			}
		},
		func(p *corev1.ServicePort, c randfill.Continue) {
			c.FillNoCustom(p)
			p.Protocol = protocol(c)
		},
		func(s *discoveryv1.EndpointSlice, c randfill.Continue) {
			c.FillNoCustom(s)
			s.AddressType = discoveryv1.AddressType(one(c, "IPv4", "IPv6", "FQDN", ""))
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				for j := range e.Addresses {
					e.Addresses[j] = address(c)
				}
				if e.TargetRef != nil && c.Bool() {
					e.TargetRef.Kind = kindPod
				}
			}
			for i := range s.Ports {
				if s.Ports[i].Protocol != nil {
					*s.Ports[i].Protocol = protocol(c)
				}
			}
		},
	)
}

// A protobufMessage is what each of the API's types is.
type protobufMessage interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// TestDecode: whatever an object has, what is made of its encoding is what is
// made of the object: in protobuf in a list and in an event, and in JSON.
func TestDecode(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	fill := randomObjects(seed)
	for range 500 {
		decodesAlike(t, fill, Services(), TrimService, func(m metav1.ListMeta, items []corev1.Service) runtime.Object {
			return &corev1.ServiceList{ListMeta: m, Items: items}
		})
		decodesAlike(t, fill, Slices(), TrimSlice, func(m metav1.ListMeta, items []discoveryv1.EndpointSlice) runtime.Object {
			return &discoveryv1.EndpointSliceList{ListMeta: m, Items: items}
		})
	}
	for range 50 {
		decodesAlike(t, fill, Nodes(), TrimNode, func(m metav1.ListMeta, items []corev1.Node) runtime.Object {
			return &corev1.NodeList{ListMeta: m, Items: items}
		})
	}
}

func decodesAlike[A any, T Object](t *testing.T, fill *randfill.Filler, r Resource[T], trim func(*A) T, list func(metav1.ListMeta, []A) runtime.Object) {
	t.Helper()
	object := new(A)
	fill.Fill(object)
	any(object).(metav1.Object).SetResourceVersion("7")
	data, err := any(object).(protobufMessage).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	fresh := new(A) // times have whole seconds in it, as the API has
	if err := any(fresh).(protobufMessage).Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	want := trim(fresh)
	var listed []T
	meta, err := r.DecodeList(clustertest.Encode(t, list(metav1.ListMeta{ResourceVersion: "42"}, []A{*fresh, *fresh})), func(o T) { listed = append(listed, o) })
	if err != nil || meta.ResourceVersion != "42" {
		t.Fatalf("%s in a list: %+v, %v", r.Name, meta, err)
	}
	if diff := cmp.Diff([]T{want, want}, listed, compareDecoded); diff != "" {
		t.Fatalf("%s in a list (-want +got):\n%s", r.Name, diff)
	}
	change := metav1.WatchEvent{Type: string(watch.Modified), Object: runtime.RawExtension{Raw: clustertest.Encode(t, any(fresh).(runtime.Object))}}
	if data, err = change.Marshal(); err != nil {
		t.Fatal(err)
	}
	event, err := r.DecodeEvent(data)
	if err != nil {
		t.Fatalf("%s in an event: %v", r.Name, err)
	}
	if diff := cmp.Diff(Event[T]{Type: watch.Modified, Object: want}, event, compareDecoded); diff != "" {
		t.Fatalf("%s in an event (-want +got):\n%s", r.Name, diff)
	}
	decodesAlikeInJSON(t, fresh, r, trim)
}

func decodesAlikeInJSON[A any, T Object](t *testing.T, object *A, r Resource[T], trim func(*A) T) {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.fromJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	// JSON has no octets that are not UTF-8.
	own, _, err := apijson.NewSerializerWithOptions(apijson.DefaultMetaFactory, clustertest.Scheme(t), clustertest.Scheme(t), apijson.SerializerOptions{}).
		Decode(text, &schema.GroupVersionKind{}, any(new(A)).(runtime.Object))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(trim(any(own).(*A)), got, compareDecoded); diff != "" {
		t.Fatalf("%s in JSON (-want +got):\n%s", r.Name, diff)
	}
}

// FuzzDecodeObject: no octets do harm, in a list or in an event, and what is
// taken for either has a resource version.
func FuzzDecodeObject(f *testing.F) {
	fill := randomObjects(1).NumElements(0, 1)
	for range 10 {
		var s corev1.Service
		var l discoveryv1.EndpointSlice
		fill.Fill(&s)
		fill.Fill(&l)
		for _, o := range []runtime.Object{
			&corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "42"}, Items: []corev1.Service{s}},
			&discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "42"}, Items: []discoveryv1.EndpointSlice{l}},
			&s, &l,
		} {
			data := clustertest.Encode(f, o)
			event := metav1.WatchEvent{Type: string(watch.Added), Object: runtime.RawExtension{Raw: data}}
			change, err := event.Marshal()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
			f.Add(change)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzDecode(t, data, Services())
		fuzzDecode(t, data, Slices())
		fuzzDecode(t, data, Nodes())
	})
}

func fuzzDecode[T Object](t *testing.T, data []byte, r Resource[T]) {
	t.Helper()
	if meta, err := r.DecodeList(data, func(o T) { _ = o.Weight() }); err == nil && meta.ResourceVersion == "" {
		t.Errorf("a list of %s without a resource version", r.Name)
	}
	e, err := r.DecodeEvent(data)
	if err != nil || e.Type == watch.Error {
		return
	}
	if e.Object.Version() == "" {
		t.Errorf("an event of %s without a resource version", r.Name)
	}
}

// TestDecodeList: a page of a list in either encoding, and what may stand in
// its place.
func TestDecodeList(t *testing.T) {
	list := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "next"}}
	for _, name := range []string{"a", "b"} {
		list.Items = append(list.Items, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7"},
			Spec:       corev1.ServiceSpec{ClusterIP: "192.0.2.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
	}
	gone := &metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old"}
	inJSON := func(o runtime.Object) []byte {
		clustertest.Encode(t, o) // gives it its kind
		return mustJSON(t, o)
	}
	whole := clustertest.Encode(t, list)
	says := func(text string) func(error) bool {
		return func(err error) bool { return strings.Contains(err.Error(), text) }
	}
	for _, tt := range []struct {
		name    string
		page    []byte
		objects int
		check   func(error) bool
	}{
		{"protobuf", whole, 2, nil},
		{"JSON", inJSON(list), 2, nil},
		{"a Status in protobuf", clustertest.Encode(t, gone), 0, apierrors.IsResourceExpired},
		{"a Status in JSON", inJSON(gone), 0, apierrors.IsResourceExpired},
		{"cut", whole[:len(whole)-20], 0, says("malformed")},
		{"nothing", nil, 0, says("services")},
		{"a page of HTML", []byte("<html>"), 0, says("invalid character '<'")},
		{"an item that is none", []byte(`{"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": 7}]}`), 0, says("services")},
		// As empty lists these would take away every record.
		{"an empty object", []byte("{}"), 0, says(`kind ""`)},
		{"null", []byte("null"), 0, says(`kind ""`)},
		{"friendly words", []byte(`{"status": "ok"}`), 0, says(`kind ""`)},
		{"an empty envelope", []byte(magic), 0, says(`kind ""`)},
		{"another list", clustertest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}), 0, says(`"NodeList"`)},
		{"another list in JSON", inJSON(&corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}), 0, says(`"NodeList"`)},
		{"no version", clustertest.Encode(t, &corev1.ServiceList{}), 0, says("resource version")},
		{"no version in JSON", inJSON(&corev1.ServiceList{}), 0, says("resource version")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []*Service
			meta, err := Services().DecodeList(tt.page, func(s *Service) { got = append(got, s) })
			if tt.check != nil {
				if err == nil || !tt.check(err) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || meta.ResourceVersion != "42" || meta.Continue != "next" || len(got) != tt.objects {
				t.Fatalf("%d objects, %+v, %v", len(got), meta, err)
			}
			for i := range got {
				if diff := cmp.Diff(TrimService(&list.Items[i]), got[i], compareDecoded); diff != "" {
					t.Errorf("object %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A field of another type than it should have is no object, and not one without
// that field.
func TestDecodeWireType(t *testing.T) {
	for _, data := range []string{
		"\x08\x01",            // metadata as a number
		"\x12\x02\x18\x01",    // spec with a cluster IP as a number
		"\x12\x05\x6a\x03abc", // spec with publishNotReadyAddresses as a string
	} {
		if s, err := Services().protobuf([]byte(data)); err == nil {
			t.Errorf("%q is decoded to %+v", data, s)
		}
	}
}

func BenchmarkDecodeSlice(b *testing.B) {
	l := &discoveryv1.EndpointSlice{}
	randomObjects(1).Fill(&l.ObjectMeta)
	l.AddressType = discoveryv1.AddressTypeIPv4
	name, protocol, number, ready := "http", corev1.ProtocolTCP, int32(80), true
	l.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}}
	for range 20 {
		l.Endpoints = append(l.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"192.0.2." + string(rune('0'+rand.IntN(10)))}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-5d8f", UID: "0a1b2c3d"}, NodeName: &name,
		})
	}
	data, err := l.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Slices().protobuf(data); err != nil {
			b.Fatal(err)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
