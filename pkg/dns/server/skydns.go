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

// Record is a record as SkyDNS's backends have it.
type Record = msg.Service

// newSkyDNS answers from b and forwards nothing: what is not in the zone never
// comes to it. SkyDNS's own Run is unused, as it ends the process when a bind
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

// SkyDNS asks for the address only to tell TCP from UDP, and cuts what goes
// over UDP to the size in the question's OPT record.
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

// wildcard answers a name with an asterisk, which SkyDNS does, and puts right
// what SkyDNS's answers lack (docs/records.md): AA on negative ones, our SOA, no
// weight of 0, ANY.
func (s *Server) wildcard(req *dns.Msg) *dns.Msg {
	question := req.Question[0]
	h := s.skydns
	if question.Qtype == dns.TypeSRV {
		h = s.skydnsSRV
	}
	asked := question
	asked.Qclass = dns.ClassINET
	if question.Qtype == dns.TypeANY || question.Qtype == dns.TypeNS {
		// SkyDNS refuses ANY, and looks for no name but the zone's for NS;
		// whether the name exists is the same for every type.
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
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: s.ttl()},
			Cpu: "RFC8482",
		}}
	default:
		m.Ns = []dns.RR{s.soa()}
	}
	return m
}

// isWildcardAnswer tells whether SkyDNS's record is one that the name has. At a
// port's name SkyDNS has a CNAME for each target in place of addresses, and at
// an address an SRV record for port 0. A weight of 0 becomes 1.
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
