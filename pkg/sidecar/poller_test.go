package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dnsmasq/counters"
)

// fakeDnsmasq answers as its fields say; a counter that is absent fails.
type fakeDnsmasq struct {
	values  map[string]uint64
	servers []counters.ServerStats // nil: the question fails

	// next, if there is one, answers each question from its second time on: a
	// dnsmasq that restarts under a poll.
	next *fakeDnsmasq

	mu    sync.Mutex
	asked map[string]bool
}

// now returns who answers the question name at this time.
func (d *fakeDnsmasq) now(name string) *fakeDnsmasq {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked[name] && d.next != nil {
		return d.next
	}
	if d.asked == nil {
		d.asked = make(map[string]bool)
	}
	d.asked[name] = true
	return d
}

func (d *fakeDnsmasq) Counter(_ context.Context, name string) (uint64, error) {
	value, ok := d.now(name).values[name]
	if !ok {
		return 0, fmt.Errorf("asking for %s: broken", name)
	}
	return value, nil
}

func (d *fakeDnsmasq) Servers(context.Context) ([]counters.ServerStats, error) {
	servers := d.now("servers.bind").servers
	if servers == nil {
		return nil, errors.New("asking for servers.bind: broken")
	}
	return servers, nil
}

func values(hits, misses, evictions, insertions, size uint64) map[string]uint64 {
	return map[string]uint64{
		counters.Hits: hits, counters.Misses: misses, counters.Evictions: evictions,
		counters.Insertions: insertions, counters.CacheSize: size,
	}
}

func without(m map[string]uint64, names ...string) map[string]uint64 {
	for _, name := range names {
		delete(m, name)
	}
	return m
}

func TestPoller(t *testing.T) {
	one := func(queries, failures uint64) []counters.ServerStats {
		return []counters.ServerStats{{Addr: "192.0.2.1:53", Queries: queries, Failures: failures}}
	}
	const queries, failures = `kubedns_dnsmasq_server_queries_total{server="192.0.2.1:53"}`, `kubedns_dnsmasq_server_failures_total{server="192.0.2.1:53"}`
	want := func(hits, misses, evictions, insertions, size, errors, up, restarts float64) map[string]float64 {
		return map[string]float64{
			"kubedns_dnsmasq_hits": hits, "kubedns_dnsmasq_misses": misses, "kubedns_dnsmasq_evictions": evictions,
			"kubedns_dnsmasq_insertions": insertions, "kubedns_dnsmasq_max_size": size, "kubedns_dnsmasq_errors": errors,
			"kubedns_dnsmasq_up": up, "kubedns_dnsmasq_restarts_total": restarts,
		}
	}
	with := func(m map[string]float64, q, f float64) map[string]float64 {
		m[queries], m[failures] = q, f
		return m
	}
	tests := []struct {
		name   string
		polls  []*fakeDnsmasq
		want   map[string]float64
		absent string // a series that must not be there
	}{
		{name: "no poll", want: want(0, 0, 0, 0, 0, 0, 0, 0), absent: queries},
		{
			name:  "what dnsmasq counted before counts",
			polls: []*fakeDnsmasq{{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)}},
			want:  with(want(10, 5, 1, 4, 1000, 0, 1, 0), 5, 1),
		},
		{
			name: "growth",
			polls: []*fakeDnsmasq{
				{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)},
				{values: values(20, 5, 2, 5, 1000), servers: one(7, 1)},
			},
			want: with(want(20, 5, 2, 5, 1000, 0, 1, 0), 7, 1),
		},
		{
			name: "restart with a smaller cache",
			polls: []*fakeDnsmasq{
				{values: values(100, 50, 1, 4, 1000), servers: one(50, 2)},
				{values: values(3, 2, 0, 2, 150), servers: one(2, 0)},
			},
			want: with(want(103, 52, 1, 6, 150, 0, 1, 1), 52, 2),
		},
		{
			name: "restart, some counters already beyond what they were",
			polls: []*fakeDnsmasq{
				{values: values(100, 5, 0, 4, 1000), servers: one(5, 0)},
				{values: values(30, 20, 1, 9, 1000), servers: one(20, 3)},
			},
			want: with(want(130, 25, 1, 13, 1000, 0, 1, 1), 25, 3),
		},
		{
			name: "restart under the poll",
			polls: []*fakeDnsmasq{
				{values: values(100, 50, 0, 40, 1000), servers: one(50, 0)},
				{values: values(104, 3, 0, 44, 1000), servers: one(54, 0), next: &fakeDnsmasq{values: values(6, 3, 0, 2, 1000), servers: one(3, 0)}},
			},
			want: with(want(106, 53, 0, 42, 1000, 0, 1, 1), 53, 0),
		},
		{
			name: "cache emptied by SIGHUP",
			polls: []*fakeDnsmasq{
				{values: values(100, 50, 7, 40, 1000), servers: one(50, 0)},
				{values: values(106, 51, 0, 1, 1000), servers: one(51, 0)},
			},
			want: with(want(106, 51, 7, 41, 1000, 0, 1, 0), 51, 0),
		},
		{
			name: "counters of 32 bits that start over",
			polls: []*fakeDnsmasq{
				{values: values(1<<32-10, 50, 7, 40, 1000), servers: one(1<<32-1, 0)},
				{values: values(10, 51, 7, 41, 1000), servers: one(1, 0)},
				{values: values(11, 52, 7, 42, 1000), servers: one(2, 0)},
			},
			want: with(want(1<<32+11, 52, 7, 42, 1000, 0, 1, 0), 1<<32+2, 0),
		},
		{
			name: "restart where one counter could have started over",
			polls: []*fakeDnsmasq{
				{values: values(1<<32-10, 50, 7, 40, 1000), servers: one(50, 0)},
				{values: values(10, 3, 0, 2, 1000), servers: one(3, 0)},
			},
			want: with(want(1<<32, 53, 7, 42, 1000, 0, 1, 1), 53, 0),
		},
		{
			name:  "nothing answers",
			polls: []*fakeDnsmasq{{}, {}},
			want:  want(0, 0, 0, 0, 0, 2, 0, 0),
		},
		{
			name: "away and back",
			polls: []*fakeDnsmasq{
				{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)}, {},
				{values: values(12, 5, 1, 4, 1000), servers: one(5, 1)},
			},
			want: with(want(12, 5, 1, 4, 1000, 1, 1, 0), 5, 1),
		},
		{
			name:  "two answers missing count as one error and lose nothing else",
			polls: []*fakeDnsmasq{{values: without(values(10, 5, 1, 4, 1000), counters.Hits, counters.CacheSize), servers: one(5, 1)}},
			want:  with(want(0, 5, 1, 4, 0, 1, 1, 0), 5, 1),
		},
		{
			name:  "servers missing",
			polls: []*fakeDnsmasq{{values: values(10, 5, 1, 4, 1000)}},
			want:  want(10, 5, 1, 4, 1000, 1, 1, 0), absent: queries,
		},
		{
			name: "a value missing once is caught up with",
			polls: []*fakeDnsmasq{
				{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)},
				{values: without(values(20, 6, 1, 4, 1000), counters.Hits), servers: one(6, 1)},
				{values: values(30, 7, 1, 4, 1000), servers: one(7, 1)},
			},
			want: with(want(30, 7, 1, 4, 1000, 1, 1, 0), 7, 1),
		},
		{
			name: "a server that is gone",
			polls: []*fakeDnsmasq{
				{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)},
				{values: values(11, 5, 1, 4, 1000), servers: []counters.ServerStats{}},
			},
			want: want(11, 5, 1, 4, 1000, 0, 1, 0), absent: queries,
		},
		{
			name: "a server that is gone after a restart",
			polls: []*fakeDnsmasq{
				{values: values(10, 5, 1, 4, 1000), servers: one(5, 1)},
				{values: values(1, 0, 0, 0, 1000), servers: []counters.ServerStats{}},
			},
			want: want(11, 5, 1, 4, 1000, 0, 1, 1), absent: queries,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			p, err := newPoller(registry, "kubedns", "192.0.2.1:53", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range test.polls {
				p.client = d
				p.poll(t.Context())
			}
			got := gather(t, registry)
			checkMetrics(t, got, test.want)
			if _, ok := got[test.absent]; ok {
				t.Errorf("%s is there", test.absent)
			}
		})
	}
}

// hangingDnsmasq answers when the context ends.
type hangingDnsmasq struct{}

func (hangingDnsmasq) Counter(ctx context.Context, _ string) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (hangingDnsmasq) Servers(ctx context.Context) ([]counters.ServerStats, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPollerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		p, err := newPoller(registry, "kubedns", "192.0.2.1:53", 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		p.client = hangingDnsmasq{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.run(ctx) }()
		time.Sleep(5*time.Second + pollTimeout/2) // the poll at 0 s has ended, that at 5 s has not
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		checkMetrics(t, gather(t, registry), map[string]float64{"kubedns_dnsmasq_errors": 1, "kubedns_dnsmasq_up": 0})
	})
}
