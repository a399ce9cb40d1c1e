package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

var (
	// ErrOverloaded says that Options.MaxInFlight questions are under way.
	ErrOverloaded = errors.New("too many questions under way")
	// ErrNoNameservers says that there is nobody to ask.
	ErrNoNameservers = errors.New("no nameservers to forward to")
	// ErrNotForwardable says that the request is not one question that one
	// message can answer: another opcode than QUERY, another number of
	// questions than one, a zone transfer, or a name that is none.
	ErrNotForwardable = errors.New("not a question that can be forwarded")
)

// Options configure a Forwarder. Zero and negative values mean the default.
type Options struct {
	// MaxInFlight is how many questions are under way at most; the default is
	// 1000. While no nameserver answers, each takes a socket for each of them.
	MaxInFlight int
	// Timeout is the time for a whole Exchange; the default is 3.5 s, so that
	// a SERVFAIL reaches the client before its own time-out.
	Timeout time.Duration
	// Patience is how long the nameserver asked last may be silent before the
	// next one is asked too; the default is 400 ms.
	Patience time.Duration
	// Retransmit is how long a nameserver may be silent before it is sent the
	// same datagram again; each further wait is twice as long. The default is
	// 800 ms.
	Retransmit time.Duration
	// TCPTimeout is the time for asking again over TCP; the default is 1.5 s.
	TCPTimeout time.Duration
	// Grace is how long, while a reply that is no answer (SERVFAIL) is in hand,
	// nameservers already known to fail are waited for; the default is 1 s.
	Grace time.Duration
	// BackoffMin and BackoffMax bound the time after which a failing
	// nameserver is asked first again; the defaults are 1 s and 30 s.
	BackoffMin, BackoffMax time.Duration
	// ForgetNoEDNS is how long a nameserver that does not know EDNS is asked
	// without; the default is 10 minutes.
	ForgetNoEDNS time.Duration
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 1000
	}
	for _, d := range []struct {
		value        *time.Duration
		defaultValue time.Duration
	}{
		{&o.Timeout, 3500 * time.Millisecond},
		{&o.Patience, 400 * time.Millisecond},
		{&o.Retransmit, 800 * time.Millisecond},
		{&o.TCPTimeout, 1500 * time.Millisecond},
		{&o.Grace, time.Second},
		{&o.BackoffMin, time.Second},
		{&o.BackoffMax, 30 * time.Second},
		{&o.ForgetNoEDNS, 10 * time.Minute},
	} {
		if *d.value <= 0 {
			*d.value = d.defaultValue
		}
	}
	o.BackoffMax = max(o.BackoffMax, o.BackoffMin)
	return o
}

// A Forwarder asks nameservers. Its methods are safe for concurrent use.
type Forwarder struct {
	options  Options
	inFlight atomic.Int64
	turn     atomic.Uint64 // how many questions were asked, from a random start
	buffers  sync.Pool     // of *[maxDatagram]byte

	setting sync.Mutex // held by SetNameservers
	// nameservers is what new questions are asked. The slice is not modified
	// once stored.
	nameservers atomic.Pointer[[]*nameserver]
}

// New returns a Forwarder without nameservers.
func New(o Options) *Forwarder {
	f := &Forwarder{options: o.withDefaults()}
	f.buffers.New = func() any { return new([maxDatagram]byte) }
	f.turn.Store(uint64(rand.Uint32()))
	f.nameservers.Store(new([]*nameserver))
	return f
}

// Clone returns a Forwarder that asks as f would now: the same nameservers,
// what is known of their health, whose turn it is, and how many questions are
// under way. Nothing that is asked of it changes f, nor the other way round.
func (f *Forwarder) Clone() *Forwarder {
	c := New(f.options)
	c.turn.Store(f.turn.Load())
	c.inFlight.Store(f.inFlight.Load())
	servers := *f.nameservers.Load()
	next := make([]*nameserver, len(servers))
	for i, s := range servers {
		next[i] = s.clone()
	}
	c.nameservers.Store(&next)
	return c
}

// SetNameservers replaces all nameservers in one step. Questions under way end
// with those they began with; what is known of the health of nameservers that
// stay is kept. Repeated and invalid addresses and port 0 are left out; an
// IPv4-mapped IPv6 address is an IPv4 address.
func (f *Forwarder) SetNameservers(addrs []netip.AddrPort) {
	f.setting.Lock()
	defer f.setting.Unlock()
	old := *f.nameservers.Load()
	next := make([]*nameserver, 0, len(addrs))
	for _, addr := range addrs {
		if !addr.IsValid() || addr.Port() == 0 {
			continue
		}
		addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
		same := func(s *nameserver) bool { return s.addr == addr }
		if slices.ContainsFunc(next, same) {
			continue
		}
		if i := slices.IndexFunc(old, same); i >= 0 {
			next = append(next, old[i])
		} else {
			next = append(next, newNameserver(addr, f.options))
		}
	}
	f.nameservers.Store(&next)
}

// Nameservers returns the nameservers in force, in the order they were set. The
// slice is the caller's.
func (f *Forwarder) Nameservers() []netip.AddrPort {
	servers := *f.nameservers.Load()
	addrs := make([]netip.AddrPort, len(servers))
	for i, s := range servers {
		addrs[i] = s.addr
	}
	return addrs
}

// Health returns what is known of each nameserver in force, in the order they
// were set. The slice is the caller's.
func (f *Forwarder) Health() []Health {
	servers := *f.nameservers.Load()
	all := make([]Health, len(servers))
	for i, s := range servers {
		all[i] = s.health()
	}
	return all
}

// InFlight returns how many questions are under way, at most
// Options.MaxInFlight.
func (f *Forwarder) InFlight() int { return int(f.inFlight.Load()) }

// Exchange asks the nameservers for req and returns the reply and who gave it.
//
// The reply is as it came (TTLs, AA, RA, rcode, order and spelling of records)
// but for ID and question, which are req's, and OPT, which is removed: the
// caller makes its own. An extended rcode stays in Rcode; packing it needs an
// OPT. The reply is the caller's; req is not modified. RD, AD, CD and the DO
// bit are asked as in req.
//
// The last argument says whether the client came over TCP. It makes no
// difference: UDP is first in either case, and truncation is followed to TCP.
//
// Errors are ErrOverloaded, ErrNoNameservers and ErrNotForwardable, at once,
// and *ExchangeError where no nameserver gave a reply or ctx ended, which
// errors.Is finds in it. No goroutine and no socket outlives the call.
func (f *Forwarder) Exchange(ctx context.Context, req *dns.Msg, _ bool) (*dns.Msg, netip.AddrPort, error) {
	q, err := newQuery(req)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	if !f.enter() {
		return nil, netip.AddrPort{}, ErrOverloaded
	}
	defer f.inFlight.Add(-1)
	servers := *f.nameservers.Load()
	if len(servers) == 0 {
		return nil, netip.AddrPort{}, ErrNoNameservers
	}

	best, tries, err := f.ask(ctx, q, servers)
	if err != nil || best.msg == nil {
		return nil, netip.AddrPort{}, newExchangeError(req, tries, err)
	}
	best.msg.Id = req.Id
	best.msg.Question = []dns.Question{req.Question[0]}
	best.msg.Extra = slices.DeleteFunc(best.msg.Extra, isOPT)
	return best.msg, best.from.addr, nil
}

// enter counts a question in, unless there are too many.
func (f *Forwarder) enter() bool {
	for {
		n := f.inFlight.Load()
		if n >= int64(f.options.MaxInFlight) {
			return false
		}
		if f.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// reply is a reply and who gave it; the zero value is none.
type reply struct {
	msg  *dns.Msg
	from *nameserver
}

// rank orders replies by how much they tell the client: 0 for none, rankAnswer
// for one that needs no other.
func (r reply) rank() int {
	switch {
	case r.msg == nil:
		return 0
	case isAnswer(r.msg.Rcode) && r.msg.Truncated:
		return rankAnswer - 1
	case isAnswer(r.msg.Rcode):
		return rankAnswer
	case r.msg.Rcode == dns.RcodeServerFailure:
		return 3
	case r.msg.Rcode == dns.RcodeRefused:
		return 1
	}
	return 2
}

const rankAnswer = 5

// isAnswer says whether the nameserver knows the answer, be it that there is
// no such name. YXDOMAIN is what a DNAME gives that makes a name too long
// (RFC 6672 section 2.2).
func isAnswer(rcode int) bool {
	return rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError || rcode == dns.RcodeYXDomain
}

// ask asks servers until there is an answer or nobody is left to wait for. It
// returns the best reply, which may be none, the tries made, and an error only
// where parent was cancelled. All goroutines it starts end before it returns.
func (f *Forwarder) ask(parent context.Context, q query, servers []*nameserver) (best reply, tries []*try, err error) {
	started := time.Now()
	ctx, cancel := context.WithDeadline(parent, started.Add(f.options.Timeout))
	deadline, _ := ctx.Deadline()
	order, probing := f.order(started, servers)
	// A caller in a hurry makes for shorter waits, but not for a harsher
	// judgement on who is silent meanwhile.
	n := time.Duration(len(order))
	patience := min(f.options.Patience, f.options.Timeout/2/n)
	wait := min(patience, deadline.Sub(started)/2/n)

	var (
		wg      sync.WaitGroup
		events  = make(chan event, 3*len(order)) // a try sends three at most
		pending int
		next    = time.NewTimer(wait)
		grace   <-chan time.Time
	)
	defer next.Stop()
	defer func() {
		now := time.Now()
		cancelled := errors.Is(parent.Err(), context.Canceled)
		cancel()
		wg.Wait()
		for len(events) > 0 { // what came in the same moment still counts
			if ev := <-events; !errors.Is(ev.err, errAbandoned) {
				ev.try.take(ev)
			}
		}
		for _, t := range tries {
			if t.open {
				t.abandon(now, cancelled)
			}
		}
	}()

	askNext := func() {
		i := len(tries)
		t := &try{forwarder: f, server: order[i], query: q, events: events, patience: patience, open: true}
		if i == 0 && probing {
			t.patience = min(t.server.headStart(), patience)
		}
		t.wasFailing = t.server.asked()
		t.started = time.Now()
		tries = append(tries, t)
		pending++
		wg.Go(func() { t.run(ctx) })
		next.Reset(min(t.patience, wait))
	}

	askNext()
	for {
		select {
		case ev := <-events:
			if errors.Is(ev.err, errAbandoned) {
				continue // ctx has ended
			}
			if r := (reply{ev.msg, ev.try.server}); r.rank() > best.rank() {
				best = r
			}
			ev.try.take(ev)
			if ev.interim {
				continue
			}
			pending--
			switch {
			case best.rank() == rankAnswer, ev.msg != nil && isAnswer(ev.msg.Rcode):
				return best, tries, nil
			case len(tries) < len(order):
				askNext()
			case pending == 0:
				return best, tries, nil
			}
		case <-next.C:
			if len(tries) < len(order) {
				askNext()
			}
		case <-grace:
			return best, tries, nil
		case <-ctx.Done():
			if errors.Is(parent.Err(), context.Canceled) || parent.Err() != nil && best.msg == nil {
				return reply{}, tries, parent.Err()
			}
			return best, tries, nil
		}
		if grace == nil && best.msg != nil && len(tries) == len(order) && onlyFailing(tries) {
			grace = time.After(f.options.Grace)
		}
	}
}

// onlyFailing says whether all tries that are still open are of nameservers
// that were failing before and said nothing yet.
func onlyFailing(tries []*try) bool {
	return !slices.ContainsFunc(tries, func(t *try) bool { return t.open && (t.heard || !t.wasFailing) })
}

// order returns servers in the order in which a question asks them: those that
// work, from the one whose turn it is, then those that fail. Where probing is
// true the first is a failing one whose back-off is over.
func (f *Forwarder) order(now time.Time, servers []*nameserver) (order []*nameserver, probing bool) {
	turn := f.turn.Add(1)
	order = make([]*nameserver, 0, len(servers)+1)
	var probe *nameserver
	var failing []*nameserver
	for _, s := range servers {
		switch isFailing, due := s.due(now, probe == nil); {
		case due:
			probe = s
		case isFailing:
			failing = append(failing, s)
		default:
			order = append(order, s)
		}
	}
	rotate(order, turn)
	rotate(failing, turn)
	order = append(order, failing...)
	if probe != nil {
		order = slices.Insert(order, 0, probe)
	}
	return order, probe != nil
}

// rotate moves the first turn elements of s, counted around, behind the others.
func rotate(s []*nameserver, turn uint64) {
	if len(s) < 2 {
		return
	}
	k := int(turn % uint64(len(s)))
	slices.Reverse(s[:k])
	slices.Reverse(s[k:])
	slices.Reverse(s)
}

// A TryError is what happened when one nameserver was asked.
type TryError struct {
	Addr netip.AddrPort
	Err  error // never nil
}

// ExchangeError says why a question has no reply.
type ExchangeError struct {
	Question dns.Question
	Tries    []TryError // in the order in which the nameservers were asked
	Cause    error      // the caller's context's error where that ended the question, else nil
}

func newExchangeError(req *dns.Msg, tries []*try, cause error) *ExchangeError {
	e := &ExchangeError{Question: req.Question[0], Cause: cause}
	for _, t := range tries {
		e.Tries = append(e.Tries, TryError{t.server.addr, t.err})
	}
	return e
}

// Error is "forwarding example.org. A: 192.0.2.1:53: no reply in 3.5s;
// 192.0.2.2:53: connection refused".
func (e *ExchangeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "forwarding %s %s: ", e.Question.Name, dns.Type(e.Question.Qtype))
	if e.Cause != nil {
		fmt.Fprintf(&b, "%v: ", e.Cause)
	}
	for i, t := range e.Tries {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %v", t.Addr, t.Err)
	}
	return b.String()
}

// Unwrap returns the cause and the errors of all tries.
func (e *ExchangeError) Unwrap() []error {
	var errs []error
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	for _, t := range e.Tries {
		errs = append(errs, t.Err)
	}
	return errs
}
