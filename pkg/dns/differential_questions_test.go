package dns

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// knownCluster and knownQuestions make every deviation occur, whatever the
// seed.
const (
	knownCluster = `
{kind: Service, metadata: {name: s0, namespace: ns0}, spec: {clusterIP: 192.0.2.20, ports: [{name: http, port: 80}]}}
---
{kind: Service, metadata: {name: s1, namespace: ns0}, spec: {clusterIP: None}}
---
{kind: EndpointSlice, metadata: {name: s1-1, namespace: ns0, labels: {kubernetes.io/service-name: s1}}, addressType: IPv4,
ports: [{name: http, port: 8080}], endpoints: [{addresses: [192.0.2.20], hostname: pod-0}]}
---
{kind: Service, metadata: {name: ext-www, namespace: ns0}, spec: {type: ExternalName, externalName: www.example.org}}
---
{kind: Service, metadata: {name: ext-nx, namespace: ns0}, spec: {type: ExternalName, externalName: nx.example.org}}
---
{kind: Service, metadata: {name: ext-fail, namespace: ns0}, spec: {type: ExternalName, externalName: fail.example.org}}
---
{kind: Service, metadata: {name: ext-loop, namespace: ns0}, spec: {type: ExternalName, externalName: ext-loop2.ns0.svc.cluster.local}}
---
{kind: Service, metadata: {name: ext-loop2, namespace: ns0}, spec: {type: ExternalName, externalName: ext-loop.ns0.svc.cluster.local}}
---
{kind: Service, metadata: {name: ext-s0, namespace: ns0}, spec: {type: ExternalName, externalName: S0.ns0.svc.cluster.local}}
---
{kind: Service, metadata: {name: ext-gone, namespace: ns0}, spec: {type: ExternalName, externalName: gone.ns0.svc.cluster.local}}
---
{kind: Service, metadata: {name: ext-back, namespace: ns0}, spec: {type: ExternalName, externalName: back.example.org}}
---
{kind: Service, metadata: {name: ext-fed, namespace: ns0}, spec: {type: ExternalName, externalName: s1.ns0.fed.svc.cluster.local}}
---
{kind: Service, metadata: {name: ext-ip, namespace: ns0}, spec: {type: ExternalName, externalName: 192.0.2.30}}
---
{kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 192.0.2.10, ports: [{name: dns, port: 53, protocol: UDP}]}}`

	knownQuestions = `
S0.ns0.svc.cluster.local. A
s0.ns0.svc.cluster.local. ANY
s0.ns0.svc.cluster.local. SRV
*.ns0.svc.cluster.local. SRV
*.ns0.svc.cluster.local. ANY
*.s1.ns0.svc.cluster.local. SRV
*.*.ns0.svc.cluster.local. A
pod-0.s1.ns0.svc.cluster.local. SRV
_tcp.s1.ns0.svc.cluster.local. A
gone.ns0.svc.cluster.local. A
gone.ns0.svc.cluster.local. NS
gone.ns0.svc.cluster.local. ANY
big.ns0.svc.cluster.local. A
_http._tcp.big.ns0.svc.cluster.local. SRV
_http._tcp.s1.ns0.svc.cluster.local. SRV
_http._tcp.s1.ns0.svc.cluster.local. A
_http._tcp.s1.ns0.svc.cluster.local. CNAME
_http._tcp.*.ns0.svc.cluster.local. SRV
_http._tcp.*.ns0.svc.cluster.local. A
*.*.s1.ns0.svc.cluster.local. CNAME
_*._*.s1.*.svc.cluster.local. SRV
ext-www.ns0.svc.cluster.local. A
ext-www.ns0.svc.cluster.local. MX
ext-www.ns0.svc.cluster.local. ANY
ext-nx.ns0.svc.cluster.local. A
ext-fail.ns0.svc.cluster.local. A
ext-loop.ns0.svc.cluster.local. A
ext-s0.ns0.svc.cluster.local. A
ext-s0.ns0.svc.cluster.local. AAAA
ext-gone.ns0.svc.cluster.local. A
ext-back.ns0.svc.cluster.local. A
ext-fed.ns0.svc.cluster.local. A
ext-ip.ns0.svc.cluster.local. A
ext-ip.ns0.svc.cluster.local. SRV
x.ext-www.ns0.svc.cluster.local. A
s1.ns0.fed.svc.cluster.local. A
gone.ns0.fed.svc.cluster.local. A
gone.ns0.fed.svc.cluster.local. TXT
10-244-0-7.ns0.pod.cluster.local. A
--ffff-c000-201.ns0.pod.cluster.local. A
--ffff-c000-201.ns0.pod.cluster.local. AAAA
Cluster.local. SOA
Cluster.local. NS
cluster.local. A
dns-version.cluster.local. TXT
ns.dns.cluster.local. A
dns.cluster.local. A
20.2.0.192.in-addr.arpa. PTR
20.2.0.192.in-addr.arpa. A
20.2.0.192.in-addr.arpa. ANY
21.2.0.192.in-addr.arpa. PTR
localhost. A
www.example.org. ANY`
)

func parseQuestions(t *testing.T) []dns.Question {
	t.Helper()
	var all []dns.Question
	for line := range strings.SplitSeq(strings.TrimSpace(knownQuestions), "\n") {
		name, rrtype, _ := strings.Cut(line, " ")
		qtype, ok := dns.StringToType[rrtype]
		if !ok {
			t.Fatalf("no type in %q", line)
		}
		all = append(all, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
	}
	return all
}

// bigService has more records than 512 octets hold, or even more than 100.
func bigService(endpoints int) clustertest.Change {
	name, port := "http", int32(80)
	c := clustertest.Change{
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns0", Name: "big"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
		},
		Slice: &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns0", Name: "big-1", Labels: map[string]string{discoveryv1.LabelServiceName: "big"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		},
	}
	for i := range endpoints {
		c.Slice.Endpoints = append(c.Slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("203.0.113.%d", i+1)}})
	}
	return c
}

// diffCluster makes the objects of a cluster.
func randomCluster(g clustertest.Generator) *sourcetest.Fake {
	s := clustertest.NewState()
	for range 70 {
		g.Change(s)
	}
	if g.IntN(3) > 0 {
		s.Services["kube-system/kube-dns"] = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
			Spec: corev1.ServiceSpec{
				ClusterIP:  "192.0.2.10",
				ClusterIPs: clustertest.Pick(g, nil, []string{"192.0.2.10", "2001:db8::a"}),
				Ports:      []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Port: 53}},
			},
		}
	}
	if g.IntN(3) == 0 {
		big := bigService(40 + 80*g.IntN(2))
		s.Services["ns0/big"], s.Slices["ns0/big-1"] = big.Service, big.Slice
	}
	f := sourcetest.New(slices.Collect(maps.Values(s.Services)), slices.Collect(maps.Values(s.Slices)))
	if g.IntN(2) == 0 {
		f.TopologyZone, f.Region = "z1", "r1"
	}
	return f
}

// question draws a question whose name may exist in the cluster.
func randomQuestion(g clustertest.Generator, tree *treecache.Tree) dns.Question {
	qtype := clustertest.Pick(g, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeCNAME, dns.TypeMX,
		dns.TypeANY, dns.TypeHTTPS, dns.TypeNS, dns.TypeSOA)
	namespace, service := g.Name()
	if g.IntN(8) == 0 {
		namespace, service = clustertest.Pick(g, "kube-system", "ns0", "gone"), clustertest.Pick(g, "kube-dns", "big", "gone")
	}
	star := func(label, wild string) string {
		if g.IntN(6) == 0 {
			return wild
		}
		return label
	}
	own := star(service, "*") + "." + star(namespace, "*") + ".svc." + clustertest.Zone
	label := clustertest.Pick(g, "pod-0", "pod-1", "pod-2", "gone", treecache.SystemLabel(g.Addr(g.IntN(2) == 0)))
	// A label that some Service has.
	if r, _ := tree.Service([]byte(namespace), []byte(service)); r != nil && len(r.Addresses) > 0 && g.IntN(2) == 0 {
		label = r.Addresses[g.IntN(len(r.Addresses))].Label
		if label == "" {
			label = "pod-0"
		}
	}
	port, protocol := star(clustertest.Pick(g, "_http", "_dns", "_web", "_gone"), clustertest.Pick(g, "*", "_*")), star(clustertest.Pick(g, "_tcp", "_udp", "_sctp"), clustertest.Pick(g, "*", "_*"))
	garbage := clustertest.Pick(g, "a", "xn--abc", `\000`, `\255\001`, `a\ b`, `\@`, "-", "_", "__", "**", "a*", "*a", "_tcp", "svc", "pod", strings.Repeat("x", 63))
	name := ""
	switch g.IntN(16) {
	case 0, 1, 2:
		name = own
	case 3, 4:
		name = star(label, "*") + "." + own
	case 5:
		name = protocol + "." + own
	case 6, 7:
		name = port + "." + protocol + "." + own
		if g.IntN(2) == 0 {
			qtype = dns.TypeSRV
		}
	case 8:
		name = clustertest.Pick(g, "10-244-0-7", "010-1-1-1", "2001-db8--7", "--1", "--ffff-c000-201", "x", "*", "10-244-0-7.x", "256-1-1-1") + "." +
			clustertest.Pick(g, namespace, "default", "*") + ".pod." + clustertest.Zone
	case 9:
		name = clustertest.Pick(g, "", namespace+".svc.", "*.svc.", "svc.", "pod.", namespace+".pod.", "dns.", "ns.dns.", "dns-version.", "x.dns.", "gone.", "gone.svc.") + clustertest.Zone
		if g.IntN(2) == 0 {
			qtype = clustertest.Pick(g, dns.TypeSOA, dns.TypeNS, dns.TypeTXT, dns.TypeA)
		}
	case 10, 11:
		addr := netip.MustParseAddr(g.Addr(g.IntN(2) == 0))
		if g.IntN(6) == 0 {
			addr = netip.MustParseAddr(clustertest.Pick(g, "198.51.100.1", "2001:db8:1::1"))
		}
		name = qname.ReverseName(addr)
		if g.IntN(2) == 0 {
			qtype = dns.TypePTR
		}
		if g.IntN(8) == 0 {
			name = clustertest.Pick(g, "in-addr.arpa.", "2.0.192.in-addr.arpa.", "ip6.arpa.", "0.ip6.arpa.", "1."+name, "00"+name)
		}
	case 12, 13:
		name = service + "." + namespace + "." + clustertest.Pick(g, "fed", "fed", "nofed", "ns1") + ".svc." + clustertest.Zone
		if g.IntN(2) == 0 {
			qtype = clustertest.Pick(g, dns.TypeA, dns.TypeAAAA)
		}
	case 14:
		name = clustertest.Pick(g, garbage+"."+own, garbage+"."+clustertest.Zone, garbage+"."+garbage+"."+own, "a.b.c."+own, garbage+".svc."+clustertest.Zone,
			service+"."+garbage+".svc."+clustertest.Zone, garbage+"."+namespace+".svc."+clustertest.Zone, "x"+clustertest.Zone)
	default:
		name = clustertest.Pick(g, "www.example.org.", "nx.example.org.", "nodata.example.org.", "alias.example.org.", "back.example.org.", "localhost.", "local.", ".", "fail.example.org.")
	}
	if g.IntN(4) == 0 {
		name = strings.Map(func(c rune) rune {
			if c >= 'a' && c <= 'z' && g.IntN(2) == 0 {
				return c - 'a' + 'A'
			}
			return c
		}, name)
	}
	return dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET}
}
