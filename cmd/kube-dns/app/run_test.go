package app_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/cmd/kube-dns/app"
	"kubedns/cmd/kube-dns/app/apptest"
	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns/treecache"
)

func TestRunServesManifests(t *testing.T) {
	r := apptest.Start(t)
	if got := r.Ask("web.default.svc.cluster.local.", dns.TypeA); len(got.Answer) != 1 {
		t.Errorf("reply without one answer: %v", got)
	}
	code, body := r.Get("/cache?name=web.default.svc.cluster.local")
	var node treecache.Node
	if err := json.Unmarshal([]byte(body), &node); code != http.StatusOK || err != nil {
		t.Fatalf("/cache: %d, %v: %s", code, err, body)
	}
	web := node.ChildNodes["local"].ChildNodes["cluster"].ChildNodes["svc"].ChildNodes["default"].ChildNodes["web"]
	if len(web.Entries) != 1 || web.ChildNodes["_tcp"].ChildNodes["_http"] == nil {
		t.Errorf("/cache has %+v of web", web)
	}
	if !strings.Contains(body, "\n\t\"ChildNodes\": {\n\t\t\"local\": {") {
		t.Errorf("/cache is not indented by tabs:\n%s", body)
	}
	if code, _ := r.Get("/cache?name=gone.default.svc.cluster.local"); code != http.StatusNotFound {
		t.Errorf("/cache of a name that does not exist: %d, want 404", code)
	}
	if err := os.Remove(filepath.Join(r.Manifests, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	r.Await("NXDOMAIN", func() bool {
		return r.Ask("web.default.svc.cluster.local.", dns.TypeA).Rcode == dns.RcodeNameError
	})
}

func TestRunConfiguration(t *testing.T) {
	r := apptest.Start(t)
	write := func(content string) {
		if err := os.WriteFile(filepath.Join(r.ConfigDir, "upstreamNameservers"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	metric := func(line string) func() bool {
		return func() bool { _, body := r.Get(r.Metrics); return strings.Contains(body, "\n"+line+"\n") }
	}
	r.Await("successful", metric("kubedns_config_last_reload_successful 1"))
	write(`["not an address"]`)
	r.Await("refused", metric("kubedns_config_last_reload_successful 0"))
	write(`["192.0.2.54"]`)
	r.Await("in force again", metric("kubedns_config_last_reload_successful 1"))
}

func TestRunMetrics(t *testing.T) {
	r := apptest.Start(t)
	r.Ask("web.default.svc.cluster.local.", dns.TypeA)
	r.Ask("gone.default.svc.cluster.local.", dns.TypeA)
	_, body := r.Get(r.Metrics)
	for _, line := range []string{
		`skydns_skydns_dns_request_count_total{system="auth"} 2`,
		`skydns_skydns_dns_request_duration_seconds_count{system="auth"} 2`,
		`skydns_skydns_dns_response_size_bytes_count{system="auth"} 2`,
		`skydns_skydns_dns_error_count_total{cause="nxdomain",system="auth"} 1`,
		`skydns_skydns_dns_error_count_total{cause="servfail",system="recursive"} 0`,
		`skydns_skydns_dns_cachemiss_count_total{cache="response"} 2`,
		`kubedns_services 1`,
		`kubedns_endpoint_slices 0`,
		`kubedns_records{type="A"} 1`,
		`kubedns_records{type="SRV"} 1`,
		`kubedns_panics_total 0`,
		`kubedns_build_info{revision="unknown",version="dev"} 1`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "kubedns_config_last_reload_success_timestamp_seconds"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("the metrics lack %s", name)
		}
	}
}

// A drain without questions takes 2 s; readiness says no at once, and DNS goes
// on until the end.
func TestRunDrains(t *testing.T) {
	r := apptest.Start(t)
	begin := time.Now()
	r.Drain()
	r.Await("unready", func() bool {
		code, body := r.Get("/readiness")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "shutting down")
	})
	r.Ask("web.default.svc.cluster.local.", dns.TypeA)
	err := r.Stop()
	if d := time.Since(begin); err != nil || d < 2*time.Second || d > 9*time.Second {
		t.Errorf("ended after %v with %v, want 2 s without a question and nil", d, err)
	}
}

func TestRunAddressInUse(t *testing.T) {
	r := apptest.Start(t)
	var lc net.ListenConfig
	port := strings.TrimPrefix(r.DNS, "127.0.0.1:")
	o, _, err := options.Parse([]string{"--manifests=" + r.Manifests, "--dns-bind-address=127.0.0.1", "--dns-port=" + port,
		fmt.Sprintf("--healthz-port=%d", apptest.FreePort(t))}, func(string) string { return "" }, flag.NewFlagSet("none", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a second kube-dns at the same address: %v, want that it is in use", err)
	}
	// It has left nothing behind.
	l, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", o.HealthzPort))
	if err != nil {
		t.Fatalf("the healthz port is still bound: %v", err)
	}
	l.Close()
}
