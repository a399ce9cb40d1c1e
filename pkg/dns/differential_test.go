package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	skydns "github.com/skynetservices/skydns/server"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/treecache"
)

// What the differential test asks: clusters, and questions of each.
const (
	diffClusters  = 60
	diffQuestions = 40
)

// outcome is what is compared of a reply. Records are text; their order does
// not count.
type outcome struct {
	rcode  int
	answer []string
	extra  []string // without OPT
	aa, ra bool
}

func outcomeOf(m *dns.Msg) outcome {
	o := outcome{rcode: m.Rcode, aa: m.Authoritative, ra: m.RecursionAvailable}
	for _, rr := range m.Answer {
		o.answer = append(o.answer, rr.String())
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			o.extra = append(o.extra, rr.String())
		}
	}
	return o.sorted()
}

func (o outcome) sorted() outcome {
	slices.Sort(o.answer)
	slices.Sort(o.extra)
	return o
}

func (o outcome) equal(p outcome) bool {
	o, p = o.sorted(), p.sorted()
	return o.rcode == p.rcode && o.aa == p.aa && o.ra == p.ra &&
		slices.Equal(o.answer, p.answer) && slices.Equal(o.extra, p.extra)
}

func (o outcome) String() string {
	list := func(rrs []string) string {
		s := ""
		for _, rr := range rrs[:min(len(rrs), 12)] {
			s += "\n\t" + rr
		}
		return s
	}
	return fmt.Sprintf("%s aa=%v ra=%v, %d answers%s\n\t%d additional%s", dns.RcodeToString[o.rcode], o.aa, o.ra,
		len(o.answer), list(o.answer), len(o.extra), list(o.extra))
}

// environment is one cluster, what serves it, and what a deviation may ask.
type environment struct {
	kd     *KubeDNS
	sky    dns.Handler
	addr   netip.AddrPort
	tcp    *dns.Conn
	client *dns.Client
}

// asked is a question, and where its name stands.
type asked struct {
	dns.Question
	name    string   // in lower case
	zone    bool     // in the zone
	labels  []string // left of the zone
	star    bool     // with an asterisk in a place where it counts
	reverse bool
	addr    netip.Addr // of a reverse name
}

func newAsked(question dns.Question) asked {
	q := asked{Question: question, name: strings.ToLower(question.Name)}
	if q.name == testZone {
		q.zone = true
	} else if under, ok := strings.CutSuffix(q.name, "."+testZone); ok {
		q.zone, q.labels = true, strings.Split(under, ".")
		q.star = q.labels[len(q.labels)-1] == "svc" && (slices.Contains(q.labels, "*") || slices.Contains(q.labels, "_*"))
	}
	q.reverse = strings.HasSuffix(q.name, ".in-addr.arpa.") || strings.HasSuffix(q.name, ".ip6.arpa.")
	if addr, err := treecache.ParseReverse(treecache.AppendName(nil, q.name)); err == nil {
		q.addr = addr
	}
	return q
}

// service is the Service whose own name q is, if it has one.
func (e *environment) service(q asked) *treecache.Records {
	if !q.zone || q.star || len(q.labels) != 3 || q.labels[2] != "svc" {
		return nil
	}
	r, _ := e.kd.Tree().Service([]byte(q.labels[1]), []byte(q.labels[0]))
	return r
}

// exists tells whether a name of the zone does, as the backend has it.
func (e *environment) exists(q asked) bool {
	_, err := e.kd.Records(q.name, false)
	return err == nil
}

// target is the CNAME's of a federated name or of an ExternalName; ok is false
// where q is neither.
func (e *environment) target(q asked) (target string, ok bool) {
	if r := e.service(q); r != nil {
		return r.Target, r.Target != ""
	}
	if !q.zone || q.star || len(q.labels) != 4 || q.labels[3] != "svc" {
		return "", false
	}
	if r, _ := e.kd.Tree().Service([]byte(q.labels[2]), []byte(q.labels[1])); r != nil && r.Kind != treecache.ExternalName {
		if len(r.At([]byte(q.labels[0]))) > 0 || r.HasProtocol([]byte(q.labels[0])) {
			return "", false
		}
	}
	return e.kd.Federated(q.labels[:3])
}

// follow is the answer that starts with a CNAME at the question's name.
func (e *environment) follow(q asked, target string) outcome {
	o := outcome{aa: true, ra: true}
	link := func(owner, target string) { o.answer = append(o.answer, cname(owner, target, 30).String()) }
	servfail := outcome{rcode: dns.RcodeServerFailure, aa: true, ra: true}
	link(q.Name, target)
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
		return o
	}
	seen := map[string]bool{q.name: true}
	for name := target; ; {
		next := newAsked(dns.Question{Name: name, Qtype: q.Qtype, Qclass: dns.ClassINET})
		if seen[next.name] {
			return servfail
		}
		seen[next.name] = true
		if !next.zone {
			m := upstreamReply(next.Question)
			if m.Rcode == dns.RcodeServerFailure {
				return servfail
			}
			for _, rr := range m.Answer {
				o.answer = append(o.answer, rr.String())
			}
			o.rcode = m.Rcode
			if len(m.Answer) > 0 {
				if c, ok := m.Answer[len(m.Answer)-1].(*dns.CNAME); ok {
					name = c.Target
					continue
				}
			}
			return o
		}
		if target, ok := e.target(next); ok {
			if target == "" {
				return servfail
			}
			link(name, target)
			name = target
			continue
		}
		services, err := e.kd.Records(next.name, false)
		if err != nil {
			o.rcode = dns.RcodeNameError
			return o
		}
		for _, s := range services {
			if rr := addressRR(name, netip.MustParseAddr(s.Host)); rr.Header().Rrtype == q.Qtype {
				o.answer = append(o.answer, rr.String())
			}
		}
		return o
	}
}

func cname(owner, target string, ttl uint32) dns.RR {
	return &dns.CNAME{Hdr: dns.RR_Header{Name: owner, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl}, Target: target}
}

func addressRR(owner string, addr netip.Addr) dns.RR {
	h := dns.RR_Header{Name: owner, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}
	if addr.Is4() {
		return &dns.A{Hdr: h, A: addr.AsSlice()}
	}
	h.Rrtype = dns.TypeAAAA
	return &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()}
}

// nodata is the answer of a name that exists without records of the type.
func nodata(q asked) outcome {
	o := outcome{aa: true, ra: true}
	if q.Qtype == dns.TypeANY {
		o.answer = []string{q.Name + "\t30\tIN\tHINFO\t\"RFC8482\" \"\""}
	}
	return o
}

// srvs is an answer of SRV records with the targets' addresses.
func (e *environment) srvs(q asked, targets []string) outcome {
	o := outcome{aa: true, ra: true}
	slices.Sort(targets)
	targets = slices.Compact(targets)
	seen := map[string]bool{}
	for _, portTarget := range targets {
		port, target, _ := strings.Cut(portTarget, " ")
		o.answer = append(o.answer, fmt.Sprintf("%s\t30\tIN\tSRV\t10 %d %s %s", q.Name, max(1, 100/len(targets)), port, target))
		if seen[target] {
			continue
		}
		seen[target] = true
		services, _ := e.kd.Records(target, false)
		for _, s := range services {
			o.extra = append(o.extra, addressRR(target, netip.MustParseAddr(s.Host)).String())
		}
	}
	slices.Sort(o.extra)
	o.extra = slices.Compact(o.extra)
	return o
}

// A deviation is where docs/records.md asks for another answer than SkyDNS has for
// the same backend. Every one of them is here.
type deviation struct {
	name string
	why  string // the row of docs/records.md, or the RFC
	// want changes SkyDNS's answer into the one asked for; it leaves alone
	// what it is not about.
	want func(e *environment, q asked, o outcome) outcome
}

// insteadOfANY stands for the question that SkyDNS is asked in place of ANY.
const insteadOfANY = dns.TypeTXT

var deviations = []deviation{
	{"ANY", "any existing name, ANY: one HINFO record (RFC 8482), not REFUSED; names that are not ours are forwarded",
		func(e *environment, q asked, o outcome) outcome {
			if q.Qtype != dns.TypeANY || o.rcode != dns.RcodeRefused {
				return o
			}
			if !q.zone {
				if q.reverse && q.addr.IsValid() && reverseNames(e.kd.Tree(), q.addr) != nil {
					return nodata(q)
				}
				return outcomeOf(upstreamReply(q.Question))
			}
			o = e.askSkyDNS(dns.Question{Name: q.Name, Qtype: insteadOfANY, Qclass: dns.ClassINET})
			if o.rcode == dns.RcodeSuccess && len(o.answer) == 0 {
				return nodata(q)
			}
			return o
		}},
	{"AA and RA of NXDOMAIN", "Flags: AA and RA set on every answer from the zone, negative ones included",
		func(_ *environment, q asked, o outcome) outcome {
			if q.zone && o.rcode == dns.RcodeNameError {
				o.aa, o.ra = true, true
			}
			return o
		}},
	{"the specification's own names", "rows dns-version.zone, ns.dns.zone, and dns.zone (a name with names below it, RFC 8020)",
		func(e *environment, q asked, o outcome) outcome {
			switch q.name {
			case "dns-version." + testZone:
				o = nodata(q)
				if q.Qtype == dns.TypeTXT {
					o.answer = []string{q.Name + "\t28800\tIN\tTXT\t\"1.1.0\""}
				}
			case "ns.dns." + testZone:
				o = nodata(q)
				for _, addr := range e.dnsService() {
					if rr := addressRR(q.Name, addr); rr.Header().Rrtype == q.Qtype {
						o.answer = append(o.answer, rr.String())
					}
				}
			case "dns." + testZone:
				o = nodata(q)
			}
			return o
		}},
	{"NS of the zone", "row zone, NS: ns.dns.zone, with its addresses in the additional section",
		func(e *environment, q asked, o outcome) outcome {
			if q.name != testZone || q.Qtype != dns.TypeNS {
				return o
			}
			o = nodata(q)
			o.answer = []string{q.Name + "\t30\tIN\tNS\tns.dns." + testZone}
			for _, addr := range e.dnsService() {
				o.extra = append(o.extra, addressRR("ns.dns."+testZone, addr).String())
			}
			return o
		}},
	{"the zone's serial", "row zone, SOA: a serial that grows when records change; owner names in answers use the question's spelling",
		func(e *environment, q asked, o outcome) outcome {
			if q.name == testZone && q.Qtype == dns.TypeSOA {
				o.answer = []string{fmt.Sprintf("%s\t30\tIN\tSOA\tns.dns.%s hostmaster.%s %d 28800 7200 604800 30",
					q.Name, q.Name, q.Name, e.kd.Tree().Serial())}
			}
			return o
		}},
	{"NS of a name that does not exist", "every other name in the zone: NXDOMAIN, for every type",
		func(e *environment, q asked, o outcome) outcome {
			if q.zone && q.Qtype == dns.TypeNS && o.rcode == dns.RcodeSuccess && len(o.answer) == 0 && !e.exists(q) && !special(q) {
				o.rcode = dns.RcodeNameError
			}
			return o
		}},
	{"SRV at a Service's own name", "row svc.ns.svc.zone, SRV: one record for each port and target, never port 0",
		func(e *environment, q asked, o outcome) outcome {
			if q.Qtype != dns.TypeSRV || o.rcode != dns.RcodeSuccess {
				return o
			}
			if r := e.service(q); r != nil && r.Target == "" {
				return e.srvs(q, srvTargets(r, r.SRVs))
			}
			return o
		}},
	{"SRV with an asterisk", "row *: the union of what matches; SkyDNS's backend cannot tell SRV from A",
		func(e *environment, q asked, o outcome) outcome {
			if !q.star || q.Qtype != dns.TypeSRV || o.rcode != dns.RcodeSuccess {
				return o
			}
			n := len(q.labels)
			if n < 3 {
				return o
			}
			var all []string
			e.kd.Tree().Match(q.labels[n-2], q.labels[n-3], func(r *treecache.Records) {
				if n == 3 {
					all = append(all, srvTargets(r, r.SRVs)...)
				}
				for _, p := range r.Ports {
					anyOr := func(label, own string) bool { return label == "*" || label == "_*" || label == own }
					if n == 5 && anyOr(q.labels[0], p.Name) && anyOr(q.labels[1], p.Protocol) {
						all = append(all, srvTargets(r, p.SRVs)...)
					}
				}
			})
			return e.srvs(q, all)
		}},
	{"addresses and CNAME at an SRV record's name", "existing name, other type: NODATA; SkyDNS makes CNAMEs of the targets",
		func(_ *environment, q asked, o outcome) outcome {
			if q.zone && !q.star && len(q.labels) == 5 && strings.HasPrefix(q.labels[0], "_") &&
				slices.Contains([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeCNAME}, q.Qtype) && o.rcode == dns.RcodeSuccess {
				return nodata(q)
			}
			return o
		}},
	{"SRV at a name of addresses", "existing name, other type: NODATA; never port 0",
		func(_ *environment, q asked, o outcome) outcome {
			portless := func(rr string) bool { return strings.Contains(rr, "\tSRV\t10 ") && strings.Fields(rr)[6] == "0" }
			if q.zone && q.Qtype == dns.TypeSRV && slices.ContainsFunc(o.answer, portless) {
				return nodata(q)
			}
			return o
		}},
	{"weight of many records", "SRV: weights share 100 and are never 0 (RFC 2782)",
		func(_ *environment, q asked, o outcome) outcome {
			if q.Qtype == dns.TypeSRV {
				o.answer = slices.Clone(o.answer)
				for i := range o.answer {
					o.answer[i] = strings.Replace(o.answer[i], "\tSRV\t10 0 ", "\tSRV\t10 1 ", 1)
				}
			}
			return o
		}},
	{"an IPv6 address with an IPv4 address in it", "row dashed IPv6.ns.pod.zone: AAAA; SkyDNS takes ::ffff:192.0.2.1 for an IPv4 address",
		func(_ *environment, q asked, o outcome) outcome {
			if !q.zone || len(q.labels) != 3 || q.labels[2] != "pod" || !strings.HasPrefix(q.labels[0], "--ffff-") {
				return o
			}
			addr, ok := treecache.ParsePodLabel([]byte(q.labels[0]))
			if !ok || !addr.Is4In6() || q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
				return o
			}
			o = nodata(q)
			if q.Qtype == dns.TypeAAAA {
				o.answer = []string{addressRR(q.Name, addr).String()}
			}
			return o
		}},
	{"external name: other types", "row ExternalName: CNAME for any type",
		func(e *environment, q asked, o outcome) outcome {
			if target, ok := e.target(q); ok && target != "" && q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
				return e.follow(q, target)
			}
			return o
		}},
	{"external name: TTL", "row ExternalName: an answer's TTL never exceeds the target's own, SkyDNS overwrites it",
		func(e *environment, q asked, o outcome) outcome {
			target, ok := e.target(q)
			if !ok || target == "" || q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
				return o
			}
			if want := e.follow(q, target); want.rcode == o.rcode && slices.Equal(withoutTTLs(want.answer), withoutTTLs(o.answer)) {
				return want
			}
			return o
		}},
	{"external name: a chain that ends in NXDOMAIN", "row ExternalName: the CNAME with rcode NXDOMAIN",
		wantChain(func(want outcome) bool { return want.rcode == dns.RcodeNameError })},
	{"external name: a loop, or an upstream that fails", "row ExternalName: SERVFAIL, never NODATA",
		wantChain(func(want outcome) bool { return want.rcode == dns.RcodeServerFailure })},
	{"external name: a target without records of the type", "row ExternalName: CNAME and the chain behind it; SkyDNS leaves the CNAME out",
		wantChain(func(want outcome) bool { return want.rcode == dns.RcodeSuccess && !hasAddress(want.answer) })},
	{"external name: a chain that comes back into the zone", "row ExternalName: in-zone targets from the tree; SkyDNS ends where upstream's answer does",
		wantChain(func(want outcome) bool { return hasAddress(want.answer) })},
	{"federation: zone or region unknown", "Federation: SERVFAIL",
		func(e *environment, q asked, o outcome) outcome {
			if target, ok := e.target(q); ok && target == "" {
				return outcome{rcode: dns.RcodeServerFailure, aa: true, ra: true}
			}
			return o
		}},
	{"PTR: several owners", "row PTR: several services with one address: one record for each",
		func(e *environment, q asked, o outcome) outcome {
			names := reverseNames(e.kd.Tree(), q.addr)
			if !q.reverse || q.Qtype != dns.TypePTR || len(names) < 2 {
				return o
			}
			o.answer = nil
			for _, name := range names {
				o.answer = append(o.answer, q.Name+"\t30\tIN\tPTR\t"+name)
			}
			return o
		}},
	{"PTR: AA", "Flags: SkyDNS leaves AA out of what it answers itself in reverse zones",
		func(e *environment, q asked, o outcome) outcome {
			if q.reverse && q.Qtype == dns.TypePTR && reverseNames(e.kd.Tree(), q.addr) != nil {
				o.aa = true
			}
			return o
		}},
	{"reverse names: other types", "row: a reverse name we hold, other types: NODATA; SkyDNS forwards below in-addr.arpa and answers PTR below ip6.arpa",
		func(e *environment, q asked, o outcome) outcome {
			if q.reverse && q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY && reverseNames(e.kd.Tree(), q.addr) != nil {
				return nodata(q)
			}
			return o
		}},
	{"names of one label", "any name outside the zone: forwarded; SkyDNS wants two labels",
		func(_ *environment, q asked, o outcome) outcome {
			if !q.zone && dns.CountLabel(q.name) < 2 {
				return outcomeOf(upstreamReply(q.Question))
			}
			return o
		}},
}

// wantChain replaces SkyDNS's answer by the whole chain where that is of the
// sort a deviation is about.
func wantChain(is func(want outcome) bool) func(*environment, asked, outcome) outcome {
	return func(e *environment, q asked, o outcome) outcome {
		target, ok := e.target(q)
		if !ok || target == "" || q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
			return o
		}
		if want := e.follow(q, target); is(want) {
			return want
		}
		return o
	}
}

// special are the names that only the direct way knows.
func special(q asked) bool {
	return q.name == testZone || slices.Contains([]string{"dns-version." + testZone, "ns.dns." + testZone, "dns." + testZone}, q.name)
}

func hasAddress(answer []string) bool {
	return slices.ContainsFunc(answer, func(rr string) bool {
		return strings.Contains(rr, "\tA\t") || strings.Contains(rr, "\tAAAA\t")
	})
}

func withoutTTLs(answer []string) []string {
	var all []string
	for _, rr := range answer {
		f := strings.SplitN(rr, "\t", 3)
		all = append(all, f[0]+" "+f[2])
	}
	slices.Sort(all)
	return all
}

func srvTargets(r *treecache.Records, srvs []treecache.SRV) []string {
	var all []string
	for _, srv := range srvs {
		target := r.Name(testZone)
		if srv.Label != "" {
			target = srv.Label + "." + target
		}
		all = append(all, fmt.Sprintf("%d %s", srv.Port, target))
	}
	return all
}

// dnsService are the addresses of ns.dns.
func (e *environment) dnsService() []netip.Addr {
	r, _ := e.kd.Tree().Service([]byte("kube-system"), []byte("kube-dns"))
	if r == nil {
		return nil
	}
	var all []netip.Addr
	for _, a := range r.Addresses {
		all = append(all, a.Addr)
	}
	return all
}

// upstreamReply is what the nameserver behind both answers.
func upstreamReply(q dns.Question) *dns.Msg {
	req := &dns.Msg{Question: []dns.Question{q}}
	req.RecursionDesired = true
	m := new(dns.Msg)
	m.SetReply(req)
	m.RecursionAvailable = true
	h := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: 300}
	address := func() {
		switch q.Qtype {
		case dns.TypeA:
			h.Rrtype = dns.TypeA
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: net.IPv4(198, 51, 100, 7).To4()}, &dns.A{Hdr: h, A: net.IPv4(198, 51, 100, 8).To4()})
		case dns.TypeAAAA:
			h.Rrtype = dns.TypeAAAA
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: net.ParseIP("2001:db8:ff::7")})
		case dns.TypeTXT, dns.TypeANY:
			h.Rrtype = dns.TypeTXT
			m.Answer = append(m.Answer, &dns.TXT{Hdr: h, Txt: []string{"text"}})
		}
	}
	switch name := strings.ToLower(q.Name); {
	case name == "nx.example.org.", strings.HasSuffix(name, ".ip6.arpa."):
		m.Rcode = dns.RcodeNameError
	case name == "fail.example.org.":
		m.Rcode = dns.RcodeServerFailure
	case name == "nodata.example.org.", name == ".":
	case name == "back.example.org.":
		m.Answer = append(m.Answer, cname(q.Name, "s0.ns0.svc."+testZone, 20))
	case name == "alias.example.org.":
		m.Answer = append(m.Answer, cname(q.Name, "www.example.org.", 20))
		if q.Qtype != dns.TypeCNAME {
			h.Name = "www.example.org."
			address()
		}
	case strings.HasSuffix(name, ".in-addr.arpa.") && q.Qtype == dns.TypePTR:
		h.Rrtype = dns.TypePTR
		m.Answer = append(m.Answer, &dns.PTR{Hdr: h, Ptr: "host.example.org."})
	default:
		address()
	}
	return m
}

// startUpstream serves upstreamReply on a port of the loopback.
func startUpstream(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pc, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, req *dns.Msg) {
		m := upstreamReply(req.Question[0])
		m.Id = req.Id
		if err := w.WriteMsg(m); err != nil {
			t.Logf("upstream: %v", err)
		}
	})
	for _, s := range []*dns.Server{{Listener: l, Handler: handler}, {PacketConn: pc, Handler: handler}} {
		done := make(chan error, 1)
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go func() { done <- s.ActivateAndServe() }()
		<-up
		t.Cleanup(func() {
			if err := errors.Join(s.Shutdown(), <-done); err != nil {
				t.Errorf("upstream: %v", err)
			}
		})
	}
	return netip.MustParseAddrPort(l.Addr().String())
}

// replyRecorder is the dns.ResponseWriter that SkyDNS writes to. It is a TCP
// connection's, so that nothing is cut.
type replyRecorder struct {
	dns.ResponseWriter
	msg *dns.Msg
}

func (r *replyRecorder) WriteMsg(m *dns.Msg) error { r.msg = m; return nil }
func (*replyRecorder) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (e *environment) askSkyDNS(q dns.Question) outcome {
	req := &dns.Msg{Question: []dns.Question{q}}
	req.Id, req.RecursionDesired = dns.Id(), true
	req.SetEdns0(4096, false)
	var w replyRecorder
	e.sky.ServeDNS(&w, req)
	if w.msg == nil {
		return outcome{rcode: -1}
	}
	return outcomeOf(w.msg)
}

// bigService has more records than 512 octets hold, or even more than 100.
func bigService(endpoints int) change {
	name, port := "http", int32(80)
	c := change{
		service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns0", Name: "big"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
		},
		slice: &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns0", Name: "big-1", Labels: map[string]string{discoveryv1.LabelServiceName: "big"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		},
	}
	for i := range endpoints {
		c.slice.Endpoints = append(c.slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("203.0.113.%d", i+1)}})
	}
	return c
}

// diffCluster makes the objects of a cluster.
func (g generator) diffCluster() *fakeSource {
	s := newState()
	for range 70 {
		g.change(s)
	}
	if g.IntN(3) > 0 {
		s.services["kube-system/kube-dns"] = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
			Spec: corev1.ServiceSpec{
				ClusterIP:  "192.0.2.10",
				ClusterIPs: pick(g, nil, []string{"192.0.2.10", "2001:db8::a"}),
				Ports:      []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Port: 53}},
			},
		}
	}
	if g.IntN(3) == 0 {
		big := bigService(40 + 80*g.IntN(2))
		s.services["ns0/big"], s.slices["ns0/big-1"] = big.service, big.slice
	}
	f := newFake(slices.Collect(maps.Values(s.services)), slices.Collect(maps.Values(s.slices)))
	if g.IntN(2) == 0 {
		f.topologyZone, f.region = "z1", "r1"
	}
	return f
}

// question draws a question whose name may exist in the cluster.
func (g generator) question(tree *treecache.Tree) dns.Question {
	qtype := pick(g, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeCNAME, dns.TypeMX,
		dns.TypeANY, dns.TypeHTTPS, dns.TypeNS, dns.TypeSOA)
	namespace, service := g.name()
	if g.IntN(8) == 0 {
		namespace, service = pick(g, "kube-system", "ns0", "gone"), pick(g, "kube-dns", "big", "gone")
	}
	star := func(label, wild string) string {
		if g.IntN(6) == 0 {
			return wild
		}
		return label
	}
	own := star(service, "*") + "." + star(namespace, "*") + ".svc." + testZone
	label := pick(g, "pod-0", "pod-1", "pod-2", "gone", treecache.SystemLabel(g.addr(g.IntN(2) == 0)))
	// A label that some Service has.
	if r, _ := tree.Service([]byte(namespace), []byte(service)); r != nil && len(r.Addresses) > 0 && g.IntN(2) == 0 {
		label = r.Addresses[g.IntN(len(r.Addresses))].Label
		if label == "" {
			label = "pod-0"
		}
	}
	port, protocol := star(pick(g, "_http", "_dns", "_web", "_gone"), pick(g, "*", "_*")), star(pick(g, "_tcp", "_udp", "_sctp"), pick(g, "*", "_*"))
	garbage := pick(g, "a", "xn--abc", `\000`, `\255\001`, `a\ b`, `\@`, "-", "_", "__", "**", "a*", "*a", "_tcp", "svc", "pod", strings.Repeat("x", 63))
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
		name = pick(g, "10-244-0-7", "010-1-1-1", "2001-db8--7", "--1", "--ffff-c000-201", "x", "*", "10-244-0-7.x", "256-1-1-1") + "." +
			pick(g, namespace, "default", "*") + ".pod." + testZone
	case 9:
		name = pick(g, "", namespace+".svc.", "*.svc.", "svc.", "pod.", namespace+".pod.", "dns.", "ns.dns.", "dns-version.", "x.dns.", "gone.", "gone.svc.") + testZone
		if g.IntN(2) == 0 {
			qtype = pick(g, dns.TypeSOA, dns.TypeNS, dns.TypeTXT, dns.TypeA)
		}
	case 10, 11:
		addr := netip.MustParseAddr(g.addr(g.IntN(2) == 0))
		if g.IntN(6) == 0 {
			addr = netip.MustParseAddr(pick(g, "198.51.100.1", "2001:db8:1::1"))
		}
		name = treecache.ReverseName(addr)
		if g.IntN(2) == 0 {
			qtype = dns.TypePTR
		}
		if g.IntN(8) == 0 {
			name = pick(g, "in-addr.arpa.", "2.0.192.in-addr.arpa.", "ip6.arpa.", "0.ip6.arpa.", "1."+name, "00"+name)
		}
	case 12, 13:
		name = service + "." + namespace + "." + pick(g, "fed", "fed", "nofed", "ns1") + ".svc." + testZone
		if g.IntN(2) == 0 {
			qtype = pick(g, dns.TypeA, dns.TypeAAAA)
		}
	case 14:
		name = pick(g, garbage+"."+own, garbage+"."+testZone, garbage+"."+garbage+"."+own, "a.b.c."+own, garbage+".svc."+testZone,
			service+"."+garbage+".svc."+testZone, garbage+"."+namespace+".svc."+testZone, "x"+testZone)
	default:
		name = pick(g, "www.example.org.", "nx.example.org.", "nodata.example.org.", "alias.example.org.", "back.example.org.", "localhost.", "local.", ".", "fail.example.org.")
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

// newEnvironment serves the cluster of f by both.
func newEnvironment(t *testing.T, f *fakeSource, federations map[string]string, upstream netip.AddrPort) *environment {
	t.Helper()
	kd := newTestKubeDNS(f)
	kd.SetFederations(federations)
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	cfg := skydns.Config{Domain: testZone, Ttl: 30, MinTtl: 30, RoundRobin: true, Nameservers: []string{upstream.String()}}
	if err := skydns.SetDefaults(&cfg); err != nil {
		t.Fatal(err)
	}
	forwarder := forward.New(forward.Options{})
	forwarder.SetNameservers([]netip.AddrPort{upstream})
	s, err := server.New(server.Options{
		Tree: kd.Tree(), Backend: kd, Forwarder: forwarder, TTL: 30, Sockets: 1,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"},
	})
	if err != nil {
		t.Fatal(err)
	}
	listeners, err := s.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listeners) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	e := &environment{kd: kd, sky: skydns.New(kd, &cfg), addr: listeners.Addr(), client: &dns.Client{Net: "tcp", Timeout: 10 * time.Second}}
	if e.tcp, err = e.client.Dial(e.addr.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.tcp.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

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

// tally counts over all clusters.
type tally struct {
	questions, truncated int
	occurred             []int // by deviation
}

// TestDifferential asks the listeners and SkyDNS the same questions, about a
// known cluster and about generated ones.
func TestDifferential(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	upstream := startUpstream(t)
	n := tally{occurred: make([]int, len(deviations))}
	t.Run("known cluster", func(t *testing.T) {
		g := generator{rand.New(rand.NewPCG(seed, 0))}
		services, all := parseObjects(t, knownCluster)
		big := bigService(120)
		f := newFake(append(services, big.service), append(all, big.slice))
		e := newEnvironment(t, f, map[string]string{"fed": "fed.example.org"}, upstream)
		for _, question := range parseQuestions(t) {
			e.compare(t, g, newAsked(question), &n)
		}
	})
	for cluster := range diffClusters {
		t.Run(fmt.Sprintf("seed %d cluster %d", seed, cluster), func(t *testing.T) {
			g := generator{rand.New(rand.NewPCG(seed, uint64(cluster)))}
			federations := pick(g, nil, map[string]string{"fed": "fed.example.org", "ns1": "ns1.example.org"})
			e := newEnvironment(t, g.diffCluster(), federations, upstream)
			for range diffQuestions {
				e.compare(t, g, newAsked(g.question(e.kd.Tree())), &n)
			}
			if t.Failed() {
				t.Logf("records\n%s", zoneText(e.kd.Tree()))
			}
		})
	}
	for i, d := range deviations {
		t.Logf("%5d × %s", n.occurred[i], d.name)
		if n.occurred[i] == 0 {
			t.Errorf("the deviation %q (%s) never occurred", d.name, d.why)
		}
	}
	t.Logf("%5d questions, %d replies were truncated", n.questions, n.truncated)
	if n.truncated == 0 {
		t.Error("no reply was truncated")
	}
	if n.questions < 1000 {
		t.Errorf("%d questions are too few", n.questions)
	}
}

// compare asks one question over UDP and TCP, and SkyDNS.
func (e *environment) compare(t *testing.T, g generator, q asked, n *tally) {
	t.Helper()
	n.questions++
	sky := e.askSkyDNS(q.Question)
	want := sky
	var because []string
	for i, d := range deviations {
		next := d.want(e, q, want)
		if !next.equal(want) {
			n.occurred[i]++
			because = append(because, d.name)
		}
		want = next
	}
	req := &dns.Msg{Question: []dns.Question{q.Question}}
	req.Id, req.RecursionDesired = dns.Id(), true
	reply, _, err := e.client.ExchangeWithConn(req, e.tcp)
	if err != nil {
		t.Fatalf("%s over TCP: %v", q.String(), err)
	}
	if got := outcomeOf(reply); !got.equal(want) {
		t.Errorf("question %s\ngot %v\nwant %v\nSkyDNS, before %q: %v", q.String(), got, want, because, sky)
		return
	}
	if reply.Truncated || !reply.RecursionDesired || reply.Question[0] != q.Question {
		t.Errorf("question %s, reply %v", q.String(), reply)
	}
	if e.overUDP(t, g, q, want) {
		n.truncated++
	}
}

// overUDP asks over UDP and wants the same answer as far as it fits. It
// reports whether it did not.
func (e *environment) overUDP(t *testing.T, g generator, q asked, want outcome) (truncated bool) {
	t.Helper()
	req := &dns.Msg{Question: []dns.Question{q.Question}}
	req.Id, req.RecursionDesired = dns.Id(), true
	limit := 512
	if g.IntN(2) == 0 {
		limit = 1232
		req.SetEdns0(uint16(limit), false)
	}
	client := &dns.Client{Timeout: 10 * time.Second, UDPSize: dns.MaxMsgSize}
	reply, _, err := client.Exchange(req, e.addr.String())
	if err != nil {
		t.Fatalf("%s over UDP: %v", q.String(), err)
	}
	got := outcomeOf(reply)
	reply.Compress = true
	if reply.Len() > limit {
		t.Errorf("%s over UDP: %d octets, want at most %d", q.String(), reply.Len(), limit)
	}
	subset := func(some, all []string) bool {
		return !slices.ContainsFunc(some, func(rr string) bool { return !slices.Contains(all, rr) })
	}
	if !subset(got.extra, want.extra) {
		t.Errorf("%s over UDP: additional section %q, want of %q", q.String(), got.extra, want.extra)
	}
	got.extra, want.extra = nil, nil // it may not fit
	if !reply.Truncated {
		if !got.equal(want) {
			t.Errorf("question %s over UDP\ngot %v\nwant %v", q.String(), got, want)
		}
		return false
	}
	if len(got.answer) == 0 || len(got.answer) >= len(want.answer) || !subset(got.answer, want.answer) {
		t.Errorf("question %s over UDP, truncated\ngot %v\nwant some of %v", q.String(), got, want)
	}
	return true
}
