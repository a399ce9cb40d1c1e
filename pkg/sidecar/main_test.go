package sidecar

import (
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"kubedns/pkg/await"
	"kubedns/pkg/freeport"
)

func TestMain(m *testing.M) {
	if err := flag.Set("logtostderr", "true"); err != nil { // glog's default is files
		panic(err)
	}
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests wait more than they compute
		panic(err)
	}
	// glog starts flushDaemon and cannot end it.
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if kubeDNS.dir != "" {
			_ = os.RemoveAll(kubeDNS.dir)
		}
		os.Exit(code)
	}), goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// instance is a running sidecar.
type instance struct {
	url    string
	client *http.Client
}

// start runs a sidecar on a free port until the test ends. What cfg leaves
// out gets the flags' default; nothing answers where it asks dnsmasq by then.
func start(t *testing.T, cfg Config) *instance {
	t.Helper()
	if cfg.Dnsmasq == "" {
		cfg.Dnsmasq = freeport.Addr(t)
	}
	if cfg.PollInterval == 0 {
		cfg.PollInterval = 5 * time.Second
	}
	if cfg.MetricsPath == "" {
		cfg.MetricsPath = "/metrics"
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "kubedns"
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatalf("New(%+v): %v", cfg, err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Serve has not ended 10s after its context")
		}
	})
	return &instance{"http://" + l.Addr().String(), &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

// get asks for path, "/metrics".
func (i *instance) get(ctx context.Context, path string) (*http.Response, error) {
	return get(ctx, i.client, i.url+path)
}

func get(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// health returns what the health path of the probe label says.
func (i *instance) health(t *testing.T, label string) health {
	t.Helper()
	resp, err := i.get(t.Context(), "/healthcheck/"+label)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var h health
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		t.Fatalf("health of %s: %v", label, err)
	}
	want := http.StatusServiceUnavailable
	if h.IsOk {
		want = http.StatusOK
	}
	if resp.StatusCode != want {
		t.Errorf("health of %s: status %d with %+v, want %d", label, resp.StatusCode, h, want)
	}
	return h
}

func (i *instance) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := i.get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return parseMetrics(t, resp.Body)
}

// waitForMetrics waits until the series that want names have its values.
func (i *instance) waitForMetrics(t *testing.T, want map[string]float64) {
	t.Helper()
	var got map[string]float64
	defer func() { checkMetrics(t, got, want) }() // says what differs when the wait is in vain
	waitFor(t, "metrics", func() bool {
		got = i.metrics(t)
		for series, w := range want {
			if g, ok := got[series]; !ok || g != w {
				return false
			}
		}
		return true
	})
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await.Until(t, 10*time.Second, what, condition)
}

// listen listens on a free port of 127.0.0.1.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveDNS answers at addr over UDP and TCP until stop is called or the test
// ends.
func serveDNS(t *testing.T, addr string, handler dns.HandlerFunc) (stop func()) {
	t.Helper()
	var servers []*dns.Server
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		s := &dns.Server{Addr: addr, Net: network, Handler: handler, NotifyStartedFunc: func() { close(started) }}
		failed := make(chan error, 1)
		go func() { failed <- s.ListenAndServe() }()
		select {
		case <-started:
		case err := <-failed:
			t.Fatalf("serving DNS at %s: %v", addr, err)
		}
		servers = append(servers, s)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		for _, s := range servers {
			if err := s.Shutdown(); err != nil {
				t.Errorf("stopping DNS at %s: %v", addr, err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// reply answers with records in zone-file form.
func reply(rcode int, records ...string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(replyMessage(q, rcode, records)) }
}

func replyMessage(q *dns.Msg, rcode int, records []string) *dns.Msg {
	m := new(dns.Msg).SetRcode(q, rcode)
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err) // the test's own text
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// overTCP reports whether a question came over TCP.
func overTCP(w dns.ResponseWriter) bool { return strings.HasPrefix(w.LocalAddr().Network(), "tcp") }
