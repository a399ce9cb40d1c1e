package dns

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	// glog starts it when the program does, for good.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

const testZone = "cluster.local."

// golden compares got with a file in testdata that bears the test's name.
func golden(t *testing.T, got string) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(t.Name(), "/", string(filepath.Separator))+".zone")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// parseObjects reads Services and EndpointSlices from YAML; their namespace is
// default where none is given.
func parseObjects(t *testing.T, text string) (services []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) {
	t.Helper()
	for _, document := range strings.Split(text, "---") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v in %s", err, document)
		}
		var err error
		switch kind.Kind {
		case "Service":
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
			err = yaml.UnmarshalStrict([]byte(document), s)
			services = append(services, s)
		case "EndpointSlice":
			s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
			err = yaml.UnmarshalStrict([]byte(document), s)
			endpointSlices = append(endpointSlices, s)
		default:
			t.Fatalf("kind %q in %s", kind.Kind, document)
		}
		if err != nil {
			t.Fatalf("%v in %s", err, document)
		}
	}
	return services, endpointSlices
}

// parseOne reads one Service and its slices.
func parseOne(t *testing.T, text string) (*service, []*slice) {
	t.Helper()
	services, endpointSlices := parseObjects(t, text)
	var own []*slice
	for _, s := range endpointSlices {
		own = append(own, trimSlice(s))
	}
	if len(services) == 0 {
		return nil, own
	}
	return trimService(services[0]), own
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// zoneText is a tree's records as lines of a zone file with the origin
// cluster.local., sorted but for PTR records of one name, which are in the
// order of their answers. A Service that has no records is a comment.
func zoneText(tree *treecache.Tree) string {
	var lines []string
	seen := map[netip.Addr]bool{}
	relative := func(name string) string { return strings.TrimSuffix(name, "."+testZone) }
	rrtype := func(addr netip.Addr) string {
		if addr.Is4() {
			return "A"
		}
		return "AAAA"
	}
	tree.Match("*", "*", func(r *treecache.Records) {
		own := relative(r.Name(testZone))
		target := func(label string) string {
			if label == "" {
				return own
			}
			return label + "." + own
		}
		if r.Target != "" {
			lines = append(lines, own+" CNAME "+r.Target)
		}
		for _, a := range r.Addresses {
			seen[a.Addr] = true
			if !a.Repeated {
				lines = append(lines, fmt.Sprintf("%s %s %v", own, rrtype(a.Addr), a.Addr))
			}
			if a.Label != "" {
				lines = append(lines, fmt.Sprintf("%s %s %v", target(a.Label), rrtype(a.Addr), a.Addr))
			}
		}
		for _, srv := range r.SRVs {
			lines = append(lines, fmt.Sprintf("%s SRV %d %s", own, srv.Port, target(srv.Label)))
		}
		for _, p := range r.Ports {
			for _, srv := range p.SRVs {
				lines = append(lines, fmt.Sprintf("%s.%s.%s SRV %d %s", p.Name, p.Protocol, own, srv.Port, target(srv.Label)))
			}
		}
	})
	slices.Sort(lines)
	all := make([]netip.Addr, 0, len(seen))
	for addr := range seen {
		all = append(all, addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	for _, addr := range all {
		for _, name := range reverseNames(tree, addr) {
			lines = append(lines, qname.ReverseName(addr)+" PTR "+relative(name))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// reverseNames has the targets of an address's PTR records.
func reverseNames(tree *treecache.Tree, addr netip.Addr) []string {
	first, more, ok := tree.Reverse(addr)
	if !ok {
		return nil
	}
	var names []string
	for _, o := range append([]treecache.Owner{first}, more...) {
		name := o.Name(testZone)
		names = append(names, name)
	}
	return names
}

// lines brings expected records into zoneText's form.
func lines(text string) string {
	var all []string
	for l := range strings.SplitSeq(text, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

var (
	compareTrimmed = cmp.AllowUnexported(service{}, slice{}, port{}, endpoint{}, meta{})
	compareAddrs   = cmpopts.EquateComparable(netip.Addr{})
)

func TestTrimService(t *testing.T) {
	created := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	web := meta{Namespace: "default", Name: "web", ResourceVersion: "7"}
	for _, tt := range []struct {
		name, in string
		want     service
	}{
		{
			name: "everything, and what no record needs",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", uid: u, generation: 3, creationTimestamp: "2024-05-01T12:00:00Z",
				labels: {a: b}, annotations: {c: d}, finalizers: [f], managedFields: [{manager: kubectl}]},
				spec: {type: ClusterIP, clusterIP: 192.0.2.7, clusterIPs: [192.0.2.7, "2001:db8::7"], selector: {app: web}, externalIPs: [192.0.2.200],
				ports: [{name: Web, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}, {port: 9, protocol: SCTP}, {port: 65535}]}}`,
			want: service{meta: web, kind: "ClusterIP", clusterIPs: addrs("192.0.2.7", "2001:db8::7"), created: created, ports: []port{
				{"Web", "TCP", 80}, {"dns", "UDP", 53}, {"", "SCTP", 9}, {"", "TCP", 65535},
			}},
		},
		{
			name: "no type, no clusterIPs: an object from before dual stack",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: 192.0.2.7}}`,
			want: service{meta: web, clusterIPs: addrs("192.0.2.7")},
		},
		{
			name: "headless",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: None, clusterIPs: [None], ports: [{name: a, port: 1}]}}`,
			want: service{meta: web, headless: true, ports: []port{{"a", "TCP", 1}}},
		},
		{
			name: "without a cluster IP yet",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {type: LoadBalancer}}`,
			want: service{meta: web, kind: "LoadBalancer"},
		},
		{
			name: "a cluster IP that is none",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: x, clusterIPs: [x, 192.0.2.8]}}`,
			want: service{meta: web, clusterIPs: addrs("192.0.2.8")},
		},
		{
			name: "IPv4 in IPv6 is IPv4",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: "::ffff:192.0.2.8"}}`,
			want: service{meta: web, clusterIPs: addrs("192.0.2.8")},
		},
		{
			name: "external name: ports and addresses do not count",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {type: ExternalName, externalName: Example.org., clusterIP: 192.0.2.8,
				ports: [{name: a, port: 1}]}}`,
			want: service{meta: web, kind: "ExternalName", externalName: "Example.org."},
		},
		{
			name: "publishNotReadyAddresses",
			in:   `{kind: Service, metadata: {name: web, resourceVersion: "7"}, spec: {clusterIP: None, publishNotReadyAddresses: true}}`,
			want: service{meta: web, headless: true, publishNotReady: true},
		},
		{
			name: "the annotation from before it",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", annotations: {service.alpha.kubernetes.io/tolerate-unready-endpoints: "true"}},
				spec: {clusterIP: None}}`,
			want: service{meta: web, headless: true, publishNotReady: true},
		},
		{
			name: "the annotation with another value",
			in: `{kind: Service, metadata: {name: web, resourceVersion: "7", annotations: {service.alpha.kubernetes.io/tolerate-unready-endpoints: "false"}},
				spec: {clusterIP: None}}`,
			want: service{meta: web, headless: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			services, _ := parseObjects(t, tt.in)
			before := services[0].DeepCopy()
			if diff := cmp.Diff(&tt.want, trimService(services[0]), compareTrimmed, compareAddrs); diff != "" {
				t.Errorf("trimService (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, services[0]); diff != "" {
				t.Errorf("trimService changed its argument:\n%s", diff)
			}
		})
	}
}

func TestTrimSlice(t *testing.T) {
	triggered := time.Date(2024, 5, 1, 12, 0, 0, 123456789, time.UTC)
	m := meta{Namespace: "default", Name: "web-1", ResourceVersion: "7"}
	for _, tt := range []struct {
		name, in string
		want     slice
	}{
		{
			name: "everything, and what no record needs",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web, other: x},
				annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2024-05-01T12:00:00.123456789Z"}, ownerReferences: [{name: web}]},
				addressType: IPv4, ports: [{name: Web, port: 80, protocol: TCP, appProtocol: h2c}, {name: dns, port: 53, protocol: UDP}, {protocol: SCTP, port: 9}, {name: none}],
				endpoints: [
				{addresses: [192.0.2.1], hostname: Web-0, nodeName: n, zone: z, targetRef: {kind: Pod, name: web-0, uid: u}, conditions: {ready: true}},
				{addresses: [192.0.2.2, 192.0.2.3], conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Node}},
				{addresses: [192.0.2.4], hostname: ""}]}`,
			want: slice{
				meta: m, service: "web", family: "IPv4", triggered: triggered,
				ports: []port{{"Web", "TCP", 80}, {"dns", "UDP", 53}, {"", "SCTP", 9}, {"none", "TCP", 0}},
				endpoints: []endpoint{
					{addr: netip.MustParseAddr("192.0.2.1"), hostname: "web-0", ready: true, pod: true},
					{addr: netip.MustParseAddr("192.0.2.2")},
					{addr: netip.MustParseAddr("192.0.2.3")},
					{addr: netip.MustParseAddr("192.0.2.4"), ready: true},
				},
			},
		},
		{
			name: "of nobody",
			in:   `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7"}, addressType: IPv6, endpoints: [{addresses: ["2001:DB8:0::1"]}]}`,
			want: slice{meta: m, family: "IPv6", endpoints: []endpoint{{addr: netip.MustParseAddr("2001:db8::1"), ready: true}}},
		},
		{
			name: "FQDN",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web}}, addressType: FQDN,
				ports: [{name: a, port: 1}], endpoints: [{addresses: [example.org]}]}`,
			want: slice{meta: m, service: "web", family: "FQDN"},
		},
		{
			name: "a type of address that is not known",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web}}, addressType: X,
				endpoints: [{addresses: [192.0.2.1]}]}`,
			want: slice{meta: m, service: "web", family: "X"},
		},
		{
			name: "addresses that are none, a zone, IPv4 in IPv6, a time that is none",
			in: `{kind: EndpointSlice, metadata: {name: web-1, resourceVersion: "7", labels: {kubernetes.io/service-name: web},
				annotations: {endpoints.kubernetes.io/last-change-trigger-time: yesterday}}, addressType: IPv6,
				endpoints: [{addresses: [x, "", "fe80::1%eth0", "::ffff:192.0.2.9"]}]}`,
			want: slice{meta: m, service: "web", family: "IPv6", endpoints: []endpoint{
				{addr: netip.MustParseAddr("fe80::1"), ready: true}, {addr: netip.MustParseAddr("192.0.2.9"), ready: true},
			}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, all := parseObjects(t, tt.in)
			before := all[0].DeepCopy()
			if diff := cmp.Diff(&tt.want, trimSlice(all[0]), compareTrimmed, compareAddrs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("trimSlice (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, all[0]); diff != "" {
				t.Errorf("trimSlice changed its argument:\n%s", diff)
			}
		})
	}
}
