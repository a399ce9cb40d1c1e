package dns

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/internal/clustertest"
)

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
		m.Answer = append(m.Answer, cname(q.Name, "s0.ns0.svc."+clustertest.Zone, 20))
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
