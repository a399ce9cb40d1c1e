package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Inspect answers as the port does, says which way, and leaves no trace.
func TestInspect(t *testing.T) {
	upstream := fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
		m := new(dns.Msg)
		m.SetReply(req)
		rr, err := dns.NewRR(req.Question[0].Name + " 77 IN A 192.0.2.80")
		m.Answer = []dns.RR{rr}
		return m, err
	})
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = upstream })
	s.backend.records = map[string][]Record{"*.default.svc.cluster.local.": {{Host: "10.96.0.10", Ttl: 30, Key: "/x"}}}
	s.backend.federations = map[string]string{"web.default.myfed": "web.default.svc.cluster.local."}
	state := func() string {
		registry := prometheus.NewRegistry()
		if err := registry.Register(s.Server); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(families, s.LastQuestion(), s.wildcards.waiting.Load(), len(s.wildcards.slots))
	}
	lines := func(wire []byte) string {
		m := new(dns.Msg)
		if err := m.Unpack(wire); err != nil {
			t.Fatal(err)
		}
		m.Id = 0
		all := strings.Split(m.String(), "\n")
		slices.Sort(all) // answers are rotated
		return strings.Join(all, "\n")
	}
	for _, tt := range []struct {
		question string
		way      Way
	}{
		{webA, WayTree}, {"v4.default.svc.cluster.local. AAAA", WayTree}, {"nothing.default.svc.cluster.local. A", WayTree},
		{"head.default.svc.cluster.local. A", WayTree}, {"cluster.local. SOA", WayTree}, {"10-1-2-3.default.pod.cluster.local. A", WayTree},
		{"10.0.96.10.in-addr.arpa. PTR", WayReverse}, {"9.9.9.9.in-addr.arpa. PTR", WayForward}, {"www.example.org. A", WayForward},
		{"ext.default.svc.cluster.local. A", WayExternal}, {"inner.default.svc.cluster.local. A", WayExternal}, {"*.default.svc.cluster.local. A", WayWildcard},
		{"web.default.myfed.svc.cluster.local. A", WayFederation}, {"cluster.local. AXFR", WayNone}, {"version.bind. TXT CH", WayNone},
	} {
		for _, tcp := range []bool{false, true} {
			wire := pack(t, newQuestion(t, tt.question, nil))
			before := state()
			got := s.Inspect(t.Context(), upstream, wire, tcp)
			if after := state(); after != before {
				t.Errorf("%s: was\n%s\nis\n%s", tt.question, before, after)
			}
			if got.Way != tt.way {
				t.Errorf("%s goes the way %s, want %s", tt.question, got.Way, tt.way)
			}
			if want := lines(s.handle(t, wire, tcp)); lines(got.Reply) != want {
				t.Errorf("%s is inspected as\n%s\nand answered\n%s", tt.question, lines(got.Reply), want)
			}
		}
	}
	s.backend.synced.Store(false)
	for question, want := range map[string]Way{
		webA: WayIncomplete, "10.0.96.10.in-addr.arpa. PTR": WayIncomplete, "www.example.org. A": WayForward, "cluster.local. AXFR": WayNone,
	} {
		got := s.Inspect(t.Context(), upstream, pack(t, newQuestion(t, question, nil)), false)
		if got.Way != want {
			t.Errorf("before the first list %s goes the way %s, want %s", question, got.Way, want)
		}
	}
}

// A question that waits upstream is given up with its context, and one that
// is none gets no reply.
func TestInspectEnds(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	forever := fakeForwarder(func(ctx context.Context, _ *dns.Msg, _ bool) (*dns.Msg, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	got := s.Inspect(ctx, forever, pack(t, newQuestion(t, "www.example.org. A", nil)), false)
	m := new(dns.Msg)
	if err := m.Unpack(got.Reply); err != nil || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v, %v, want SERVFAIL", m, err)
	}
	if got := s.Inspect(t.Context(), forever, []byte("short"), false); got.Reply != nil || got.Way != WayNone {
		t.Errorf("no message: %+v", got)
	}
}

// Names with an asterisk that clients wait for do not hold up Inspect, nor the
// other way round.
func TestInspectWildcardSlots(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	s.backend.records = map[string][]Record{"*.default.svc.cluster.local.": {{Host: "10.96.0.10", Ttl: 30, Key: "/x"}}}
	for range cap(s.wildcards.slots) {
		s.wildcards.slots <- struct{}{}
	}
	got := s.Inspect(t.Context(), s.forwarder, pack(t, newQuestion(t, "*.default.svc.cluster.local. A", nil)), false)
	m := new(dns.Msg)
	if err := m.Unpack(got.Reply); err != nil || len(m.Answer) != 1 {
		t.Errorf("%v, %v, want one answer", m, err)
	}
}
