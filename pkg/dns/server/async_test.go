package server

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/treecache"
)

// orgZone is what the upstream nameservers answer in these tests.
var orgZone = map[string]string{
	"www.example.org. A":    "NOERROR\nan www.Example.org. 77 IN A 192.0.2.53",
	"www.example.org. AAAA": "NOERROR\nan www.example.org. 5 IN AAAA 2001:db8::53",
	"www.example.org. TYPE65280": `NOERROR
		an www.example.org. 77 CLASS1 TYPE65280 \# 4 deadbeef`,
	"www.example.org. TXT": `NOERROR
		an www.example.org. 4294967295 IN TXT "a\"b" "\000\255"
		ns example.org. 78 IN NS ns.example.org.
		ar ns.example.org. 79 IN A 192.0.2.1`,
	"missing.example.org. A":  "NXDOMAIN\nns example.org. 60 IN SOA ns.example.org. mail.example.org. 1 2 3 4 5",
	"empty.example.org. A":    "NOERROR\nns example.org. 60 IN SOA ns.example.org. mail.example.org. 1 2 3 4 5",
	"servfail.example.org. A": "SERVFAIL",
	"refused.example.org. A":  "REFUSED",
	"back.example.org. A": `NOERROR
		an back.example.org. 9 IN CNAME middle.example.org.
		an middle.example.org. 8 IN CNAME WEB.default.svc.cluster.local.`,
	"round.example.org. A": "NOERROR\nan round.example.org. 9 IN CNAME round.default.svc.Cluster.local.",
	"loop.example.org. A": `NOERROR
		an loop.example.org. 9 IN CNAME pool.example.org.
		an pool.example.org. 9 IN CNAME loop.example.org.`,
	"1.1.1.1.in-addr.arpa. PTR":     "NOERROR\nan 1.1.1.1.in-addr.arpa. 99 IN PTR one.example.org.",
	"96.10.in-addr.arpa. PTR":       "NXDOMAIN",
	"010.0.96.10.in-addr.arpa. PTR": "NXDOMAIN",
	"in-addr.arpa. NS":              "NOERROR\nan in-addr.arpa. 99 IN NS a.in-addr-servers.arpa.",
	"cluster.local.example.org. A":  "NXDOMAIN",
	"xcluster.local. A":             "NXDOMAIN",
	"local. NS":                     "NXDOMAIN",
	". NS":                          "NOERROR\nan . 99 IN NS a.root-servers.net.",
	"svc.fed.example.com. A":        "NOERROR\nan svc.fed.example.com. 77 IN A 192.0.2.99",
	"web.default.myfed.svc.zone-a.region-1.example.com. A": "NOERROR\nan web.default.myfed.svc.zone-a.region-1.example.com. 77 IN A 192.0.2.99",
}

const upstreamSOA = "ns example.org. 60 IN SOA ns.example.org. mail.example.org. 1 2 3 4 5"

// asyncTests need upstream nameservers, SkyDNS or a chain of names.
var asyncTests = []replyTest{
	{"forwarded", "WWW.example.ORG. A", "NOERROR ra\nan www.Example.org. 77 IN A 192.0.2.53"},
	{"forwarded, TTLs and sections as they came", "www.example.org. TXT", `NOERROR ra
		an www.example.org. 4294967295 IN TXT "a\"b" "\000\255"
		ns example.org. 78 IN NS ns.example.org.
		ar ns.example.org. 79 IN A 192.0.2.1`},
	{"forwarded, unknown type", "www.example.org. TYPE65280", `NOERROR ra
		an www.example.org. 77 CLASS1 TYPE65280 \# 4 deadbeef`},
	{"forwarded NXDOMAIN", "missing.example.org. A", "NXDOMAIN ra\n" + upstreamSOA},
	{"forwarded NODATA", "empty.example.org. A", "NOERROR ra\n" + upstreamSOA},
	{"forwarded REFUSED", "refused.example.org. A", "REFUSED ra"},
	{"forwarded SERVFAIL", "servfail.example.org. A", "SERVFAIL ra"},
	{"forwarded, nobody answers", "dead.example.org. A", "SERVFAIL ra"},
	{"forwarded, a chain of two CNAMEs into the zone", "back.example.org. A", `NOERROR ra
		an back.example.org. 9 IN CNAME middle.example.org.
		an middle.example.org. 8 IN CNAME WEB.default.svc.cluster.local.`},
	{"reverse name we do not hold", "1.1.1.1.in-addr.arpa. PTR", "NOERROR ra\nan 1.1.1.1.in-addr.arpa. 99 IN PTR one.example.org."},
	{"part of a reverse name", "96.10.in-addr.arpa. PTR", "NXDOMAIN ra"},
	{"reverse name with a leading zero", "010.0.96.10.in-addr.arpa. PTR", "NXDOMAIN ra"},
	{"reverse zone", "in-addr.arpa. NS", "NOERROR ra\nan in-addr.arpa. 99 IN NS a.in-addr-servers.arpa."},
	{"zone below another", "cluster.local.example.org. A", "NXDOMAIN ra"},
	{"name that ends like the zone", "xcluster.local. A", "NXDOMAIN ra"},
	{"above the zone", "local. NS", "NXDOMAIN ra"},
	{"root", ". NS", "NOERROR ra\nan . 99 IN NS a.root-servers.net."},

	{"external A", "ExT.default.svc.cluster.local. A", `NOERROR aa ra
		an ExT.default.svc.cluster.local. 30 IN CNAME www.Example.org.
		an www.Example.org. 77 IN A 192.0.2.53`},
	{"external AAAA, TTL of the target", "ext.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an ext.default.svc.cluster.local. 30 IN CNAME www.Example.org.
		an www.example.org. 5 IN AAAA 2001:db8::53`},
	{"external CNAME", "ext.default.svc.cluster.local. CNAME", "NOERROR aa ra\nan ext.default.svc.cluster.local. 30 IN CNAME www.Example.org."},
	{"external TXT", "ext.default.svc.cluster.local. TXT", "NOERROR aa ra\nan ext.default.svc.cluster.local. 30 IN CNAME www.Example.org."},
	{"external SRV", "ext.default.svc.cluster.local. SRV", "NOERROR aa ra\nan ext.default.svc.cluster.local. 30 IN CNAME www.Example.org."},
	{"external ANY", "ext.default.svc.cluster.local. ANY", "NOERROR aa ra\nan ext.default.svc.cluster.local. 30 IN CNAME www.Example.org."},
	{"external CNAME, dead upstream", "todead.default.svc.cluster.local. CNAME", "NOERROR aa ra\nan todead.default.svc.cluster.local. 30 IN CNAME dead.example.org."},
	{"external in the zone", "inner.default.svc.cluster.local. A", `NOERROR aa ra
		an inner.default.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN A 10.96.0.10`},
	{"external in the zone AAAA", "inner.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an inner.default.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"external to a pod's name", "topod.default.svc.cluster.local. A", `NOERROR aa ra
		an topod.default.svc.cluster.local. 30 IN CNAME 10-1-2-3.default.pod.cluster.local.
		an 10-1-2-3.default.pod.cluster.local. 30 IN A 10.1.2.3`},
	{"external to NXDOMAIN", "tonxdomain.default.svc.cluster.local. A", `NXDOMAIN aa ra
		an tonxdomain.default.svc.cluster.local. 30 IN CNAME missing.example.org.
		` + upstreamSOA},
	{"external to NODATA", "tonodata.default.svc.cluster.local. A", `NOERROR aa ra
		an tonodata.default.svc.cluster.local. 30 IN CNAME empty.example.org.
		` + upstreamSOA},
	{"external to NXDOMAIN in the zone", "tonowhere.default.svc.cluster.local. A", `NXDOMAIN aa ra
		an tonowhere.default.svc.cluster.local. 30 IN CNAME gone.default.svc.cluster.local.
		{soa}`},
	{"external to NODATA in the zone", "toempty.default.svc.cluster.local. A", `NOERROR aa ra
		an toempty.default.svc.cluster.local. 30 IN CNAME svc.cluster.local.
		{soa}`},
	{"external to a pod's name, other family", "topod.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an topod.default.svc.cluster.local. 30 IN CNAME 10-1-2-3.default.pod.cluster.local.
		{soa}`},
	{"external, and a CNAME back into the zone", "back.default.svc.cluster.local. A", `NOERROR aa ra
		an WEB.default.svc.cluster.local. 30 IN A 10.96.0.10
		an back.default.svc.cluster.local. 30 IN CNAME back.example.org.
		an back.example.org. 9 IN CNAME middle.example.org.
		an middle.example.org. 8 IN CNAME WEB.default.svc.cluster.local.`},
	{"external, dead upstream", "todead.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external, upstream fails", "tofail.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external, itself", "self.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external, two in a ring", "Ping.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external, a ring by way of upstream", "round.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external, a ring at upstream", "upstreamloop.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external to an asterisk", "wild.default.svc.cluster.local. A", `NXDOMAIN aa ra
		an wild.default.svc.cluster.local. 30 IN CNAME *.default.svc.cluster.local.
		{soa}`},
	{"external to no name", "longlabel.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external to no name in the zone", "longinside.default.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"external to a federation", "tofed.default.svc.cluster.local. A", `NOERROR aa ra
		an tofed.default.svc.cluster.local. 30 IN CNAME web.default.myfed.svc.cluster.local.
		an web.default.myfed.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN A 10.96.0.10`},

	{"federation, here", "Web.default.myfed.svc.cluster.local. A", `NOERROR aa ra
		an Web.default.myfed.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN A 10.96.0.10`},
	{"federation, here, other type", "web.default.myfed.svc.cluster.local. TXT", "NOERROR aa ra\nan web.default.myfed.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local."},
	{"federation, elsewhere", "other.default.myfed.svc.cluster.local. A", `NOERROR aa ra
		an other.default.myfed.svc.cluster.local. 30 IN CNAME web.default.myfed.svc.zone-a.region-1.example.com.
		an web.default.myfed.svc.zone-a.region-1.example.com. 77 IN A 192.0.2.99`},
	{"federation, elsewhere, dead", "other.default.myfed.svc.cluster.local. AAAA", "SERVFAIL aa ra"},
	{"federation, zone unknown", "unknown.default.myfed.svc.cluster.local. A", "SERVFAIL aa ra"},
	{"federation, zone unknown, CNAME", "unknown.default.myfed.svc.cluster.local. CNAME", "SERVFAIL aa ra"},
	{"not a federation", "web.default.nofed.svc.cluster.local. A", "NXDOMAIN aa ra\n{soa}"},
	{"a pod's name of a federation's shape", "web-0.head.default.svc.cluster.local. A", `NOERROR aa ra
		an web-0.head.default.svc.cluster.local. 30 IN A 192.0.2.1`},

	{"asterisk A", "*.Default.svc.cluster.local. A", `NOERROR aa ra
		an *.Default.svc.cluster.local. 30 IN A 10.96.0.10
		an *.Default.svc.cluster.local. 30 IN A 10.96.0.11`},
	{"asterisk AAAA", "*.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an *.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"asterisk SRV", "_http._tcp.*.default.svc.cluster.local. SRV", `NOERROR aa ra
		an _http._tcp.*.default.svc.cluster.local. 30 IN SRV 10 50 80 v4.default.svc.cluster.local.
		an _http._tcp.*.default.svc.cluster.local. 30 IN SRV 10 50 80 web.default.svc.cluster.local.
		ar v4.default.svc.cluster.local. 30 IN A 10.96.0.11
		ar web.default.svc.cluster.local. 30 IN A 10.96.0.10
		ar web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"asterisk, ports have no addresses", "_http._tcp.*.default.svc.cluster.local. A", "NOERROR aa ra\n{soa}"},
	{"asterisk, ports have no CNAME", "_http._tcp.*.default.svc.cluster.local. CNAME", "NOERROR aa ra\n{soa}"},
	{"asterisk, addresses have no port", "*.web.default.svc.cluster.local. SRV", "NOERROR aa ra\n{soa}"},
	{"asterisk TXT", "*.default.svc.cluster.local. TXT", "NOERROR aa ra\n{soa}"},
	{"asterisk HTTPS", "*.default.svc.cluster.local. HTTPS", "NOERROR aa ra\n{soa}"},
	{"asterisk MX", "*.default.svc.cluster.local. MX", "NOERROR aa ra\n{soa}"},
	{"asterisk PTR", "*.default.svc.cluster.local. PTR", "NOERROR aa ra\n{soa}"},
	{"asterisk NS", "*.default.svc.cluster.local. NS", "NOERROR aa ra\n{soa}"},
	{"asterisk SOA", "*.default.svc.cluster.local. SOA", "NOERROR aa ra\n{soa}"},
	{"asterisk ANY", "*.default.svc.cluster.local. ANY", "NOERROR aa ra\nan *.default.svc.cluster.local. 30 IN HINFO \"RFC8482\" \"\""},
	{"asterisk, nothing matches", "*.gone.svc.cluster.local. A", "NXDOMAIN aa ra\n{soa}"},
	{"asterisk, nothing matches SRV", "_x._tcp.*.default.svc.cluster.local. SRV", "NXDOMAIN aa ra\n{soa}"},
	{"asterisk, nothing matches ANY", "*.gone.svc.cluster.local. ANY", "NXDOMAIN aa ra\n{soa}"},
	{"asterisk, nothing matches TXT", "*.gone.svc.cluster.local. TXT", "NXDOMAIN aa ra\n{soa}"},
	{"asterisk, class ANY", "*.default.svc.cluster.local. AAAA ANY", "NOERROR aa ra\nan *.default.svc.cluster.local. 30 IN AAAA fd00::10"},
	{"asterisk too deep", "*.a.b.web.default.svc.cluster.local. A", "NXDOMAIN aa ra\n{soa}"},
}

// newAsyncServer is a server with all that asyncTests need.
func newAsyncServer(tb testing.TB, change func(*Options)) (*testServer, *upstream) {
	tb.Helper()
	u, forwarder := newUpstream(tb, orgZone)
	s := newTestServer(tb, fixture(), func(o *Options) {
		o.Forwarder = forwarder
		if change != nil {
			change(o)
		}
	})
	address := func(host, name string) Record {
		return Record{Host: host, Priority: 10, Weight: 10, Ttl: 30, Key: "/skydns/local/cluster/svc/default/" + name}
	}
	srv := func(target string) Record {
		return Record{Host: target, Port: 80, Priority: 10, Weight: 10, Ttl: 30, Key: "/skydns/local/cluster/svc/default/web/_tcp/_http"}
	}
	addresses := []Record{address("10.96.0.10", "web/1"), address("fd00::10", "web/2"), address("10.96.0.11", "v4/1")}
	ports := []Record{srv("web.default.svc.cluster.local."), srv("v4.default.svc.cluster.local.")}
	s.backend.records = map[string][]Record{
		"*.default.svc.cluster.local.":            addresses,
		"_http._tcp.*.default.svc.cluster.local.": ports,
		"*.web.default.svc.cluster.local.":        addresses[:2],
	}
	s.backend.srvs = map[string][]Record{
		"_http._tcp.*.default.svc.cluster.local.": ports,
		"*.default.svc.cluster.local.":            ports,
		"*.web.default.svc.cluster.local.":        addresses[:2],
	}
	s.backend.hosts = map[string][]Record{
		"web.default.svc.cluster.local.": addresses[:2],
		"v4.default.svc.cluster.local.":  addresses[2:],
	}
	s.backend.federations = map[string]string{
		"web.default.myfed":     "web.default.svc.cluster.local.",
		"other.default.myfed":   "web.default.myfed.svc.zone-a.region-1.example.com.",
		"unknown.default.myfed": "",
	}
	return s, u
}

func TestAsync(t *testing.T) {
	s, _ := newAsyncServer(t, nil)
	for _, tt := range asyncTests {
		t.Run(tt.name, func(t *testing.T) {
			for _, tcp := range []bool{false, true} {
				req := newQuestion(t, tt.question, nil)
				if got, want := s.text(s.ask(t, req, tcp)), wantText(tt.want); got != want {
					t.Errorf("%s, tcp %v\ngot  %s\nwant %s", tt.question, tcp, got, want)
				}
			}
		})
	}
}

// The CNAMEs of a chain come in the order in which they are followed: that is
// how resolvers read them (RFC 1034 section 4.3.2).
func TestChainOrder(t *testing.T) {
	s, _ := newAsyncServer(t, nil)
	m := s.ask(t, newQuestion(t, "back.default.svc.cluster.local. A", nil), false)
	var owners []string
	for _, rr := range m.Answer {
		owners = append(owners, rr.Header().Name)
	}
	want := []string{"back.default.svc.cluster.local.", "back.example.org.", "middle.example.org.", "WEB.default.svc.cluster.local."}
	if !slices.Equal(owners, want) {
		t.Errorf("got  %v\nwant %v", owners, want)
	}
}

// The client's whole question goes upstream, with its flags and OPT, and so
// does what an upstream says with an rcode above 15 or a record that is cut.
func TestForwardQuestion(t *testing.T) {
	var got *dns.Msg
	var overTCP bool
	var reply func(req *dns.Msg) *dns.Msg
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, tcp bool) (*dns.Msg, error) {
			got, overTCP = req, tcp
			return reply(req), nil
		})
	})
	reply = func(req *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(req)
		m.Authoritative, m.AuthenticatedData, m.Truncated = true, true, true
		return m
	}
	req := newQuestion(t, "WwW.example.org. MX", withOPT(1400, 0, true))
	req.RecursionDesired, req.CheckingDisabled = true, true
	m := s.ask(t, req, true)
	if !overTCP || got.Id != req.Id || !got.RecursionDesired || !got.CheckingDisabled || got.IsEdns0() == nil || !got.IsEdns0().Do() ||
		len(got.Question) != 1 || got.Question[0] != req.Question[0] {
		t.Errorf("forwarded over TCP %v:\n%v\nwant\n%v", overTCP, got, req)
	}
	if got, want := s.text(m), "NOERROR tc rd ra ad cd"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	// BADCOOKIE needs an OPT record.
	reply = func(req *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(req)
		m.Rcode = dns.RcodeBadCookie
		return m
	}
	for _, tt := range []struct {
		change func(*dns.Msg)
		rcode  int
	}{{nil, dns.RcodeServerFailure}, {withOPT(1232, 0, false), dns.RcodeBadCookie}} {
		if m := s.ask(t, newQuestion(t, "www.example.org. A", tt.change), false); m.Rcode != tt.rcode {
			t.Errorf("extended rcode: got %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[tt.rcode])
		}
	}

	// A reply that cannot be packed.
	reply = func(req *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(req)
		m.Answer = []dns.RR{&dns.CNAME{Hdr: dns.RR_Header{Name: "www.example.org.", Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: strings.Repeat("x", 64) + "."}}
		return m
	}
	for _, change := range []func(*dns.Msg){nil, withOPT(1232, 0, true)} {
		if got := s.text(s.ask(t, newQuestion(t, "www.example.org. A", change), false)); got != "SERVFAIL ra" {
			t.Errorf("a reply that cannot be packed: %s", got)
		}
	}

	// An answer that upstream cut stays marked when it ends a chain.
	reply = func(req *dns.Msg) *dns.Msg {
		m := parseReply(t, req, orgZone["www.example.org. A"])
		m.Truncated = true
		return m
	}
	if m := s.ask(t, newQuestion(t, "ext.default.svc.cluster.local. A", nil), false); !m.Truncated {
		t.Errorf("the chain's end was cut upstream, but: %s", s.text(m))
	}
}

// chainOf are n external names, each the next one's, and a cluster IP.
func chainOf(n int) []*treecache.Records {
	var all []*treecache.Records
	for i := range n {
		target := fmt.Sprintf("c%d.ns.svc.cluster.local.", i+1)
		if i == n-1 {
			target = "web.default.svc.cluster.local."
		}
		all = append(all, external("ns", fmt.Sprintf("c%d", i), target))
	}
	return append(all, clusterIP("default", "web", nil, "10.96.0.10"))
}

// A chain of 16 names is followed, a longer one is SERVFAIL, whoever has it.
func TestChainLength(t *testing.T) {
	for _, tt := range []struct {
		links int
		ok    bool
	}{{1, true}, {15, true}, {16, true}, {17, false}, {200, false}} {
		s := newTestServer(t, chainOf(tt.links), nil)
		m := s.ask(t, newQuestion(t, "c0.ns.svc.cluster.local. A", withOPT(4096, 0, false)), false)
		if ok := m.Rcode == dns.RcodeSuccess && len(m.Answer) == tt.links+1; ok != tt.ok || !ok && (m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0) {
			t.Errorf("%d links in the zone: %s", tt.links, s.text(m))
		}
	}
	for _, tt := range []struct {
		links int
		ok    bool
	}{{1, true}, {15, true}, {16, false}, {100, false}} {
		s := newTestServer(t, fixture(), func(o *Options) {
			o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
				m := new(dns.Msg).SetReply(req)
				name := req.Question[0].Name
				for i := range tt.links {
					next := fmt.Sprintf("l%d.example.org.", i)
					m.Answer = append(m.Answer, newRR(t, name+" 9 IN CNAME "+next))
					name = next
				}
				m.Answer = append(m.Answer, newRR(t, name+" 9 IN A 192.0.2.53"))
				return m, nil
			})
		})
		m := s.ask(t, newQuestion(t, "ext.default.svc.cluster.local. A", nil), true)
		if ok := m.Rcode == dns.RcodeSuccess && len(m.Answer) == tt.links+2; ok != tt.ok || !ok && (m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0) {
			t.Errorf("%d links upstream: %s", tt.links, s.text(m))
		}
	}
}

// Upstream names that lead back into the zone again and again end in time and
// with few questions.
func TestChainByUpstream(t *testing.T) {
	var asked atomic.Int32
	var records []*treecache.Records
	for i := range 100 {
		records = append(records, external("ns", fmt.Sprintf("c%d", i), fmt.Sprintf("c%d.example.org.", i)))
	}
	s := newTestServer(t, records, func(o *Options) {
		o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
			asked.Add(1)
			var i int
			if _, err := fmt.Sscanf(req.Question[0].Name, "c%d.example.org.", &i); err != nil {
				return nil, err
			}
			m := new(dns.Msg).SetReply(req)
			m.Answer = []dns.RR{newRR(t, fmt.Sprintf("%s 9 IN CNAME c%d.ns.svc.cluster.local.", req.Question[0].Name, i+1))}
			return m, nil
		})
	})
	m := s.ask(t, newQuestion(t, "c0.ns.svc.cluster.local. A", nil), false)
	if n := asked.Load(); m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 || n > MaxHops {
		t.Errorf("%d questions upstream, %s", n, s.text(m))
	}
}

// An upstream that does not answer: SERVFAIL before the client gives up, even
// where each nameserver in a chain takes its time.
func TestAnswerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, fixture(), func(o *Options) {
			o.Forwarder = fakeForwarder(func(ctx context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
				name := req.Question[0].Name
				if strings.HasPrefix(name, "back.") {
					time.Sleep(3 * time.Second)
					return parseReply(t, req, "NOERROR\nan back.example.org. 9 IN CNAME ext.default.svc.cluster.local."), nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			})
		})
		for _, question := range []string{"www.example.org. A", "ext.default.svc.cluster.local. A", "back.default.svc.cluster.local. A"} {
			start := time.Now()
			m := s.ask(t, newQuestion(t, question, nil), false)
			if d := time.Since(start); m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 || d >= 4*time.Second {
				t.Errorf("%s: %s after %v", question, s.text(m), d)
			}
		}
	})
}

// What is shed is SERVFAIL and counted.
func TestOverloaded(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) {
			return nil, fmt.Errorf("asking: %w", forward.ErrOverloaded)
		})
	})
	for i, question := range []string{"www.example.org. A", "ext.default.svc.cluster.local. A"} {
		if m := s.ask(t, newQuestion(t, question, nil), false); m.Rcode != dns.RcodeServerFailure || len(m.Answer) != 0 {
			t.Errorf("%s: %s", question, s.text(m))
		}
		if got := s.gather(t)["kubedns_forward_overloaded_total"]; got != float64(i+1) {
			t.Errorf("%v questions shed, want %d", got, i+1)
		}
	}
	if m := s.ask(t, newQuestion(t, webA, nil), false); len(m.Answer) != 1 {
		t.Errorf("a name of the zone: %s", s.text(m))
	}
}

// A real forwarder without nameservers: SERVFAIL at once.
func TestNoNameservers(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = forward.New(forward.Options{}) })
	if m := s.ask(t, newQuestion(t, "www.example.org. A", nil), false); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %s", s.text(m))
	}
}

// SkyDNS's answers are not kept: a name with an asterisk follows the tree.
func TestWildcardNotCached(t *testing.T) {
	s, _ := newAsyncServer(t, nil)
	req := newQuestion(t, "*.default.svc.cluster.local. A", nil)
	if m := s.ask(t, req, false); len(m.Answer) != 2 {
		t.Fatalf("got %s", s.text(m))
	}
	name := "*.default.svc.cluster.local."
	s.backend.records[name] = s.backend.records[name][:1]
	if m := s.ask(t, req, false); len(m.Answer) != 1 {
		t.Errorf("after a change: %s", s.text(m))
	}
	delete(s.backend.records, name)
	if m := s.ask(t, req, false); m.Rcode != dns.RcodeNameError {
		t.Errorf("after the last is gone: %s", s.text(m))
	}
}

// Names with an asterisk cost much to answer: few are at a time, and past a
// bound they are SERVFAIL at once, while the zone's other names go on.
func TestWildcardsBounded(t *testing.T) {
	s, _ := newAsyncServer(t, nil)
	var running, most atomic.Int32
	release := make(chan struct{})
	s.backend.wildcards = func(string) {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		running.Add(-1)
	}
	wire := pack(t, newQuestion(t, "*.default.svc.cluster.local. A", nil))
	const asked = maxWildcards + 100
	var mu sync.Mutex
	rcodes := map[int]int{}
	w := s.newWorker()
	count := func(reply []byte) {
		m := checkReply(t, wire, reply, false, s.udpSize)
		mu.Lock()
		defer mu.Unlock()
		rcodes[m.Rcode]++
	}
	for range asked {
		if out := w.handle(t.Context(), wire, nil, false, func() respond { return count }); out != nil {
			count(out)
		}
	}
	if m := s.ask(t, newQuestion(t, webA, nil), false); len(m.Answer) != 1 {
		t.Errorf("a name without an asterisk: %s", s.text(m))
	}
	mu.Lock()
	if rcodes[dns.RcodeServerFailure] != asked-maxWildcards {
		t.Errorf("at once %v, want %d SERVFAIL", rcodes, asked-maxWildcards)
	}
	mu.Unlock()
	close(release)
	w.async.Wait()
	if n := most.Load(); int(n) > runtime.GOMAXPROCS(0) {
		t.Errorf("%d were answered at one time", n)
	}
	if rcodes[dns.RcodeSuccess] != maxWildcards {
		t.Errorf("in the end %v, want %d NOERROR", rcodes, maxWildcards)
	}
	s.backend.wildcards = nil
	if m := s.ask(t, newQuestion(t, "*.default.svc.cluster.local. A", nil), false); m.Rcode != dns.RcodeSuccess {
		t.Errorf("afterwards: %s", s.text(m))
	}
}

// The question's octets are the reader's again while a deferred answer is under
// way, and the reply does not depend on them.
func TestQuestionReused(t *testing.T) {
	s, _, release := newHeldServer(t, nil)
	w := s.newWorker()
	replies := make(chan []byte, 1)
	wire := pack(t, newQuestion(t, "www.example.org. A", withOPT(1232, 0, true)))
	msg := slices.Clone(wire)
	if out := w.handle(t.Context(), msg, nil, false, func() respond {
		return func(b []byte) { replies <- slices.Clone(b) }
	}); out != nil {
		t.Fatalf("got %x at once", out)
	}
	other := pack(t, newQuestion(t, webA, nil))
	copy(msg, other)
	w.handle(t.Context(), msg[:len(other)], nil, false, nil)
	clear(msg)
	close(release)
	m := checkReply(t, wire, <-replies, false, s.udpSize)
	if got := s.text(m); got != wantText("NOERROR ra\nan www.Example.org. 77 IN A 192.0.2.53") || !m.IsEdns0().Do() {
		t.Errorf("got %s", got)
	}
}
