package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"kubedns/pkg/freeport"
)

// Debian's prometheus scrapes a sidecar and, where the tree has it, kube-dns.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	path := needProgram(t, "prometheus")
	backendAddr := freeport.Addr(t)
	serveDNS(t, backendAddr, standIn)
	dnsmasqAddr := freeport.Addr(t)
	startDnsmasq(t, dnsmasqAddr, backendAddr)
	p, err := ParseProbe("dnsmasq," + dnsmasqAddr + ",kubernetes.default.svc.cluster.local,0.5,SRV,uncached")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Probes: []Probe{p}, Dnsmasq: dnsmasqAddr})
	waitFor(t, "a probe and a poll", func() bool { return s.health(t, "dnsmasq").IsOk && s.metrics(t)[up] == 1 })

	t.Run("sidecar", func(t *testing.T) {
		t.Parallel()
		prometheus := startPrometheus(t, path, strings.TrimPrefix(s.url, "http://"))
		for _, query := range []string{
			`up{job="test"} == 1`,
			`kubedns_dnsmasq_hits > 0`,
			`kubedns_dnsmasq_max_size == 150`,
			`kubedns_probe_dnsmasq_latency_ms_count > 0`,
			`kubedns_probe_dnsmasq_errors == 0`,
			`histogram_quantile(0.9, kubedns_probe_duration_seconds_bucket{probe="dnsmasq"}) < 2`,
			`kubedns_probe_success{probe="dnsmasq"} == 1`,
			`kubedns_probe_failures_total{probe="dnsmasq",reason="timeout"} == 0`,
			`kubedns_dnsmasq_up == 1`,
			`kubedns_dnsmasq_restarts_total == 0`,
			fmt.Sprintf(`kubedns_dnsmasq_server_queries_total{server=%q} > 0`, backendAddr),
			fmt.Sprintf(`kubedns_dnsmasq_server_failures_total{server=%q} == 0`, backendAddr),
			`kubedns_build_info{version!="",revision!="",goversion=~"go1.*"} == 1`,
			`process_resident_memory_bytes > 0`,
		} {
			waitFor(t, query, func() bool { return hasResult(t, prometheus, query) })
		}
	})
	t.Run("kube-dns", func(t *testing.T) {
		t.Parallel()
		kubeDNS := buildKubeDNS(t)
		addr, metricsAddr := freeport.Addr(t), freeport.Addr(t)
		startKubeDNS(t, kubeDNS, addr, metricsAddr)
		q := new(dns.Msg)
		q.SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
		if r, err := dns.Exchange(q, addr); err != nil || len(r.Answer) == 0 {
			t.Fatalf("asking kube-dns: %v, %v", r, err)
		}
		prometheus := startPrometheus(t, path, metricsAddr)
		for _, query := range []string{
			`up{job="test"} == 1`,
			`sum(skydns_skydns_dns_request_count_total) > 0`,
			`process_resident_memory_bytes > 0`,
		} {
			waitFor(t, query, func() bool { return hasResult(t, prometheus, query) })
		}
	})
}

// startPrometheus starts a Prometheus that scrapes target and returns its URL.
func startPrometheus(t *testing.T, path, target string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := "scrape_configs:\n- job_name: test\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n  - targets: ['" + target + "']\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := freeport.Addr(t)
	startProcess(t, nil, path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	return "http://" + addr
}

// hasResult reports whether Prometheus has a sample that the query selects.
func hasResult(t *testing.T, prometheus, query string) bool {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := get(t.Context(), client, prometheus+"/api/v1/query?query="+url.QueryEscape(query))
	if err != nil {
		return false // it has not started yet
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("asking Prometheus for %s: %v, %+v", query, err, answer)
	}
	return len(answer.Data.Result) > 0
}

// The new names are to promtool's taste.
func TestPromtool(t *testing.T) {
	t.Parallel()
	path := needProgram(t, "promtool")
	// The names that kube-dns has always had are not all.
	oldNames := regexp.MustCompile(`^kubedns_(dnsmasq_(hits|misses|evictions|insertions|errors)|probe_kubedns_(latency_ms|errors)) `)
	s := start(t, Config{Probes: []Probe{{Label: "kubedns", Server: freeport.Addr(t), Name: "example.org.", Interval: defaultInterval, Qtype: dns.TypeA}}})
	waitFor(t, "a probe", func() bool { return s.health(t, "kubedns").Err == "connection refused" })
	resp, err := s.get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "check", "metrics")
	cmd.Stdin = resp.Body
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError // it exits with 3 when it has something to say
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var excused []string
	for line := range strings.Lines(string(out)) {
		if name := oldNames.FindString(line); name != "" {
			excused = append(excused, name)
			continue
		}
		t.Errorf("promtool check metrics: %s", line)
	}
	// That there are some shows that promtool has read the metrics.
	if !slices.Contains(excused, "kubedns_dnsmasq_hits ") {
		t.Errorf("promtool has no complaint about the old names: %s", out)
	}
}
