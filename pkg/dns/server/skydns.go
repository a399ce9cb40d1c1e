package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"github.com/skynetservices/skydns/msg"
	skydns "github.com/skynetservices/skydns/server"
)

// Record is a record of a SkyDNS backend.
type Record = msg.Service

// newSkyDNS makes a handler that answers from b. It forwards nothing: only names in
// the zone reach it. SkyDNS's Run is not used, as it ends the process when a bind
// fails.
func newSkyDNS(b skydns.Backend, cfg skydns.Config) (dns.Handler, error) {
	if err := skydns.SetDefaults(&cfg); err != nil {
		return nil, fmt.Errorf("skydns defaults: %w", err)
	}
	return skydns.New(b, &cfg), nil
}

// srvBackend is the backend for questions of type SRV.
type srvBackend struct{ Backend }

// Records implements skydns.Backend.
func (b srvBackend) Records(name string, _ bool) ([]msg.Service, error) { return b.SRVRecords(name) }

// recorder is the dns.ResponseWriter that SkyDNS writes its reply to.
type recorder struct{ msg *dns.Msg }

// recorderAddr is a UDP address. SkyDNS uses it only to tell UDP from TCP; it cuts
// replies over UDP to the size in the question's OPT record.
var recorderAddr = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}

func (r *recorder) WriteMsg(m *dns.Msg) error { r.msg = m; return nil }
func (*recorder) LocalAddr() net.Addr         { return recorderAddr }
func (*recorder) RemoteAddr() net.Addr        { return recorderAddr }
func (*recorder) Write([]byte) (int, error)   { return 0, errors.ErrUnsupported }
func (*recorder) Close() error                { return nil }
func (*recorder) TsigStatus() error           { return nil }
func (*recorder) TsigTimersOnly(bool)         {}
func (*recorder) Hijack()                     {}

// ask has SkyDNS answer a question.
func ask(h dns.Handler, question dns.Question) *dns.Msg {
	req := &dns.Msg{Question: []dns.Question{question}}
	req.Id = dns.Id()
	req.RecursionDesired = true
	req.SetEdns0(dns.MaxMsgSize-1, false) // pack cuts to the client's size
	var w recorder
	h.ServeDNS(&w, req)
	return w.msg
}

// wildcard has SkyDNS answer a name with an asterisk, and corrects the answer (see
// docs/records.md): AA in negative answers, our SOA, no weight of 0, ANY.
func (a *answerer) wildcard(req *dns.Msg) *dns.Msg {
	question := req.Question[0]
	h := a.skydns
	if question.Qtype == dns.TypeSRV {
		h = a.skydnsSRV
	}
	asked := question
	asked.Qclass = dns.ClassINET
	if question.Qtype == dns.TypeANY || question.Qtype == dns.TypeNS {
		// SkyDNS refuses ANY, and answers NS only for the zone. Whether the name
		// exists is the same for every type.
		asked.Qtype = dns.TypeTXT
	}
	m := ask(h, asked)
	if m == nil {
		return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure, Authoritative: true}}
	}
	m.Authoritative = true
	m.Ns, m.Extra = nil, withoutOPT(m.Extra)
	m.Answer = slices.DeleteFunc(m.Answer, func(rr dns.RR) bool { return !isWildcardAnswer(rr, question) })
	if len(m.Answer) == 0 {
		m.Extra = nil
	}
	// SkyDNS rotates addresses only.
	rand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
	switch {
	case len(m.Answer) > 0 || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
	case question.Qtype == dns.TypeANY && m.Rcode == dns.RcodeSuccess:
		m.Answer = []dns.RR{&dns.HINFO{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: a.ttl()},
			Cpu: "RFC8482",
		}}
	default:
		m.Ns = []dns.RR{a.soa()}
	}
	return m
}

// isWildcardAnswer reports whether a record of SkyDNS belongs in the answer. Some
// do not: CNAMEs of a port's targets, which SkyDNS makes for A and AAAA, and SRV
// records with port 0, which it makes of addresses. It makes a weight of 0 a 1.
func isWildcardAnswer(rr dns.RR, question dns.Question) bool {
	if rr.Header().Rrtype != question.Qtype || !strings.EqualFold(rr.Header().Name, question.Name) {
		return false
	}
	switch rr := rr.(type) {
	case *dns.A, *dns.AAAA:
		return true
	case *dns.SRV:
		rr.Weight = max(rr.Weight, 1)
		return rr.Port != 0
	}
	return false
}

func withoutOPT(extra []dns.RR) []dns.RR {
	var kept []dns.RR
	for _, rr := range extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			kept = append(kept, rr)
		}
	}
	return kept
}
