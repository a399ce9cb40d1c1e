package objects

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubedns/pkg/dns/internal/clustertest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

var (
	compareAddrs = cmpopts.EquateComparable(netip.Addr{})
)

func TestTrimService(t *testing.T) {
	created := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	web := Meta{Namespace: "default", Name: "web", ResourceVersion: "7"}
	for _, tt := range []struct {
		name, in string
		want     Service
	}{
		{
			name: "everything, and what no record needs",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", uid: u, generation: 3, creationTimestamp: "2024-05-01T12:00:00Z",
				labels: {a: b}, annotations: {c: d}, finalizers: [f], managedFields: [{manager: kubectl}]},
				spec: {type: ClusterIP, clusterIP: 192.0.2.7, clusterIPs: [192.0.2.7, "2001:db8::7"], selector: {app: web}, externalIPs: [192.0.2.200],
				ports: [{name: Web, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}, {port: 9, protocol: SCTP}, {port: 65535}]}}`,
			want: Service{Meta: web, Type: "ClusterIP", ClusterIPs: clustertest.Addrs("192.0.2.7", "2001:db8::7"), Created: created, Ports: []Port{
				{"Web", "TCP", 80}, {"dns", "UDP", 53}, {"", "SCTP", 9}, {"", "TCP", 65535},
			}},
		},
		{
			name: "no type, no clusterIPs: an object from before dual stack",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: 192.0.2.7}}`,
			want: Service{Meta: web, ClusterIPs: clustertest.Addrs("192.0.2.7")},
		},
		{
			name: "headless",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: None, clusterIPs: [None], ports: [{name: a, port: 1}]}}`,
			want: Service{Meta: web, Headless: true, Ports: []Port{{"a", "TCP", 1}}},
		},
		{
			name: "without a cluster IP yet",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {type: LoadBalancer}}`,
			want: Service{Meta: web, Type: "LoadBalancer"},
		},
		{
			name: "a cluster IP that is none",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: x, clusterIPs: [x, 192.0.2.8]}}`,
			want: Service{Meta: web, ClusterIPs: clustertest.Addrs("192.0.2.8")},
		},
		{
			name: "IPv4 in IPv6 is IPv4",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: "::ffff:192.0.2.8"}}`,
			want: Service{Meta: web, ClusterIPs: clustertest.Addrs("192.0.2.8")},
		},
		{
			name: "external name: ports and addresses do not count",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {type: ExternalName, externalName: Example.org., clusterIP: 192.0.2.8,
				ports: [{name: a, port: 1}]}}`,
			want: Service{Meta: web, Type: "ExternalName", ExternalName: "Example.org."},
		},
		{
			name: "publishNotReadyAddresses",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: None, publishNotReadyAddresses: true}}`,
			want: Service{Meta: web, Headless: true, PublishNotReady: true},
		},
		{
			name: "the annotation from before it",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", annotations: {service.alpha.kubernetes.io/tolerate-unready-endpoints: "true"}},
				spec: {clusterIP: None}}`,
			want: Service{Meta: web, Headless: true, PublishNotReady: true},
		},
		{
			name: "the annotation with another value",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", annotations: {service.alpha.kubernetes.io/tolerate-unready-endpoints: "false"}},
				spec: {clusterIP: None}}`,
			want: Service{Meta: web, Headless: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			services, _ := clustertest.Parse(t, tt.in)
			before := services[0].DeepCopy()
			if diff := cmp.Diff(&tt.want, TrimService(services[0]), compareAddrs); diff != "" {
				t.Errorf("TrimService (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, services[0]); diff != "" {
				t.Errorf("TrimService changed its argument:\n%s", diff)
			}
		})
	}
}

func TestTrimSlice(t *testing.T) {
	triggered := time.Date(2024, 5, 1, 12, 0, 0, 123456789, time.UTC)
	m := Meta{Namespace: "default", Name: "web-1", ResourceVersion: "7"}
	for _, tt := range []struct {
		name, in string
		want     EndpointSlice
	}{
		{
			name: "everything, and what no record needs",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web, other: x},
				annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2024-05-01T12:00:00.123456789Z"}, ownerReferences: [{name: web}]},
				addressType: IPv4, ports: [{name: Web, port: 80, protocol: TCP, appProtocol: h2c}, {name: dns, port: 53, protocol: UDP}, {protocol: SCTP, port: 9}, {name: none}],
				endpoints: [
				{addresses: [192.0.2.1], hostname: Web-0, nodeName: n, zone: z, targetRef: {kind: Pod, name: web-0, uid: u}, conditions: {Ready: true}},
				{addresses: [192.0.2.2, 192.0.2.3], conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Node}},
				{addresses: [192.0.2.4], Hostname: ""}]}`,
			want: EndpointSlice{
				Meta: m, Service: "web", AddressType: "IPv4", Triggered: triggered,
				Ports: []Port{{"Web", "TCP", 80}, {"dns", "UDP", 53}, {"", "SCTP", 9}, {"none", "TCP", 0}},
				Endpoints: []Endpoint{
					{Addr: netip.MustParseAddr("192.0.2.1"), Hostname: "web-0", Ready: true, Pod: true},
					{Addr: netip.MustParseAddr("192.0.2.2")},
					{Addr: netip.MustParseAddr("192.0.2.3")},
					{Addr: netip.MustParseAddr("192.0.2.4"), Ready: true},
				},
			},
		},
		{
			name: "of nobody",
			in:   `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7"}, addressType: IPv6, endpoints: [{addresses: ["2001:DB8:0::1"]}]}`,
			want: EndpointSlice{Meta: m, AddressType: "IPv6", Endpoints: []Endpoint{{Addr: netip.MustParseAddr("2001:db8::1"), Ready: true}}},
		},
		{
			name: "FQDN",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web}}, addressType: FQDN,
				ports: [{name: a, port: 1}], endpoints: [{addresses: [example.org]}]}`,
			want: EndpointSlice{Meta: m, Service: "web", AddressType: "FQDN"},
		},
		{
			name: "a type of address that is not known",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web}}, addressType: X,
				endpoints: [{addresses: [192.0.2.1]}]}`,
			want: EndpointSlice{Meta: m, Service: "web", AddressType: "X"},
		},
		{
			name: "addresses that are none, a zone, IPv4 in IPv6, a time that is none",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web},
				annotations: {endpoints.kubernetes.io/last-change-trigger-time: yesterday}}, addressType: IPv6,
				endpoints: [{addresses: [x, "", "fe80::1%eth0", "::ffff:192.0.2.9"]}]}`,
			want: EndpointSlice{Meta: m, Service: "web", AddressType: "IPv6", Endpoints: []Endpoint{
				{Addr: netip.MustParseAddr("fe80::1"), Ready: true}, {Addr: netip.MustParseAddr("192.0.2.9"), Ready: true},
			}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, all := clustertest.Parse(t, tt.in)
			before := all[0].DeepCopy()
			if diff := cmp.Diff(&tt.want, TrimSlice(all[0]), compareAddrs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("TrimSlice (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, all[0]); diff != "" {
				t.Errorf("TrimSlice changed its argument:\n%s", diff)
			}
		})
	}
}
