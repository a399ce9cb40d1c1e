package objects

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
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
// made of the object, in protobuf and in JSON.
func TestDecode(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	fill := randomObjects(seed)
	for range 500 {
		decodesAlike(t, fill, Services(), TrimService)
		decodesAlike(t, fill, Slices(), TrimSlice)
	}
	for range 50 {
		decodesAlike(t, fill, Nodes(), TrimNode)
	}
}

func decodesAlike[A any, T Object](t *testing.T, fill *randfill.Filler, r Resource[T], trim func(*A) T) {
	t.Helper()
	object := new(A)
	fill.Fill(object)
	data, err := any(object).(protobufMessage).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	fresh := new(A) // times have whole seconds in it, as the API has
	if err := any(fresh).(protobufMessage).Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	want := trim(fresh)
	got, err := r.protobuf(data)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	if diff := cmp.Diff(want, got, compareDecoded); diff != "" {
		t.Fatalf("%s in protobuf (-want +got):\n%s", r.Name, diff)
	}
	text, err := json.Marshal(fresh)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = r.fromJSON(text); err != nil {
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

// FuzzDecodeObject: octets that the API's own types can be decoded from make what is
// made of these, and no octets do harm.
func FuzzDecodeObject(f *testing.F) {
	fill := randomObjects(1).NumElements(0, 1)
	for range 10 {
		var s corev1.Service
		var l discoveryv1.EndpointSlice
		fill.Fill(&s)
		fill.Fill(&l)
		for _, m := range []protobufMessage{&s, &l} {
			data, err := m.Marshal()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzDecode(t, data, Services(), TrimService)
		fuzzDecode(t, data, Slices(), TrimSlice)
		fuzzDecode(t, data, Nodes(), TrimNode)
		_, _ = Services().DecodeList(slices.Concat(magic, data), func(*Service) {})
		_, _ = Services().DecodeEvent(data)
	})
}

func fuzzDecode[A any, T Object](t *testing.T, data []byte, r Resource[T], trim func(*A) T) {
	t.Helper()
	got, err := r.protobuf(data)
	object := new(A)
	if any(object).(protobufMessage).Unmarshal(data) != nil || errors.Is(err, errMalformed) || errors.Is(err, errWireType) {
		return // the API's own types do not look at all that they skip, nor at the types in a map
	}
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	if want := trim(object); !want.Equal(got) {
		t.Fatalf("%s (-want +got):\n%s", r.Name, cmp.Diff(want, got, compareDecoded))
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
		if s, err := decodeService([]byte(data)); err == nil {
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
	b.Run("direct", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeSlice(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("API's own type", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var l discoveryv1.EndpointSlice
			if err := l.Unmarshal(data); err != nil {
				b.Fatal(err)
			}
			TrimSlice(&l)
		}
	})
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
