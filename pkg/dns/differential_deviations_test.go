package dns

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

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
				if q.reverse && q.addr.IsValid() && clustertest.ReverseNames(e.kd.Tree(), q.addr) != nil {
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
			case "dns-version." + clustertest.Zone:
				o = nodata(q)
				if q.Qtype == dns.TypeTXT {
					o.answer = []string{q.Name + "\t28800\tIN\tTXT\t\"1.1.0\""}
				}
			case "ns.dns." + clustertest.Zone:
				o = nodata(q)
				for _, addr := range e.dnsService() {
					if rr := addressRR(q.Name, addr); rr.Header().Rrtype == q.Qtype {
						o.answer = append(o.answer, rr.String())
					}
				}
			case "dns." + clustertest.Zone:
				o = nodata(q)
			}
			return o
		}},
	{"NS of the zone", "row zone, NS: ns.dns.zone, with its addresses in the additional section",
		func(e *environment, q asked, o outcome) outcome {
			if q.name != clustertest.Zone || q.Qtype != dns.TypeNS {
				return o
			}
			o = nodata(q)
			o.answer = []string{q.Name + "\t30\tIN\tNS\tns.dns." + clustertest.Zone}
			for _, addr := range e.dnsService() {
				o.extra = append(o.extra, addressRR("ns.dns."+clustertest.Zone, addr).String())
			}
			return o
		}},
	{"the zone's serial", "row zone, SOA: a serial that grows when records change; owner names in answers use the question's spelling",
		func(e *environment, q asked, o outcome) outcome {
			if q.name == clustertest.Zone && q.Qtype == dns.TypeSOA {
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
			addr, ok := qname.ParsePodLabel([]byte(q.labels[0]))
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
			names := clustertest.ReverseNames(e.kd.Tree(), q.addr)
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
			if q.reverse && q.Qtype == dns.TypePTR && clustertest.ReverseNames(e.kd.Tree(), q.addr) != nil {
				o.aa = true
			}
			return o
		}},
	{"reverse names: other types", "row: a reverse name we hold, other types: NODATA; SkyDNS forwards below in-addr.arpa and answers PTR below ip6.arpa",
		func(e *environment, q asked, o outcome) outcome {
			if q.reverse && q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY && clustertest.ReverseNames(e.kd.Tree(), q.addr) != nil {
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
	return q.name == clustertest.Zone || slices.Contains([]string{"dns-version." + clustertest.Zone, "ns.dns." + clustertest.Zone, "dns." + clustertest.Zone}, q.name)
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
		target := r.Name(clustertest.Zone)
		if srv.Label != "" {
			target = srv.Label + "." + target
		}
		all = append(all, fmt.Sprintf("%d %s", srv.Port, target))
	}
	return all
}
