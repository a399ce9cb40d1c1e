package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"

	"kubedns/pkg/dns/forward"
)

// answerTimeout bounds a deferred answer: a client gives up after 5 s
// (resolv.conf(5)).
const answerTimeout = 3700 * time.Millisecond

// maxWildcards bounds the questions for names with an asterisk that wait. One
// such name can have thousands of records, and costs that much more.
const maxWildcards = 1000

// MaxHops is the maximum number of names in a chain of CNAME records.
const MaxHops = 16

// deferAnswer answers a question on a goroutine of its own and calls send with
// the reply. It copies msg, so that the caller may use the buffer again.
func (w *worker) deferAnswer(ctx context.Context, start time.Time, sys system, v verdict, msg []byte, limit int, send respond) {
	a, tcp := w.a, w.tcp
	msg = bytes.Clone(msg)
	w.async.Go(func() {
		if v.route == routeWildcard {
			defer a.wildcards.leave()
		}
		w := a.newWorker()
		w.tcp = tcp
		send(w.asyncReply(ctx, start, sys, v, msg, limit))
	})
}

// asyncReply returns the reply to a deferred question. A panic is caught, and
// the reply is SERVFAIL.
func (w *worker) asyncReply(ctx context.Context, start time.Time, sys system, v verdict, msg []byte, limit int) (out []byte) {
	a := w.a
	defer func() {
		if p := recover(); p != nil {
			out = w.recovered(p, start, sys, nil)
		}
	}()
	if err := w.parse(msg); err != nil {
		return nil // not reached: handle has parsed it
	}
	req := new(dns.Msg)
	if err := req.Unpack(msg); err != nil || len(req.Question) != 1 {
		w.r.start(&w.q, nil, limit)
		return w.done(start, sys, dns.RcodeFormatError, 0)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m := a.answerAsync(ctx, v, w, req)
	if glog.V(4) {
		glog.Infof("server: %s: %s, %d answers", describe(msg), dns.RcodeToString[m.Rcode], len(m.Answer))
	}
	out = a.pack(m, req, &w.q, limit)
	a.metrics.answered(sys, time.Since(start), len(out), causeOf(m.Rcode, uint16(len(m.Answer)), m.Truncated, w.tcp))
	return out
}

// answerAsync answers a question by its route. Of the header it sets the rcode
// and AA; pack adds the other flags and OPT.
func (a *answerer) answerAsync(ctx context.Context, v verdict, w *worker, req *dns.Msg) *dns.Msg {
	m := &dns.Msg{}
	m.Authoritative = true
	question := req.Question[0]
	switch v.route {
	case routeWildcard:
		select {
		case a.wildcards.slots <- struct{}{}:
			defer func() { <-a.wildcards.slots }()
			return a.wildcard(req)
		case <-ctx.Done():
			m.Rcode = dns.RcodeServerFailure
		}
	case routeExternal:
		a.chain(ctx, m, question, v.records.Target, w.tcp)
	case routeFederation:
		target, _ := a.federated(w.q.name)
		if target == "" {
			m.Rcode = dns.RcodeServerFailure
			break
		}
		a.chain(ctx, m, question, target, w.tcp)
	default:
		reply, _, err := a.forwarder.Exchange(ctx, req, w.tcp)
		if err != nil {
			a.forwardFailed(question, err)
			m.Authoritative = false
			m.Rcode = dns.RcodeServerFailure
			break
		}
		m = reply
		m.Authoritative = false
	}
	return m
}

// forwardFailed counts and logs a question that the nameservers did not answer.
func (a *answerer) forwardFailed(q dns.Question, err error) {
	if errors.Is(err, forward.ErrOverloaded) {
		a.metrics.shed.Inc()
	}
	if glog.V(4) {
		glog.Infof("server: forwarding %s %s: %v", q.Name, dns.TypeToString[q.Qtype], err)
	}
}

// chain answers question with a CNAME to target and, for A and AAAA, with the
// rest of the chain: names in the zone from the tree, others from the upstream
// nameservers. A loop, or no answer from upstream, is SERVFAIL without records: a
// client would take a part of a chain for NODATA.
func (a *answerer) chain(ctx context.Context, m *dns.Msg, question dns.Question, target string, tcp bool) {
	link := func(owner, target string) dns.RR {
		return &dns.CNAME{
			Hdr:    dns.RR_Header{Name: owner, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: a.ttl()},
			Target: target,
		}
	}
	m.Answer = append(m.Answer, link(question.Name, target))
	if question.Qtype != dns.TypeA && question.Qtype != dns.TypeAAAA {
		return
	}
	fail := func() {
		m.Answer, m.Ns, m.Rcode = nil, nil, dns.RcodeServerFailure
	}
	seen := map[string]bool{strings.ToLower(question.Name): true}
	name := target
	for range MaxHops {
		if seen[strings.ToLower(name)] {
			break
		}
		seen[strings.ToLower(name)] = true
		next := dns.Question{Name: name, Qtype: question.Qtype, Qclass: dns.ClassINET}
		if !a.zone.names.Contains(name) {
			final, rcode, ok := a.upstream(ctx, m, next, tcp)
			if !ok {
				break
			}
			if final == "" {
				m.Rcode = rcode
				return
			}
			name = final // back in the zone
			continue
		}
		local, v, q := a.local(next)
		federated, isFederated := "", false
		if v.route == routeFederation {
			federated, isFederated = a.federated(q.name)
		}
		switch {
		case local == nil: // no message can carry the name
			m.Rcode = dns.RcodeNameError
			m.Ns = []dns.RR{a.soa()}
			return
		case v.route == routeExternal:
			m.Answer = append(m.Answer, link(name, v.records.Target))
			name = v.records.Target
		case isFederated && federated == "":
			fail()
			return
		case isFederated:
			m.Answer = append(m.Answer, link(name, federated))
			name = federated
		default:
			m.Answer = append(m.Answer, local.Answer...)
			m.Ns, m.Rcode = local.Ns, v.rcode
			return
		}
	}
	fail()
}

// upstream appends the nameservers' answer to m. final is the end of their chain
// if that is in the zone, which they do not know; else it is empty.
func (a *answerer) upstream(ctx context.Context, m *dns.Msg, question dns.Question, tcp bool) (final string, rcode int, ok bool) {
	req := &dns.Msg{Question: []dns.Question{question}}
	req.Id = dns.Id()
	req.RecursionDesired = true
	reply, _, err := a.forwarder.Exchange(ctx, req, tcp)
	if err != nil {
		a.forwardFailed(question, err)
		return "", 0, false
	}
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return "", 0, false
	}
	name, links := question.Name, 0
	for ; links < MaxHops; links++ {
		next := ""
		for _, rr := range reply.Answer {
			if c, isCNAME := rr.(*dns.CNAME); isCNAME && strings.EqualFold(c.Hdr.Name, name) {
				next = c.Target
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	if links == MaxHops {
		return "", 0, false // too long, or a loop
	}
	m.Answer = append(m.Answer, reply.Answer...)
	m.Truncated = m.Truncated || reply.Truncated
	has := false
	for _, rr := range reply.Answer {
		has = has || rr.Header().Rrtype == question.Qtype && strings.EqualFold(rr.Header().Name, name)
	}
	if !has && name != question.Name && a.zone.names.Contains(name) {
		return name, 0, true
	}
	if !has {
		m.Ns = reply.Ns // the SOA of a negative answer
	}
	return "", reply.Rcode, true
}

// local answers a question for a name in the zone from the tree. The message is
// nil if no message can carry the name.
func (a *answerer) local(question dns.Question) (*dns.Msg, verdict, *query) {
	req := &dns.Msg{Question: []dns.Question{question}}
	wire, err := req.Pack()
	w := a.newWorker()
	if err != nil || w.parse(wire) != nil || !w.q.name.InZone() {
		return nil, verdict{}, nil
	}
	w.r.start(&w.q, nil, dns.MaxMsgSize)
	v := a.zone.resolve(&w.q, &w.r, rand.Uint32())
	m := new(dns.Msg)
	if err := m.Unpack(w.r.finish(&w.q, v.rcode, bitAA|bitRA, a.udpSize)); err != nil {
		return nil, verdict{}, nil
	}
	if v.route == routeWildcard {
		m.Ns, v.rcode = []dns.RR{a.soa()}, dns.RcodeNameError
	}
	return m, v, &w.q
}

// ttl is the TTL of records in seconds.
func (a *answerer) ttl() uint32 {
	return binary.BigEndian.Uint32(a.zone.ttl[:])
}

// soa is the zone's SOA record for a negative answer.
func (a *answerer) soa() dns.RR {
	zone := a.zone.tree.Zone()
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: a.zone.negTTLSecs},
		Ns:  "ns.dns." + zone, Mbox: "hostmaster." + zone, Serial: a.zone.tree.Serial(),
		Refresh: 28800, Retry: 7200, Expire: 604800, Minttl: a.zone.negTTLSecs,
	}
}

// pack packs m as the reply to req: with its ID, question and flags, and with OPT
// if it had one. The reply has limit octets at most.
func (a *answerer) pack(m, req *dns.Msg, q *query, limit int) []byte {
	m.Id = req.Id
	m.Response = true
	m.Opcode = dns.OpcodeQuery
	m.RecursionDesired = req.RecursionDesired
	m.RecursionAvailable = true
	m.CheckingDisabled = req.CheckingDisabled
	m.Question = req.Question
	m.Compress = true
	if q.edns {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(a.udpSize)
		if q.do {
			opt.SetDo()
		}
		m.Extra = append(m.Extra, opt)
	} else if m.Rcode > 0xf {
		m.Rcode = dns.RcodeServerFailure // an extended rcode needs OPT
	}
	wire, err := fit(m, limit)
	if err != nil {
		glog.V(2).Infof("server: packing the reply for %s: %v", req.Question[0].Name, err)
		m.Answer, m.Ns, m.Truncated = nil, nil, false
		m.Extra = optOnly(m.Extra)
		m.Rcode = dns.RcodeServerFailure
		wire, err = m.Pack()
		if err != nil {
			return nil
		}
	}
	return wire
}

// optOnly is the OPT record of an additional section, nil if it has none.
func optOnly(extra []dns.RR) []dns.RR {
	for _, rr := range extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			return []dns.RR{rr}
		}
	}
	return nil
}

// onlyNS reports whether an authority section has only NS records: nothing that a
// negative or a signed answer needs.
func onlyNS(rrs []dns.RR) bool {
	return !slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
}

// fit packs m in limit octets. It drops the additional section first, then NS
// records beside an answer; then it sets TC and keeps the answers that fit (RFC
// 2181 section 9).
func fit(m *dns.Msg, limit int) ([]byte, error) {
	wire, err := m.Pack()
	if err == nil && len(wire) <= limit {
		return wire, nil
	}
	if err != nil && m.Len() <= dns.MaxMsgSize {
		return nil, err
	}
	if opt := optOnly(m.Extra); len(opt) < len(m.Extra) {
		m.Extra = opt
		if wire, err = m.Pack(); err == nil && len(wire) <= limit {
			return wire, nil
		}
	}
	if len(m.Answer) > 0 && onlyNS(m.Ns) {
		m.Ns = nil
		if wire, err = m.Pack(); err == nil && len(wire) <= limit {
			return wire, nil
		}
	}
	m.Truncated = true
	answers := m.Answer
	m.Ns = nil
	low, high := 0, len(answers) // the first low fit, the first high+1 do not
	for low < high {
		mid := (low + high + 1) / 2
		m.Answer = answers[:mid]
		if wire, err = m.Pack(); err == nil && len(wire) <= limit {
			low = mid
		} else {
			high = mid - 1
		}
	}
	m.Answer = answers[:low]
	return m.Pack()
}
