package harness

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestCompare makes sure that a case can fail: each row changes one thing of a
// reply that is right.
func TestCompare(t *testing.T) {
	const zone = "cluster.local."
	const soa = zone + " 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 2 3 4 30"
	positive := Expect{
		Q:      "web.default.svc.cluster.local A",
		Answer: "web.default.svc.cluster.local. 30 IN A 192.0.2.7\nweb.default.svc.cluster.local. * IN A 192.0.2.8",
		Extra:  "x.cluster.local. 30 IN A 192.0.2.9",
	}
	negative := Expect{Q: "nosuch.default.svc.cluster.local A", Rcode: "NXDOMAIN"}
	ordered := positive
	ordered.Ordered = true
	srv := Expect{Q: "web.default.svc.cluster.local SRV", AtLeast: 1}
	for _, tt := range []struct {
		name   string
		expect Expect
		change func(m *dns.Msg)
		want   string // text of the error; "" is none
	}{
		{"right", positive, nil, ""},
		{"right in another order", positive, func(m *dns.Msg) { m.Answer[0], m.Answer[1] = m.Answer[1], m.Answer[0] }, ""},
		{"wrong order", ordered, func(m *dns.Msg) { m.Answer[0], m.Answer[1] = m.Answer[1], m.Answer[0] }, "record 1"},
		{"rcode", positive, func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }, "rcode is SERVFAIL"},
		{"address", positive, func(m *dns.Msg) { m.Answer[0] = rr(t, "web.default.svc.cluster.local. 30 IN A 192.0.2.6") }, "lacks"},
		{"TTL", positive, func(m *dns.Msg) { m.Answer[0].Header().Ttl = 29 }, "lacks"},
		{"spelling", positive, func(m *dns.Msg) { m.Answer[0].Header().Name = "WEB.default.svc.cluster.local." }, "lacks"},
		{"one more", positive, func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer[0]) }, "also has"},
		{"one less", positive, func(m *dns.Msg) { m.Answer = m.Answer[1:] }, "lacks"},
		{"additional", positive, func(m *dns.Msg) { m.Extra = nil }, "additional"},
		{"AA", positive, func(m *dns.Msg) { m.Authoritative = false }, "flag aa"},
		{"RA", positive, func(m *dns.Msg) { m.RecursionAvailable = false }, "flag ra"},
		{"RD", positive, func(m *dns.Msg) { m.RecursionDesired = false }, "flag rd"},
		{"TC", positive, func(m *dns.Msg) { m.Truncated = true }, "flag tc"},
		{"OPT", positive, func(m *dns.Msg) { m.SetEdns0(4096, false) }, "flag opt"},
		{"question", positive, func(m *dns.Msg) { m.Question[0].Name = "Web.default.svc.cluster.local." }, "question"},
		{"negative", negative, nil, ""},
		{"negative without SOA", negative, func(m *dns.Msg) { m.Ns = nil }, "authority"},
		{"negative with an answer", negative, func(m *dns.Msg) { m.Answer = []dns.RR{rr(t, soa)} }, "answers"},
		{"SRV", srv, func(m *dns.Msg) { m.Answer = []dns.RR{rr(t, "web.default.svc.cluster.local. 30 IN SRV 10 100 80 x.")} }, ""},
		{"SRV port 0", srv, func(m *dns.Msg) { m.Answer = []dns.RR{rr(t, "web.default.svc.cluster.local. 30 IN SRV 10 100 0 x.")} }, "port 0"},
		{"SRV weight 0", srv, func(m *dns.Msg) { m.Answer = []dns.RR{rr(t, "web.default.svc.cluster.local. 30 IN SRV 10 0 80 x.")} }, "weight"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tt.expect
			if err := e.parse(); err != nil {
				t.Fatal(err)
			}
			m := &dns.Msg{
				MsgHdr:   dns.MsgHdr{Response: true, Authoritative: true, RecursionDesired: true, RecursionAvailable: true},
				Question: []dns.Question{e.question},
			}
			if e.Answer != "" {
				for _, line := range lines(e.Answer) {
					m.Answer = append(m.Answer, rr(t, strings.Replace(line, "*", "7", 1)))
				}
				m.Extra = []dns.RR{rr(t, e.Extra)}
			} else {
				m.Ns = []dns.RR{rr(t, soa)}
			}
			if e.Rcode == "NXDOMAIN" {
				m.Rcode = dns.RcodeNameError
			}
			if tt.change != nil {
				tt.change(m)
			}
			err := (&Player{Zone: zone}).compare(&e, &Reply{Msg: m})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func rr(t *testing.T, line string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(line)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
