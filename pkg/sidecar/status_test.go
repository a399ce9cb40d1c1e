package sidecar

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dnsmasq/counters"
	"kubedns/pkg/freeport"
	"kubedns/pkg/page"
)

// status returns what the page says as JSON.
func (i *instance) status(t *testing.T) (s status) {
	t.Helper()
	resp, err := i.get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Security-Policy") != page.Policy() {
		t.Fatalf("/: %d, %v, %v", resp.StatusCode, resp.Header, err)
	}
	return s
}

func TestStatus(t *testing.T) { // not parallel, as no probe may time out
	addr := freeport.Addr(t)
	serveDNS(t, addr, reply(dns.RcodeSuccess, testA))
	s := start(t, Config{Probes: []Probe{
		{Label: "good", Server: addr, Name: "web.example.org.", Interval: 50 * time.Millisecond, Qtype: dns.TypeA},
		{Label: "bad", Server: addr, Name: "web.example.org.", Interval: time.Hour, Qtype: dns.TypeAAAA, Uncached: true},
	}})
	waitFor(t, "probes", func() bool {
		p := s.status(t).Probes
		return len(p[0].Recent) == recentOutcomes && len(p[1].Recent) == 1
	})
	got := s.status(t)
	good, bad := got.Probes[0], got.Probes[1]
	if !good.OK || good.Error != "" || good.Type != "A" || good.IntervalSeconds != 0.05 || good.Recent[0].Error != "" || good.Recent[0].LatencySeconds <= 0 {
		t.Errorf("probe %+v", good)
	}
	for i := 1; i < len(good.Recent); i++ {
		if good.Recent[i].Finished.After(good.Recent[i-1].Finished) {
			t.Errorf("result %d is later than the one before: %+v", i, good.Recent)
		}
	}
	if bad.OK || bad.Error != "no AAAA record for web.example.org" || bad.Recent[0].Error != bad.Error || !bad.Uncached {
		t.Errorf("probe %+v", bad)
	}
	waitFor(t, "a poll", func() bool { return !s.status(t).Dnsmasq.Polled.IsZero() })
	if d := s.status(t).Dnsmasq; d.Up || d.Error == "" || !d.Answered.IsZero() || d.HitRatio != nil {
		t.Errorf("dnsmasq %+v, want that it does not answer", d)
	}
	resp, err := s.get(t.Context(), "/?format=html")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Probe good: <span class=\"ok\">right answer</span>", "0 of 20 failed", "1 of 1 failed", "does not answer", `href="metrics"`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the page lacks %s:\n%s", want, body)
		}
	}
}

// TestStatusBefore: the page is there before anything was asked, and markup
// comes through as text.
func TestStatusBefore(t *testing.T) {
	t.Parallel()
	const hostile = `<script>alert(1)</script>`
	registry := prometheus.NewRegistry()
	probers, err := newProbers(registry, "kubedns", []Probe{{Label: "dns", Interval: time.Hour, Name: hostile}})
	if err != nil {
		t.Fatal(err)
	}
	poller, err := newPoller(registry, "kubedns", hostile, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newStatusPage(probers, poller, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+query, nil))
		return w
	}
	if w := get("?format=html"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "not polled yet") || !strings.Contains(w.Body.String(), "waiting for first probe") ||
		strings.Contains(w.Body.String(), "are from then") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := get(""); !strings.Contains(w.Body.String(), `"recent": []`) || !strings.Contains(w.Body.String(), `"servers": []`) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := get("?format=" + "yaml"); w.Code != http.StatusBadRequest {
		t.Errorf("format=yaml: %d", w.Code)
	}
	got := answers{err: errors.New(hostile), hasServers: true, servers: []counters.ServerStats{{Addr: hostile}}}
	poller.seen.Store(see(nil, got, false, 0, 0, time.Now()))
	probers[0].recent.add(outcome{failure: &failure{text: hostile}})
	if w := get("?format=html"); strings.Contains(w.Body.String(), "<script") || strings.Count(w.Body.String(), "&lt;script&gt;") != 5 {
		t.Errorf("want 5 texts escaped and no markup:\n%s", w.Body)
	}
}

// TestSee: what a poll does not tell stays as it was.
func TestSee(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	first := see(nil, answers{values: map[string]uint64{counters.Hits: 6, counters.CacheSize: 150}, hasServers: true,
		servers: []counters.ServerStats{{Addr: "192.0.2.1:53", Queries: 3}}}, false, 6, 0, at)
	second := see(first, answers{values: map[string]uint64{counters.Misses: 2}, err: errors.New("timeout")}, true, 9, 3, at.Add(time.Minute))
	if want := map[string]uint64{counters.Hits: 6, counters.Misses: 2, counters.CacheSize: 150}; !maps.Equal(second.values, want) {
		t.Errorf("values %v, want %v", second.values, want)
	}
	if !second.up || second.err != "timeout" || second.restarts != 1 || len(second.servers) != 1 || second.answered != at.Add(time.Minute) {
		t.Errorf("%+v", second)
	}
	third := see(second, answers{err: errors.New("timeout")}, false, 9, 3, at.Add(2*time.Minute))
	if third.up || third.answered != second.answered || third.restarts != 1 {
		t.Errorf("%+v", third)
	}
	p := &poller{addr: "192.0.2.2:53"}
	p.seen.Store(third)
	s := p.status()
	if s.HitRatio == nil || *s.HitRatio != 0.75 || s.RecentHitRatio == nil || *s.RecentHitRatio != 0.5 || s.RecentSeconds != 120 {
		t.Errorf("%+v, want 6 of 8 in all and 3 of 6 lately", s)
	}
	if len(first.values) != 2 {
		t.Errorf("the one before has changed: %v", first.values)
	}
}

// TestKeepSamples: one each 5 s for 10 minutes, however often is polled.
func TestKeepSamples(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	var all []cacheSample
	for i := range 2000 {
		all = keepSamples(all, cacheSample{at: at.Add(time.Duration(i) * time.Second)})
	}
	last := all[len(all)-1].at
	if n := len(all); n < 115 || n > 122 || last != at.Add(1999*time.Second) || last.Sub(all[0].at) > cacheTime || last.Sub(all[0].at) < cacheTime-cacheInterval {
		t.Errorf("%d samples over %v", n, last.Sub(all[0].at))
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	var o outcomes
	for i := range 3 * recentOutcomes {
		o.add(outcome{latency: time.Duration(i)})
	}
	all := o.latestFirst()
	if n := len(all); n != recentOutcomes || all[0].latency != 3*recentOutcomes-1 || all[n-1].latency != 2*recentOutcomes {
		t.Errorf("%d outcomes: %v", n, all)
	}
}
