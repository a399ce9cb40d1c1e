package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/await"
	"kubedns/pkg/freeport"
)

// Tests with the real dnsmasq, kube-dns and Prometheus.

// needProgram returns the path of a program. Without it the test is skipped,
// and fails where CI is true.
func needProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not installed", name)
	default:
		t.Skipf("%s is not installed", name)
	}
	return path
}

// process is a program that the test started.
type process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	output *strings.Builder // read it when ended is closed
}

// startProcess starts a program, which is killed when the test ends.
func startProcess(t *testing.T, env []string, path string, args ...string) *process {
	t.Helper()
	p := &process{
		cmd:   exec.CommandContext(context.WithoutCancel(t.Context()), path, args...),
		ended: make(chan struct{}), output: new(strings.Builder),
	}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended does not matter, nearly all are killed
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill(t)
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(path), p.output)
		}
	})
	return p
}

// kill ends p without a chance to say goodbye, and waits for it.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("killing %s: %v", p.cmd.Path, err)
	}
	<-p.ended
}

// startDnsmasq starts a dnsmasq at addr that forwards cluster.local to
// backend, and waits until it answers.
func startDnsmasq(t *testing.T, addr, backend string, args ...string) *process {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, nil, needProgram(t, "dnsmasq"), append([]string{
		"-k", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-negcache", "--log-facility=-", "--pid-file=", "--user=",
		"--bind-interfaces", "--listen-address=" + host, "--port=" + port,
		"--server=/cluster.local/" + strings.Replace(backend, ":", "#", 1),
	}, args...)...)
	waitFor(t, "dnsmasq answers", func() bool {
		q := new(dns.Msg)
		q.SetQuestion("version.bind.", dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		_, err := dns.Exchange(q, addr)
		return err == nil
	})
	return p
}

// A backend is what dnsmasq forwards to: what prepare returns answers at addr
// for the cluster in testdata/manifests until stop is called, which is abrupt.
type backend struct {
	name    string
	prepare func(t *testing.T) (start func(addr string) (stop func()))
}

func backends() []backend {
	return []backend{
		{"stand-in", func(t *testing.T) func(string) func() {
			t.Helper()
			return func(addr string) func() { return serveDNS(t, addr, standIn) }
		}},
		{"kube-dns", func(t *testing.T) func(string) func() {
			t.Helper()
			path := buildKubeDNS(t)
			return func(addr string) func() { return startKubeDNS(t, path, addr, freeport.Addr(t)) }
		}},
	}
}

// standIn answers what these tests ask of kube-dns: kubernetes.default and the
// addresses of pods.
func standIn(w dns.ResponseWriter, q *dns.Msg) {
	name, qtype := q.Question[0].Name, q.Question[0].Qtype
	switch {
	case strings.HasSuffix(name, ".pod.cluster.local.") && qtype == dns.TypeA:
		address := strings.ReplaceAll(strings.SplitN(name, ".", 2)[0], "-", ".")
		reply(dns.RcodeSuccess, name+" 30 IN A "+address)(w, q)
	case name != "kubernetes.default.svc.cluster.local.":
		reply(dns.RcodeNameError)(w, q)
	case qtype == dns.TypeA:
		reply(dns.RcodeSuccess, name+" 30 IN A 10.96.0.1")(w, q)
	case qtype == dns.TypeSRV:
		reply(dns.RcodeSuccess, name+" 30 IN SRV 10 100 443 "+name)(w, q)
	case qtype == dns.TypeANY:
		reply(dns.RcodeSuccess, name+` 30 IN HINFO "RFC8482" ""`)(w, q)
	default:
		reply(dns.RcodeSuccess)(w, q)
	}
}

// buildKubeDNS returns the path of kube-dns, built from this module.
func buildKubeDNS(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("../../cmd/kube-dns"); errors.Is(err, os.ErrNotExist) {
		t.Skip("this tree has no cmd/kube-dns")
	}
	kubeDNS.once.Do(func() {
		if kubeDNS.dir, kubeDNS.err = os.MkdirTemp("", "sidecar-test-"); kubeDNS.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		out, err := exec.Command("go", "build", "-o", filepath.Join(kubeDNS.dir, "kube-dns"), "kubedns/cmd/kube-dns").CombinedOutput()
		if err != nil {
			kubeDNS.err = fmt.Errorf("building kube-dns: %w\n%s", err, out)
		}
	})
	if kubeDNS.err != nil {
		t.Fatal(kubeDNS.err)
	}
	return filepath.Join(kubeDNS.dir, "kube-dns")
}

// kubeDNS is built once for all tests; TestMain removes dir.
var kubeDNS struct {
	once sync.Once
	dir  string
	err  error
}

// startKubeDNS starts kube-dns at addr with its metrics at metricsAddr, and
// waits until it is ready.
func startKubeDNS(t *testing.T, path, addr, metricsAddr string) (stop func()) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	_, metricsPort, err := net.SplitHostPort(metricsAddr)
	if err != nil {
		t.Fatal(err)
	}
	_, healthzPort, err := net.SplitHostPort(freeport.Addr(t))
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, []string{"PROMETHEUS_PORT=" + metricsPort}, path, "--domain=cluster.local.", "--manifests=testdata/manifests",
		"--dns-bind-address="+host, "--dns-port="+port, "--healthz-port="+healthzPort, "--v=2")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	waitFor(t, "kube-dns is ready", func() bool {
		resp, err := get(t.Context(), client, "http://127.0.0.1:"+healthzPort+"/readiness")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return func() { p.kill(t) }
}

func forEachBackend(t *testing.T, test func(t *testing.T, startBackend func(addr string) (stop func()))) {
	t.Helper()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			test(t, b.prepare(t))
		})
	}
}

// The stock pod and an uncached probe beside its two: what each sees of
// kube-dns' end, and of its return.
func TestKubeDNSKilled(t *testing.T) {
	t.Parallel()
	needProgram(t, "dnsmasq")
	forEachBackend(t, func(t *testing.T, startBackend func(addr string) (stop func())) {
		backendAddr, dnsmasqAddr := freeport.Addr(t), freeport.Addr(t)
		stop := startBackend(backendAddr)
		startDnsmasq(t, dnsmasqAddr, backendAddr)
		const question, interval = ",kubernetes.default.svc.cluster.local,3,", 3 * time.Second
		var probes []Probe
		for _, text := range []string{
			"kubedns," + backendAddr + question + "SRV",
			"any," + backendAddr + ",kubernetes.default.svc.cluster.local,3",
			"dnsmasq," + dnsmasqAddr + question + "SRV",
			"dnsmasq_a," + dnsmasqAddr + question + "A",
			"through," + dnsmasqAddr + question + "SRV,uncached",
			"through_a," + dnsmasqAddr + question + "A,uncached",
			"through_any," + dnsmasqAddr + ",kubernetes.default.svc.cluster.local,3",
		} {
			p, err := ParseProbe(text)
			if err != nil {
				t.Fatal(err)
			}
			probes = append(probes, p)
		}
		s := start(t, Config{Probes: probes, Dnsmasq: dnsmasqAddr, PollInterval: 50 * time.Millisecond})
		for _, p := range probes {
			waitFor(t, p.Label+" is healthy", func() bool { return s.health(t, p.Label).IsOk })
		}
		waitFor(t, "dnsmasq's counters", func() bool { return s.metrics(t)["kubedns_dnsmasq_up"] == 1 })

		stop()
		killed := time.Now()
		bypass := map[string]string{
			"kubedns": "connection refused", "any": "connection refused",
			"through": "timeout after 2s", "through_a": "timeout after 2s", "through_any": "timeout after 2s",
		}
		for label := range bypass {
			await.Until(t, time.Until(killed.Add(2*interval)), label+" turns 503", func() bool {
				for _, cached := range []string{"dnsmasq", "dnsmasq_a"} {
					if h := s.health(t, cached); !h.IsOk {
						t.Fatalf("%s, which dnsmasq has in its cache: %+v", cached, h)
					}
				}
				return !s.health(t, label).IsOk
			})
		}
		for label, want := range bypass {
			if h := s.health(t, label); h.Err != want {
				t.Errorf("health of %s: %+v, want the error %q", label, h, want)
			}
		}

		startBackend(backendAddr)
		began := time.Now()
		for label := range bypass {
			await.Until(t, time.Until(began.Add(2*interval)), label+" is healthy again", func() bool { return s.health(t, label).IsOk })
		}
	})
}

// askPods asks dnsmasq for the addresses of pods first to last, which nobody
// has asked for before.
func askPods(t *testing.T, addr string, first, last int) {
	t.Helper()
	for i := first; i <= last; i++ {
		q := new(dns.Msg)
		q.SetQuestion(fmt.Sprintf("10-0-%d-%d.default.pod.cluster.local.", i/256, i%256), dns.TypeA)
		r, err := dns.Exchange(q, addr)
		if err != nil || len(r.Answer) != 1 {
			t.Fatalf("asking dnsmasq for pod %d: %v, %v", i, r, err)
		}
	}
}

const (
	hits       = "kubedns_dnsmasq_hits"
	misses     = "kubedns_dnsmasq_misses"
	evictions  = "kubedns_dnsmasq_evictions"
	insertions = "kubedns_dnsmasq_insertions"
	maxSize    = "kubedns_dnsmasq_max_size"
	errorCount = "kubedns_dnsmasq_errors"
	up         = "kubedns_dnsmasq_up"
	restarts   = "kubedns_dnsmasq_restarts_total"
)

// watchCounters fetches the metrics again and again until stop is called, and
// fails the test when a counter falls.
func watchCounters(ctx context.Context, t *testing.T, s *instance) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		highest := make(map[string]float64)
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			resp, err := s.get(context.WithoutCancel(ctx), "/metrics") // stop lets it end
			if err != nil {
				t.Errorf("watching counters: %v", err)
				return
			}
			for series, value := range parseMetrics(t, resp.Body) {
				switch name, _, _ := strings.Cut(series, "{"); {
				case name == hits, name == misses, name == evictions, name == insertions, name == errorCount, strings.HasSuffix(name, "_total"):
					if value < highest[series] {
						t.Errorf("%s fell from %v to %v", series, highest[series], value)
					}
					highest[series] = value
				}
			}
			_ = resp.Body.Close()
		}
	}()
	return func() { cancel(); <-ended }
}

func TestDnsmasqRestarted(t *testing.T) {
	t.Parallel()
	needProgram(t, "dnsmasq")
	forEachBackend(t, func(t *testing.T, startBackend func(addr string) (stop func())) {
		backendAddr, dnsmasqAddr := freeport.Addr(t), freeport.Addr(t)
		startBackend(backendAddr)
		dnsmasq := startDnsmasq(t, dnsmasqAddr, backendAddr, "--cache-size=400")
		s := start(t, Config{Dnsmasq: dnsmasqAddr, PollInterval: 25 * time.Millisecond})
		stop := watchCounters(t.Context(), t, s)
		defer stop()

		queries := `kubedns_dnsmasq_server_queries_total{server="` + backendAddr + `"}`
		askPods(t, dnsmasqAddr, 1, 300)
		s.waitForMetrics(t, map[string]float64{
			misses: 300, queries: 300, insertions: 300, evictions: 0, maxSize: 400, up: 1, restarts: 0, errorCount: 0,
		})
		before := s.metrics(t)

		dnsmasq.kill(t)
		waitFor(t, "dnsmasq is away", func() bool { m := s.metrics(t); return m[up] == 0 && m[errorCount] >= 3 })
		startDnsmasq(t, dnsmasqAddr, backendAddr, "--cache-size=150")
		askPods(t, dnsmasqAddr, 301, 500)
		s.waitForMetrics(t, map[string]float64{
			misses: 500, queries: 500, insertions: 500, evictions: 50, maxSize: 150, up: 1, restarts: 1,
		})
		if after := s.metrics(t); after[hits] <= before[hits] {
			t.Errorf("hits %v, before the restart %v", after[hits], before[hits])
		}
	})
}

// SIGHUP empties the cache and sets two counters to zero, but is no restart:
// the others would count twice.
func TestDnsmasqCacheEmptied(t *testing.T) {
	t.Parallel()
	needProgram(t, "dnsmasq")
	backendAddr, dnsmasqAddr := freeport.Addr(t), freeport.Addr(t)
	serveDNS(t, backendAddr, standIn)
	dnsmasq := startDnsmasq(t, dnsmasqAddr, backendAddr)
	s := start(t, Config{Dnsmasq: dnsmasqAddr, PollInterval: 25 * time.Millisecond})
	stop := watchCounters(t.Context(), t, s)
	defer stop()
	askPods(t, dnsmasqAddr, 1, 100)
	s.waitForMetrics(t, map[string]float64{misses: 100, insertions: 100})
	if err := dnsmasq.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "dnsmasq has emptied its cache", func() bool {
		q := new(dns.Msg)
		q.SetQuestion("insertions.bind.", dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		r, err := dns.Exchange(q, dnsmasqAddr)
		return err == nil && len(r.Answer) == 1 && r.Answer[0].(*dns.TXT).Txt[0] == "0"
	})
	askPods(t, dnsmasqAddr, 1, 10)
	s.waitForMetrics(t, map[string]float64{misses: 110, insertions: 110, restarts: 0, errorCount: 0})
}
