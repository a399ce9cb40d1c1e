package forward

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzReply: a packet that is accepted as reply to a question is one to exactly
// that question, as an independent parser sees it.
func FuzzReply(f *testing.F) {
	req := question("WwW.Example.org.", dns.TypeA)
	seeds := []*dns.Msg{new(dns.Msg).SetReply(req), new(dns.Msg).SetRcode(req, dns.RcodeServerFailure), new(dns.Msg).SetReply(question("www.example.net.", dns.TypeA))}
	seeds[0].Answer = []dns.RR{record(f, "www.example.org. 1 IN A 192.0.2.1"), record(f, "www.example.org. 1 IN TXT x")}
	seeds[0].SetEdns0(1232, true)
	for _, m := range seeds {
		m.Id = 0
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		q, err := newQuery(req)
		if err != nil {
			t.Fatal(err)
		}
		if q.mismatch(packet) != "" {
			return
		}
		msg, err := unpack(packet)
		if err != nil {
			return
		}
		if msg.Id != 0 || !msg.Response || msg.Opcode != dns.OpcodeQuery {
			t.Errorf("accepted %v", msg)
		}
		if len(msg.Question) == 0 && len(packet) > headerSize && msg.Truncated {
			return // what is cut is not looked at
		}
		if len(msg.Question) == 0 {
			if isAnswer(msg.Rcode) || len(msg.Answer) > 0 {
				t.Errorf("accepted without a question: %v", msg)
			}
			return
		}
		got := msg.Question[0]
		if len(msg.Question) != 1 || !strings.EqualFold(got.Name, req.Question[0].Name) || got.Qtype != dns.TypeA || got.Qclass != dns.ClassINET {
			t.Errorf("accepted for another question: %v", msg)
		}
	})
}

func TestPrepare(t *testing.T) {
	for _, edns := range []bool{false, true} {
		req := question("example.org.", dns.TypeSRV)
		req.SetEdns0(512, true)
		q, err := newQuery(req)
		if err != nil {
			t.Fatal(err)
		}
		q.prepare(!edns) // leaves nothing behind
		var got dns.Msg
		if err := got.Unpack(q.prepare(edns)); err != nil {
			t.Fatal(err)
		}
		want := question("example.org.", dns.TypeSRV)
		want.Id = got.Id
		if edns {
			want.SetEdns0(payloadSize, true)
		}
		if got.String() != want.String() {
			t.Errorf("got\n%v\nwant\n%v", &got, want)
		}
	}
}
