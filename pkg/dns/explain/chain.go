package explain

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/server"
)

// chain follows a CNAME at the question's name to target.
func (x *explanation) chain(target string) {
	if x.out.Way == WayTree {
		x.out.Way = WayExternal
	}
	name := x.question.Name
	seen := map[string]bool{}
	for range server.MaxHops {
		seen[strings.ToLower(name)] = true
		x.out.Chain = append(x.out.Chain, Hop{Name: name, Type: "CNAME", TTL: x.o.TTL, Target: target, Server: "kube-dns"})
		if x.question.Qtype != dns.TypeA && x.question.Qtype != dns.TypeAAAA {
			x.step("type %s: the CNAME is the whole answer, whoever asks goes on from there", x.out.Question.Type)
			x.typed("CNAME")
			return
		}
		name = target
		if seen[strings.ToLower(name)] {
			x.chainEnd(name, loop)
			return
		}
		if !x.o.Tree.Names().Contains(name) {
			seen[strings.ToLower(name)] = true
			var back bool
			if name, back = x.chainOutside(name); !back {
				return
			}
			if seen[strings.ToLower(name)] {
				x.chainEnd(name, loop)
				return
			}
		}
		if target = x.targetOf(name); target == "" {
			x.chainEnd(name, "")
			return
		}
		x.step("%s is in the zone and a CNAME too, to %s", name, target)
	}
	x.chainEnd(name, fmt.Sprintf("the chain has more than %d names", server.MaxHops))
}

const loop = "it stands in the chain before: a loop"

// targetOf is what a name of the zone is a CNAME to; "" where it is none.
func (x *explanation) targetOf(name string) string {
	n := x.o.Tree.Names().ParseText(name)
	switch n.Form {
	case qname.Service:
		if r, _ := x.o.Tree.Service(n.Namespace(), n.Service()); r != nil {
			return r.Target
		}
	case qname.Endpoint:
		if r, _ := x.o.Tree.Service(n.Namespace(), n.Service()); r != nil && len(r.At(n.Hostname())) > 0 {
			return ""
		}
		target, _ := x.federated(n)
		return target
	}
	return ""
}

// chainOutside follows name by what the nameservers said of it. reached is set
// where that leads back into the zone.
func (x *explanation) chainOutside(name string) (last string, reached bool) {
	q := dns.Question{Name: name, Qtype: x.question.Qtype, Qclass: dns.ClassINET}
	hop := Hop{Name: name, Type: x.out.Question.Type}
	if !x.up.isFor(q) {
		hop.Fault = "not asked: one question was forwarded already"
		x.out.Chain = append(x.out.Chain, hop)
		x.fail(NotAsked, "", "", "The chain goes on at %s, which was not asked for this explanation.", name)
		return name, false
	}
	u := x.up.result()
	x.step("%s is not in the zone: the upstream nameservers are asked for it", name)
	x.upstreamSteps(u)
	if x.up.err != nil {
		hop.Fault = "no answer: " + u.who()
		x.out.Chain = append(x.out.Chain, hop)
		x.upstreamFault(u)
		x.out.Summary = fmt.Sprintf("%s is a CNAME to %s, and %s", x.question.Name, name, lowerFirst(x.out.Summary))
		return name, false
	}
	reply := x.up.reply
	hop.Server = u.Server
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		hop.Fault = u.Rcode
		x.out.Chain = append(x.out.Chain, hop)
		x.fail(UpstreamRefuses, "nameserver", u.Server, "%s is a CNAME to %s, for which the nameserver %s says %s.", x.question.Name, name, u.Server, u.Rcode)
		return name, false
	}
	for range server.MaxHops {
		next := ""
		for _, rr := range reply.Answer {
			if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(c.Hdr.Name, name) {
				next = c.Target
				x.out.Chain = append(x.out.Chain, Hop{Name: name, Type: "CNAME", TTL: c.Hdr.Ttl, Target: next, Server: u.Server})
				break
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	end := Hop{Name: name, Type: x.out.Question.Type, Server: u.Server}
	for _, rr := range reply.Answer {
		if rr.Header().Rrtype == x.question.Qtype && strings.EqualFold(rr.Header().Name, name) {
			end.Addresses = append(end.Addresses, dataOf(rr))
			end.TTL = rr.Header().Ttl
		}
	}
	switch {
	case len(end.Addresses) > 0:
		end.Addresses = end.Addresses[:min(len(end.Addresses), maxNamesInOneLine)]
		x.out.Summary = fmt.Sprintf("%s is a CNAME, and the chain ends at %s with %s.", x.question.Name, name, count(answersOf(x.reply, x.question.Qtype), "address"))
	case x.o.Tree.Names().Contains(name):
		return name, true
	case reply.Rcode == dns.RcodeNameError:
		end.Fault = "NXDOMAIN"
		x.fail(TargetNoName, "target", name, "%s is a CNAME to %s, which does not exist.", x.question.Name, name)
	default:
		end.Fault = "NODATA"
		x.fail(TargetNoType, "target", name, "%s is a CNAME to %s, which has no record of type %s.", x.question.Name, name, x.out.Question.Type)
	}
	x.out.Chain = append(x.out.Chain, end)
	return name, false
}

// chainEnd is the end of a chain in the zone.
func (x *explanation) chainEnd(name, fault string) {
	end := Hop{Name: name, Type: x.out.Question.Type, Server: "kube-dns", Fault: fault}
	if fault != "" {
		x.step("%s: %s: SERVFAIL", name, fault)
		x.out.Chain = append(x.out.Chain, end)
		x.fail(Loop, "target", name, "The chain of %s has no end: %s.", x.question.Name, name+": "+fault)
		return
	}
	if x.reply == nil {
		return
	}
	for _, rr := range x.reply.Answer {
		if rr.Header().Rrtype == x.question.Qtype && strings.EqualFold(rr.Header().Name, name) {
			end.Addresses = append(end.Addresses, dataOf(rr))
			end.TTL = rr.Header().Ttl
		}
	}
	n := len(end.Addresses)
	end.Addresses = end.Addresses[:min(n, maxNamesInOneLine)]
	switch {
	case n > 0:
		x.step("%s is in the zone and has %s", name, count(n, "address"))
		x.out.Summary = fmt.Sprintf("%s is a CNAME, and the chain ends at %s with %s.", x.question.Name, name, count(n, "address"))
	case x.reply.Rcode == dns.RcodeNameError:
		end.Fault = "NXDOMAIN"
		x.step("%s is in the zone and does not exist: NXDOMAIN", name)
		x.fail(TargetNoName, "target", name, "%s is a CNAME to %s, which does not exist.", x.question.Name, name)
	case x.reply.Rcode == dns.RcodeSuccess:
		end.Fault = "NODATA"
		x.step("%s is in the zone and has no record of type %s: NODATA", name, x.out.Question.Type)
		x.fail(TargetNoType, "target", name, "%s is a CNAME to %s, which has no record of type %s.", x.question.Name, name, x.out.Question.Type)
	default:
		end.Fault = rcodeString(x.reply.Rcode)
		x.fail(Failed, "target", name, "%s is a CNAME, and its chain ends at %s in %s.", x.question.Name, name, end.Fault)
	}
	x.out.Chain = append(x.out.Chain, end)
}

func answersOf(m *dns.Msg, qtype uint16) int {
	n := 0
	if m != nil {
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == qtype {
				n++
			}
		}
	}
	return n
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
