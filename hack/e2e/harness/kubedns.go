package harness

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kubedns/hack/e2e/process"
)

// KubeDNSOptions say how StartKubeDNS starts kube-dns.
type KubeDNSOptions struct {
	// Binary is the program's path.
	Binary string
	// Kubeconfig is given as --kubecfg-file, unless empty.
	Kubeconfig string
	// Host is the address that DNS listens on; 127.0.0.1 where empty.
	Host string
	// Nameservers is given as --nameservers. Where it is empty, that is an
	// address where nobody answers: no test asks the machine's nameservers.
	Nameservers string
	// Args are more flags. They come last, so that they override. "{addr}" in
	// one stands for DNS's host:port.
	Args []string
	// Env are more environment variables.
	Env []string
	// NoWait returns at once, not when /readiness says ok.
	NoWait bool
	// NoCheckExit leaves it to the test how the program ends. A data race
	// fails the test all the same.
	NoCheckExit bool
}

// KubeDNS is a running kube-dns.
type KubeDNS struct {
	*Process
	// Addr is the host:port of DNS.
	Addr string
	// Healthz and Metrics are URLs without path, as in "http://127.0.0.1:8081".
	Healthz, Metrics string

	http *http.Client
}

// DeadNameserver is an address where no nameserver is: port 9, discard.
const DeadNameserver = "127.0.0.1:9"

// StartKubeDNS starts kube-dns and waits until it is ready. At the test's end
// it gets SIGTERM and must exit with 0; its log is shown when the test fails.
func StartKubeDNS(t testing.TB, o KubeDNSOptions) *KubeDNS {
	t.Helper()
	ports, err := FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Nameservers == "" {
		o.Nameservers = DeadNameserver
	}
	k := &KubeDNS{
		Addr:    net.JoinHostPort(o.Host, strconv.Itoa(ports[0])),
		Healthz: "http://127.0.0.1:" + strconv.Itoa(ports[1]),
		Metrics: "http://127.0.0.1:" + strconv.Itoa(ports[2]),
		http:    &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	args := []string{
		"--domain=cluster.local.",
		"--dns-bind-address=" + o.Host, "--dns-port=" + strconv.Itoa(ports[0]),
		"--healthz-port=" + strconv.Itoa(ports[1]),
		"--nameservers=" + o.Nameservers,
		// Tests of the drain ask for a longer one.
		"--drain-period=100ms",
		"--v=2",
	}
	if o.Kubeconfig != "" {
		args = append(args, "--kubecfg-file="+o.Kubeconfig)
	}
	for _, arg := range o.Args {
		args = append(args, strings.ReplaceAll(arg, "{addr}", k.Addr))
	}
	env := append([]string{
		"PROMETHEUS_PORT=" + strconv.Itoa(ports[2]),
		// The race detector would sleep for a second at each exit.
		"GORACE=atexit_sleep_ms=50",
	}, o.Env...)
	k.Process, err = process.Start(process.Options{Env: env}, o.Binary, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.end(t, !o.NoCheckExit)
		if t.Failed() {
			t.Logf("kube-dns %v said:\n%s", o.Args, k.Log.Tail(6000))
		}
	})
	if !o.NoWait {
		k.AwaitReady(t, time.Minute)
	}
	return k
}

// end stops kube-dns at its test's end.
func (k *KubeDNS) end(t testing.TB, check bool) {
	t.Helper()
	if err := k.Stop(syscall.SIGTERM); err != nil {
		t.Errorf("stopping kube-dns: %v", err)
	}
	if strings.Contains(k.Log.String(), "WARNING: DATA RACE") {
		t.Error("kube-dns has a data race, see its log")
	}
	if !check {
		return
	}
	if code, err := k.Wait(0); err != nil || code != 0 {
		t.Errorf("kube-dns exited with %d (%v), want 0", code, err)
	}
}

// Readiness is what /readiness answers now; status is 0 when nothing does.
func (k *KubeDNS) Readiness(t testing.TB) (status int, body string) {
	t.Helper()
	status, body, err := Get(t.Context(), k.http, k.Healthz+"/readiness")
	if err != nil {
		return 0, err.Error()
	}
	return status, body
}

// AwaitReady waits until /readiness says ok.
func (k *KubeDNS) AwaitReady(t testing.TB, timeout time.Duration) {
	t.Helper()
	Eventually(t, timeout, func() error {
		select {
		case <-k.Exited():
			t.Fatalf("kube-dns ended before it was ready; it said:\n%s", k.Log.Tail(4000))
		default:
		}
		status, body := k.Readiness(t)
		if status != http.StatusOK || strings.TrimSpace(body) != "ok" {
			return fmt.Errorf("/readiness answers %d %q, want 200 ok", status, body)
		}
		return nil
	})
}

// Get returns the status and body of path on the healthz port.
func (k *KubeDNS) Get(t testing.TB, path string) (int, string) {
	t.Helper()
	status, body, err := Get(t.Context(), k.http, k.Healthz+path)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return status, body
}

// Metrics are metric families by name.
type Metrics map[string]*dto.MetricFamily

// ScrapeMetrics reads the metrics port.
func (k *KubeDNS) ScrapeMetrics(t testing.TB) Metrics {
	t.Helper()
	status, body, err := Get(t.Context(), k.http, k.Metrics+"/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatalf("GET /metrics: %d %v", status, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("parsing /metrics: %v", err)
	}
	return families
}

// Value sums the samples of the metric name that have all the labels, which
// are given as name, value, name, value. A histogram counts with the number of
// its observations. ok reports whether there was such a sample.
func (m Metrics) Value(name string, labels ...string) (value float64, ok bool) {
	family := m[name]
	if family == nil {
		return 0, false
	}
	for _, metric := range family.GetMetric() {
		if !hasLabels(metric, labels) {
			continue
		}
		ok = true
		switch {
		case metric.GetHistogram() != nil:
			value += float64(metric.GetHistogram().GetSampleCount())
		case metric.GetSummary() != nil:
			value += float64(metric.GetSummary().GetSampleCount())
		case metric.GetCounter() != nil:
			value += metric.GetCounter().GetValue()
		case metric.GetGauge() != nil:
			value += metric.GetGauge().GetValue()
		default:
			value += metric.GetUntyped().GetValue()
		}
	}
	return value, ok
}

func hasLabels(metric *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(metric.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == pair[0] && l.GetValue() == pair[1]
		}) {
			return false
		}
	}
	return true
}

// Eventually polls f until it returns nil; the test fails with f's last error
// when that takes longer than timeout.
func Eventually(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := poll(ctx, 10*time.Millisecond, func(context.Context) error { return f() }); err != nil {
		t.Fatalf("not within %v: %v", timeout, err)
	}
}
