package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzHandle asks with raw packets: a reply has what checkReply checks, the
// packet is not written to, nothing panics, a negative answer of the zone has
// its SOA, and whatever miekg/dns can read and is no reply is answered.
func FuzzHandle(f *testing.F) {
	addCorpus(f)
	s, _ := newAsyncServer(f, func(o *Options) {
		o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
			m := new(dns.Msg).SetReply(req)
			name := req.Question[0].Name
			for i := range byte(len(name)) {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77}, A: []byte{192, 0, 2, i}})
			}
			return m, nil
		})
	})
	for _, r := range []int{40, 2000} {
		records := headless("default", map[int]string{40: "many", 2000: "big"}[r], []port{{"http/tcp", 80}, {"https/tcp", 443}}, manyEndpoints(r)...)
		s.tree.Replace(records.Key, records, timeNow())
	}
	for _, q := range []string{"many.default.svc.cluster.local. SRV", "big.default.svc.cluster.local. A", "_http._tcp.big.default.svc.cluster.local. SRV"} {
		f.Add(pack(f, newQuestion(f, q, nil)))
		f.Add(pack(f, newQuestion(f, q, withOPT(900, 0, true))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var asked dns.Msg
		unpacks := asked.Unpack(b) == nil
		for _, tcp := range []bool{false, true} {
			reply := s.handle(t, b, tcp)
			if !bytes.Equal(b, before) {
				t.Fatal("the packet was written to")
			}
			if reply == nil {
				if unpacks && !asked.Response {
					t.Fatalf("no reply to %v", asked.Question)
				}
				continue
			}
			if asked.Response {
				t.Fatal("a reply was answered")
			}
			m := checkReply(t, b, reply, tcp, s.udpSize)
			if m.Rcode == dns.RcodeServerFailure && s.gatherPanics(t) > 0 {
				t.Fatalf("a panic: %x", b)
			}
			if m.Rcode == dns.RcodeNameError && len(m.Ns) == 0 && s.inZone(&asked) && !m.Truncated {
				t.Fatalf("NXDOMAIN without a SOA: %v", m)
			}
		}
	})
}

func (s *testServer) gatherPanics(tb testing.TB) float64 {
	tb.Helper()
	return s.gather(tb)["kubedns_panics_total"]
}

func (s *testServer) inZone(m *dns.Msg) bool {
	return len(m.Question) == 1 && dns.IsSubDomain(s.tree.Zone(), strings.ToLower(m.Question[0].Name))
}

// FuzzPod compares the names of pods with what package netip makes of their
// first label.
func FuzzPod(f *testing.F) {
	for _, label := range []string{
		"10-1-2-3", "0-0-0-0", "255-255-255-255", "256-0-0-0", "01-2-3-4", "1-2-3", "1-2-3-4-5", "-1-2-3", "1-2-3-", "1--2-3",
		"2001-db8--7", "2001-DB8--7", "--", "--1", "1--", "---", "0-0-0-0-0-0-0-0", "1-2-3-4-5-6-7-8-9", "--ffff-102-304",
		"--ffff-1.2.3.4", "fe80--1%eth0", "1.2.3.4", "2001:db8::7", "00001--", "g--", "", "a", "1-2-3-4\x00",
	} {
		f.Add([]byte(label))
	}
	s := newTestServer(f, nil, nil)
	f.Fuzz(func(t *testing.T, label []byte) {
		if len(label) == 0 || len(label) > 63 || bytes.Equal(label, []byte("*")) || bytes.Equal(label, []byte("_*")) {
			return
		}
		text := strings.ToLower(string(label))
		want, ok := netip.Addr{}, false
		if !strings.ContainsAny(text, ".:%") {
			if v4, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ".")); err == nil && v4.Is4() {
				want, ok = v4, true
			} else if v6, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":")); err == nil && v6.Is6() {
				want, ok = v6, true
			}
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			wire := append(make([]byte, 0, 128), 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, byte(len(label)))
			wire = append(append(wire, label...), "\x02ns\x03pod\x07cluster\x05local\x00"...)
			wire = append(binary.BigEndian.AppendUint16(wire, qtype), 0, 1)
			m := checkReply(t, wire, s.handle(t, wire, false), false, s.udpSize)
			var got netip.Addr
			for _, rr := range m.Answer {
				switch rr := rr.(type) {
				case *dns.A:
					got, _ = netip.AddrFromSlice(rr.A.To4())
				case *dns.AAAA:
					got, _ = netip.AddrFromSlice(rr.AAAA.To16())
				}
			}
			isType := ok && (want.Is4() && qtype == dns.TypeA || want.Is6() && qtype == dns.TypeAAAA)
			switch {
			case isType && (got != want || len(m.Answer) != 1 || m.Rcode != dns.RcodeSuccess):
				t.Fatalf("%q type %d: %v, want %v", label, qtype, m, want)
			case !isType && len(m.Answer) != 0:
				t.Fatalf("%q type %d: %v, want none", label, qtype, m)
			case ok && m.Rcode != dns.RcodeSuccess, !ok && m.Rcode != dns.RcodeNameError:
				t.Fatalf("%q type %d: %s for an address %v", label, qtype, dns.RcodeToString[m.Rcode], want)
			}
		}
	})
}
