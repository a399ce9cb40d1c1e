package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/version"
)

// replyTest is a question and the whole reply to it, see text and wantText.
type replyTest struct{ name, question, want string }

// directTests need neither SkyDNS nor upstream nameservers.
var directTests = []replyTest{
	{"cluster IP A", "web.default.svc.cluster.local. A", `NOERROR aa ra
		an web.default.svc.cluster.local. 30 IN A 10.96.0.10`},
	{"cluster IP AAAA", "web.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"cluster IP, IPv4 only, AAAA", "v4.default.svc.cluster.local. AAAA", "NOERROR aa ra\n{soa}"},
	{"cluster IP, IPv6 only, A", "v6.default.svc.cluster.local. A", "NOERROR aa ra\n{soa}"},
	{"class ANY", "web.default.svc.cluster.local. A ANY", `NOERROR aa ra
		an web.default.svc.cluster.local. 30 IN A 10.96.0.10`},
	{"mixed case", "WeB.DeFaUlT.sVc.ClUsTeR.lOcAl. A", `NOERROR aa ra
		an WeB.DeFaUlT.sVc.ClUsTeR.lOcAl. 30 IN A 10.96.0.10`},
	{"mixed case SRV", "_HTTP._TCP.WEB.default.SVC.cluster.local. SRV", `NOERROR aa ra
		an _HTTP._TCP.WEB.default.SVC.cluster.local. 30 IN SRV 10 100 80 web.default.svc.cluster.local.
		ar web.default.svc.cluster.local. 30 IN A 10.96.0.10
		ar web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"mixed case NXDOMAIN", "gone.DEFAULT.svc.Cluster.Local. A", `NXDOMAIN aa ra
		ns Cluster.Local. 10 IN SOA ns.dns.Cluster.Local. hostmaster.Cluster.Local. SERIAL 28800 7200 604800 10`},

	{"headless A", "head.default.svc.cluster.local. A", `NOERROR aa ra
		an head.default.svc.cluster.local. 30 IN A 192.0.2.1
		an head.default.svc.cluster.local. 30 IN A 192.0.2.2
		an head.default.svc.cluster.local. 30 IN A 192.0.2.3`},
	{"headless AAAA", "head.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an head.default.svc.cluster.local. 30 IN AAAA 2001:db8::1`},
	{"endpoint A", "web-0.head.default.svc.cluster.local. A", `NOERROR aa ra
		an web-0.head.default.svc.cluster.local. 30 IN A 192.0.2.1`},
	{"endpoint AAAA", "web-0.head.default.svc.cluster.local. AAAA", `NOERROR aa ra
		an web-0.head.default.svc.cluster.local. 30 IN AAAA 2001:db8::1`},
	{"endpoint of one family", "web-1.head.default.svc.cluster.local. AAAA", "NOERROR aa ra\n{soa}"},
	{"hostname of several", "db.shared.default.svc.cluster.local. A", `NOERROR aa ra
		an db.shared.default.svc.cluster.local. 30 IN A 192.0.2.21
		an db.shared.default.svc.cluster.local. 30 IN A 192.0.2.22`},
	{"label of a cluster IP", treecache.SystemLabel("10.96.0.10") + ".web.default.svc.cluster.local. A", "NOERROR aa ra\n" +
		"an " + treecache.SystemLabel("10.96.0.10") + ".web.default.svc.cluster.local. 30 IN A 10.96.0.10"},
	{"label of an endpoint", treecache.SystemLabel("192.0.2.3") + ".head.default.svc.cluster.local. A", "NOERROR aa ra\n" +
		"an " + treecache.SystemLabel("192.0.2.3") + ".head.default.svc.cluster.local. 30 IN A 192.0.2.3"},
	{"no ready endpoint", "nothing.lonely.svc.cluster.local. A", "NXDOMAIN aa ra\n{soa}"},
	{"external name that is an address", "extaddr.default.svc.cluster.local. A", `NOERROR aa ra
		an extaddr.default.svc.cluster.local. 30 IN A 203.0.113.9`},

	{"SRV of a port", "_dns._udp.web.default.svc.cluster.local. SRV", `NOERROR aa ra
		an _dns._udp.web.default.svc.cluster.local. 30 IN SRV 10 100 53 web.default.svc.cluster.local.
		ar web.default.svc.cluster.local. 30 IN A 10.96.0.10
		ar web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"SRV of a Service", "web.default.svc.cluster.local. SRV", `NOERROR aa ra
		an web.default.svc.cluster.local. 30 IN SRV 10 33 53 web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN SRV 10 33 80 web.default.svc.cluster.local.
		an web.default.svc.cluster.local. 30 IN SRV 10 33 9000 web.default.svc.cluster.local.
		ar web.default.svc.cluster.local. 30 IN A 10.96.0.10
		ar web.default.svc.cluster.local. 30 IN AAAA fd00::10`},
	{"SRV of a Service without ports", "v4.default.svc.cluster.local. SRV", "NOERROR aa ra\n{soa}"},
	{"SRV of a headless Service's port", "_http._tcp.head.default.svc.cluster.local. SRV", `NOERROR aa ra
		an _http._tcp.head.default.svc.cluster.local. 30 IN SRV 10 33 8080 6661643663393932.head.default.svc.cluster.local.
		an _http._tcp.head.default.svc.cluster.local. 30 IN SRV 10 33 8080 web-0.head.default.svc.cluster.local.
		an _http._tcp.head.default.svc.cluster.local. 30 IN SRV 10 33 8080 web-1.head.default.svc.cluster.local.
		ar 6661643663393932.head.default.svc.cluster.local. 30 IN A 192.0.2.3
		ar web-0.head.default.svc.cluster.local. 30 IN A 192.0.2.1
		ar web-0.head.default.svc.cluster.local. 30 IN AAAA 2001:db8::1
		ar web-1.head.default.svc.cluster.local. 30 IN A 192.0.2.2`},
	{"SRV of a Service for the probes", "kube-dns.kube-system.svc.cluster.local. SRV", `NOERROR aa ra
		an kube-dns.kube-system.svc.cluster.local. 30 IN SRV 10 50 53 kube-dns.kube-system.svc.cluster.local.
		an kube-dns.kube-system.svc.cluster.local. 30 IN SRV 10 50 53 kube-dns.kube-system.svc.cluster.local.
		ar kube-dns.kube-system.svc.cluster.local. 30 IN A 10.96.0.2
		ar kube-dns.kube-system.svc.cluster.local. 30 IN AAAA fd00::2`},

	{"pod IPv4", "10-1-2-3.default.pod.cluster.local. A", `NOERROR aa ra
		an 10-1-2-3.default.pod.cluster.local. 30 IN A 10.1.2.3`},
	{"pod IPv4, any namespace", "0-0-0-0.no-such-namespace.pod.cluster.local. A", `NOERROR aa ra
		an 0-0-0-0.no-such-namespace.pod.cluster.local. 30 IN A 0.0.0.0`},
	{"pod IPv6", "2001-DB8--7.default.pod.cluster.local. AAAA", `NOERROR aa ra
		an 2001-DB8--7.default.pod.cluster.local. 30 IN AAAA 2001:db8::7`},
	{"pod IPv6 in full", "2001-db8-0-0-0-0-0-7.default.pod.cluster.local. AAAA", `NOERROR aa ra
		an 2001-db8-0-0-0-0-0-7.default.pod.cluster.local. 30 IN AAAA 2001:db8::7`},
	{"pod IPv6, leading dashes", "--1.default.pod.cluster.local. AAAA", `NOERROR aa ra
		an --1.default.pod.cluster.local. 30 IN AAAA ::1`},
	{"pod IPv4 AAAA", "10-1-2-3.default.pod.cluster.local. AAAA", "NOERROR aa ra\n{soa}"},
	{"pod IPv6 A", "2001-db8--7.default.pod.cluster.local. A", "NOERROR aa ra\n{soa}"},

	{"version TXT", "dns-version.cluster.local. TXT", `NOERROR aa ra
		an dns-version.cluster.local. 28800 IN TXT "1.1.0"`},
	{"SOA", "cluster.local. SOA", `NOERROR aa ra
		an cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 28800 7200 604800 10`},
	{"NS", "cluster.local. NS", `NOERROR aa ra
		an cluster.local. 30 IN NS ns.dns.cluster.local.
		ar ns.dns.cluster.local. 30 IN A 10.96.0.2
		ar ns.dns.cluster.local. 30 IN AAAA fd00::2`},
	{"nameserver A", "ns.dns.cluster.local. A", `NOERROR aa ra
		an ns.dns.cluster.local. 30 IN A 10.96.0.2`},
	{"nameserver AAAA", "ns.dns.cluster.local. AAAA", `NOERROR aa ra
		an ns.dns.cluster.local. 30 IN AAAA fd00::2`},
	{"ANY", "web.default.svc.cluster.local. ANY", `NOERROR aa ra
		an web.default.svc.cluster.local. 30 IN HINFO "RFC8482" ""`},
	{"ANY at a name between", "svc.cluster.local. ANY", `NOERROR aa ra
		an svc.cluster.local. 30 IN HINFO "RFC8482" ""`},
	{"ANY at no name", "gone.default.svc.cluster.local. ANY", "NXDOMAIN aa ra\n{soa}"},

	{"PTR of a cluster IP", "10.0.96.10.in-addr.arpa. PTR", `NOERROR aa ra
		an 10.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc.cluster.local.`},
	{"PTR of an IPv6 cluster IP, mixed case", dns.Fqdn(strings.ToUpper(treecache.ReverseName(addr("fd00::10")))) + " PTR", "NOERROR aa ra\n" +
		"an " + strings.ToUpper(treecache.ReverseName(addr("fd00::10"))) + " 30 IN PTR web.default.svc.cluster.local."},
	{"PTR of an endpoint", "1.2.0.192.in-addr.arpa. PTR", `NOERROR aa ra
		an 1.2.0.192.in-addr.arpa. 30 IN PTR web-0.head.default.svc.cluster.local.`},
	{"PTR of an endpoint without hostname", "3.2.0.192.in-addr.arpa. PTR", `NOERROR aa ra
		an 3.2.0.192.in-addr.arpa. 30 IN PTR 6661643663393932.head.default.svc.cluster.local.`},
	{"reverse name we hold, A", "10.0.96.10.In-Addr.arpa. A", `NOERROR aa ra
		ns In-Addr.arpa. 10 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 28800 7200 604800 10`},
	{"reverse name we hold, TXT, IPv6", treecache.ReverseName(addr("fd00::10")) + " TXT", `NOERROR aa ra
		ns ip6.arpa. 10 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 28800 7200 604800 10`},
	{"reverse name we hold, ANY", "10.0.96.10.in-addr.arpa. ANY", `NOERROR aa ra
		an 10.0.96.10.in-addr.arpa. 30 IN HINFO "RFC8482" ""`},

	{"AXFR", "cluster.local. AXFR", "REFUSED"},
	{"IXFR", "cluster.local. IXFR", "REFUSED"},
	{"AXFR of another zone", "example.org. AXFR", "REFUSED"},
	{"CHAOS version.bind", "Version.BIND. TXT CH", "NOERROR\nan Version.BIND. 0 CH TXT \"kube-dns " + version.Version + "\""},
	{"CHAOS version.server", "version.server. TXT CH", "NOERROR\nan version.server. 0 CH TXT \"kube-dns " + version.Version + "\""},
	{"CHAOS version.bind A", "version.bind. A CH", "REFUSED"},
	{"CHAOS authors.bind", "authors.bind. TXT CH", "REFUSED"},
	{"CHAOS name of the zone", "web.default.svc.cluster.local. A CH", "REFUSED"},
	{"class HESIOD", "web.default.svc.cluster.local. A HS", "REFUSED"},
	{"class NONE", "web.default.svc.cluster.local. A NONE", "REFUSED"},
}

func TestDirect(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	for _, tt := range directTests {
		t.Run(tt.name, func(t *testing.T) {
			for _, tcp := range []bool{false, true} {
				m := s.ask(t, newQuestion(t, tt.question, nil), tcp)
				if got, want := s.text(m), wantText(tt.want); got != want {
					t.Errorf("%s, tcp %v\ngot  %s\nwant %s", tt.question, tcp, got, want)
				}
			}
		})
	}
}

// allTypes are those asked at every name.
var allTypes = []string{
	"A", "NS", "CNAME", "SOA", "PTR", "HINFO", "MX", "TXT", "AAAA", "SRV", "NAPTR", "DNAME", "DS", "RRSIG", "NSEC",
	"DNSKEY", "TLSA", "SVCB", "HTTPS", "CAA", "TYPE65280", "TYPE0", "OPT", "TKEY", "TSIG", "MAILB",
}

// existing are names of the fixture with the types they have records of.
var existing = map[string]string{
	"cluster.local.":                                                      "SOA NS",
	"dns.cluster.local.":                                                  "",
	"ns.dns.cluster.local.":                                               "A AAAA",
	"dns-version.cluster.local.":                                          "TXT",
	"svc.cluster.local.":                                                  "",
	"pod.cluster.local.":                                                  "",
	"default.pod.cluster.local.":                                          "",
	"10-1-2-3.default.pod.cluster.local.":                                 "A",
	"2001-db8--7.x.pod.cluster.local.":                                    "AAAA",
	"default.svc.cluster.local.":                                          "",
	"lonely.svc.cluster.local.":                                           "", // its one Service has no name
	"web.default.svc.cluster.local.":                                      "A AAAA SRV",
	"v4.default.svc.cluster.local.":                                       "A",
	"v6.default.svc.cluster.local.":                                       "AAAA SRV",
	"extaddr.default.svc.cluster.local.":                                  "A",
	"_tcp.web.default.svc.cluster.local.":                                 "",
	"_udp.web.default.svc.cluster.local.":                                 "",
	"_http._tcp.web.default.svc.cluster.local.":                           "SRV",
	"_dns._udp.web.default.svc.cluster.local.":                            "SRV",
	"head.default.svc.cluster.local.":                                     "A AAAA SRV",
	"web-0.head.default.svc.cluster.local.":                               "A AAAA",
	"web-1.head.default.svc.cluster.local.":                               "A",
	"shared.default.svc.cluster.local.":                                   "A",
	"db.shared.default.svc.cluster.local.":                                "A",
	"_tcp.head.default.svc.cluster.local.":                                "",
	treecache.SystemLabel("fd00::10") + ".web.default.svc.cluster.local.": "AAAA",
}

var missing = []string{
	"gone.cluster.local.",
	"web.cluster.local.",
	"web.default.cluster.local.",
	"svc.svc.cluster.local.",
	"gone.svc.cluster.local.",
	"web.gone.svc.cluster.local.",
	"gone.default.svc.cluster.local.",
	"nothing.lonely.svc.cluster.local.",
	"below.nothing.lonely.svc.cluster.local.",
	"below.web.default.svc.cluster.local.",
	"a.below.web.default.svc.cluster.local.",
	"a.b.below.web.default.svc.cluster.local.",
	"below.web-0.head.default.svc.cluster.local.",
	"web-2.head.default.svc.cluster.local.",
	"_http.web.default.svc.cluster.local.",
	"_sctp.web.default.svc.cluster.local.",
	"_http._udp.web.default.svc.cluster.local.",
	"_https._tcp.web.default.svc.cluster.local.",
	"http._tcp.web.default.svc.cluster.local.",
	"_tcp._http.web.default.svc.cluster.local.",
	"below._http._tcp.web.default.svc.cluster.local.",
	"_tcp.v4.default.svc.cluster.local.",
	"below.ext.default.svc.cluster.local.",
	"_http._tcp.ext.default.svc.cluster.local.",
	"below.extaddr.default.svc.cluster.local.",
	"below.dns.cluster.local.",
	"below.ns.dns.cluster.local.",
	"ns.cluster.local.",
	"below.dns-version.cluster.local.",
	"web.default.pod.cluster.local.",
	"256-1-1-1.default.pod.cluster.local.",
	"01-1-1-1.default.pod.cluster.local.",
	"1-1-1-00.default.pod.cluster.local.",
	"1-1-1.default.pod.cluster.local.",
	"1-1-1-.default.pod.cluster.local.",
	"-1-1-1-1.default.pod.cluster.local.",
	"1-1-1-1-1.default.pod.cluster.local.",
	"1--1-1.x1.default.pod.cluster.local.",
	"2001-db8---7.default.pod.cluster.local.",
	"2001-db8-7.default.pod.cluster.local.",
	"2001-db8--g.default.pod.cluster.local.",
	"10\\.1\\.2\\.3.default.pod.cluster.local.",
	"below.10-1-2-3.default.pod.cluster.local.",
	"1.2.3.4.default.pod.cluster.local.",
	"web\\.default.svc.cluster.local.",
	"web.default\\.svc.cluster.local.",
	"**.default.svc.cluster.local.",
	"we*.default.svc.cluster.local.",
}

// A name that exists has no other types than its own, and that is NODATA; one
// that does not is NXDOMAIN for every type. RFC 2308 section 2, RFC 8020.
func TestNodataAndNXDomain(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	nodata, nxdomain := wantText("NOERROR aa ra\n{soa}"), wantText("NXDOMAIN aa ra\n{soa}")
	for name, has := range existing {
		types := strings.Fields(has)
		for _, qtype := range allTypes {
			m := s.ask(t, newQuestion(t, name+" "+qtype, nil), false)
			if slices.Contains(types, qtype) {
				if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 || len(m.Ns) != 0 || !m.Authoritative {
					t.Errorf("%s %s: %s", name, qtype, s.text(m))
				}
				for _, rr := range m.Answer {
					if dns.Type(rr.Header().Rrtype).String() != qtype {
						t.Errorf("%s %s: %v", name, qtype, rr)
					}
				}
			} else if got := s.text(m); got != nodata {
				t.Errorf("%s %s\ngot  %s\nwant %s", name, qtype, got, nodata)
			}
		}
		m := s.ask(t, newQuestion(t, name+" ANY", nil), false)
		if got, want := s.text(m), "NOERROR aa ra\nan "+name+" 30 IN HINFO \"RFC8482\" \"\""; got != want {
			t.Errorf("%s ANY\ngot  %s\nwant %s", name, got, want)
		}
	}
	for _, name := range missing {
		for _, qtype := range append(allTypes, "ANY") {
			if got := s.text(s.ask(t, newQuestion(t, name+" "+qtype, nil), false)); got != nxdomain {
				t.Errorf("%s %s\ngot  %s\nwant %s", name, qtype, got, nxdomain)
			}
		}
	}
}

// Before the records are complete nothing is denied (docs/records.md).
func TestBeforeSync(t *testing.T) {
	_, forwarder := newUpstream(t, map[string]string{"www.example.org. A": "NOERROR\nan www.example.org. 77 IN A 192.0.2.53"})
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = forwarder })
	s.backend.synced.Store(false)
	for _, question := range []string{
		"web.default.svc.cluster.local. A", "gone.default.svc.cluster.local. A", "cluster.local. SOA", "*.default.svc.cluster.local. A",
		"ext.default.svc.cluster.local. A", "10-1-2-3.default.pod.cluster.local. A", "10.0.96.10.in-addr.arpa. PTR",
		"1.1.1.1.in-addr.arpa. PTR", treecache.ReverseName(addr("2001:db8::1")) + " PTR", "in-addr.arpa. NS",
	} {
		if got := s.text(s.ask(t, newQuestion(t, question, nil), false)); got != "REFUSED" {
			t.Errorf("%s before sync: %s", question, got)
		}
	}
	if got, want := s.text(s.ask(t, newQuestion(t, "www.example.org. A", nil), false)), "NOERROR ra\nan www.example.org. 77 IN A 192.0.2.53"; got != want {
		t.Errorf("an outside name before sync: got %s, want %s", got, want)
	}
	s.backend.synced.Store(true)
	if m := s.ask(t, newQuestion(t, "web.default.svc.cluster.local. A", nil), false); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("after sync: %s", s.text(m))
	}
}

// Without the Service that the DNS is reached through its name exists all the
// same, without addresses.
func TestNoDNSService(t *testing.T) {
	for _, key := range []treecache.Key{{}, {Namespace: "kube-system", Name: "gone"}, {Namespace: "default", Name: "head"}, {Namespace: "default", Name: "ext"}} {
		s := newTestServer(t, fixture(), func(o *Options) { o.DNSService = key })
		for question, want := range map[string]string{
			"ns.dns.cluster.local. A":    "NOERROR aa ra\n{soa}",
			"ns.dns.cluster.local. AAAA": "NOERROR aa ra\n{soa}",
			"cluster.local. NS":          "NOERROR aa ra\nan cluster.local. 30 IN NS ns.dns.cluster.local.",
		} {
			if got, want := s.text(s.ask(t, newQuestion(t, question, nil), false)), wantText(want); got != want {
				t.Errorf("DNS service %v, %s\ngot  %s\nwant %s", key, question, got, want)
			}
		}
	}
}

// Several owners of one address: those whose endpoint has a hostname and is a
// Pod's first, then the older Service, then by namespace and name.
func TestPTROrder(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	ask := func() (targets []string) {
		for _, rr := range s.ask(t, newQuestion(t, "77.0.96.10.in-addr.arpa. PTR", nil), false).Answer {
			targets = append(targets, rr.(*dns.PTR).Ptr)
		}
		return targets
	}
	want := []string{
		"pod.podfirst.default.svc.cluster.local.", "older.zoo.svc.cluster.local.",
		"young.app.svc.cluster.local.", "young.default.svc.cluster.local.",
	}
	for range 5 {
		if got := ask(); !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	s.tree.Replace(treecache.Key{Namespace: "zoo", Name: "older"}, nil, timeNow())
	if got := ask(); !slices.Equal(got, slices.Delete(want, 1, 2)) {
		t.Errorf("after one is gone: %v", got)
	}
}

// The SOA's serial grows whenever records change.
func TestSerial(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	serial := func() uint32 {
		return s.ask(t, newQuestion(t, "cluster.local. SOA", nil), false).Answer[0].(*dns.SOA).Serial
	}
	for i := range 3 {
		before := serial()
		s.tree.Replace(treecache.Key{Namespace: "default", Name: "next"}, clusterIP("default", "next", nil, fmt.Sprintf("10.96.9.%d", i)), timeNow())
		if after := serial(); int32(after-before) <= 0 {
			t.Errorf("serial %d after %d", after, before)
		}
	}
}

// Zones of other shapes: one label, many labels, and one that looks like a
// Service's.
func TestOtherZones(t *testing.T) {
	for _, zone := range []string{"local.", "a.b.c.d.example.org.", "svc.local.", "pod."} {
		t.Run(zone, func(t *testing.T) {
			s := newTestServer(t, fixture(), func(o *Options) { o.Tree = treecache.New(zone) })
			for question, want := range map[string]string{
				"web.default.svc." + zone + " A":      "NOERROR aa ra\nan web.default.svc." + zone + " 30 IN A 10.96.0.10",
				"10-1-2-3.default.pod." + zone + " A": "NOERROR aa ra\nan 10-1-2-3.default.pod." + zone + " 30 IN A 10.1.2.3",
				"ns.dns." + zone + " A":               "NOERROR aa ra\nan ns.dns." + zone + " 30 IN A 10.96.0.2",
				"10.0.96.10.in-addr.arpa. PTR":        "NOERROR aa ra\nan 10.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc." + zone,
				"gone." + zone + " A":                 "NXDOMAIN aa ra\n" + strings.ReplaceAll(wantText("{soa}"), "cluster.local.", zone),
				zone + " A":                           "NOERROR aa ra\n" + strings.ReplaceAll(wantText("{soa}"), "cluster.local.", zone),
				"_http._tcp.web.default.svc." + zone + " SRV": `NOERROR aa ra
					an _http._tcp.web.default.svc.` + zone + ` 30 IN SRV 10 100 80 web.default.svc.` + zone + `
					ar web.default.svc.` + zone + ` 30 IN A 10.96.0.10
					ar web.default.svc.` + zone + ` 30 IN AAAA fd00::10`,
			} {
				if got, want := s.text(s.ask(t, newQuestion(t, question, nil), false)), wantText(want); got != want {
					t.Errorf("%s\ngot  %s\nwant %s", question, got, want)
				}
			}
		})
	}
}
