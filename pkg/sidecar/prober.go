package sidecar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// prober runs one probe at its interval and keeps its last outcomes.
type prober struct {
	probe    Probe
	exchange func(context.Context, Probe) (*dns.Msg, error)
	metrics  probeMetrics
	started  atomic.Pointer[time.Time] // nil before run
	last     atomic.Pointer[outcome]   // nil before the first probe has finished
	recent   outcomes
}

// probeMetrics are the metrics of one probe.
type probeMetrics struct {
	latency  prometheus.Observer // of the successes, in milliseconds
	errors   prometheus.Counter
	duration prometheus.Observer // of all, in seconds
	failures map[string]prometheus.Counter
}

// outcome is the result of a probe. It is immutable once stored.
type outcome struct {
	finished time.Time
	latency  time.Duration
	failure  *failure // nil: the probe succeeded
}

// health is the body of a health path, in the form that kube-dns has always had.
type health struct {
	IsOk           bool
	LatencySeconds float64
	Err            string
}

// run probes at once and then at the interval until ctx ends. A probe that
// takes longer delays the next one: there are never two at a time.
func (p *prober) run(ctx context.Context) error {
	now := time.Now()
	p.started.Store(&now)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next := time.Now().Add(jittered(p.probe.Interval))
		p.once(ctx)
		timer.Reset(time.Until(next))
	}
}

// jittered returns d less up to a twentieth, so that probes that started together
// spread out. It is never more than d: a server that dies right after an answer
// is noticed within two intervals, one until the next probe and at most one for
// its timeout.
func jittered(d time.Duration) time.Duration {
	return d - rand.N(d/20+1)
}

// once probes, and records the outcome unless ctx has ended.
func (p *prober) once(ctx context.Context) {
	timeout := p.probe.timeout()
	probeCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	reply, err := p.exchange(probeCtx, p.probe)
	if ctx.Err() != nil {
		return // the sidecar ends: no statement about the server
	}
	o := &outcome{finished: time.Now()}
	o.latency = o.finished.Sub(start)
	if o.failure = exchangeFailure(err, timeout); o.failure == nil {
		o.failure = replyFailure(reply, p.probe)
	}
	p.record(o)
}

func (p *prober) record(o *outcome) {
	p.metrics.duration.Observe(o.latency.Seconds())
	if o.failure == nil {
		p.metrics.latency.Observe(float64(o.latency) / float64(time.Millisecond))
	} else {
		p.metrics.errors.Inc()
		p.metrics.failures[o.failure.reason].Inc()
	}
	p.recent.add(*o)
	p.logChange(p.last.Swap(o), o)
}

// logChange logs when the probe begins to fail, fails for another reason, or
// succeeds again. before is nil for the first probe.
func (p *prober) logChange(before, now *outcome) {
	var was failure // zero where it succeeded
	if before != nil && before.failure != nil {
		was = *before.failure
	}
	switch {
	case now.failure != nil && *now.failure != was:
		glog.Warningf("sidecar: probe %v: %v", p.probe, now.failure)
	case now.failure == nil && before == nil:
		glog.Infof("sidecar: probe %v: right answer in %v", p.probe, now.latency)
	case now.failure == nil && was != failure{}:
		glog.Infof("sidecar: probe %v: right answer in %v, was: %v", p.probe, now.latency, &was)
	case bool(glog.V(4)) && now.failure != nil:
		glog.Infof("sidecar: probe %v still failing: %v (%v)", p.probe, now.failure, now.latency)
	case bool(glog.V(4)):
		glog.Infof("sidecar: probe %v: right answer in %v", p.probe, now.latency)
	}
}

// health returns the probe's current state. A probe that hangs is not healthy,
// whatever the one before it found: after three intervals without one that
// finished, it counts as failed.
func (p *prober) health() health {
	started, last := p.started.Load(), p.last.Load()
	if started == nil {
		return health{Err: "waiting for first probe"}
	}
	since := *started
	if last != nil {
		since = last.finished
	}
	switch silent := time.Since(since); {
	case silent > 3*p.probe.Interval:
		return health{Err: fmt.Sprintf("no probe has finished for %v", silent.Round(time.Millisecond))}
	case last == nil:
		return health{Err: "waiting for first probe"}
	case last.failure != nil:
		return health{Err: last.failure.text}
	}
	return health{IsOk: true, LatencySeconds: last.latency.Seconds()}
}
