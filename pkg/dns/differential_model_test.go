package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

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
	if q.name == clustertest.Zone {
		q.zone = true
	} else if under, ok := strings.CutSuffix(q.name, "."+clustertest.Zone); ok {
		q.zone, q.labels = true, strings.Split(under, ".")
		q.star = q.labels[len(q.labels)-1] == "svc" && (slices.Contains(q.labels, "*") || slices.Contains(q.labels, "_*"))
	}
	q.reverse = strings.HasSuffix(q.name, ".in-addr.arpa.") || strings.HasSuffix(q.name, ".ip6.arpa.")
	if addr, err := qname.ParseReverse(qname.Append(nil, q.name)); err == nil {
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

// exists reports whether a name of the zone exists, by the backend.
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
