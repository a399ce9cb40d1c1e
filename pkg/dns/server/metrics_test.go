package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"kubedns/pkg/dns/treecache"
)

// gather has the metrics' values by name and labels, as in
// `name{a="b",c="d"}`; histograms have theirs with _count and _sum.
func (s *testServer) gather(tb testing.TB) map[string]float64 {
	tb.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(s); err != nil {
		tb.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			suffix := ""
			if len(labels) > 0 {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				values[f.GetName()+"_count"+suffix] = float64(h.GetSampleCount())
				values[f.GetName()+"_sum"+suffix] = h.GetSampleSum()
			case m.GetCounter() != nil:
				values[f.GetName()+suffix] = m.GetCounter().GetValue()
			default:
				values[f.GetName()+suffix] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// changes are the values of after that differ from before's.
func changes(before, after map[string]float64) map[string]float64 {
	diff := map[string]float64{}
	for name, v := range after {
		if v != before[name] {
			diff[name] = v - before[name]
		}
	}
	return diff
}

// Each question is counted once, with its system, its reply's size and at most
// one cause.
func TestMetrics(t *testing.T) {
	s, _ := newAsyncServer(t, nil)
	for _, r := range []*treecache.Records{
		headless("ns", "big", nil, manyEndpoints(100)...), headless("ns", "huge", nil, manyEndpoints(5000)...),
	} {
		s.tree.Replace(r.Key, r, timeNow())
	}
	for _, tt := range []struct {
		name, question string
		tcp            bool
		system, cause  string
	}{
		{"answer", webA, false, "auth", ""},
		{"answer over TCP", webA, true, "auth", ""},
		{"NODATA", "v4.default.svc.cluster.local. AAAA", false, "auth", "nodata"},
		{"NXDOMAIN", "gone.default.svc.cluster.local. A", false, "auth", "nxdomain"},
		{"truncated", "big.ns.svc.cluster.local. A", false, "auth", "truncated"},
		{"overflow", "huge.ns.svc.cluster.local. A", true, "auth", "overflow"},
		{"refused", "cluster.local. AXFR", false, "auth", "refused"},
		{"external", "inner.default.svc.cluster.local. A", false, "auth", ""},
		{"external NXDOMAIN", "tonxdomain.default.svc.cluster.local. A", false, "auth", "nxdomain"},
		{"external dead", "todead.default.svc.cluster.local. A", false, "auth", "servfail"},
		{"asterisk", "*.default.svc.cluster.local. A", false, "auth", ""},
		{"asterisk NODATA", "*.default.svc.cluster.local. TXT", false, "auth", "nodata"},
		{"federation unknown", "unknown.default.myfed.svc.cluster.local. A", false, "auth", "servfail"},
		{"PTR", "10.0.96.10.in-addr.arpa. PTR", false, "reverse", ""},
		{"PTR NODATA", "10.0.96.10.in-addr.arpa. A", false, "reverse", "nodata"},
		{"PTR forwarded", "1.1.1.1.in-addr.arpa. PTR", false, "reverse", ""},
		{"PTR forwarded NXDOMAIN", "96.10.in-addr.arpa. PTR", false, "reverse", "nxdomain"},
		{"forwarded", "www.example.org. A", false, "recursive", ""},
		{"forwarded over TCP", "www.example.org. A", true, "recursive", ""},
		{"forwarded NODATA", "empty.example.org. A", false, "recursive", "nodata"},
		{"forwarded NXDOMAIN", "missing.example.org. A", false, "recursive", "nxdomain"},
		{"forwarded REFUSED", "refused.example.org. A", false, "recursive", "refused"},
		{"forwarded dead", "dead.example.org. A", false, "recursive", "servfail"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, change := range []func(*dns.Msg){nil, withOPT(512, 0, false)} {
				before := s.gather(t)
				wire := pack(t, newQuestion(t, tt.question, change))
				reply := s.handle(t, wire, tt.tcp)
				diff := changes(before, s.gather(t))
				want := map[string]float64{}
				label := fmt.Sprintf("{system=%q}", tt.system)
				want["skydns_skydns_dns_request_count_total"+label] = 1
				want["skydns_skydns_dns_request_duration_seconds_count"+label] = 1
				want["skydns_skydns_dns_response_size_bytes_count"+label] = 1
				want["skydns_skydns_dns_response_size_bytes_sum"+label] = float64(len(reply))
				if tt.system == "auth" {
					want[`skydns_skydns_dns_cachemiss_count_total{cache="response"}`] = 1
				}
				if tt.cause != "" {
					want[fmt.Sprintf("skydns_skydns_dns_error_count_total{cause=%q,system=%q}", tt.cause, tt.system)] = 1
				}
				sum := "skydns_skydns_dns_request_duration_seconds_sum" + label
				if diff[sum] <= 0 {
					t.Errorf("took %v s", diff[sum])
				}
				delete(diff, sum)
				if !maps.Equal(diff, want) {
					t.Errorf("got  %v\nwant %v", diff, want)
				}
			}
		})
	}
}

// What is no question is counted where it is answered, and not where not.
func TestMetricsPackets(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { _, o.Forwarder = newUpstream(t, nil) })
	for _, tt := range packets(t) {
		before := s.gather(t)
		reply := s.handle(t, tt.wire, false)
		n := 0.0
		for name, v := range changes(before, s.gather(t)) {
			if strings.HasPrefix(name, "skydns_skydns_dns_request_count_total{") {
				n += v
			}
		}
		if want := map[bool]float64{true: 1}[reply != nil]; n != want {
			t.Errorf("%s: counted %v times, want %v", tt.name, n, want)
		}
	}
}

// The names are what dashboards know, under the namespace and subsystem that
// the environment may change.
func TestMetricNames(t *testing.T) {
	for _, tt := range []struct{ namespace, subsystem, prefix string }{
		{"", "", "skydns_skydns_"}, {"cluster", "dns", "cluster_dns_"},
	} {
		s := newTestServer(t, nil, func(o *Options) { o.Namespace, o.Subsystem = tt.namespace, tt.subsystem })
		families := map[string]bool{}
		causes := map[string]bool{}
		for name := range s.gather(t) {
			base, labels, _ := strings.Cut(name, "{")
			families[strings.TrimSuffix(strings.TrimSuffix(base, "_sum"), "_count")] = true
			if strings.HasSuffix(base, "dns_error_count_total") {
				causes[labels] = true
			}
		}
		want := map[string]bool{
			"kubedns_panics_total": true, "kubedns_forward_overloaded_total": true, "kubedns_tcp_connections": true, "kubedns_rate_limited_total": true,
		}
		for _, name := range []string{"dns_request_count_total", "dns_request_duration_seconds", "dns_response_size_bytes", "dns_error_count_total", "dns_cachemiss_count_total"} {
			want[tt.prefix+name] = true
		}
		if !maps.Equal(families, want) {
			t.Errorf("got  %v\nwant %v", slices.Sorted(maps.Keys(families)), slices.Sorted(maps.Keys(want)))
		}
		for _, system := range []string{"auth", "recursive", "reverse"} {
			for _, c := range []string{"nxdomain", "nodata", "truncated", "refused", "overflow", "servfail"} {
				if label := fmt.Sprintf("cause=%q,system=%q}", c, system); !causes[label] {
					t.Errorf("no %s before the first", label)
				}
			}
		}
	}
}

// Our own metrics follow Prometheus's rules; kube-dns's are what they are.
func TestMetricsLint(t *testing.T) {
	s := newTestServer(t, nil, nil)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "kubedns_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// Two servers stand side by side in one process, each with its own registry.
func TestTwoServers(t *testing.T) {
	a, b := newTestServer(t, fixture(), nil), newTestServer(t, fixture(), nil)
	a.ask(t, newQuestion(t, webA, nil), false)
	const name = `skydns_skydns_dns_request_count_total{system="auth"}`
	if got := [2]float64{a.gather(t)[name], b.gather(t)[name]}; got != [2]float64{1, 0} {
		t.Errorf("counted %v, want 1 and 0", got)
	}
}

// A panic's question is counted once, as what it was.
func TestMetricsPanic(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) { panic("test") })
	})
	s.backend.hasSynced = func() bool { panic("test") }
	for _, tt := range []struct{ question, system string }{
		{webA, "auth"}, {"10.0.96.10.in-addr.arpa. PTR", "reverse"}, {"www.example.org. A", "recursive"},
	} {
		before := s.gather(t)
		s.ask(t, newQuestion(t, tt.question, withOPT(1232, 0, false)), false)
		diff := changes(before, s.gather(t))
		for name, want := range map[string]float64{
			"kubedns_panics_total": 1,
			fmt.Sprintf("skydns_skydns_dns_request_count_total{system=%q}", tt.system):                  1,
			fmt.Sprintf("skydns_skydns_dns_request_duration_seconds_count{system=%q}", tt.system):       1,
			fmt.Sprintf("skydns_skydns_dns_error_count_total{cause=\"servfail\",system=%q}", tt.system): 1,
		} {
			if diff[name] != want {
				t.Errorf("%s: %s grew by %v, want %v", tt.question, name, diff[name], want)
			}
		}
	}
}
