package sidecar

import (
	_ "embed" // for the page
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dnsmasq/counters"
	"kubedns/pkg/page"
	"kubedns/pkg/version"
)

// status is the content of /. Fields are only ever added.
type status struct {
	Program       string        `json:"program"` // "sidecar"
	Version       string        `json:"version"`
	Revision      string        `json:"revision"`
	Started       time.Time     `json:"started"`
	UptimeSeconds float64       `json:"uptimeSeconds"`
	Probes        []probeStatus `json:"probes"`
	Dnsmasq       dnsmasqStatus `json:"dnsmasq"`
}

// probeStatus is the state of a probe.
type probeStatus struct {
	Label           string  `json:"label"`
	Server          string  `json:"server"` // "127.0.0.1:53"
	Name            string  `json:"name"`   // "kubernetes.default.svc.cluster.local."
	Type            string  `json:"type"`   // "SRV"
	Uncached        bool    `json:"uncached"`
	IntervalSeconds float64 `json:"intervalSeconds"`
	// OK is what /healthcheck/<label> reports, Error the reason if false.
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	// Recent are the last probes that finished, the latest first, 20 at most.
	Recent []probeResult `json:"recent"`
}

// probeResult is the outcome of one probe.
type probeResult struct {
	Finished       time.Time `json:"finished"`
	LatencySeconds float64   `json:"latencySeconds"`
	Error          string    `json:"error,omitempty"`
}

// dnsmasqStatus is what polls of dnsmasq have found.
type dnsmasqStatus struct {
	Addr string `json:"addr"` // queried for the counters
	// Up is whether it answered the last poll, at least in part; Error is that
	// of the rest.
	Up       bool      `json:"up"`
	Error    string    `json:"error,omitempty"`
	Polled   time.Time `json:"polled,omitzero"`   // the last poll
	Answered time.Time `json:"answered,omitzero"` // the last that was answered
	Restarts uint64    `json:"restarts"`          // seen since the sidecar began
	// CacheSize and the counters are dnsmasq's own: since its start or, for
	// insertions and evictions, since its cache was last emptied.
	CacheSize  uint64 `json:"cacheSize"`
	Hits       uint64 `json:"hits"`
	Misses     uint64 `json:"misses"`
	Insertions uint64 `json:"insertions"`
	Evictions  uint64 `json:"evictions"`
	// HitRatio is hits / (hits + misses), absent without queries; RecentHitRatio
	// is that of the last RecentSeconds.
	HitRatio       *float64       `json:"hitRatio,omitempty"`
	RecentHitRatio *float64       `json:"recentHitRatio,omitempty"`
	RecentSeconds  float64        `json:"recentSeconds"`
	Servers        []serverStatus `json:"servers"`
}

// serverStatus is what dnsmasq counts for one of its upstream servers.
type serverStatus struct {
	Addr     string `json:"addr"`
	Queries  uint64 `json:"queries"`  // retries included
	Failures uint64 `json:"failures"` // not answered, or with an error
}

//go:embed status.html
var statusTemplate string

// statusPage answers / with the status, as HTML or as JSON.
type statusPage struct {
	started time.Time
	probers []*prober
	poller  *poller
	site    *page.Site
	body    *template.Template
}

// newStatusPage returns the page, which links to the metrics.
func newStatusPage(probers []*prober, poller *poller, metricsPath string) (*statusPage, error) {
	site, err := page.New("kube-dns sidecar",
		page.Link{Path: "./", Text: "Status"},
		page.Link{Path: strings.TrimPrefix(metricsPath, "/"), Text: "Metrics"},
	)
	if err != nil {
		return nil, err
	}
	body, err := site.Parse(statusTemplate)
	if err != nil {
		return nil, err
	}
	return &statusPage{time.Now(), probers, poller, site, body}, nil
}

// ServeHTTP implements http.Handler.
func (p *statusPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch html, err := page.WantsHTML(r); {
	case err != nil:
		p.site.Error(w, r, http.StatusBadRequest, err.Error())
	case html:
		page.Write(w, http.StatusOK, "Status", p.body, p.status())
	default:
		page.WriteJSON(w, http.StatusOK, p.status())
	}
}

func (p *statusPage) status() status {
	s := status{
		Program: "sidecar", Version: version.Version, Revision: version.Revision,
		Started: p.started, UptimeSeconds: time.Since(p.started).Seconds(),
		Probes: []probeStatus{}, Dnsmasq: p.poller.status(),
	}
	for _, prober := range p.probers {
		s.Probes = append(s.Probes, prober.status())
	}
	return s
}

func (p *prober) status() probeStatus {
	h := p.health()
	s := probeStatus{
		Label: p.probe.Label, Server: p.probe.Server, Name: p.probe.Name, Type: dns.TypeToString[p.probe.Qtype],
		Uncached: p.probe.Uncached, IntervalSeconds: p.probe.Interval.Seconds(),
		OK: h.IsOk, Error: h.Err, Recent: []probeResult{},
	}
	for _, o := range p.recent.latestFirst() {
		r := probeResult{Finished: o.finished, LatencySeconds: o.latency.Seconds()}
		if o.failure != nil {
			r.Error = o.failure.text
		}
		s.Recent = append(s.Recent, r)
	}
	return s
}

func (p *poller) status() dnsmasqStatus {
	s := dnsmasqStatus{Addr: p.addr, Servers: []serverStatus{}}
	seen := p.seen.Load()
	if seen == nil {
		return s
	}
	s.Up, s.Error, s.Polled, s.Answered, s.Restarts = seen.up, seen.err, seen.polled, seen.answered, seen.restarts
	s.CacheSize = seen.values[counters.CacheSize]
	s.Hits, s.Misses = seen.values[counters.Hits], seen.values[counters.Misses]
	s.Insertions, s.Evictions = seen.values[counters.Insertions], seen.values[counters.Evictions]
	s.HitRatio = ratio(float64(s.Hits), float64(s.Misses))
	first, last := seen.cache[0], seen.cache[len(seen.cache)-1]
	s.RecentHitRatio = ratio(last.hits-first.hits, last.misses-first.misses)
	s.RecentSeconds = last.at.Sub(first.at).Seconds()
	for _, server := range seen.servers {
		s.Servers = append(s.Servers, serverStatus(server))
	}
	return s
}

// ratio is hits / (hits + misses), nil without queries.
func ratio(hits, misses float64) *float64 {
	if hits+misses <= 0 {
		return nil
	}
	r := hits / (hits + misses)
	return &r
}

// Latency is how long the probe took.
func (r probeResult) Latency() time.Duration {
	return time.Duration(r.LatencySeconds * float64(time.Second))
}

// Interval is the time from one probe to the next.
func (s probeStatus) Interval() time.Duration {
	return time.Duration(s.IntervalSeconds * float64(time.Second))
}

// Recently summarizes the recent probes: how many failed, and the latency of the
// others.
func (s probeStatus) Recently() string {
	var latencies []time.Duration
	for _, r := range s.Recent {
		if r.Error == "" {
			latencies = append(latencies, r.Latency())
		}
	}
	failed := len(s.Recent) - len(latencies)
	if len(latencies) == 0 {
		return fmt.Sprintf("%d of %d failed", failed, len(s.Recent))
	}
	slices.Sort(latencies)
	round := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
	return fmt.Sprintf("%d of %d failed; latency: median %v, maximum %v", failed, len(s.Recent),
		round(latencies[len(latencies)/2]), round(latencies[len(latencies)-1]))
}

// Percent formats a ratio.
func (dnsmasqStatus) Percent(r *float64) string {
	if r == nil {
		return "no queries"
	}
	return fmt.Sprintf("%.1f %%", 100**r)
}

// Recent is the span of RecentHitRatio.
func (s dnsmasqStatus) Recent() time.Duration {
	return time.Duration(s.RecentSeconds * float64(time.Second)).Round(time.Second)
}
