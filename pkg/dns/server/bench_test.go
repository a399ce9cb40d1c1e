package server

import (
	"context"
	"testing"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
)

// benchQuestions are those that nearly all traffic is made of, and which the
// direct way answers.
var benchQuestions = []struct{ name, question string }{
	{"A", webA},
	{"NODATA", "v4.default.svc.cluster.local. AAAA"},
	{"NXDOMAIN", "www.example.org.default.svc.cluster.local. A"},
	{"NXDOMAINLikeFederated", "example.org.default.svc.cluster.local. A"},
	{"Headless20", "twenty.default.svc.cluster.local. A"},
	{"SRV", "_http._tcp.web.default.svc.cluster.local. SRV"},
	{"SRV20", "_http._tcp.twenty.default.svc.cluster.local. SRV"},
	{"PTR", "10.0.96.10.in-addr.arpa. PTR"},
	{"PTR6", qname.ReverseName(addr("fd00::10")) + " PTR"},
	{"Pod", "10-1-2-3.default.pod.cluster.local. A"},
	{"NS", "ns.dns.cluster.local. A"},
	{"SOA", "cluster.local. SOA"},
	{"ANY", "web.default.svc.cluster.local. ANY"},
	{"Refused", "cluster.local. AXFR"},
}

// newBench has a server, and a function that asks it the i-th question.
func newBench(tb testing.TB) func(i int) func() {
	tb.Helper()
	twenty := headless("default", "twenty", []port{{"http/tcp", 80}}, manyEndpoints(20)...)
	s := newTestServer(tb, append(fixture(), twenty), nil)
	return func(i int) func() {
		wire := pack(tb, newQuestion(tb, benchQuestions[i].question, withOPT(4096, 0, false)))
		w := s.newWorker()
		ctx := context.Background()
		buf := make([]byte, 0, dns.MaxMsgSize)
		return func() {
			if out := w.handle(ctx, wire, buf, false, nil); len(out) == 0 {
				tb.Fatal("no reply at once")
			}
		}
	}
}

func BenchmarkHandle(b *testing.B) {
	bench := newBench(b)
	for i, tt := range benchQuestions {
		b.Run(tt.name, func(b *testing.B) {
			ask := bench(i)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}

// The direct way allocates nothing, once it has asked for the first time.
func TestHandleAllocs(t *testing.T) {
	bench := newBench(t)
	for i, tt := range benchQuestions {
		ask := bench(i)
		ask()
		if n := testing.AllocsPerRun(200, ask); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	wire := pack(b, newQuestion(b, webA, withOPT(4096, 0, false)))
	var q query
	b.ReportAllocs()
	for b.Loop() {
		if err := q.parse(wire); err != nil {
			b.Fatal(err)
		}
	}
}
