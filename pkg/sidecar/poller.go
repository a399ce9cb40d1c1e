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

// poller asks dnsmasq for its counters at an interval and adds what they grew
// by to counters that survive dnsmasq's restarts.
type poller struct {
	addr     string
	interval time.Duration
	client   counterClient
	metrics  pollMetrics
	seen     atomic.Pointer[seen] // nil before the first poll

	// The goroutine of run alone has the rest.
	last        map[string]uint64      // by counter name; absent: counts from zero
	lastServers map[string]serverCount // by server
	failing     bool                   // the last poll failed, at least in part
	hits        float64                // all that were exported
	misses      float64
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

// pollTimeout bounds each question to dnsmasq, of which a poll asks all at the
// same time. It is short, as a question under way is not cut off when the
// sidecar is told to end, and dnsmasq answers these from its memory.
const pollTimeout = 500 * time.Millisecond

// counterNames returns dnsmasq's names of the counters that only grow while
// it runs.
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

// poll asks for everything and exports what came back. A poll of which a part
// failed exports the other parts and counts as one error.
func (p *poller) poll(ctx context.Context) {
	got := p.ask(ctx)
	restarted := ctx.Err() == nil && p.restarted(got)
	if restarted {
		p.metrics.restarts.Inc()
		clear(p.last)
		for addr := range p.lastServers {
			p.lastServers[addr] = serverCount{} // stays known, to be dropped when dnsmasq no longer has it
		}
		// What was asked at the same time may still have come from the old
		// process. What comes now counts from zero.
		got = p.ask(ctx)
	}
	if ctx.Err() != nil {
		return // the sidecar ends, which says nothing about dnsmasq
	}
	p.export(got)
	p.seen.Store(see(p.seen.Load(), got, restarted, p.hits, p.misses, time.Now()))
	p.metrics.up.Set(oneIf(got.answered()))
	if got.err != nil {
		p.metrics.errors.Inc()
	}
	p.logChange(got.err)
}

// answers is what dnsmasq said in a poll. What it did not say is absent.
type answers struct {
	values     map[string]uint64 // by dnsmasq's name
	servers    []counters.ServerStats
	hasServers bool
	err        error // of the questions without an answer, the first; nil if there are none
}

func (a answers) answered() bool { return len(a.values) > 0 || a.hasServers }

// ask asks each question by itself, so that one failure costs one value.
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

// restarted reports whether got comes from another process than the answers
// before it. Only the counters that a process never sets back tell so:
// emptying the cache, on SIGHUP, sets insertions and evictions to zero.
func (p *poller) restarted(got answers) bool {
	for _, name := range []string{counters.Hits, counters.Misses} {
		if value, ok := got.values[name]; ok && value < p.last[name] && !wrapped(p.last[name], value) {
			return true
		}
	}
	return false
}

// export adds to the metrics what got has more than the answers before it.
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

// exportServers drops the servers that dnsmasq no longer has: their number
// would grow with each change of the configuration.
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
	// counterRange is how many values dnsmasq's counters have, which are of 32
	// bits: at 1,000 questions a second they start over after 50 days.
	counterRange = 1 << 32
	// wrapMargin is more than a counter grows by from one poll to the next.
	wrapMargin = 1 << 24
)

// wrapped tells whether a counter that was last and is value, which is less,
// has started over by itself and not by a restart.
func wrapped(last, value uint64) bool {
	return last >= counterRange-wrapMargin && last < counterRange && value < wrapMargin
}

// growth returns what a counter grew by that was last and is value. A counter
// that fell began anew from zero, unless it has wrapped.
func growth(last, value uint64) float64 {
	if value < last {
		if wrapped(last, value) {
			return float64(value + counterRange - last)
		}
		return float64(value)
	}
	return float64(value - last)
}

// logChange logs that polls begin to fail, with the first one's err, and that
// they end to.
func (p *poller) logChange(err error) {
	switch {
	case err != nil && !p.failing:
		glog.Warningf("sidecar: polling dnsmasq: %v", err)
	case err == nil && p.failing:
		glog.Infof("sidecar: polling dnsmasq: %s gives all its counters again", p.addr)
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
				counters.Hits:       counter("hits", "DNS questions that dnsmasq answered itself, from its cache for the most part."),
				counters.Misses:     counter("misses", "DNS questions that dnsmasq forwarded."),
				counters.Evictions:  counter("evictions", "Entries that dnsmasq dropped from its cache before their time, for want of room."),
				counters.Insertions: counter("insertions", "Entries that dnsmasq put into its cache."),
			},
			maxSize:        gauge("max_size", "Entries that dnsmasq's cache can hold."),
			errors:         counter("errors", "Polls of dnsmasq's counters that failed, at least in part."),
			up:             gauge("up", "1 if dnsmasq answered the last poll of its counters, at least in part, else 0."),
			restarts:       counter("restarts_total", "Restarts of dnsmasq, seen by counters that fell."),
			serverQueries:  serverCounter("server_queries_total", "DNS questions that dnsmasq sent to a server, retries included."),
			serverFailures: serverCounter("server_failures_total", "DNS questions that a server did not answer dnsmasq, or with an error."),
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
