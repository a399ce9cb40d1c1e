package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crowd is a headless Service with n endpoints, in slices of 1,000.
func crowd(n int) string {
	var b strings.Builder
	fmt.Fprintln(&b, `{apiVersion: v1, kind: Service, metadata: {name: crowd, namespace: shop}, spec: {clusterIP: None}}`)
	for first := 0; first < n; first += 1000 {
		fmt.Fprintf(&b, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: crowd-%d, namespace: shop, labels: {kubernetes.io/service-name: crowd}}, addressType: IPv4, ports: [], endpoints: [", first)
		for i := first; i < min(n, first+1000); i++ {
			fmt.Fprintf(&b, "{addresses: [10.%d.%d.%d], hostname: c-%d, conditions: {ready: %v}},", 100+i>>16, i>>8&0xff, i&0xff, i, i%10 != 0)
		}
		fmt.Fprintln(&b, "]}")
	}
	return b.String()
}

// TestListed has no more than 1,000 records and endpoints, and counts those
// that are left out.
func TestListed(t *testing.T) {
	f := newFixture(t, crowd(2500), nil)
	for _, name := range []string{"crowd.shop" + zone, "*.shop" + zone} {
		e := f.explain(t, name, "", "")
		listed, total := 0, e.Omitted
		for _, r := range e.Replies {
			listed += len(r.Rows())
		}
		if e.Service != nil {
			for _, s := range e.Service.Slices {
				listed += len(s.Endpoints)
			}
			if e.Service.Endpoints != 2500 || e.Service.Answered != 2250 || len(e.Service.Addresses) > maxListed {
				t.Errorf("%s: %d endpoints, %d answered, %d addresses", name, e.Service.Endpoints, e.Service.Answered, len(e.Service.Addresses))
			}
		}
		if listed != maxListed || total < 1250 || !strings.Contains(strings.Join(e.Notes, " "), "left out of the lists") {
			t.Errorf("%s: %d are listed, %d left out, notes %q", name, listed, total, e.Notes)
		}
	}
}

// TestUnderWay has as many explanations wait for a nameserver as there may
// be: another is refused, and, with one less, answered at once.
func TestUnderWay(t *testing.T) {
	f := newFixture(t, manifest, newUpstream(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask := func(name string) error {
		r, err := NewRequest(name, "", "")
		if err != nil {
			return err
		}
		_, err = f.explainer.Explain(ctx, r)
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wait := func(n int32) {
		for range n {
			wg.Go(func() {
				if err := ask("silent.example.org"); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
	await := func(n int32) {
		t.Helper()
		eventually(t, 2*time.Second, fmt.Sprintf("%d questions at the nameserver", n), func() bool { return f.upstream.asked.Load() >= n })
	}
	wait(maxUnderWay - 1)
	await(maxUnderWay - 1)
	start := time.Now()
	if err := ask("web.shop" + zone); err != nil || time.Since(start) > time.Second {
		t.Errorf("with one place left: %v after %v", err, time.Since(start))
	}
	wait(1)
	await(maxUnderWay)
	if err := ask("web.shop" + zone); !errors.Is(err, ErrBusy) {
		t.Errorf("with none left: %v, want %v", err, ErrBusy)
	}
	cancel()
}

// TestConcurrent explains while the records change.
func TestConcurrent(t *testing.T) {
	f := newFixture(t, manifest, nil)
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			f.kd.SetFederations(map[string]string{"mars": "fed.example.org"})
			time.Sleep(time.Millisecond)
		}
	})
	for range 4 {
		wg.Go(func() {
			for _, name := range []string{"web.shop" + zone, "wbe.shop" + zone, "db.shop" + zone, "*.shop" + zone, "10.244.0.31", "web.shop.mars" + zone} {
				r, err := NewRequest(name, "", "")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := f.explainer.Explain(t.Context(), r); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	time.AfterFunc(300*time.Millisecond, func() { stop.Store(true) })
	wg.Wait()
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"web", "web", 0}, {"web", "wbe", 1}, {"web", "we", 1}, {"web", "webb", 1}, {"web", "wab", 1}, {"", "ab", 2}, {"ab", "", 2},
		{"kitten", "sitting", 3}, {"abcdef", "uvwxyz", 4}, {strings.Repeat("a", 65), "a", 4}, {"b" + strings.Repeat("a", 65) + "b", "c" + strings.Repeat("d", 65) + "c", 4}, {strings.Repeat("a", 64), strings.Repeat("a", 64), 0},
	} {
		if got := distance(tt.a, tt.b, 3); got != tt.want {
			t.Errorf("distance(%q, %q) is %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// tenThousand are Services, 100 in each of 100 namespaces.
func tenThousand() string {
	var b strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Service, metadata: {name: svc-%05d, namespace: ns-%02d}, spec: {clusterIP: 10.96.%d.%d, ports: [{name: http, port: 80}]}}\n", i, i%100, i>>8, i&0xff)
	}
	return b.String()
}

func BenchmarkExplain(b *testing.B) {
	f := newFixture(b, tenThousand()+"---\n"+crowd(1000), nil)
	for _, tt := range []struct{ name, qname, search string }{
		{"cluster IP", "svc-00107.ns-07" + zone, ""},
		{"no such Service", "svc-00207x.ns-08" + zone, ""},
		{"no such namespace", "svc-00207.ns-1000" + zone, ""},
		{"short name", "svc-00107.ns-07", "ns-08"},
		{"reverse", "10.96.0.107", ""},
		{"headless with 1000 endpoints", "crowd.shop" + zone, ""},
		{"wildcard of 100", "*.ns-07" + zone, ""},
	} {
		b.Run(tt.name, func(b *testing.B) {
			r, err := NewRequest(tt.qname, "", tt.search)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.explainer.Explain(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
