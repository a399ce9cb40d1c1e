package sidecar

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dnsmasq/counters"
)

// counterClient is what the poller needs of counters.Client.
type counterClient interface {
	Counter(ctx context.Context, name string) (uint64, error)
	Servers(ctx context.Context) ([]counters.ServerStats, error)
}

// poller reads dnsmasq's counters at an interval and adds their growth to counters
// that survive dnsmasq's restarts.
type poller struct {
	addr     string
	interval time.Duration
	client   counterClient
	metrics  pollMetrics
	seen     atomic.Pointer[seen] // nil before the first poll

	// Only run's goroutine uses the rest.
	last        map[string]uint64      // by counter name; absent: counts from zero
	lastServers map[string]serverCount // by server
	failing     bool                   // the last poll failed, at least in part
	hits        float64                // total exported
	misses      float64                // total exported
}

type serverCount struct{ queries, failures uint64 }

// pollMetrics are the metrics about dnsmasq.
type pollMetrics struct {
	counters       map[string]prometheus.Counter // by dnsmasq's name for it
	maxSize        prometheus.Gauge
	errors         prometheus.Counter
	up             prometheus.Gauge
	restarts       prometheus.Counter
	serverQueries  *prometheus.CounterVec
	serverFailures *prometheus.CounterVec
}

// pollTimeout bounds each query of a poll, which sends all at the same time. It is
// short: dnsmasq answers them from memory, and a query in flight delays the
// sidecar's end.
const pollTimeout = 500 * time.Millisecond

// counterNames returns the names of dnsmasq's counters, which only grow while it
// runs.
func counterNames() []string {
	return []string{counters.Hits, counters.Misses, counters.Evictions, counters.Insertions}
}

// run polls at once and then at the interval until ctx ends.
func (p *poller) run(ctx context.Context) error {
	ticker := time.NewTicker(p.interval)
	defer ticker.Stop()
	for {
		p.poll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// poll asks for all values and exports those that came back. A poll that fails in
// part counts as one error.
func (p *poller) poll(ctx context.Context) {
	got := p.ask(ctx)
	restarted := ctx.Err() == nil && p.restarted(got)
	if restarted {
		p.metrics.restarts.Inc()
		clear(p.last)
		for addr := range p.lastServers {
			p.lastServers[addr] = serverCount{} // keeps the key, so that exportServers can drop its series
		}
		// Some answers may be from the old process. The next ones count from
		// zero.
		got = p.ask(ctx)
	}
	if ctx.Err() != nil {
		return // the sidecar ends: no statement about dnsmasq
	}
	p.export(got)
	p.seen.Store(see(p.seen.Load(), got, restarted, p.hits, p.misses, time.Now()))
	p.metrics.up.Set(oneIf(got.answered()))
	if got.err != nil {
		p.metrics.errors.Inc()
	}
	p.logChange(got.err)
}

// answers is what dnsmasq answered in a poll.
type answers struct {
	values     map[string]uint64 // by dnsmasq's name
	servers    []counters.ServerStats
	hasServers bool
	err        error // of the first query without an answer
}

func (a answers) answered() bool { return len(a.values) > 0 || a.hasServers }

// ask sends a query for each value, so that a failed one costs that value alone.
func (p *poller) ask(ctx context.Context) answers {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	names := append(counterNames(), counters.CacheSize)
	values, errs := make([]uint64, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { values[i], errs[i] = p.client.Counter(ctx, name) })
	}
	var a answers
	servers, serversErr := p.client.Servers(ctx)
	wg.Wait()

	a.values = make(map[string]uint64)
	for i, name := range names {
		if errs[i] == nil {
			a.values[name] = values[i]
		}
	}
	a.servers, a.hasServers = servers, serversErr == nil
	for _, err := range append(errs, serversErr) {
		if err != nil {
			a.err = err
			break
		}
	}
	return a
}

// restarted reports whether got is from another process than the answers before
// it. It looks at hits and misses, which a process never resets; SIGHUP empties
// the cache and sets insertions and evictions to zero.
func (p *poller) restarted(got answers) bool {
	for _, name := range []string{counters.Hits, counters.Misses} {
		if value, ok := got.values[name]; ok && value < p.last[name] && !wrapped(p.last[name], value) {
			return true
		}
	}
	return false
}

// export adds to the metrics by how much got is above the answers before it.
func (p *poller) export(got answers) {
	for _, name := range counterNames() {
		if value, ok := got.values[name]; ok {
			grown := growth(p.last[name], value)
			p.metrics.counters[name].Add(grown)
			p.last[name] = value
			switch name {
			case counters.Hits:
				p.hits += grown
			case counters.Misses:
				p.misses += grown
			}
		}
	}
	if size, ok := got.values[counters.CacheSize]; ok {
		p.metrics.maxSize.Set(float64(size))
	}
	if got.hasServers {
		p.exportServers(got.servers)
	}
}

// exportServers drops the series of servers that dnsmasq no longer has; else their
// number would grow with each change of the configuration.
func (p *poller) exportServers(servers []counters.ServerStats) {
	next := make(map[string]serverCount, len(servers))
	for _, s := range servers {
		last := p.lastServers[s.Addr]
		p.metrics.serverQueries.WithLabelValues(s.Addr).Add(growth(last.queries, s.Queries))
		p.metrics.serverFailures.WithLabelValues(s.Addr).Add(growth(last.failures, s.Failures))
		next[s.Addr] = serverCount{s.Queries, s.Failures}
	}
	for addr := range p.lastServers {
		if _, ok := next[addr]; !ok {
			p.metrics.serverQueries.DeleteLabelValues(addr)
			p.metrics.serverFailures.DeleteLabelValues(addr)
		}
	}
	p.lastServers = next
}

const (
	// counterRange is the number of values of dnsmasq's 32-bit counters: at
	// 1,000 queries a second they wrap after 50 days.
	counterRange = 1 << 32
	// wrapMargin is more than a counter can grow between two polls.
	wrapMargin = 1 << 24
)

// wrapped reports whether a counter that fell from last to value has wrapped, in
// contrast to a restart.
func wrapped(last, value uint64) bool {
	return last >= counterRange-wrapMargin && last < counterRange && value < wrapMargin
}

// growth returns by how much a counter grew from last to value. A counter that
// fell started from zero, unless it has wrapped.
func growth(last, value uint64) float64 {
	if value < last {
		if wrapped(last, value) {
			return float64(value + counterRange - last)
		}
		return float64(value)
	}
	return float64(value - last)
}

// logChange logs when polls begin to fail, with err, and when they succeed again.
func (p *poller) logChange(err error) {
	switch {
	case err != nil && !p.failing:
		glog.Warningf("sidecar: polling dnsmasq: %v", err)
	case err == nil && p.failing:
		glog.Infof("sidecar: dnsmasq at %s: all counters available again", p.addr)
	}
	p.failing = err != nil
}

// newPoller returns a poller with its metrics registered.
func newPoller(registry prometheus.Registerer, namespace, addr string, interval time.Duration) (*poller, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: "dnsmasq", Name: name, Help: help})
	}
	serverCounter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: "dnsmasq", Name: name, Help: help},
			[]string{"server"})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "dnsmasq", Name: name, Help: help})
	}
	p := &poller{
		addr:     addr,
		interval: interval,
		client:   &counters.Client{Addr: addr, Timeout: pollTimeout},
		metrics: pollMetrics{
			counters: map[string]prometheus.Counter{
				counters.Hits:       counter("hits", "DNS queries that dnsmasq answered itself, mostly from its cache."),
				counters.Misses:     counter("misses", "DNS queries that dnsmasq forwarded."),
				counters.Evictions:  counter("evictions", "Entries that dnsmasq evicted from its cache before their TTL ended, as it was full."),
				counters.Insertions: counter("insertions", "Entries that dnsmasq put into its cache."),
			},
			maxSize:        gauge("max_size", "Entries that dnsmasq's cache can hold."),
			errors:         counter("errors", "Polls of dnsmasq's counters that failed, at least in part."),
			up:             gauge("up", "1 if dnsmasq answered the last poll of its counters, at least in part, else 0."),
			restarts:       counter("restarts_total", "Restarts of dnsmasq, detected by counters that fell."),
			serverQueries:  serverCounter("server_queries_total", "DNS queries that dnsmasq sent to a server, retries included."),
			serverFailures: serverCounter("server_failures_total", "DNS queries of dnsmasq that a server did not answer, or answered with an error."),
		},
		last:        make(map[string]uint64),
		lastServers: make(map[string]serverCount),
	}
	m := p.metrics
	all := []prometheus.Collector{m.maxSize, m.errors, m.up, m.restarts, m.serverQueries, m.serverFailures}
	for _, c := range m.counters {
		all = append(all, c)
	}
	return p, register(registry, all...)
}
