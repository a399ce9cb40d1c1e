package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/source/manifests"
	"kubedns/pkg/dns/treecache"

	cluster "kubedns/pkg/dns"
)

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// manifest are the Services that most tests explain.
const manifest = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.20.7, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.244.0.21], conditions: {ready: true}}]}
---
{apiVersion: v1, kind: Service, metadata: {name: lazy, namespace: shop}, spec: {clusterIP: 10.96.20.9}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: pg, port: 5432}], endpoints: [
  {addresses: [10.244.0.31], hostname: db-0, targetRef: {kind: Pod}}, {addresses: [10.244.0.32], hostname: db-1, conditions: {ready: false}}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-2, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv6, ports: [{name: other, port: 1}], endpoints: [{addresses: ["2001:db8::31"], hostname: db-2}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-3, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.244.0.31], hostname: db-0}]}
---
{apiVersion: v1, kind: Service, metadata: {name: idle, namespace: shop}, spec: {clusterIP: None}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: idle-1, namespace: shop, labels: {kubernetes.io/service-name: idle}}, addressType: IPv4, ports: [], endpoints: [{addresses: [10.244.0.41], conditions: {ready: false}}]}
---
{apiVersion: v1, kind: Service, metadata: {name: alone, namespace: shop}, spec: {clusterIP: None}}
---
{apiVersion: v1, kind: Service, metadata: {name: twin, namespace: tools}, spec: {clusterIP: None}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: twin-1, namespace: tools, labels: {kubernetes.io/service-name: twin}}, addressType: IPv4, ports: [], endpoints: [{addresses: [10.244.0.31]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: tools}, spec: {clusterIP: 10.96.20.8}}
---
{apiVersion: v1, kind: Service, metadata: {name: inside, namespace: shop}, spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}}
---
{apiVersion: v1, kind: Service, metadata: {name: nowhere, namespace: shop}, spec: {type: ExternalName, externalName: gone.shop.svc.cluster.local}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: shop}, spec: {type: ExternalName, externalName: www.example.org}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside-gone, namespace: shop}, spec: {type: ExternalName, externalName: gone.example.org}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside-back, namespace: shop}, spec: {type: ExternalName, externalName: back.example.org}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside-loop, namespace: shop}, spec: {type: ExternalName, externalName: loop.example.org}}
---
{apiVersion: v1, kind: Service, metadata: {name: twice, namespace: shop}, spec: {type: ExternalName, externalName: twice.example.org}}
---
{apiVersion: v1, kind: Service, metadata: {name: loop-a, namespace: shop}, spec: {type: ExternalName, externalName: loop-b.shop.svc.cluster.local}}
---
{apiVersion: v1, kind: Service, metadata: {name: loop-b, namespace: shop}, spec: {type: ExternalName, externalName: loop-a.shop.svc.cluster.local}}
---
{apiVersion: v1, kind: Service, metadata: {name: literal, namespace: shop}, spec: {type: ExternalName, externalName: 192.0.2.9}}
---
{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10}}
`

// fixture is a kube-dns without ports.
type fixture struct {
	kd        *cluster.KubeDNS
	server    *server.Server
	forwarder *forward.Forwarder
	explainer *Explainer
	config    atomic.Pointer[config.Config]
	upstream  *upstream
}

// newFixture serves the manifests in text and, where up is set, forwards to it.
func newFixture(t testing.TB, text string, up *upstream) *fixture {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &fixture{kd: cluster.New(cluster.Options{Zone: "cluster.local.", TTL: 30}, manifests.New(dir)), upstream: up}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.kd.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	f.build(t)
	eventually(t, 20*time.Second, "synced", f.kd.HasSynced)
	return f
}

// eventually waits until ok, but no longer than within.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", within, what)
		}
	}
}

// build makes what stands around f.kd.
func (f *fixture) build(t testing.TB) {
	t.Helper()
	f.forwarder = forward.New(forward.Options{})
	if f.upstream != nil {
		f.forwarder.SetNameservers([]netip.AddrPort{f.upstream.addr})
	}
	var err error
	f.server, err = server.New(server.Options{
		Tree: f.kd.Tree(), Backend: f.kd, Forwarder: f.forwarder, TTL: 30, NegativeTTL: 10,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.explainer = New(Options{
		Tree: f.kd.Tree(), Source: f.kd, Server: f.server, Forwarder: f.forwarder, Config: f.config.Load, TTL: 30,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"},
	})
}

func (f *fixture) explain(t testing.TB, name, qtype, search string) *Explanation {
	t.Helper()
	r, err := NewRequest(name, qtype, search)
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.explainer.Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// upstream is a nameserver on loopback that counts its questions.
type upstream struct {
	addr  netip.AddrPort
	asked atomic.Int32
}

// newUpstream answers names of example.org. (7 s), and NXDOMAIN to others;
// silent. is not answered, broken. is SERVFAIL.
func newUpstream(t testing.TB) *upstream {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{addr: pc.LocalAddr().(*net.UDPAddr).AddrPort()}
	known := map[string]string{
		"www.example.org.":   "www.example.org. 7 IN A 192.0.2.80",
		"back.example.org.":  "back.example.org. 5 IN CNAME web.shop.svc.cluster.local.",
		"loop.example.org.":  "loop.example.org. 5 IN CNAME outside-loop.shop.svc.cluster.local.",
		"twice.example.org.": "twice.example.org. 5 IN CNAME outside.shop.svc.cluster.local.",
		"docs.example.org.":  "docs.example.org. 5 IN CNAME www.example.org.\nwww.example.org. 7 IN A 192.0.2.80",
	}
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		u.asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(r)
		m.RecursionAvailable = true
		q := r.Question[0]
		switch text, ok := known[strings.ToLower(q.Name)]; {
		case q.Name == "silent.example.org.":
			return
		case q.Name == "broken.example.org.":
			m.Rcode = dns.RcodeServerFailure
		case !ok:
			m.Rcode = dns.RcodeNameError
		default:
			for line := range strings.SplitSeq(text, "\n") {
				rr, err := dns.NewRR(line)
				if err != nil {
					t.Error(err)
				}
				if rr.Header().Rrtype == q.Qtype || rr.Header().Rrtype == dns.TypeCNAME {
					m.Answer = append(m.Answer, rr)
				}
			}
		}
		if err := w.WriteMsg(m); err != nil {
			t.Error(err)
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- srv.ActivateAndServe() }()
	t.Cleanup(func() {
		if err := srv.Shutdown(); err != nil {
			t.Errorf("upstream: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("upstream: %v", err)
		}
	})
	return u
}

const zone = ".svc.cluster.local"

// TestReasons has a row for each reason.
func TestReasons(t *testing.T) {
	f := newFixture(t, manifest, newUpstream(t))
	tests := []struct {
		name, qname, qtype, search string

		reason  Reason
		way     Way
		rcode   string
		missing Missing
		closest string
		near    string // one of them
		step    string // a part of one
		left    string // address, blank and why it is left out
	}{
		{name: "cluster IP", qname: "web.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "web.shop.svc.cluster.local.", step: "cluster IP 10.96.20.7"},
		{name: "case", qname: "WEB.Shop.SVC.cluster.LOCAL.", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "web.shop.svc.cluster.local."},
		{name: "no endpoint behind a cluster IP", qname: "lazy.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "lazy.shop.svc.cluster.local.", step: "no endpoint that is ready"},
		{name: "other family", qname: "web.shop" + zone, qtype: "AAAA", reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"type", "AAAA"}, closest: "web.shop.svc.cluster.local."},
		{name: "SRV without ports", qname: "lazy.shop" + zone, qtype: "SRV", reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"port", "lazy"}, closest: "lazy.shop.svc.cluster.local."},
		{name: "headless", qname: "db.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "db.shop.svc.cluster.local.", left: "10.244.0.32 not ready"},
		{name: "headless, address type", qname: "db.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "db.shop.svc.cluster.local.", left: "2001:db8::31 address type: IPv6, and A was asked for"},
		{name: "headless, twice", qname: "db.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "db.shop.svc.cluster.local.", left: "10.244.0.31 the same address and name are in the slice db-1 already"},
		{name: "port of another slice", qname: "_pg._tcp.db.shop" + zone, qtype: "SRV", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "_pg._tcp.db.shop.svc.cluster.local.", left: "2001:db8::31 no such port: its slice has none of this name and protocol"},
		{name: "endpoint", qname: "db-0.db.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "db-0.db.shop.svc.cluster.local.", left: "2001:db8::31 hostname elsewhere: its name is db-2"},
		{name: "endpoint not ready", qname: "db-1.db.shop" + zone, reason: EndpointNotReady, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"endpoint", "db-1"}, closest: "db.shop.svc.cluster.local.", left: "10.244.0.32 not ready"},
		{name: "no such endpoint", qname: "db-9.db.shop" + zone, reason: NoSuchEndpoint, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"endpoint", "db-9"}, closest: "db.shop.svc.cluster.local.", near: "db-0.db.shop.svc.cluster.local."},
		{name: "below an endpoint", qname: "a.db-0.db.shop" + zone, reason: NoSuchEndpoint, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"name", "a"}, closest: "db-0.db.shop.svc.cluster.local."},
		{name: "not ready", qname: "idle.shop" + zone, reason: NoReadyEndpoint, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"endpoint", "idle"}, closest: "shop.svc.cluster.local.", left: "10.244.0.41 not ready"},
		{name: "no slice", qname: "alone.shop" + zone, reason: NoEndpoint, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"endpoint", "alone"}, closest: "shop.svc.cluster.local."},
		{name: "namespace", qname: "web.shopp" + zone, reason: NoNamespace, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"namespace", "shopp"}, closest: "svc.cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "namespace alone", qname: "shoop" + zone, reason: NoNamespace, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"namespace", "shoop"}, closest: "svc.cluster.local.", near: "shop.svc.cluster.local."},
		{name: "Service", qname: "wbe.shop" + zone, reason: NoService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"service", "wbe"}, closest: "shop.svc.cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "Service elsewhere", qname: "twin.shop" + zone, reason: NoService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"service", "twin"}, closest: "shop.svc.cluster.local.", near: "twin.tools.svc.cluster.local."},
		{name: "exchanged", qname: "shop.web" + zone, reason: NoNamespace, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"namespace", "web"}, closest: "svc.cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "endpoint of another Service", qname: "db-0.bd.shop" + zone, reason: NoService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"service", "bd"}, closest: "shop.svc.cluster.local.", near: "db-0.db.shop.svc.cluster.local."},
		{name: "below a cluster IP", qname: "a.web.shop" + zone, reason: BelowService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"endpoint", "a"}, closest: "web.shop.svc.cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "below an external name", qname: "a.inside.shop" + zone, reason: BelowService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"name", "a"}, closest: "inside.shop.svc.cluster.local."},
		{name: "port", qname: "_htp._tcp.web.shop" + zone, qtype: "SRV", reason: NoPort, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"port", "_htp"}, closest: "_tcp.web.shop.svc.cluster.local.", near: "_http._tcp.web.shop.svc.cluster.local."},
		{name: "protocol", qname: "_http._sctp.web.shop" + zone, qtype: "SRV", reason: NoProtocol, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"protocol", "_sctp"}, closest: "web.shop.svc.cluster.local.", near: "_http._tcp.web.shop.svc.cluster.local."},
		{name: "protocol alone", qname: "_tcp.web.shop" + zone, qtype: "SRV", reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"type", "SRV"}, closest: "_tcp.web.shop.svc.cluster.local."},
		{name: "namespace's own name", qname: "shop" + zone, reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"type", "A"}, closest: "shop.svc.cluster.local."},
		{name: "svc", qname: "svc.cluster.local", reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"type", "A"}, closest: "svc.cluster.local."},
		{name: "the zone", qname: "cluster.local", qtype: "SOA", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "cluster.local."},
		{name: "the zone's address", qname: "cluster.local", reason: NoType, way: WayTree, rcode: "NOERROR", missing: Missing{"type", "A"}, closest: "cluster.local."},
		{name: "without svc", qname: "web.shop.cluster.local", reason: NoName, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"name", "shop"}, closest: "cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "too deep", qname: "a.b.c.d.e" + zone, reason: NoNamespace, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"namespace", "e"}, closest: "svc.cluster.local."},
		{name: "the nameserver", qname: "ns.dns.cluster.local", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "ns.dns.cluster.local."},
		{name: "below dns", qname: "a.dns.cluster.local", reason: NoName, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"name", "a"}, closest: "dns.cluster.local."},
		{name: "version", qname: "dns-version.cluster.local", qtype: "TXT", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "dns-version.cluster.local."},
		{name: "ANY", qname: "web.shop" + zone, qtype: "ANY", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "web.shop.svc.cluster.local.", step: "HINFO"},
		{name: "pod", qname: "10-244-0-31.shop.pod.cluster.local", reason: Answered, way: WayPod, rcode: "NOERROR", closest: "10-244-0-31.shop.pod.cluster.local.", step: "stands for 10.244.0.31"},
		{name: "pod, other family", qname: "10-244-0-31.shop.pod.cluster.local", qtype: "AAAA", reason: NoType, way: WayPod, rcode: "NOERROR", missing: Missing{"type", "AAAA"}, closest: "10-244-0-31.shop.pod.cluster.local."},
		{name: "no pod", qname: "10-244-0-310.shop.pod.cluster.local", reason: NotPodAddress, way: WayPod, rcode: "NXDOMAIN", missing: Missing{"address", "10-244-0-310"}, closest: "shop.pod.cluster.local."},
		{name: "below a pod", qname: "x.10-244-0-31.shop.pod.cluster.local", reason: NoName, way: WayPod, rcode: "NXDOMAIN", missing: Missing{"name", "x"}, closest: "10-244-0-31.shop.pod.cluster.local."},
		{name: "wildcard", qname: "*.shop" + zone, reason: Answered, way: WayWildcard, rcode: "NOERROR"},
		{name: "wildcard without a match", qname: "*.shopp" + zone, reason: NoMatch, way: WayWildcard, rcode: "NXDOMAIN", missing: Missing{"name", "*"}},
		{name: "reverse", qname: "10.244.0.31", reason: Answered, way: WayReverse, rcode: "NOERROR", step: "2 names have this address"},
		{name: "reverse, other type", qname: "31.0.244.10.in-addr.arpa", qtype: "A", reason: NoType, way: WayReverse, rcode: "NOERROR", missing: Missing{"type", "A"}},
		{name: "reverse that is not held", qname: "10.1.2.3", reason: UpstreamNoName, way: WayForward, rcode: "NXDOMAIN", missing: Missing{"name", "3.2.1.10.in-addr.arpa."}},
		{name: "CNAME inside", qname: "inside.shop" + zone, reason: Answered, way: WayExternal, rcode: "NOERROR", closest: "inside.shop.svc.cluster.local."},
		{name: "CNAME inside, other family", qname: "inside.shop" + zone, qtype: "AAAA", reason: TargetNoType, way: WayExternal, rcode: "NOERROR", missing: Missing{"target", "web.shop.svc.cluster.local."}, closest: "inside.shop.svc.cluster.local."},
		{name: "CNAME alone", qname: "inside.shop" + zone, qtype: "CNAME", reason: Answered, way: WayExternal, rcode: "NOERROR", closest: "inside.shop.svc.cluster.local."},
		{name: "CNAME to nothing", qname: "nowhere.shop" + zone, reason: TargetNoName, way: WayExternal, rcode: "NXDOMAIN", missing: Missing{"target", "gone.shop.svc.cluster.local."}, closest: "nowhere.shop.svc.cluster.local."},
		{name: "CNAME outside", qname: "outside.shop" + zone, reason: Answered, way: WayExternal, rcode: "NOERROR", closest: "outside.shop.svc.cluster.local."},
		{name: "CNAME outside to nothing", qname: "outside-gone.shop" + zone, reason: TargetNoName, way: WayExternal, rcode: "NXDOMAIN", missing: Missing{"target", "gone.example.org."}, closest: "outside-gone.shop.svc.cluster.local."},
		{name: "CNAME outside and back", qname: "outside-back.shop" + zone, reason: Answered, way: WayExternal, rcode: "NOERROR", closest: "outside-back.shop.svc.cluster.local."},
		{name: "loop", qname: "loop-a.shop" + zone, reason: Loop, way: WayExternal, rcode: "SERVFAIL", missing: Missing{"target", "loop-a.shop.svc.cluster.local."}, closest: "loop-a.shop.svc.cluster.local."},
		{name: "loop outside", qname: "outside-loop.shop" + zone, reason: Loop, way: WayExternal, rcode: "SERVFAIL", missing: Missing{"target", "outside-loop.shop.svc.cluster.local."}, closest: "outside-loop.shop.svc.cluster.local."},
		{name: "a second question", qname: "twice.shop" + zone, reason: NotAsked, way: WayExternal, rcode: "SERVFAIL", closest: "twice.shop.svc.cluster.local."},
		{name: "literal", qname: "literal.shop" + zone, reason: Answered, way: WayTree, rcode: "NOERROR", closest: "literal.shop.svc.cluster.local."},
		{name: "forwarded", qname: "www.example.org", reason: Answered, way: WayForward, rcode: "NOERROR"},
		{name: "forwarded, other type", qname: "www.example.org", qtype: "MX", reason: UpstreamNoType, way: WayForward, rcode: "NOERROR", missing: Missing{"type", "MX"}},
		{name: "forwarded to nothing", qname: "gone.example.org", reason: UpstreamNoName, way: WayForward, rcode: "NXDOMAIN", missing: Missing{"name", "gone.example.org."}},
		{name: "without the zone", qname: "web.shop.svc", reason: UpstreamNoName, way: WayForward, rcode: "NXDOMAIN", missing: Missing{"name", "web.shop.svc."}, near: "web.shop.svc.cluster.local."},
		{name: "zone misspelt", qname: "db-0.db.shop.svc.cluster.lokal", reason: UpstreamNoName, way: WayForward, rcode: "NXDOMAIN", missing: Missing{"name", "db-0.db.shop.svc.cluster.lokal."}, near: "db-0.db.shop.svc.cluster.local."},
		{name: "broken upstream", qname: "broken.example.org", reason: UpstreamRefuses, way: WayForward, rcode: "SERVFAIL"},
		{name: "transfer", qname: "cluster.local", qtype: "AXFR", reason: NotServed, way: WayNotServed, rcode: "REFUSED", missing: Missing{"type", "AXFR"}},
		{name: "short name", qname: "web", search: "shop", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "web.shop.svc.cluster.local.", step: "the first answers: web.shop.svc.cluster.local."},
		{name: "short name in another namespace", qname: "web.shop", search: "tools", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "web.shop.svc.cluster.local.", step: "the second answers"},
		{name: "short name of nothing", qname: "wbe.shop", search: "tools", reason: NoService, way: WayTree, rcode: "NXDOMAIN", missing: Missing{"service", "wbe"}, closest: "shop.svc.cluster.local.", near: "web.shop.svc.cluster.local."},
		{name: "absolute in a search path", qname: "www.example.org.", search: "shop", reason: Answered, way: WayForward, rcode: "NOERROR", step: "it is not completed"},
		{name: "ndots", qname: "db-0.db.shop.svc.cluster.local", search: "tools", reason: Answered, way: WayTree, rcode: "NOERROR", closest: "db-0.db.shop.svc.cluster.local.", step: "as many as ndots:5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := f.upstream.asked.Load()
			e := f.explain(t, tt.qname, tt.qtype, tt.search)
			shown := func() string {
				var b bytes.Buffer
				if err := e.WriteText(&b); err != nil {
					t.Error(err)
				}
				return b.String()
			}
			if n := f.upstream.asked.Load() - before; n > 1 {
				t.Errorf("%d questions were forwarded", n)
			}
			missing := Missing{}
			if e.Missing != nil {
				missing = *e.Missing
			}
			if len(e.Replies) == 0 {
				t.Fatalf("no reply in\n%s", shown())
			}
			if e.Reason != tt.reason || e.Way != tt.way || e.Replies[0].Rcode != tt.rcode || e.Closest != tt.closest || e.Resolves != (tt.reason == Answered) {
				t.Errorf("got %s, %s, %s, closest %q, resolves %v; want %s, %s, %s, %q in\n%s",
					e.Reason, e.Way, e.Replies[0].Rcode, e.Closest, e.Resolves, tt.reason, tt.way, tt.rcode, tt.closest, shown())
			}
			if tt.missing != (Missing{}) && missing != tt.missing {
				t.Errorf("missing %v, want %v in\n%s", missing, tt.missing, shown())
			}
			if tt.near != "" && !slices.ContainsFunc(e.Near, func(n Near) bool { return n.Name == tt.near }) {
				t.Errorf("near %v, want %s", e.Near, tt.near)
			}
			if tt.step != "" && !slices.ContainsFunc(e.Steps, func(s string) bool { return strings.Contains(s, tt.step) }) {
				t.Errorf("no step has %q in\n%s", tt.step, shown())
			}
			if address, why, ok := strings.Cut(tt.left, " "); ok && !leftOut(e, address, why) {
				t.Errorf("%s is not left out for %q in\n%s", address, why, shown())
			}
			if e.Summary == "" || (e.Advice == "") != e.Resolves {
				t.Errorf("summary %q, advice %q", e.Summary, e.Advice)
			}
			if e.Reason == NoName && !strings.Contains(e.Advice, " service.namespace.svc.cluster.local.") {
				t.Errorf("advice %q, want how Services' names end", e.Advice)
			}
			f.checkExplanation(t, e)
		})
	}
}

func leftOut(e *Explanation, address, why string) bool {
	if e.Service == nil {
		return false
	}
	for _, s := range e.Service.Slices {
		if slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return e.Address == address && e.LeftOut == why }) {
			return true
		}
	}
	return false
}

// checkExplanation checks what is true of every explanation.
func (f *fixture) checkExplanation(t testing.TB, e *Explanation) {
	t.Helper()
	if e.Reason == ChangedMeanwhile {
		t.Errorf("nothing changed, and the reply is %s", e.Replies[0].Rcode)
	}
	exists := func(name string) bool {
		up := &oneQuestion{forwarder: f.forwarder, deadline: time.Now(), turn: make(chan struct{}, 1)}
		up.turn <- struct{}{}
		_, m := f.explainer.ask(t.Context(), dns.Question{Name: name, Qtype: dns.TypeTXT, Qclass: dns.ClassINET}, up, 0, true)
		return m != nil && m.Rcode == dns.RcodeSuccess
	}
	if e.Closest != "" && !exists(e.Closest) {
		t.Errorf("%s: the closest name %s does not exist", e.Question.Name, e.Closest)
	}
	if len(e.Near) > maxNear {
		t.Errorf("%d near names", len(e.Near))
	}
	for _, n := range e.Near {
		if !exists(n.Name) {
			t.Errorf("%s: the near name %s does not exist", e.Question.Name, n.Name)
		}
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(":null")) {
		t.Errorf("null in %s", text)
	}
	var again Explanation
	if err := json.Unmarshal(text, &again); err != nil {
		t.Errorf("reading it back: %v", err)
	}
	if twice, err := json.Marshal(&again); err != nil || !bytes.Equal(text, twice) {
		t.Errorf("read back it is\n%s\nwant\n%s", twice, text)
	}
}

// TestBadRequests has what is refused, and that nothing of it is repeated.
func TestBadRequests(t *testing.T) {
	long := strings.Repeat("a", 64)
	tests := []struct{ name, query, want string }{
		{"nothing", "", "no name"},
		{"empty name", "name=", "no name"},
		{"over 255 octets", "name=" + strings.Repeat("abcdefg.", 32), "257 octets"},
		{"label over 63", "name=" + long + ".example.org", "label of 64 octets"},
		{"empty label", "name=a..b", "empty label"},
		{"leading dot", "name=.a", "empty label"},
		{"two dots", "name=a..", "empty label"},
		{"unknown type", "name=a&type=QUUX", "unknown type"},
		{"number", "name=a&type=TYPE65536", "unknown type"},
		{"OPT", "name=a&type=OPT", "unknown type"},
		{"TYPE0", "name=a&type=TYPE0", "unknown type"},
		{"reserved", "name=a&type=TYPE65535", "unknown type"},
		{"TYPE41", "name=a&type=TYPE41", "unknown type"},
		{"not UTF-8", "name=%ff%fe", "not UTF-8"},
		{"control character", "name=a%00b", "control character, U+0000"},
		{"line", "name=a%0ab", "control character, U+000A"},
		{"escape", "name=a%1b%5b31m", "control character, U+001B"},
		{"C1", "name=a%c2%9b", "control character, U+009B"},
		{"bidirectional", "name=a%e2%80%aeb", "in no name, U+202E"},
		{"markup", "name=%3Cscript%3Ealert(1)%3C/script%3E", "in no name, U+003C"},
		{"markup in type", "name=a&type=%3Cb%3E", "type has a character that is in no name, U+003C"},
		{"markup in search", "name=a&search=%3Cb%3E", "search has a character that is in no name, U+003C"},
		{"quote", "name=a%22", "U+0022"},
		{"blank", "name=a+b", "U+0020"},
		{"backslash", "name=a%5c046b", "U+005C"},
		{"namespace", "name=a&search=-a", "no namespace"},
		{"namespace with a dot", "name=a&search=a.b", "no namespace"},
		{"name twice", "name=a&name=b", "given 2 times"},
		{"no query", "name=%zz", "%XX"},
		{"semicolon", "name=a;b=c", "%XX"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseRequest(tt.query)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			if strings.ContainsAny(err.Error(), "<>\n\x1b") {
				t.Errorf("%q repeats what was asked", err)
			}
		})
	}
	for _, query := range []string{
		"name=.", "name=" + strings.Repeat("a", 63), "name=" + strings.Repeat("abcdefg.", 31), "name=a&type=type65534&search=", "name=a&type=TYPE65280", "name=m%c3%bcnchen", "name=a&type=srv", "name=2001:db8::1",
	} {
		if _, err := ParseRequest(query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// TestNoTrace explains names of each way and looks for what might have
// changed by it.
func TestNoTrace(t *testing.T) {
	f := newFixture(t, manifest, newUpstream(t))
	state := func() string {
		registry := prometheus.NewRegistry()
		if err := registry.Register(f.server); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		services, records := f.kd.Tree().Stats()
		return fmt.Sprint(families, f.server.LastQuestion(), f.forwarder.Health(), f.forwarder.InFlight(), services, records, f.kd.Tree().Serial())
	}
	before := state()
	for _, q := range []string{
		"web.shop" + zone, "gone.shop" + zone, "outside.shop" + zone, "*.shop" + zone, "www.example.org", "broken.example.org", "silent.example.org",
		"10.244.0.31", "loop-a.shop" + zone, "a.b.mars" + zone,
	} {
		f.explain(t, q, "", "")
	}
	if f.upstream.asked.Load() == 0 {
		t.Error("nothing was forwarded")
	}
	if after := state(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// TestSilentUpstream is done in time, and says what the client would get.
func TestSilentUpstream(t *testing.T) {
	f := newFixture(t, manifest, newUpstream(t))
	start := time.Now()
	e := f.explain(t, "silent.example.org", "", "")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it took %v, want 3s at most", took)
	}
	if e.Reason != UpstreamSilent || e.Replies[0].Rcode != "SERVFAIL" || e.Upstream == nil || !strings.Contains(e.Upstream.Nameservers[0].Result, "no reply in") {
		t.Errorf("got %+v", e)
	}
}

// TestNoNameservers has nobody to ask.
func TestNoNameservers(t *testing.T) {
	f := newFixture(t, manifest, nil)
	if e := f.explain(t, "www.example.org", "", ""); e.Reason != NoNameservers || e.Replies[0].Rcode != "SERVFAIL" {
		t.Errorf("got %s, %s", e.Reason, e.Summary)
	}
}

// TestIncomplete explains before the first list.
func TestIncomplete(t *testing.T) {
	f := &fixture{kd: cluster.New(cluster.Options{Zone: "cluster.local.", TTL: 30}, manifests.New(t.TempDir()))}
	f.build(t)
	for _, name := range []string{"web.shop" + zone, "10.96.20.7", "*.shop" + zone} {
		if e := f.explain(t, name, "", ""); e.Reason != Incomplete || e.Way != WayRefused || e.Replies[0].Rcode != "REFUSED" {
			t.Errorf("%s: got %s, %s, %s", name, e.Reason, e.Way, e.Replies[0].Rcode)
		}
	}
	if e := f.explain(t, "www.example.org", "", ""); e.Reason != NoNameservers {
		t.Errorf("outside: %s", e.Reason)
	}
}

// TestStubDomain says who is asked for a name, as the configuration tells.
func TestStubDomain(t *testing.T) {
	f := newFixture(t, manifest, newUpstream(t))
	f.config.Store(&config.Config{
		StubDomains: map[string][]config.Server{
			"example.org": {{Addr: netip.MustParseAddr("192.0.2.53"), Port: 53}}, "www.example.org": {{Host: "ns.example.org", Port: 54}},
			"own.shop.svc.cluster.local": {{Addr: netip.MustParseAddr("192.0.2.54"), Port: 53}}, "ample.org": {{Addr: netip.MustParseAddr("192.0.2.55"), Port: 53}},
		},
		UpstreamNameservers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")},
	})
	for _, tt := range []struct{ name, asks, domain, server string }{
		{"www.example.org", "stub domain", "www.example.org", "ns.example.org:54"},
		{"gone.Example.org", "stub domain", "example.org", "192.0.2.53:53"},
		{"example.net", "upstream", "", "192.0.2.1:53"},
		{"web.shop" + zone, "kube-dns", "", "kube-dns"},
		{"a.own.shop" + zone, "stub domain", "own.shop.svc.cluster.local", "192.0.2.54:53"},
		{"10.1.2.3", "kube-dns", "", "kube-dns"},
	} {
		d := f.explain(t, tt.name, "", "").Dnsmasq
		if d.Asks != tt.asks || d.Domain != tt.domain || !slices.Equal(d.Servers, []string{tt.server}) {
			t.Errorf("%s: %+v, want %s of %s", tt.name, d, tt.asks, tt.server)
		}
	}
	if e := f.explain(t, "outside.shop"+zone, "", ""); !strings.Contains(strings.Join(e.Notes, " "), "www.example.org. is in the stub domain www.example.org") {
		t.Errorf("notes %q", e.Notes)
	}
	f.config.Store(nil)
	if d := f.explain(t, "example.net", "", "").Dnsmasq; d.Asks != "upstream" || len(d.Servers) != 0 || !strings.Contains(d.Note, "/etc/resolv.conf") {
		t.Errorf("without a configuration: %+v", d)
	}
}
