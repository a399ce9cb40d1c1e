package explain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/server"
)

// oneQuestion is a server.Forwarder that asks the upstream nameservers one
// question, and has the same reply for each who asks it again. It asks through
// a copy of the forwarder, of which it makes no use before. Calls must not be
// concurrent.
type oneQuestion struct {
	forwarder *forward.Forwarder
	deadline  time.Time
	turn      chan struct{} // given up while it waits

	asked   *dns.Question
	servers []forward.Health // before it was asked
	reply   *dns.Msg
	from    netip.AddrPort
	err     error
	took    time.Duration
	refused []dns.Question // other questions, which were not asked
}

// errSecond is the error of every other question.
var errSecond = errors.New("one question was forwarded already")

// Exchange implements server.Forwarder.
func (o *oneQuestion) Exchange(ctx context.Context, req *dns.Msg, tcp bool) (*dns.Msg, netip.AddrPort, error) {
	q := req.Question[0]
	if o.asked == nil {
		o.asked = &q
		f := o.forwarder.Clone()
		o.servers = f.Health()
		ctx, cancel := context.WithDeadline(ctx, o.deadline)
		defer cancel()
		o.reply, o.from, o.took, o.err = o.wait(ctx, f, req, tcp)
	} else if !o.isFor(q) {
		o.refused = append(o.refused, q)
		return nil, netip.AddrPort{}, errSecond
	}
	if o.err != nil {
		return nil, netip.AddrPort{}, o.err
	}
	m := o.reply.Copy() // the server makes its own of it
	m.Id, m.Question = req.Id, []dns.Question{q}
	return m, o.from, nil
}

// wait gives the turn up until f has answered, or has panicked.
func (o *oneQuestion) wait(ctx context.Context, f server.Forwarder, req *dns.Msg, tcp bool) (reply *dns.Msg, from netip.AddrPort, took time.Duration, err error) {
	<-o.turn
	defer func() { o.turn <- struct{}{} }()
	start := time.Now()
	reply, from, err = f.Exchange(ctx, req, tcp)
	return reply, from, time.Since(start), err
}

func (o *oneQuestion) isFor(q dns.Question) bool {
	return o.asked != nil && strings.EqualFold(o.asked.Name, q.Name) && o.asked.Qtype == q.Qtype && o.asked.Qclass == q.Qclass
}

// result is what came of it; nil where nothing was asked.
func (o *oneQuestion) result() *Upstream {
	if o.asked == nil {
		return nil
	}
	u := &Upstream{Name: o.asked.Name, Type: typeString(o.asked.Qtype), Nameservers: []Nameserver{}, Seconds: o.took.Seconds()}
	var failed *forward.ExchangeError
	if o.err != nil {
		u.Error = o.err.Error()
		errors.As(o.err, &failed)
	} else {
		u.Server, u.Rcode = o.from.String(), rcodeString(o.reply.Rcode)
	}
	for _, h := range o.servers {
		n := Nameserver{Address: h.Addr.String(), Failing: h.Failing}
		switch {
		case o.err == nil && h.Addr == o.from:
			n.Result = fmt.Sprintf("%s in %v", u.Rcode, o.took.Round(100*time.Microsecond))
		case failed != nil:
			for _, t := range failed.Tries {
				if t.Addr == h.Addr {
					n.Result = t.Err.Error()
				}
			}
		}
		if n.Result == "" && h.Failing {
			n.Result = "not asked, or not heard; it failed before: " + h.LastError
		}
		u.Nameservers = append(u.Nameservers, n)
	}
	return u
}

// who is the nameservers in words, with what each said.
func (u *Upstream) who() string {
	var all []string
	for _, n := range u.Nameservers[:min(len(u.Nameservers), maxStepsPerThing)] {
		s := n.Address
		if n.Result != "" {
			s += ": " + n.Result
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return "there is none"
	}
	return strings.Join(all, "; ")
}

// forwarded is a name that upstream nameservers are asked for.
func (x *explanation) forwarded() {
	x.out.Way = WayForward
	if reverseZone(x.name) != "" {
		x.step("%s is a reverse name that no Service and no endpoint of a headless Service has: it is forwarded", x.question.Name)
	} else {
		x.step("%s is not in the zone %s: it is forwarded to the upstream nameservers", x.question.Name, x.o.Tree.Zone())
	}
	u := x.up.result()
	if u == nil || !x.up.isFor(x.question) {
		x.fail(NotAsked, "", "", "%s %s was not asked: another question was forwarded for this explanation.", x.question.Name, x.out.Question.Type)
		return
	}
	x.upstreamSteps(u)
	switch {
	case x.out.Resolves:
		x.out.Summary = fmt.Sprintf("%s answers for the upstream nameservers.", u.Server)
	case x.upstreamFault(u):
	case x.reply != nil && x.reply.Rcode == dns.RcodeNameError:
		x.fail(UpstreamNoName, "name", x.question.Name, "The nameserver %s says that %s does not exist.", u.Server, x.question.Name)
		x.nearOutside()
	case x.nodata():
		x.fail(UpstreamNoType, "type", x.out.Question.Type, "The nameserver %s says that %s has no record of type %s.", u.Server, x.question.Name, x.out.Question.Type)
	default:
		x.fail(UpstreamRefuses, "nameserver", u.Server, "The nameserver %s says %s.", u.Server, u.Rcode)
	}
	if x.out.Reason == UpstreamSilent || x.out.Reason == UpstreamRefuses {
		x.nearOutside()
	}
}

func (x *explanation) upstreamSteps(u *Upstream) {
	if u.Error == "" {
		x.step("%s says %s to %s %s, after %v", u.Server, u.Rcode, u.Name, u.Type, seconds(u.Seconds))
		return
	}
	x.step("no nameserver answers %s %s: %s", u.Name, u.Type, u.who())
	if time.Now().After(x.up.deadline) {
		x.note("a nameserver is waited for %v here, and %v for a client: one that answers in between is not seen", upstreamLimit, 3500*time.Millisecond)
	}
}

// upstreamFault sets why there is no answer from upstream, if there is none.
func (x *explanation) upstreamFault(u *Upstream) bool {
	switch {
	case x.up.err == nil:
		return false
	case errors.Is(x.up.err, forward.ErrNoNameservers):
		x.fail(NoNameservers, "nameserver", "", "There is no upstream nameserver to ask for %s.", u.Name)
	case errors.Is(x.up.err, forward.ErrOverloaded):
		x.fail(Overloaded, "nameserver", "", "As many questions as may be are waiting for upstream nameservers; %s is not asked.", u.Name)
	case errors.Is(x.up.err, forward.ErrNotForwardable):
		x.fail(Failed, "", "", "%s %s cannot be forwarded.", u.Name, u.Type)
	default:
		x.fail(UpstreamSilent, "nameserver", "", "No upstream nameserver answers for %s: %s.", u.Name, u.who())
	}
	return true
}

// seconds is a time of so many seconds for people.
func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}
