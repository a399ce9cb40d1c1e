package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/treecache"

	cluster "kubedns/pkg/dns"
)

// Source is what there is besides the tree.
type Source interface {
	// HasSynced reports whether the records are complete, Incomplete why they
	// are not the API server's yet: "" where they are.
	HasSynced() bool
	Incomplete() string
	// Restored is when the snapshot that is served was taken, if one is.
	Restored() (taken time.Time, ok bool)
	// DescribeService has a Service and its slices as the source has them.
	DescribeService(treecache.Key) (cluster.Description, bool)
	// HasFederations and Federated are those of the server's backend.
	HasFederations() bool
	Federated(labels []string) (target string, ok bool)
}

// Server answers as the DNS port does, without a trace.
type Server interface {
	Inspect(ctx context.Context, f server.Forwarder, msg []byte, tcp bool) server.Inspection
}

// Options are an Explainer's; all must be set.
type Options struct {
	Tree      *treecache.Tree
	Source    Source
	Server    Server
	Forwarder *forward.Forwarder
	// Config is the configuration in force; it may return nil for none yet.
	Config func() *config.Config
	// TTL is the records' in seconds.
	TTL uint32
	// DNSService is the Service whose cluster IPs ns.dns.<zone> has.
	DNSService treecache.Key
}

// Explainer explains. Its methods are safe for concurrent use.
type Explainer struct {
	o     Options
	names nameIndex

	slots chan struct{} // explanations under way
	turn  chan struct{} // the one that uses a processor
}

const (
	// maxUnderWay is how many explanations there are at one time; nearly all
	// of them wait for a nameserver then.
	maxUnderWay = 32
	// timeLimit is how long an explanation takes at most, upstreamLimit for
	// how long it waits for a nameserver. A client would wait longer than
	// that, see forward.Options.
	timeLimit     = 2900 * time.Millisecond
	upstreamLimit = 2500 * time.Millisecond
)

// ErrBusy says that too many explanations are under way.
var ErrBusy = errors.New("too many explanations are under way: ask again")

// New makes an Explainer.
func New(o Options) *Explainer {
	return &Explainer{
		o:     o,
		slots: make(chan struct{}, maxUnderWay),
		// One: whatever is asked here, the other processors answer DNS.
		turn: make(chan struct{}, 1),
	}
}

// Explain explains. It returns within 3 s. The error is ErrBusy or ctx's.
func (e *Explainer) Explain(ctx context.Context, r Request) (*Explanation, error) {
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	default:
		return nil, ErrBusy
	}
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, start.Add(timeLimit))
	defer cancel()
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, ErrBusy
		}
		return nil, ctx.Err()
	}
	up := &oneQuestion{forwarder: e.o.Forwarder, deadline: start.Add(upstreamLimit), turn: e.turn}
	q, candidates := e.search(ctx, r, up)
	var x *explanation
	for range 3 {
		x = e.explain(ctx, r, q, up)
		if x.consistent() {
			break
		}
	}
	if !x.consistent() {
		x.out.Reason, x.out.Summary = ChangedMeanwhile, "The records changed while they were looked at; ask again."
	}
	x.out.Time = start
	x.out.Search = candidates
	x.out.Steps = append(searchSteps(x.out.Question, candidates), x.out.Steps...)
	x.finish()
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, err
	}
	return x.out, nil
}

// explanation is one in the making.
type explanation struct {
	*Explainer
	out *Explanation
	up  *oneQuestion
	ctx context.Context

	question dns.Question
	name     string // the question's, in lower case
	qname    qname.Name
	labels   []string // of name left of the zone, from the left; nil outside
	inZone   bool
	way      server.Way
	reply    *dns.Msg // over TCP; nil where there is none

	listed  int // records that stand in out
	checked bool
	rcode   int // as the walk through the tree expects it, where checked
}

// explain makes an explanation of one question.
func (e *Explainer) explain(ctx context.Context, r Request, q dns.Question, up *oneQuestion) *explanation {
	x := &explanation{
		Explainer: e, up: up, ctx: ctx, question: q, name: strings.ToLower(q.Name),
		out: &Explanation{
			Question: Question{Asked: r.Asked, Search: r.Search, Name: q.Name, Type: typeString(q.Qtype)},
			Steps:    []string{}, Replies: []Reply{}, Way: WayUnknown, Reason: Failed,
		},
	}
	x.qname = e.o.Tree.Names().ParseText(q.Name)
	if x.inZone = x.qname.InZone(); x.inZone {
		x.labels = x.qname.Labels()
	}
	x.replies()
	switch x.way {
	case server.WayNone:
		x.notServed()
	case server.WayIncomplete:
		x.incomplete()
	case server.WayReverse:
		x.reverse()
	case server.WayForward:
		x.forwarded()
	default:
		x.zone()
	}
	return x
}

// consistent reports whether what the tree said is what the reply says.
func (x *explanation) consistent() bool {
	return !x.checked || x.reply == nil || x.reply.Rcode == x.rcode
}

func (x *explanation) step(format string, args ...any) {
	x.out.Steps = append(x.out.Steps, fmt.Sprintf(format, args...))
}

func (x *explanation) note(format string, args ...any) {
	x.out.Notes = append(x.out.Notes, fmt.Sprintf(format, args...))
}

// fail sets why the name does not resolve.
func (x *explanation) fail(reason Reason, part, name, format string, args ...any) {
	x.out.Reason, x.out.Summary = reason, fmt.Sprintf(format, args...)
	if part != "" {
		x.out.Missing = &Missing{part, name}
	}
}

// transports are the ways that questions are asked for Replies. TCP comes
// first, since its reply has everything.
var transports = []struct {
	name string
	size uint16 // of EDNS; 0 for none
	tcp  bool
}{{"TCP", 0, true}, {"UDP 1232", 1232, false}, {"UDP 512", 0, false}}

// ask has the server answer a question.
func (e *Explainer) ask(ctx context.Context, q dns.Question, up *oneQuestion, size uint16, tcp bool) (server.Inspection, *dns.Msg) {
	req := &dns.Msg{Question: []dns.Question{q}}
	req.Id = dns.Id()
	req.RecursionDesired = true
	if size > 0 {
		req.SetEdns0(size, false)
	}
	wire, err := req.Pack()
	if err != nil {
		return server.Inspection{Way: server.WayNone}, nil
	}
	inspection := e.o.Server.Inspect(ctx, up, wire, tcp)
	reply := new(dns.Msg)
	if len(inspection.Reply) == 0 || reply.Unpack(inspection.Reply) != nil {
		return inspection, nil
	}
	return inspection, reply
}

// replies asks in each way and enters what differs once.
func (x *explanation) replies() {
	var all []Reply // whole
	for _, t := range transports {
		inspection, m := x.ask(x.ctx, x.question, x.up, t.size, t.tcp)
		if t.tcp {
			x.way, x.reply = inspection.Way, m
		}
		if m == nil {
			continue
		}
		over := Transport{t.name, len(inspection.Reply)}
		r := Reply{Rcode: rcodeString(m.Rcode), Flags: flagsOf(m), Answer: records(m.Answer), Authority: records(m.Ns), Additional: records(m.Extra)}
		if i := slices.IndexFunc(all, r.same); i >= 0 {
			x.out.Replies[i].Over = append(x.out.Replies[i].Over, over)
			continue
		}
		all = append(all, r)
		r.Over = []Transport{over}
		r.Answer, r.Authority, r.Additional = x.some(r.Answer), x.some(r.Authority), x.some(r.Additional)
		x.out.Replies = append(x.out.Replies, r)
	}
	x.out.Resolves = x.resolves()
	if x.out.Resolves {
		x.out.Reason = Answered
	}
}

// same reports whether o has the same records in any order, and the same flags.
func (r Reply) same(o Reply) bool {
	sameRecords := func(a, b []Record) bool {
		if len(a) != len(b) {
			return false
		}
		a, b = slices.Clone(a), slices.Clone(b)
		slices.SortFunc(a, compareRecords)
		slices.SortFunc(b, compareRecords)
		return slices.Equal(a, b)
	}
	return r.Rcode == o.Rcode && slices.Equal(r.Flags, o.Flags) &&
		sameRecords(r.Answer, o.Answer) && sameRecords(r.Authority, o.Authority) && sameRecords(r.Additional, o.Additional)
}

func compareRecords(a, b Record) int {
	return cmp.Or(strings.Compare(a.Data, b.Data), strings.Compare(a.Name, b.Name), strings.Compare(a.Type, b.Type), cmp.Compare(a.TTL, b.TTL))
}

// resolves reports whether a client has what it asked for.
func (x *explanation) resolves() bool {
	m := x.reply
	if m == nil || m.Rcode != dns.RcodeSuccess {
		return false
	}
	switch x.question.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == x.question.Qtype })
	}
	return len(m.Answer) > 0
}

// nodata reports whether the reply says that there is no record of the type.
func (x *explanation) nodata() bool {
	return x.reply != nil && x.reply.Rcode == dns.RcodeSuccess && !x.out.Resolves
}

func flagsOf(m *dns.Msg) []string {
	flags := []string{}
	for _, f := range []struct {
		set  bool
		name string
	}{
		{m.Response, "qr"}, {m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionDesired, "rd"},
		{m.RecursionAvailable, "ra"}, {m.AuthenticatedData, "ad"}, {m.CheckingDisabled, "cd"},
	} {
		if f.set {
			flags = append(flags, f.name)
		}
	}
	return flags
}

func rcodeString(rcode int) string { return cmp.Or(dns.RcodeToString[rcode], fmt.Sprint(rcode)) }

// records are rrs without OPT.
func records(rrs []dns.RR) []Record {
	all := make([]Record, 0, len(rrs))
	for _, rr := range rrs {
		if h := rr.Header(); h.Rrtype != dns.TypeOPT {
			all = append(all, Record{Name: h.Name, TTL: h.Ttl, Class: dns.Class(h.Class).String(), Type: typeString(h.Rrtype), Data: dataOf(rr)})
		}
	}
	return all
}

// dataOf is a record's data as master files have it.
func dataOf(rr dns.RR) string {
	switch rr := rr.(type) {
	case *dns.A:
		return rr.A.String()
	case *dns.AAAA:
		return rr.AAAA.String()
	}
	return strings.TrimPrefix(rr.String(), rr.Header().String())
}

// some are as many of the records as may still be listed.
func (x *explanation) some(all []Record) []Record {
	n := min(len(all), maxListed-x.listed)
	x.listed += n
	x.out.Omitted += len(all) - n
	return all[:n]
}

// list reports whether one thing more may be listed.
func (x *explanation) list() bool {
	if x.listed >= maxListed {
		x.out.Omitted++
		return false
	}
	x.listed++
	return true
}

// notServed is what is refused whatever the name.
func (x *explanation) notServed() {
	x.out.Way = WayNotServed
	x.step("%s asks for a transfer of a zone, which is refused, whatever the name", x.out.Question.Type)
	x.fail(NotServed, "type", x.out.Question.Type, "Zone transfers are not served.")
}

// incomplete is a name of the zone, or a reverse name, before the first list.
func (x *explanation) incomplete() {
	x.out.Way = WayRefused
	why := x.o.Source.Incomplete()
	x.step("the records are not complete: %s", why)
	x.step("until they are, names of the zone and reverse names are REFUSED, never NXDOMAIN; other names are forwarded")
	x.fail(Incomplete, "", "", "kube-dns does not know all Services yet: %s.", why)
}

// reverse is a reverse name that the tree holds.
func (x *explanation) reverse() {
	x.out.Way = WayReverse
	addr, ok := x.qname.Addr()
	if !ok {
		return
	}
	first, more, ok := x.o.Tree.Reverse(addr)
	if !ok { // it has gone since it was asked for
		x.checked, x.rcode = true, -1
		return
	}
	all := append([]treecache.Owner{first}, more...)
	x.step("%s is the reverse name of %v, which the tree holds: it is not forwarded", x.question.Name, addr)
	if len(all) == 1 {
		x.step("one name has this address")
	} else {
		x.step("%d names have this address, and each has a PTR record: those whose endpoint has a hostname and is a Pod's first, then the older Service, then by namespace and name", len(all))
	}
	for i, o := range all {
		if !x.list() {
			continue
		}
		x.out.Owners = append(x.out.Owners, Owner{
			Name: o.Name(x.o.Tree.Zone()), Service: o.Service.Key.String(), Created: o.Service.Created.UTC(), Why: whyBefore(all, i),
		})
	}
	x.serviceFacts(first.Service.Key, nil, func(e candidateEndpoint) string {
		if e.addr != addr {
			return "another address"
		}
		return ""
	})
	if x.nodata() {
		x.fail(NoType, "type", x.out.Question.Type, "%s is a reverse name with PTR records, and has none of type %s.", x.question.Name, x.out.Question.Type)
		return
	}
	x.out.Summary = fmt.Sprintf("%v belongs to %s.", addr, count(len(all), "name"))
}

// whyBefore is what puts the i-th owner before the next one.
func whyBefore(all []treecache.Owner, i int) string {
	o := all[i]
	what := "a cluster IP of " + o.Service.Key.String()
	if o.Label != "" {
		what = "an endpoint of " + o.Service.Key.String()
	}
	if i == len(all)-1 {
		return what
	}
	next := all[i+1]
	switch {
	case o.PodHostname != next.PodHostname:
		return what + "; its endpoint has a hostname and is a Pod's, that of the next has not"
	case !o.Service.Created.Equal(next.Service.Created):
		return what + "; its Service is older than the next one's"
	case o.Service.Key != next.Service.Key:
		return what + "; as old as the next one's Service, and first by namespace and name"
	}
	return what + "; the same Service, first by label"
}

// reverseZone is the zone of reverse names that a name in lower case is in,
// without the dot at its end; "" for none.
func reverseZone(name string) string {
	for _, zone := range []string{"in-addr.arpa", "ip6.arpa"} {
		if strings.HasSuffix("."+name, "."+zone+".") {
			return zone
		}
	}
	return ""
}

// finish adds what every explanation has.
func (x *explanation) finish() {
	if taken, ok := x.o.Source.Restored(); ok && x.way != server.WayForward {
		x.note("the records are a snapshot's of %s, until the API server has been listed: %s", taken.UTC().Format(time.RFC3339), x.o.Source.Incomplete())
	}
	if x.reply == nil && x.out.Summary == "" {
		x.out.Summary = "Nothing would be answered."
	}
	if len(x.up.refused) > 0 && !x.out.Resolves {
		q := x.up.refused[0]
		x.note("the answer depends on %s %s too, which was not asked: an explanation forwards one question at the most. A client's is, so it may get another reply", q.Name, typeString(q.Qtype))
		if x.out.Reason != Answered {
			x.out.Reason = NotAsked
		}
	}
	if q := x.out.Question; q.Search == "" && !x.out.Resolves && !x.inZone && !strings.HasSuffix(q.Asked, ".") && strings.Count(q.Asked, ".") < ndots && x.question.Qtype != dns.TypePTR {
		x.note("a pod's resolver completes a name with less than %d dots: search=NAMESPACE shows how", ndots)
	}
	if x.out.Omitted > 0 {
		x.note("%s left out of the lists, which have %d at the most", count(x.out.Omitted, "record or endpoint"), maxListed)
	}
	x.out.Upstream = x.up.result()
	x.dnsmasq()
	if !x.out.Resolves {
		x.out.Advice = advice(x.out, x.o.Tree.Zone())
	}
	x.out.Near = x.out.Near[:min(len(x.out.Near), maxNear)]
	if x.out.Resolves {
		x.out.Near, x.out.Missing = nil, nil
	}
}

// count is "1 record", "2 records".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if before, after, ok := strings.Cut(what, " or "); ok {
		return fmt.Sprintf("%d %ss or %ss", n, before, after)
	}
	if strings.HasSuffix(what, "s") {
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func addrStrings(addrs []netip.Addr) []string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return s
}
