package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/treecache"
)

// answerSet is a section's records as sorted text.
func answerSet(rrs []dns.RR) []string {
	var set []string
	for _, rr := range rrs {
		if rr.Header().Rrtype != dns.TypeOPT {
			set = append(set, rr.String())
		}
	}
	slices.Sort(set)
	return set
}

// isSubset reports whether every element of a, sorted, is in b, and none twice.
func isSubset(a, b []string) bool {
	for i, s := range a {
		if _, ok := slices.BinarySearch(b, s); !ok || i > 0 && a[i-1] == s {
			return false
		}
	}
	return true
}

// sizes are what is offered in OPT over UDP; 0 is a question without.
var sizes = []uint16{0, 512, 600, 1232, 4096, 65535}

// checkTruncation asks over UDP with every size and compares with the reply
// over TCP: TC is set if and only if an answer is left out, which only happens
// where the next one would not fit, and then there is no additional section;
// additional records are left out only where the next one would not fit. answer
// and additional are the lengths of one record each. It returns how many
// replies filled their limit exactly.
func checkTruncation(t *testing.T, s *testServer, question string, answer, additional int) (exact int) {
	t.Helper()
	all := s.ask(t, newQuestion(t, question, nil), true)
	wantAnswer, wantExtra := answerSet(all.Answer), answerSet(all.Extra)
	for _, size := range sizes {
		limit := int(min(max(size, dns.MinMsgSize), s.udpSize))
		req := newQuestion(t, question, nil)
		if size > 0 {
			withOPT(size, 0, false)(req)
		}
		wire := pack(t, req)
		reply := s.handle(t, wire, false)
		m := checkReply(t, wire, reply, false, s.udpSize)
		gotAnswer, gotExtra := answerSet(m.Answer), answerSet(m.Extra)
		if !isSubset(gotAnswer, wantAnswer) || !isSubset(gotExtra, wantExtra) {
			t.Fatalf("%s, size %d: records that the reply over TCP does not have, or twice", question, size)
		}
		if left := len(gotAnswer) < len(wantAnswer); left != m.Truncated {
			t.Errorf("%s, size %d: TC %v with %d of %d answers", question, size, m.Truncated, len(gotAnswer), len(wantAnswer))
		}
		room := limit - len(reply)
		if m.Truncated && room >= answer {
			t.Errorf("%s, size %d: TC with %d octets left", question, size, room)
		}
		if m.Truncated && len(gotExtra) > 0 {
			t.Errorf("%s, size %d: TC with an additional section", question, size)
		}
		if !m.Truncated && len(gotExtra) < len(wantExtra) && room >= additional {
			t.Errorf("%s, size %d: %d of %d additional records with %d octets left", question, size, len(gotExtra), len(wantExtra), room)
		}
		if room == 0 {
			exact++
		}
	}
	return exact
}

// A reply is as long as allowed at the most, over every number of records and
// length of name (RFC 2181 section 9).
func TestTruncation(t *testing.T) {
	exact := 0
	for n := 1; n <= 300; n = n + 1 + n/12 {
		for _, length := range []int{1 + n%20, 30 + n%16} {
			name := strings.Repeat("s", length)
			endpoints := make([]endpoint, n)
			for i := range endpoints {
				endpoints[i] = endpoint{fmt.Sprintf("p%04d", i), fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff)}
			}
			s := newTestServer(t, []*treecache.Records{headless("ns", name, []port{{"http/tcp", 80}}, endpoints...)}, nil)
			full := name + ".ns.svc.cluster.local."
			exact += checkTruncation(t, s, full+" A", headLen+4, 0)
			exact += checkTruncation(t, s, "_http._tcp."+full+" SRV", headLen+6+6+len(full)+1, headLen+4)
		}
	}
	// Lengths of names and numbers of records that fill 512 and 1232 octets to
	// the last: without OPT 12+len(name)+1+4+16n, with it 11 more.
	for length := 1; length <= 63; length++ {
		name := strings.Repeat("s", length)
		for _, limit := range []int{512, 512 - optLen, 1232 - optLen} {
			rest := limit - headerLen - len(name+".ns.svc.cluster.local.") - 1 - 4
			if rest%(headLen+4) != 0 {
				continue
			}
			for _, more := range []int{0, 1} {
				endpoints := manyEndpoints(rest/(headLen+4) + more)
				s := newTestServer(t, []*treecache.Records{headless("ns", name, nil, endpoints...)}, nil)
				got := checkTruncation(t, s, name+".ns.svc.cluster.local. A", headLen+4, 0)
				if got == 0 {
					t.Errorf("a name of %d and %d records fill no limit", length, len(endpoints))
				}
				exact += got
			}
		}
	}
	if exact < 20 {
		t.Errorf("only %d replies filled their limit exactly", exact)
	}
}

// PTR records are cut in the same way.
func TestTruncationPTR(t *testing.T) {
	for n := 1; n <= 80; n++ {
		var records []*treecache.Records
		for i := range n {
			records = append(records, clusterIP("ns", fmt.Sprintf("s%04d", i), nil, "10.96.0.1"))
		}
		s := newTestServer(t, records, nil)
		checkTruncation(t, s, "1.0.96.10.in-addr.arpa. PTR", headLen+len("s0000.ns.svc.cluster.local.")+1, 0)
	}
}

// fit leaves what fits, over random messages: never too long, TC only where
// an answer or a record that a negative answer needs is left out.
func TestFit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	record := func(section string, i int) dns.RR {
		owner := fmt.Sprintf("%s%d.example.org.", section, i)
		switch random.IntN(3) {
		case 0:
			return newRR(t, owner+" 77 IN A 192.0.2.1")
		case 1:
			return newRR(t, owner+" 77 IN TXT "+strings.Repeat("x", 1+random.IntN(200)))
		}
		return &dns.RFC3597{Hdr: dns.RR_Header{Name: owner, Rrtype: 65280, Class: dns.ClassINET, Ttl: 77}, Rdata: "deadbeef"}
	}
	for range 1000 {
		m := newQuestion(t, "www.example.org. A", nil)
		m.Response, m.Compress = true, random.IntN(2) == 0
		for i := range random.IntN(12) {
			m.Answer = append(m.Answer, record("an", i))
		}
		negative := false
		for i := range random.IntN(4) {
			if negative = random.IntN(3) == 0; negative {
				m.Ns = append(m.Ns, newRR(t, "example.org. 77 IN SOA ns.example.org. mail.example.org. 1 2 3 4 5"))
				break
			}
			m.Ns = append(m.Ns, newRR(t, fmt.Sprintf("example.org. 77 IN NS ns%d.example.org.", i)))
		}
		for i := range random.IntN(6) {
			m.Extra = append(m.Extra, record("ar", i))
		}
		opt := random.IntN(2) == 0
		if opt {
			m.Extra = append(m.Extra, newOPT(1232, 0, false))
		}
		limit := 512 + random.IntN(1000)
		before := *m
		size := func(answers int, ns, extra bool) int {
			n := before
			n.Answer = n.Answer[:answers]
			if !ns {
				n.Ns = nil
			}
			if !extra {
				n.Extra = optOnly(n.Extra)
			}
			return len(pack(t, &n))
		}
		wire, err := fit(m, limit)
		if err != nil {
			t.Fatal(err)
		}
		got := new(dns.Msg)
		if err := got.Unpack(wire); err != nil || len(wire) > limit {
			t.Fatalf("%d octets of %d, %v", len(wire), limit, err)
		}
		if (got.IsEdns0() != nil) != opt {
			t.Fatalf("OPT %v, want %v", got.IsEdns0(), opt)
		}
		all := len(before.Answer)
		needsNS := slices.ContainsFunc(before.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS }) || all == 0
		wantTC := size(all, needsNS, false) > limit
		if got.Truncated != wantTC {
			t.Fatalf("TC %v, want %v: %d octets of %d\n%v", got.Truncated, wantTC, len(wire), limit, &before)
		}
		switch n := len(got.Answer); {
		case wantTC && (n < all && size(n+1, false, false) <= limit || len(answerSet(got.Extra)) > 0):
			t.Fatalf("TC with %d of %d answers, %d octets of %d", n, all, len(wire), limit)
		case !wantTC && n != all:
			t.Fatalf("%d of %d answers without TC", n, all)
		case size(all, true, true) <= limit && (len(got.Extra) != len(before.Extra) || len(got.Ns) != len(before.Ns)):
			t.Fatalf("something is left out of what fits")
		}
	}
}

// An asynchronous answer is cut at the same octet as the direct one.
func TestTruncationAsync(t *testing.T) {
	n := 0
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
			m := new(dns.Msg).SetReply(req)
			for i := range n {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: req.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77},
					A:   net.IPv4(10, 9, byte(i>>8), byte(i)),
				})
			}
			if n%3 == 0 {
				m.Ns = []dns.RR{newRR(t, "example.org. 77 IN NS ns.example.org.")}
				m.Extra = []dns.RR{newRR(t, "ns.example.org. 77 IN A 192.0.2.1")}
			}
			return m, nil
		})
	})
	for n = 1; n <= 120; n += 1 + n/10 {
		checkTruncation(t, s, "www.example.org. A", headLen+4, 1<<16)
		checkTruncation(t, s, "ext.default.svc.cluster.local. A", headLen+4, 1<<16)
	}
	exact := 0
	for length := 1; length <= headLen+4; length++ {
		for _, n = range []int{30, 31, 74, 75} {
			exact += checkTruncation(t, s, strings.Repeat("w", length)+".example.org. A", headLen+4, 1<<16)
		}
	}
	if exact < 3 {
		t.Errorf("%d replies filled their limit exactly", exact)
	}
}

// Over TCP 1,500 endpoints are complete, and what goes over 65,535 octets is
// cut (RFC 7766 section 8 has no more to offer).
func TestLarge(t *testing.T) {
	s := newTestServer(t, []*treecache.Records{
		headless("ns", "big", []port{{"http/tcp", 80}}, manyEndpoints(1500)...),
		headless("ns", "huge", []port{{"http/tcp", 80}}, manyEndpoints(5000)...),
	}, func(o *Options) { _, o.Forwarder = newUpstream(t, nil) })
	big := s.ask(t, newQuestion(t, "big.ns.svc.cluster.local. A", nil), true)
	if set := answerSet(big.Answer); big.Truncated || len(set) != 1500 || len(slices.Compact(set)) != 1500 {
		t.Errorf("1,500 endpoints over TCP: TC %v, %d answers", big.Truncated, len(big.Answer))
	}
	if udp := s.ask(t, newQuestion(t, "big.ns.svc.cluster.local. A", withOPT(1232, 0, false)), false); !udp.Truncated || len(udp.Answer) == 0 {
		t.Errorf("1,500 endpoints over UDP: TC %v, %d answers", udp.Truncated, len(udp.Answer))
	}
	for _, question := range []string{"huge.ns.svc.cluster.local. A", "_http._tcp.huge.ns.svc.cluster.local. SRV"} {
		for _, change := range []func(*dns.Msg){nil, withOPT(512, 0, false)} {
			wire := pack(t, newQuestion(t, question, change))
			reply := s.handle(t, wire, true)
			m := checkReply(t, wire, reply, true, s.udpSize)
			size := headLen + 4
			if m.Question[0].Qtype == dns.TypeSRV {
				size = headLen + 6 + len("pod-4999.huge.ns.svc.cluster.local.") + 1
			}
			if !m.Truncated || len(reply)+size <= dns.MaxMsgSize || !isSubset(answerSet(m.Answer), answerSet(m.Answer)) {
				t.Errorf("%s over TCP: TC %v, %d octets", question, m.Truncated, len(reply))
			}
		}
	}
}

// An asynchronous answer is cut at the same length: what is forwarded, behind an external
// name in the zone and out of it, and at a name with an asterisk.
func TestLargeAsync(t *testing.T) {
	var wild []Record
	for i := range 5000 {
		wild = append(wild, Record{Host: fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff), Ttl: 30, Key: fmt.Sprintf("/skydns/local/cluster/svc/ns/w%d", i)})
	}
	for _, n := range []int{1500, 5000} {
		s := newTestServer(t, []*treecache.Records{
			headless("ns", "huge", nil, manyEndpoints(n)...), external("ns", "ext", "www.example.org."), external("ns", "inner", "huge.ns.svc.cluster.local."),
		}, func(o *Options) {
			o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
				m := new(dns.Msg).SetReply(req)
				for i := range n {
					m.Answer = append(m.Answer, &dns.A{
						Hdr: dns.RR_Header{Name: req.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77},
						A:   net.IPv4(10, 9, byte(i>>8), byte(i)),
					})
				}
				return m, nil
			})
		})
		s.backend.records = map[string][]Record{"*.ns.svc.cluster.local.": wild[:n]}
		for question, links := range map[string]int{
			"www.example.org. A": 0, "ext.ns.svc.cluster.local. A": 1, "inner.ns.svc.cluster.local. A": 1, "*.ns.svc.cluster.local. A": 0,
		} {
			wire := pack(t, newQuestion(t, question, withOPT(1232, 0, false)))
			reply := s.handle(t, wire, true)
			m := checkReply(t, wire, reply, true, s.udpSize)
			whole := n*(headLen+4) < dns.MaxMsgSize-1000
			if m.Rcode != dns.RcodeSuccess || m.Truncated == whole || whole && len(m.Answer) != n+links || !whole && len(reply) < dns.MaxMsgSize-100 {
				t.Errorf("%s, %d records over TCP: %s, TC %v, %d answers, %d octets", question, n, dns.RcodeToString[m.Rcode], m.Truncated, len(m.Answer), len(reply))
			}
		}
	}
}

// The additional section has each target's addresses once, with the right
// name, wherever the rotation begins, with several ports for each target, and
// where the name is further in the message than a compression pointer reaches.
func TestSRVAdditional(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 150, 220} {
		endpoints := manyEndpoints(n)
		for i := range n / 2 {
			endpoints = append(endpoints, endpoint{endpoints[i].host, fmt.Sprintf("2001:db8::%x", i+1)})
		}
		ports := []port{{"http/tcp", 80}, {"https/tcp", 443}, {"/tcp", 9000}}
		r := headless("ns", "srv", ports, endpoints...)
		s := newTestServer(t, []*treecache.Records{r}, nil)
		var wantExtra []string
		for _, e := range endpoints {
			name := e.host + ".srv.ns.svc.cluster.local."
			qtype := "A"
			if strings.Contains(e.addr, ":") {
				qtype = "AAAA"
			}
			wantExtra = append(wantExtra, fmt.Sprintf("%s\t30\tIN\t%s\t%s", name, qtype, e.addr))
		}
		slices.Sort(wantExtra)
		beyond := false
		for _, question := range []string{"srv.ns.svc.cluster.local. SRV", "_http._tcp.srv.ns.svc.cluster.local. SRV"} {
			perTarget := len(ports)
			if strings.HasPrefix(question, "_") {
				perTarget = 1
			}
			for range min(12, 2*n*perTarget) {
				wire := pack(t, newQuestion(t, question, nil))
				reply := s.handle(t, wire, true)
				m := checkReply(t, wire, reply, true, s.udpSize)
				beyond = beyond || len(reply) > 0x4000
				if m.Truncated || len(m.Answer) != n*perTarget {
					t.Fatalf("%d endpoints, %s: TC %v, %d answers", n, question, m.Truncated, len(m.Answer))
				}
				for _, rr := range m.Answer {
					if w := rr.(*dns.SRV).Weight; w != uint16(max(1, 100/len(m.Answer))) {
						t.Fatalf("weight %d of %d answers", w, len(m.Answer))
					}
				}
				if got := answerSet(m.Extra); !slices.Equal(got, wantExtra) {
					t.Fatalf("%d endpoints, %s\ngot  %v\nwant %v", n, question, got, wantExtra)
				}
			}
		}
		if n == 220 && !beyond {
			t.Error("no reply was longer than a compression pointer reaches")
		}
	}
}

// firstAnswer is a reply's first answer without its owner.
func firstAnswer(tb testing.TB, reply []byte) string {
	tb.Helper()
	_, at, err := dns.UnpackDomainName(reply, headerLen)
	if err != nil {
		tb.Fatal(err)
	}
	rr, _, err := dns.UnpackRR(reply, at+4)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimPrefix(rr.String(), rr.Header().String())
}

// Each record comes first about equally often, whatever else is asked in
// between, and the set stays the same.
func TestRotation(t *testing.T) {
	clumped := []endpoint{{"a", "192.0.2.1"}, {"b", "192.0.2.2"}, {"c", "2001:db8::1"}, {"d", "2001:db8::2"}, {"e", "2001:db8::3"}, {"f", "2001:db8::4"}}
	repeated := []endpoint{{"a", "192.0.2.1"}, {"b", "192.0.2.2"}, {"c", "192.0.2.1"}, {"d", "192.0.2.1"}, {"e", "192.0.2.1"}}
	s := newTestServer(t, []*treecache.Records{
		headless("ns", "two", []port{{"http/tcp", 80}}, manyEndpoints(2)...),
		headless("ns", "three", []port{{"http/tcp", 80}}, manyEndpoints(3)...),
		headless("ns", "twenty", []port{{"http/tcp", 80}, {"https/tcp", 443}}, manyEndpoints(20)...),
		headless("ns", "clumped", nil, clumped...),
		headless("ns", "repeated", nil, repeated...),
		headless("ns", "samehost", nil, endpoint{"db", "192.0.2.1"}, endpoint{"db", "192.0.2.2"}, endpoint{"db", "2001:db8::1"}),
		external("ns", "inner", "three.ns.svc.cluster.local."),
	}, nil)
	var wild []Record
	for i := range 5 {
		wild = append(wild, Record{Host: fmt.Sprintf("192.0.2.%d", i), Ttl: 30, Key: fmt.Sprintf("/skydns/local/cluster/svc/ns/w%d", i)})
	}
	var wildSRV []Record
	s.backend.hosts = map[string][]Record{}
	for i := range 5 {
		host := fmt.Sprintf("w%d.ns.svc.cluster.local.", i)
		wildSRV = append(wildSRV, Record{Host: host, Port: 80, Priority: 10, Weight: 10, Ttl: 30, Key: "/skydns/local/cluster/svc/ns/_tcp/_http"})
		s.backend.hosts[host] = wild[i : i+1]
	}
	s.backend.records = map[string][]Record{"*.ns.svc.cluster.local.": wild}
	s.backend.srvs = map[string][]Record{"_http._tcp.*.ns.svc.cluster.local.": wildSRV}
	for _, tt := range []struct {
		question string
		records  int
		between  []string // asked after each
	}{
		{"two.ns.svc.cluster.local. A", 2, nil},
		{"three.ns.svc.cluster.local. A", 3, nil},
		{"twenty.ns.svc.cluster.local. A", 20, nil},
		{"two.ns.svc.cluster.local. A", 2, []string{"two.ns.svc.cluster.local. AAAA"}},
		{"three.ns.svc.cluster.local. A", 3, []string{"three.ns.svc.cluster.local. AAAA", "two.ns.svc.cluster.local. AAAA"}},
		{"twenty.ns.svc.cluster.local. A", 20, slices.Repeat([]string{"gone.ns.svc.cluster.local. A"}, 19)},
		{"twenty.ns.svc.cluster.local. A", 20, slices.Repeat([]string{"gone.ns.svc.cluster.local. A"}, 7)},
		{"clumped.ns.svc.cluster.local. A", 2, nil},
		{"clumped.ns.svc.cluster.local. AAAA", 4, nil},
		{"repeated.ns.svc.cluster.local. A", 2, nil},
		{"db.samehost.ns.svc.cluster.local. A", 2, []string{"db.samehost.ns.svc.cluster.local. AAAA"}},
		{"_http._tcp.three.ns.svc.cluster.local. SRV", 3, nil},
		{"twenty.ns.svc.cluster.local. SRV", 40, nil},
		{"*.ns.svc.cluster.local. A", 5, nil},
		{"_http._tcp.*.ns.svc.cluster.local. SRV", 5, nil},
	} {
		t.Run(fmt.Sprintf("%s between %d", tt.question, len(tt.between)), func(t *testing.T) {
			asks := 300 * tt.records
			if strings.Contains(tt.question, "*") {
				asks = 200 * tt.records
			}
			req := newQuestion(t, tt.question, withOPT(4096, 0, false))
			var want []string
			firsts := map[string]int{}
			wire := pack(t, req)
			var between [][]byte
			for _, q := range tt.between {
				between = append(between, pack(t, newQuestion(t, q, nil)))
			}
			for i := range asks {
				reply := s.handle(t, wire, true)
				if i%(asks/20) == 0 { // the whole of some
					got := answerSet(checkReply(t, wire, reply, true, s.udpSize).Answer)
					if want == nil {
						want = got
					}
					if len(got) != tt.records || !slices.Equal(got, want) {
						t.Fatalf("got %v\nwant %v", got, want)
					}
				}
				firsts[firstAnswer(t, reply)]++
				for _, q := range between {
					s.handle(t, q, false)
				}
			}
			// 300 each are expected; chance alone strays by more than 90 (5
			// standard deviations) once in a million runs.
			even := asks / tt.records
			for record, n := range firsts {
				if n < even*7/10 || n > even*13/10 {
					t.Errorf("%s was first %d times of %d, want about %d", record, n, asks, even)
				}
			}
			if len(firsts) != tt.records {
				t.Errorf("%d of %d records were ever first: %v", len(firsts), tt.records, firsts)
			}
		})
	}
}
