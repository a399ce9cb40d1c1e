package cluster

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

var tiny = Shape{Namespaces: 3, ClusterIP: 4, Headless: 2, Endpoints: 2, Big: 250}

func TestShape(t *testing.T) {
	for _, s := range []Shape{tiny, Small, Large} {
		c := New(s)
		slices, seen := 0, map[netip.Addr]bool{}
		for i := range c.Services {
			slices += len(c.Services[i].SliceObjects())
			for _, e := range c.Services[i].Endpoints {
				if seen[e.Addr] {
					t.Fatalf("%v twice", e.Addr)
				}
				seen[e.Addr] = true
			}
		}
		if len(c.Services) != s.Services() || slices != s.Slices() {
			t.Errorf("%v: %d services and %d slices, want %d and %d", s, len(c.Services), slices, s.Services(), s.Slices())
		}
	}
	if n := Large.Slices(); n != 1000 {
		t.Errorf("the large cluster has %d slices, want 1000", n)
	}
	if other := New(Small).Shape; Small.Hash() == Large.Hash() || Small.Hash() != other.Hash() {
		t.Error("hashes do not tell shapes apart")
	}
}

// The zone file parses and holds each name's records.
func TestWriteZone(t *testing.T) {
	var b bytes.Buffer
	if err := New(tiny).WriteZone(&b); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	p := dns.NewZoneParser(&b, "", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		count[rr.Header().Name+" "+dns.TypeToString[rr.Header().Rrtype]]++
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"cluster.local. SOA":                                 1,
		"app-0001.ns-01.svc.cluster.local. A":                1,
		"_http._tcp.app-0001.ns-01.svc.cluster.local. SRV":   1,
		"db-0000.ns-00.svc.cluster.local. A":                 2,
		"db-0000-1.db-0000.ns-00.svc.cluster.local. A":       1,
		"_metrics._tcp.db-0001.ns-01.svc.cluster.local. SRV": 2,
		"big.ns-00.svc.cluster.local. A":                     250,
	} {
		if count[name] != want {
			t.Errorf("%d records %s, want %d", count[name], name, want)
		}
	}
}

// The label of 10.96.0.1 that deployed kube-dns gives.
func TestLabel(t *testing.T) {
	e := Endpoint{Addr: netip.MustParseAddr("10.96.0.1")}
	if got := e.Label(); got != "6266366134663036" {
		t.Errorf("Label() = %s", got)
	}
}

func read(t *testing.T, k Kind, seed uint64, n int) []*dns.Msg {
	t.Helper()
	var b bytes.Buffer
	if err := NewQuestions(New(tiny), seed).Write(&b, k, n); err != nil {
		t.Fatal(err)
	}
	var msgs []*dns.Msg
	for data := b.Bytes(); len(data) > 0; {
		n := int(binary.BigEndian.Uint16(data))
		m := new(dns.Msg)
		if err := m.Unpack(data[2 : 2+n]); err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, m)
		data = data[2+n:]
	}
	if len(msgs) != n {
		t.Fatalf("%d questions, want %d", len(msgs), n)
	}
	return msgs
}

func TestQuestions(t *testing.T) {
	for _, k := range []Kind{A, AAAA, NXDOMAIN, Headless, HeadlessBig, SRV, SRVHeadless, Mixed} {
		for i, m := range read(t, k, 1, 20) {
			if again := read(t, k, 1, 20)[i]; m.String() != again.String() {
				t.Errorf("%s: %v, then %v", k, m.Question[0], again.Question[0])
			}
			if !strings.HasSuffix(m.Question[0].Name, "."+Zone) || !m.RecursionDesired {
				t.Errorf("%s: %v", k, m)
			}
		}
	}
	if opt := read(t, HeadlessBig, 1, 1)[0].IsEdns0(); opt == nil || opt.UDPSize() != 1232 {
		t.Errorf("OPT of the large answer: %v", opt)
	}
}

// External names never repeat, not under another seed either.
func TestExternalNames(t *testing.T) {
	seen := map[string]bool{}
	for _, seed := range []uint64{1, 2} {
		for _, m := range read(t, NXDOMAIN, seed, 3000) {
			if name := m.Question[0].Name; seen[name] {
				t.Fatalf("%s twice", name)
			} else {
				seen[name] = true
			}
		}
	}
}

func TestShares(t *testing.T) {
	sum := 0
	for _, s := range Shares() {
		sum += s.Percent
	}
	if sum != 100 {
		t.Errorf("the shares are %d %%", sum)
	}
	q, n := NewQuestions(New(tiny), 1), map[Kind]int{}
	for range 10000 {
		_, k := q.Next(Mixed)
		n[k]++
	}
	for _, s := range Shares() {
		if got := n[s.Kind]; got < s.Percent*90 || got > s.Percent*110 {
			t.Errorf("%d of 10000 questions are %s, want %d %%", got, s.Kind, s.Percent)
		}
	}
}

func TestCheck(t *testing.T) {
	c := New(tiny)
	reply := func(rcode int, records ...string) *dns.Msg {
		m := new(dns.Msg)
		m.Rcode = rcode
		for _, r := range records {
			rr, err := dns.NewRR(r)
			if err != nil {
				t.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
	truncated := reply(0)
	truncated.Truncated = true
	q := func(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }
	const app = "app-0000.ns-00.svc.cluster.local."
	tests := []struct {
		name  string
		kind  Kind
		q     *dns.Msg
		reply *dns.Msg
		tcp   bool
		ok    bool
	}{
		{"right address", A, q(app), reply(0, app+" A 10.100.0.1"), false, true},
		{"wrong address", A, q(app), reply(0, app+" A 10.100.0.2"), false, false},
		{"refused", A, q(app), reply(dns.RcodeRefused), false, false},
		{"no data", AAAA, q(app), reply(0), false, true},
		{"no name", NXDOMAIN, q(app), reply(dns.RcodeNameError), false, true},
		{"no data where no name", NXDOMAIN, q(app), reply(0), false, false},
		{"one of two", Headless, q(app), reply(0, app+" A 10.0.0.1"), false, false},
		{"both", Headless, q(app), reply(0, app+" A 10.0.0.1", app+" A 10.0.0.2"), false, true},
		{"truncated", HeadlessBig, q(app), truncated, false, true},
		{"truncated over TCP", HeadlessBig, q(app), truncated, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := c.Check(tt.kind, tt.q, tt.reply, tt.tcp); (err == nil) != tt.ok {
				t.Errorf("Check: %v, want ok %t", err, tt.ok)
			}
		})
	}
}
