package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/freeport"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	const text, js = "text/plain; charset=utf-8", "application/json"
	const metricsType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
	ok := &outcome{latency: 123 * time.Microsecond}
	failed := &outcome{failure: &failure{reasonTimeout, "timeout after 2s"}}
	root := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "the page")
	})
	tests := []struct {
		name, method, path string
		last               *outcome
		metricsPath        string
		status             int
		contentType, body  string // body: the whole for JSON, else a part
	}{
		{name: "healthz", path: "/healthz", status: 200, contentType: text, body: "ok\n"},
		{name: "before the first probe", path: "/healthcheck/dns", status: 503, contentType: js,
			body: `{"IsOk":false,"LatencySeconds":0,"Err":"waiting for first probe"}`},
		{name: "healthy", path: "/healthcheck/dns", last: ok, status: 200, contentType: js,
			body: `{"IsOk":true,"LatencySeconds":0.000123,"Err":""}`},
		{name: "failed", path: "/healthcheck/dns", last: failed, status: 503, contentType: js,
			body: `{"IsOk":false,"LatencySeconds":0,"Err":"timeout after 2s"}`},
		{name: "query string", path: "/healthcheck/dns?x=1", last: ok, status: 200, contentType: js, body: `{"IsOk":true,"LatencySeconds":0.000123,"Err":""}`},
		{name: "HEAD healthy", method: http.MethodHead, path: "/healthcheck/dns", last: ok, status: 200, contentType: js},
		{name: "HEAD failed", method: http.MethodHead, path: "/healthcheck/dns", last: failed, status: 503, contentType: js},
		{name: "HEAD metrics", method: http.MethodHead, path: "/metrics", status: 200, contentType: metricsType},
		{name: "unknown label", path: "/healthcheck/nope", status: 404, contentType: text},
		{name: "no label", path: "/healthcheck/", status: 404, contentType: text},
		{name: "below a label", path: "/healthcheck/dns/x", status: 404, contentType: text},
		{name: "root", path: "/", status: 200, contentType: "text/html; charset=utf-8", body: "the page"},
		{name: "HEAD root", method: http.MethodHead, path: "/", status: 200, contentType: "text/html; charset=utf-8"},
		{name: "POST root", method: http.MethodPost, path: "/", status: 405, contentType: text},
		{name: "not there", path: "/index.html", status: 404, contentType: text},
		{name: "POST", method: http.MethodPost, path: "/healthcheck/dns", status: 405, contentType: text},
		{name: "metrics", path: "/metrics", status: 200, contentType: metricsType, body: `kubedns_probe_success{probe="dns"} 0`},
		{name: "metrics elsewhere", path: "/a/b", metricsPath: "/a/b", status: 200, contentType: metricsType, body: "kubedns_probe_success"},
		{name: "metrics at a path with a slash", path: "/m/", metricsPath: "/m/", status: 200, contentType: metricsType, body: "kubedns_probe_success"},
		{name: "not below it", path: "/m/x", metricsPath: "/m/", status: 404, contentType: text},
		{name: "metrics at the root", path: "/", metricsPath: "/", status: 200, contentType: metricsType, body: "kubedns_probe_success"},
		{name: "health beside metrics at the root", path: "/healthz", metricsPath: "/", status: 200, contentType: text, body: "ok\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.method == "" {
				test.method = http.MethodGet
			}
			if test.metricsPath == "" {
				test.metricsPath = "/metrics"
			}
			registry := prometheus.NewRegistry()
			probers, err := newProbers(registry, "kubedns", []Probe{{Label: "dns", Interval: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			if test.last != nil {
				now, last := time.Now(), *test.last
				last.finished = now
				probers[0].started.Store(&now)
				probers[0].last.Store(&last)
			}
			server := httptest.NewServer(newMux(probers, registry, test.metricsPath, root))
			defer server.Close()
			req, err := http.NewRequestWithContext(t.Context(), test.method, server.URL+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.status || resp.Header.Get("Content-Type") != test.contentType {
				t.Errorf("%s %s: %d, %q, want %d, %q", test.method, test.path, resp.StatusCode, resp.Header.Get("Content-Type"), test.status, test.contentType)
			}
			if got := string(body); test.contentType == js && got != test.body || !strings.Contains(got, test.body) {
				t.Errorf("%s %s: body %q, want %q", test.method, test.path, got, test.body)
			}
		})
	}
}

// A client that does not go on with its request is cut off.
func TestHTTPTimeout(t *testing.T) {
	t.Parallel()
	server := newServer(http.NotFoundHandler())
	for name, d := range map[string]time.Duration{
		"ReadHeaderTimeout": server.ReadHeaderTimeout, "ReadTimeout": server.ReadTimeout,
		"WriteTimeout": server.WriteTimeout, "IdleTimeout": server.IdleTimeout,
	} {
		if d <= 0 {
			t.Errorf("%s is %v", name, d)
		}
	}
	server.ReadHeaderTimeout /= 100
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHTTP(ctx, server, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving HTTP: %v", err)
		}
	}()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: "); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the server did not close the connection: %v", err)
	}
}

// Requests under way do not keep a sidecar that was told to end.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	serveDNS(t, addr, func(dns.ResponseWriter, *dns.Msg) {}) // so that a probe is under way as well
	s, err := New(Config{
		Dnsmasq: addr, PollInterval: time.Second, MetricsPath: "/metrics",
		Probes: []Probe{{Label: "dns", Server: addr, Name: "example.org.", Interval: 5 * time.Second, Qtype: dns.TypeA}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// One request that is answered, so that the connection is known to the
	// server, and one that never ends.
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancelled := time.Now()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if took := time.Since(cancelled); took > time.Second {
		t.Errorf("Serve ended %v after its context, want 1s at the most", took)
	}
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	l := listen(t)
	_ = l.Close()
	s, err := New(Config{Dnsmasq: "127.0.0.1:1", PollInterval: time.Second, MetricsPath: "/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), l); err == nil || !strings.HasPrefix(err.Error(), "serving HTTP: ") {
		t.Errorf("Serve with a closed listener: %v, want serving HTTP: …", err)
	}
}

func TestRunAddressInUse(t *testing.T) {
	t.Parallel()
	l := listen(t)
	defer l.Close()
	s, err := New(Config{Dnsmasq: "127.0.0.1:1", PollInterval: time.Second, MetricsPath: "/metrics", Listen: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	want := "listening on " + l.Addr().String() + ": bind: address already in use"
	if err := s.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("Run: %v, want %s", err, want)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	probe := Probe{Label: "dns", Interval: time.Second}
	tests := []struct {
		name   string
		change func(*Config)
		err    string // "": none
	}{
		{name: "good", change: func(*Config) {}},
		{name: "no namespace", change: func(c *Config) { c.Namespace = "" }},
		{name: "two probes", change: func(c *Config) { c.Probes = []Probe{probe, {Label: "DNS", Interval: time.Second}} }},
		{name: "namespace with a dash", change: func(c *Config) { c.Namespace = "kube-dns" }, err: `namespace "kube-dns" must be letters`},
		{name: "namespace begins with a digit", change: func(c *Config) { c.Namespace = "1a" }, err: `namespace "1a" must be`},
		{name: "label twice", change: func(c *Config) { c.Probes = []Probe{probe, probe} }, err: `more than one probe with the label "dns"`},
		{name: "interval 0", change: func(c *Config) { c.Probes = []Probe{{Label: "dns"}} }, err: `probe "dns": interval 0s must be positive`},
		{name: "poll interval 0", change: func(c *Config) { c.PollInterval = 0 }, err: "poll interval 0s must be positive"},
		{name: "path empty", change: func(c *Config) { c.MetricsPath = "" }, err: `path "": must begin with a slash`},
		{name: "path without slash", change: func(c *Config) { c.MetricsPath = "metrics" }, err: "must begin with a slash"},
		{name: "path a pattern", change: func(c *Config) { c.MetricsPath = "/{x...}" }, err: "must begin with a slash"},
		{name: "path with an empty part", change: func(c *Config) { c.MetricsPath = "//metrics" }, err: "empty or dotted parts"},
		{name: "path with a dotted part", change: func(c *Config) { c.MetricsPath = "/a/../b" }, err: "empty or dotted parts"},
		{name: "path of healthz", change: func(c *Config) { c.MetricsPath = "/healthz" }, err: "is taken"},
		{name: "path of a probe", change: func(c *Config) { c.MetricsPath = "/healthcheck/dns" }, err: "is taken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := Config{Dnsmasq: "127.0.0.1:53", PollInterval: time.Second, MetricsPath: "/metrics", Namespace: "kubedns", Probes: []Probe{probe}}
			test.change(&cfg)
			_, err := New(cfg)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("New(%+v): error %v, want %q", cfg, err, test.err)
			}
		})
	}
}

// Two sidecars in one process have nothing in common.
func TestTwoSidecars(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	serveDNS(t, addr, reply(dns.RcodeSuccess, testA))
	probe := Probe{Label: "dns", Server: addr, Name: "web.example.org.", Interval: time.Hour, Qtype: dns.TypeA}
	wrong := probe
	wrong.Qtype = dns.TypeAAAA
	right, other := start(t, Config{Probes: []Probe{probe}}), start(t, Config{Probes: []Probe{wrong}, Namespace: "other"})
	waitFor(t, "right probe", func() bool { return right.health(t, "dns").IsOk })
	waitFor(t, "wrong probe", func() bool { return other.health(t, "dns").Err == "no AAAA record for web.example.org" })
	checkMetrics(t, right.metrics(t), map[string]float64{"kubedns_probe_dns_errors": 0, `kubedns_probe_success{probe="dns"}`: 1})
	got := other.metrics(t)
	checkMetrics(t, got, map[string]float64{"other_probe_dns_errors": 1, `other_probe_success{probe="dns"}`: 0})
	for series := range got {
		if strings.HasPrefix(series, "kubedns_") {
			t.Errorf("%s in spite of the namespace", series)
		}
	}
}

// Kubelets are more patient, but a health path costs next to nothing: 1,000
// requests a second for two seconds, while the probes run.
func TestHTTPLoad(t *testing.T) {
	t.Parallel()
	const workers, each, pause = 10, 200, 10 * time.Millisecond
	addr := freeport.Addr(t)
	serveDNS(t, addr, reply(dns.RcodeSuccess, testA))
	var probes []Probe
	for _, label := range []string{"a", "b"} {
		probes = append(probes, Probe{Label: label, Server: addr, Name: "web.example.org.", Interval: 10 * time.Millisecond, Qtype: dns.TypeA})
	}
	s := start(t, Config{Probes: probes, PollInterval: 10 * time.Millisecond})
	for _, p := range probes {
		waitFor(t, "first probe", func() bool { return s.health(t, p.Label).IsOk })
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for range each {
				<-tick.C
				resp, err := s.get(t.Context(), "/healthcheck/"+probes[i%2].Label)
				if err != nil {
					t.Errorf("health: %v", err)
					return
				}
				var h health
				if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
					t.Errorf("health: %v", err)
				}
				_ = resp.Body.Close()
				if h.IsOk != (resp.StatusCode == http.StatusOK) || !h.IsOk && h.Err == "" {
					t.Errorf("status %d with %+v", resp.StatusCode, h)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d requests in %v", workers*each, time.Since(began))
	m := s.metrics(t)
	for _, p := range probes {
		if n := m[`kubedns_probe_duration_seconds_count{probe="`+p.Label+`"}`]; n < 50 {
			t.Errorf("%v probes of %s meanwhile, want at least 50", n, p.Label)
		}
	}
}
