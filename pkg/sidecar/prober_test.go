package sidecar

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// newTestProber returns a prober that asks for an A record every 5 s by ask.
func newTestProber(t *testing.T, ask func(context.Context) (*dns.Msg, error)) (*prober, *prometheus.Registry) {
	t.Helper()
	probe := Probe{Label: "dns", Server: "192.0.2.1:53", Name: "example.org.", Interval: 5 * time.Second, Qtype: dns.TypeA}
	registry := prometheus.NewRegistry()
	probers, err := newProbers(registry, "kubedns", []Probe{probe})
	if err != nil {
		t.Fatal(err)
	}
	p := probers[0]
	p.exchange = func(ctx context.Context, _ Probe) (*dns.Msg, error) { return ask(ctx) }
	return p, registry
}

// runFor runs p, calls during while it does, and waits for its end.
func runFor(t *testing.T, p *prober, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.run(ctx) }()
	synctest.Wait()
	during()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
}

func rightReply() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion("example.org.", dns.TypeA)
	m.Response = true
	m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "example.org.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, 2, 7}}}
	return m
}

func checkHealth(t *testing.T, p *prober, want health) {
	t.Helper()
	if got := p.health(); got != want {
		t.Errorf("health %+v, want %+v", got, want)
	}
}

func TestProberBeforeRun(t *testing.T) {
	p, _ := newTestProber(t, nil)
	checkHealth(t, p, health{Err: "waiting for first probe"})
}

func TestProberClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var asked []time.Duration
		p, _ := newTestProber(t, func(context.Context) (*dns.Msg, error) {
			asked = append(asked, time.Since(start))
			time.Sleep(100 * time.Millisecond)
			return rightReply(), nil
		})
		runFor(t, p, func() {
			checkHealth(t, p, health{Err: "waiting for first probe"})
			time.Sleep(time.Hour)
			checkHealth(t, p, health{IsOk: true, LatencySeconds: 0.1})
		})
		if asked[0] != 0 {
			t.Errorf("the first probe came after %v, want at once", asked[0])
		}
		different := make(map[time.Duration]bool)
		for i := range asked[1:] {
			gap := asked[i+1] - asked[i]
			if gap < 4750*time.Millisecond || gap > 5*time.Second {
				t.Errorf("probe %d came %v after the one before it, want 5s and up to a twentieth less", i+1, gap)
			}
			different[gap] = true
		}
		if len(asked) < 720 || len(different) < 2 {
			t.Errorf("%d probes in an hour with %d different intervals, want at least 720, and jitter", len(asked), len(different))
		}
	})
}

func TestProberDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, registry := newTestProber(t, func(ctx context.Context) (*dns.Msg, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		runFor(t, p, func() {
			time.Sleep(2*time.Second + time.Millisecond)
			synctest.Wait()
			checkHealth(t, p, health{Err: "timeout after 2s"})
		})
		// The probe that the end of run interrupted, if any, does not count.
		checkMetrics(t, gather(t, registry), map[string]float64{
			`kubedns_probe_failures_total{probe="dns",reason="timeout"}`: 1,
			`kubedns_probe_duration_seconds_sum{probe="dns"}`:            2,
		})
	})
}

// The end of the sidecar is not the server's failure.
func TestProberEndsWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, registry := newTestProber(t, func(ctx context.Context) (*dns.Msg, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		runFor(t, p, func() { time.Sleep(time.Second) })
		checkMetrics(t, gather(t, registry), map[string]float64{
			`kubedns_probe_dns_errors`:                          0,
			`kubedns_probe_duration_seconds_count{probe="dns"}`: 0,
		})
	})
}

// An exchange that ignores its context hangs; the health path must not go on
// saying what the probe before it found.
func TestProberHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls, running atomic.Int32
		p, registry := newTestProber(t, func(context.Context) (*dns.Msg, error) {
			if running.Add(1) > 1 {
				t.Error("two probes at once")
			}
			defer running.Add(-1)
			if calls.Add(1) == 2 {
				<-release
			}
			return rightReply(), nil
		})
		runFor(t, p, func() {
			time.Sleep(15 * time.Second)
			checkHealth(t, p, health{IsOk: true})
			time.Sleep(time.Millisecond)
			checkHealth(t, p, health{Err: "no probe has finished for 15.001s"})
			time.Sleep(time.Minute)
			checkHealth(t, p, health{Err: "no probe has finished for 1m15.001s"})
			checkMetrics(t, gather(t, registry), map[string]float64{`kubedns_probe_success{probe="dns"}`: 0})
			close(release)
			synctest.Wait()
			if h := p.health(); !h.IsOk {
				t.Errorf("health %+v after the probe came back, want ok", h)
			}
		})
	})
}

func TestProberHangsAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p, _ := newTestProber(t, func(context.Context) (*dns.Msg, error) {
			<-release
			return rightReply(), nil
		})
		runFor(t, p, func() {
			checkHealth(t, p, health{Err: "waiting for first probe"})
			time.Sleep(16 * time.Second)
			checkHealth(t, p, health{Err: "no probe has finished for 16s"})
			close(release)
		})
	})
}

func TestProberMetrics(t *testing.T) {
	p, registry := newTestProber(t, nil)
	results := []struct {
		reply *dns.Msg
		err   error
	}{
		{reply: rightReply()}, {err: errors.New("broken")}, {reply: new(dns.Msg)}, {reply: rightReply()},
	}
	for _, r := range results {
		p.exchange = func(context.Context, Probe) (*dns.Msg, error) { return r.reply, r.err }
		p.once(t.Context())
	}
	want := map[string]float64{
		`kubedns_probe_dns_errors`:                                      2,
		`kubedns_probe_dns_latency_ms_count`:                            2,
		`kubedns_probe_dns_latency_ms_bucket{le="0.25"}`:                2,
		`kubedns_probe_dns_latency_ms_bucket{le="8192"}`:                2,
		`kubedns_probe_duration_seconds_count{probe="dns"}`:             4,
		`kubedns_probe_duration_seconds_bucket{probe="dns",le="2.048"}`: 4,
	}
	for _, reason := range reasons() {
		want[`kubedns_probe_failures_total{probe="dns",reason="`+reason+`"}`] = oneIf(reason == reasonNetwork || reason == reasonNoRecord)
	}
	checkMetrics(t, gather(t, registry), want)
}
