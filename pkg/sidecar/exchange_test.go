package sidecar

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/freeport"
)

const (
	testA     = "web.example.org. 30 IN A 192.0.2.7"
	testAAAA  = "web.example.org. 30 IN AAAA 2001:db8::7"
	testSRV   = "web.example.org. 30 IN SRV 10 100 80 web.example.org."
	testCNAME = "web.example.org. 30 IN CNAME www.example.org."
	testHINFO = `web.example.org. 30 IN HINFO "RFC8482" ""`
	testCHAOS = `web.example.org. 30 CH A 192.0.2.7`
)

// serverTests are servers, what is asked of them, and what a probe makes of
// their answers.
func serverTests() []serverTest {
	return []serverTest{
		{"right", "A", reply(dns.RcodeSuccess, testA), "", ""},
		{"right AAAA", "AAAA", reply(dns.RcodeSuccess, testAAAA), "", ""},
		{"right SRV", "SRV", reply(dns.RcodeSuccess, testSRV), "", ""},
		{"chain", "A", reply(dns.RcodeSuccess, testCNAME, "www.example.org. 30 IN A 192.0.2.7"), "", ""},
		{"ANY with all", "ANY", reply(dns.RcodeSuccess, testA, testAAAA), "", ""},
		{"ANY with HINFO", "ANY", reply(dns.RcodeSuccess, testHINFO), "", ""},
		{"uncached", "A,uncached", func(w dns.ResponseWriter, q *dns.Msg) {
			if opt := q.IsEdns0(); opt != nil && opt.Do() {
				reply(dns.RcodeSuccess, testA)(w, q)
			}
		}, "", ""},
		{"cached", "A", func(w dns.ResponseWriter, q *dns.Msg) {
			if q.IsEdns0() == nil {
				reply(dns.RcodeSuccess, testA)(w, q)
			}
		}, "", ""},
		{"truncated with the record", "A", truncated(reply(dns.RcodeServerFailure), testA), "", ""},
		{"truncated, whole over TCP", "A", truncated(reply(dns.RcodeSuccess, testA)), "", ""},
		{"truncated, SERVFAIL over TCP", "A", truncated(reply(dns.RcodeServerFailure)), "servfail", "rcode SERVFAIL"},
		{"truncated, garbage over TCP", "A", truncated(garbage), "malformed", "malformed reply: dns: "},
		{"truncated, closed over TCP", "A", truncated(func(w dns.ResponseWriter, _ *dns.Msg) { _ = w.Close() }), "network", "connection closed"},
		{"right after forgeries", "A", func(w dns.ResponseWriter, q *dns.Msg) {
			garbage(w, q)
			forged(reply(dns.RcodeServerFailure))(w, q)
			reply(dns.RcodeSuccess, testA)(w, q)
		}, "", ""},

		{"SERVFAIL", "A", reply(dns.RcodeServerFailure), "servfail", "rcode SERVFAIL"},
		{"NXDOMAIN", "A", reply(dns.RcodeNameError), "nxdomain", "rcode NXDOMAIN"},
		{"NXDOMAIN behind a CNAME", "A", reply(dns.RcodeNameError, testCNAME), "nxdomain", "rcode NXDOMAIN"},
		{"REFUSED", "A", reply(dns.RcodeRefused), "rcode", "rcode REFUSED"},
		{"rcode without a name", "A", reply(12), "rcode", "rcode 12"},
		{"FORMERR without the question", "A", func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetRcode(q, dns.RcodeFormatError)
			m.Question = nil
			_ = w.WriteMsg(m)
		}, "rcode", "rcode FORMERR"},
		{"no data", "AAAA", reply(dns.RcodeSuccess), "no_record", "no AAAA record for web.example.org"},
		{"no data, ANY", "ANY", reply(dns.RcodeSuccess), "no_record", "no ANY record for web.example.org"},
		{"another type", "AAAA", reply(dns.RcodeSuccess, testA), "no_record", "no AAAA record for web.example.org"},
		{"another class", "A", reply(dns.RcodeSuccess, testCHAOS), "no_record", "no A record for web.example.org"},
		{"CNAME alone", "SRV", reply(dns.RcodeSuccess, testCNAME), "no_record", "no SRV record for web.example.org"},
		{"nothing", "A", func(dns.ResponseWriter, *dns.Msg) {}, "timeout", "timeout after 1s"},
		{"garbage", "A", garbage, "malformed", "malformed reply: dns: "},
		{"shorter than a header", "A", func(w dns.ResponseWriter, _ *dns.Msg) { _, _ = w.Write([]byte{1, 2}) },
			"malformed", "malformed reply: dns: short read"},
		{"wrong ID", "A", forged(reply(dns.RcodeSuccess, testA)), "malformed", "malformed reply: wrong ID"},
		{"the question come back", "A", func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(q) },
			"malformed", "malformed reply: not a reply"},
		{"another question", "A", func(w dns.ResponseWriter, q *dns.Msg) {
			q.Question[0].Name = "www.example.org."
			reply(dns.RcodeSuccess, testA)(w, q)
		}, "malformed", "malformed reply: another question"},
		{"no question", "A", func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Question = nil
			_ = w.WriteMsg(m)
		}, "malformed", "malformed reply: 0 questions"},
		{"nobody there", "A", nil, "connection_refused", "connection refused"},
	}
}

type serverTest struct {
	name    string
	qtype   string
	handler dns.HandlerFunc // nil: nobody listens
	reason  string          // "": the probe succeeds
	text    string          // a prefix, the whole for all but malformed
}

func garbage(w dns.ResponseWriter, q *dns.Msg) {
	packed, err := new(dns.Msg).SetRcode(q, dns.RcodeSuccess).Pack()
	if err != nil {
		panic(err) // the test's own message
	}
	packed[7] = 9 // answers that are not there
	_, _ = w.Write(append(packed, 0xc0))
}

// forged answers as handler does, but to another question's ID.
func forged(handler dns.HandlerFunc) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		other := q.Copy()
		other.Id++
		handler(w, other)
	}
}

// truncated answers with the records and TC over UDP, and as tcp does over TCP.
func truncated(tcp dns.HandlerFunc, records ...string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		if overTCP(w) {
			tcp(w, q)
			return
		}
		m := replyMessage(q, dns.RcodeSuccess, records)
		m.Truncated = true
		_ = w.WriteMsg(m)
	}
}

// One sidecar probes all of them; each path and each counter tells what its
// own server did.
func TestServers(t *testing.T) {
	t.Parallel()
	tests := serverTests()
	var probes []Probe
	for i, test := range tests {
		addr := freeport.Addr(t)
		if test.handler != nil {
			serveDNS(t, addr, test.handler)
		}
		p, err := ParseProbe("p" + string(rune('A'+i/26)) + string(rune('a'+i%26)) + "," + addr + ",web.example.org,1," + test.qtype)
		if err != nil {
			t.Fatal(err)
		}
		probes = append(probes, p)
	}
	s := start(t, Config{Probes: probes})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			label := probes[i].Label
			var h health
			waitFor(t, "first probe", func() bool {
				h = s.health(t, label)
				return h.Err != "waiting for first probe"
			})
			if h.IsOk != (test.reason == "") || h.IsOk != (h.LatencySeconds > 0) {
				t.Errorf("health %+v, want the reason %q", h, test.reason)
			}
			if h.Err != test.text && (test.reason != reasonMalformed || !strings.HasPrefix(h.Err, test.text)) {
				t.Errorf("error %q, want %q", h.Err, test.text)
			}
			m := s.metrics(t)
			for _, reason := range reasons() {
				n := m[`kubedns_probe_failures_total{probe="`+label+`",reason="`+reason+`"}`]
				if (n > 0) != (reason == test.reason) {
					t.Errorf("%v failures for the reason %s, want them for %q alone", n, reason, test.reason)
				}
			}
			checkMetrics(t, m, map[string]float64{`kubedns_probe_success{probe="` + label + `"}`: oneIf(test.reason == "")})
		})
	}
}

func TestServerIPv6(t *testing.T) {
	t.Parallel()
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6: %v", err)
	}
	addr := c.LocalAddr().String()
	_ = c.Close()
	serveDNS(t, addr, reply(dns.RcodeSuccess, testAAAA))
	p, err := ParseProbe("dns," + addr + ",web.example.org,5,AAAA")
	if err != nil {
		t.Fatal(err)
	}
	r, err := exchange(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if f := replyFailure(r, p); f != nil {
		t.Errorf("probe of %s: %v", addr, f)
	}
}

// A server that is too busy to read every datagram is not dead.
func TestQuestionLost(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	var asked atomic.Int32
	serveDNS(t, addr, func(w dns.ResponseWriter, q *dns.Msg) {
		if asked.Add(1) > 1 {
			reply(dns.RcodeSuccess, testA)(w, q)
		}
	})
	p, err := ParseProbe("busy," + addr + ",web.example.org,5,A")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := exchange(ctx, p)
	if err != nil {
		t.Fatalf("%v; asked %d times", err, asked.Load())
	}
	if f := replyFailure(r, p); f != nil {
		t.Error(f)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, want twice", n)
	}
}

// With the stock interval a probe has two seconds.
func TestServerAnswersLate(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	release := make(chan struct{})
	serveDNS(t, addr, func(w dns.ResponseWriter, q *dns.Msg) {
		select {
		case <-time.After(5 * time.Second):
		case <-release:
		}
		reply(dns.RcodeSuccess, testA)(w, q)
	})
	t.Cleanup(func() { close(release) })
	p, err := ParseProbe("late," + addr + ",web.example.org,5,A")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s := start(t, Config{Probes: []Probe{p}})
	waitFor(t, "time-out", func() bool { return s.health(t, "late").Err == "timeout after 2s" })
	if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
		t.Errorf("timed out after %v, want 2s", took)
	}
}

func TestServerNameUnknown(t *testing.T) {
	t.Parallel()
	p := Probe{Label: "dns", Server: "host.invalid:53", Name: "example.org.", Interval: time.Second, Qtype: dns.TypeA}
	_, err := exchange(t.Context(), p)
	f := exchangeFailure(err, time.Second)
	if f == nil || f.reason != reasonNetwork && f.reason != reasonTimeout {
		t.Fatalf("failure %+v of %v, want one of the network", f, err)
	}
	if f.reason == reasonNetwork && !strings.HasPrefix(f.text, "looking up host.invalid: ") {
		t.Errorf("text %q, want looking up …", f.text)
	}
}
