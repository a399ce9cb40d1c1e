package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/freeport"
)

const manifest = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: 192.0.2.7, ports: [{name: http, port: 80}]}}`

// running is kube-dns in this process, on free ports.
type running struct {
	t            *testing.T
	dns, health  string
	metrics      string
	manifests    string
	stop         context.CancelFunc
	ended        chan error
	configFolder string
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{t: t, manifests: t.TempDir(), configFolder: t.TempDir(), ended: make(chan error, 1)}
	if err := os.WriteFile(filepath.Join(r.manifests, "web.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	dnsPort, healthPort, metricsPort := freePort(t), freePort(t), freePort(t)
	r.dns = fmt.Sprintf("127.0.0.1:%d", dnsPort)
	r.health = fmt.Sprintf("http://127.0.0.1:%d", healthPort)
	r.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort)
	args = append([]string{
		"--manifests=" + r.manifests, "--dns-bind-address=127.0.0.1", fmt.Sprintf("--dns-port=%d", dnsPort),
		fmt.Sprintf("--healthz-port=%d", healthPort), "--nameservers=192.0.2.53", "--config-dir=" + r.configFolder,
	}, args...)
	getenv := func(name string) string {
		if name == "PROMETHEUS_PORT" {
			return fmt.Sprint(metricsPort)
		}
		return ""
	}
	o, _, err := options.Parse(args, getenv, flag.NewFlagSet("none", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-r.ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(15 * time.Second):
			t.Error("Run has not ended")
		}
	})
	r.await("ready", func() bool { code, _ := r.get("/readiness"); return code == http.StatusOK })
	return r
}

func freePort(t *testing.T) int {
	t.Helper()
	return int(netip.MustParseAddrPort(freeport.Addr(t)).Port())
}

func (r *running) await(what string, done func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if done() {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not %s in 10 s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *running) get(path string) (code int, body string) {
	url := r.health + path
	if strings.HasPrefix(path, "http:") {
		url = path
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func (r *running) ask(name string, qtype uint16) *dns.Msg {
	r.t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	reply, err := dns.Exchange(m, r.dns)
	if err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	return reply
}

func TestRunServesManifests(t *testing.T) {
	r := start(t)
	if got := r.ask("web.default.svc.cluster.local.", dns.TypeA); len(got.Answer) != 1 {
		t.Errorf("reply without one answer: %v", got)
	}
	code, body := r.get("/cache?name=web.default.svc.cluster.local")
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
	if code, _ := r.get("/cache?name=gone.default.svc.cluster.local"); code != http.StatusNotFound {
		t.Errorf("/cache of a name that does not exist: %d, want 404", code)
	}
	if err := os.Remove(filepath.Join(r.manifests, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	r.await("NXDOMAIN", func() bool {
		return r.ask("web.default.svc.cluster.local.", dns.TypeA).Rcode == dns.RcodeNameError
	})
}

func TestRunConfiguration(t *testing.T) {
	r := start(t)
	write := func(content string) {
		if err := os.WriteFile(filepath.Join(r.configFolder, "upstreamNameservers"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	metric := func(line string) func() bool {
		return func() bool { _, body := r.get(r.metrics); return strings.Contains(body, "\n"+line+"\n") }
	}
	r.await("successful", metric("kubedns_config_last_reload_successful 1"))
	write(`["not an address"]`)
	r.await("refused", metric("kubedns_config_last_reload_successful 0"))
	write(`["192.0.2.54"]`)
	r.await("in force again", metric("kubedns_config_last_reload_successful 1"))
}

func TestRunMetrics(t *testing.T) {
	r := start(t)
	r.ask("web.default.svc.cluster.local.", dns.TypeA)
	r.ask("gone.default.svc.cluster.local.", dns.TypeA)
	_, body := r.get(r.metrics)
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
	r := start(t)
	begin := time.Now()
	r.stop()
	r.await("unready", func() bool {
		code, body := r.get("/readiness")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "shutting down")
	})
	r.ask("web.default.svc.cluster.local.", dns.TypeA)
	err := <-r.ended
	r.ended <- err
	if d := time.Since(begin); err != nil || d < 2*time.Second || d > 9*time.Second {
		t.Errorf("ended after %v with %v, want 2 s without a question and nil", d, err)
	}
}

func TestRunAddressInUse(t *testing.T) {
	r := start(t)
	var lc net.ListenConfig
	port := strings.TrimPrefix(r.dns, "127.0.0.1:")
	o, _, err := options.Parse([]string{"--manifests=" + r.manifests, "--dns-bind-address=127.0.0.1", "--dns-port=" + port,
		fmt.Sprintf("--healthz-port=%d", freePort(t))}, func(string) string { return "" }, flag.NewFlagSet("none", flag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a second kube-dns at the same address: %v, want that it is in use", err)
	}
	// It has left nothing behind.
	l, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", o.HealthzPort))
	if err != nil {
		t.Fatalf("the healthz port is still bound: %v", err)
	}
	l.Close()
}

func TestReadinessBeforeAnythingIsKnown(t *testing.T) {
	var r readiness
	mux := http.NewServeMux()
	addHealth(mux, &r, treecache.New("cluster.local."), 30)
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readiness", nil))
		return w
	}
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Body.String() != "starting\n" {
		t.Errorf("%d %q, want 503 and why", w.Code, w.Body)
	}
	r.set(func() string { return "services not listed yet" })
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Body.String() != "services not listed yet\n" {
		t.Errorf("%d %q, want 503 and why", w.Code, w.Body)
	}
	r.set(func() string { return "" })
	if w := get(); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("%d %q, want 200 ok", w.Code, w.Body)
	}
}

func TestReloadKeepsWhatIsInForce(t *testing.T) {
	var applied []*config.Config
	fail := errors.New("no")
	refuse := false
	r := newReload(func(c *config.Config) error {
		if refuse {
			return fail
		}
		applied = append(applied, c)
		return nil
	})
	reg := prometheus.NewRegistry()
	reg.MustRegister(r)
	check := func(successful, timestamp float64) {
		t.Helper()
		if got := testutil.ToFloat64(r.successful); got != successful {
			t.Errorf("successful is %v, want %v", got, successful)
		}
		if got := testutil.ToFloat64(r.timestamp); got != timestamp {
			t.Errorf("timestamp is %v, want %v", got, timestamp)
		}
	}
	check(1, 0)
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(7, 0)})
	check(1, 7)
	r.report(config.Update{Err: fail, Time: time.Unix(8, 0)})
	check(0, 7)
	refuse = true
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(9, 0)})
	check(0, 7)
	refuse = false
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(10, 0)})
	check(1, 10)
	if len(applied) != 2 {
		t.Errorf("%d configurations applied, want 2", len(applied))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

func TestRunPartsReturnsTheFirstFailure(t *testing.T) {
	failure := errors.New("broken")
	others := 0
	err := runParts(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); others++; return errors.New("later") },
		func(context.Context) error { return failure },
	)
	if !errors.Is(err, failure) || others != 1 {
		t.Errorf("runParts: %v with %d others ended, want %v and 1", err, others, failure)
	}
}

func TestRunPartsOutlivesAPartThatEnds(t *testing.T) {
	failure := errors.New("broken")
	ended := make(chan struct{})
	err := runParts(t.Context(),
		func(context.Context) error { close(ended); return nil },
		func(ctx context.Context) error {
			<-ended
			select {
			case <-ctx.Done():
				return errors.New("ended with the first")
			case <-time.After(50 * time.Millisecond):
				return failure
			}
		},
	)
	if !errors.Is(err, failure) {
		t.Errorf("runParts: %v, want %v", err, failure)
	}
}

func TestClientGoLogsToGlog(t *testing.T) {
	if err := logToGlog(); err != nil {
		t.Fatal(err)
	}
	defer klog.ClearLogger()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	klog.ErrorS(errors.New("no route"), "watching", "resource", "services")
	os.Stderr = stderr
	w.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.HasPrefix(got, "E") || !strings.Contains(got, `client-go: watching resource="services" err="no route"`) {
		t.Errorf("the log has %q", got)
	}
}

// TestClientGoVerbosity: client-go says as much as kube-dns, up to where its
// timing of requests begins.
func TestClientGoVerbosity(t *testing.T) {
	before := flag.Lookup("v").Value.String()
	defer klog.ClearLogger()
	defer func() {
		if err := errors.Join(flag.Set("v", before), logToGlog()); err != nil {
			t.Error(err)
		}
	}()
	for v := range 12 {
		if err := errors.Join(flag.Set("v", strconv.Itoa(v)), logToGlog()); err != nil {
			t.Fatal(err)
		}
		said := 0
		for klog.V(klog.Level(said + 1)).Enabled() {
			said++
		}
		if want := min(v, 8); said != want {
			t.Errorf("with -v=%d client-go has %d, want %d", v, said, want)
		}
	}
}

// TestNoNameservers: that there is nobody to forward to is warned of, for
// whatever reason.
func TestNoNameservers(t *testing.T) {
	self := netip.MustParseAddrPort("127.0.0.1:10053")
	a := &app{
		options: &options.Options{
			Domain: "cluster.local.", Nameservers: []netip.AddrPort{self}, BindAddress: self.Addr(), Port: int(self.Port()),
		},
		forwarder: forward.New(forward.Options{}),
	}
	before := glog.Stats.Warning.Lines()
	if err := a.useNameservers(nil); err != nil {
		t.Fatal(err)
	}
	// One of its own address, one of what is left.
	if got := glog.Stats.Warning.Lines() - before; got != 2 {
		t.Errorf("%d warnings, want 2", got)
	}
	before = glog.Stats.Warning.Lines()
	if err := a.useNameservers([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}); err != nil {
		t.Fatal(err)
	}
	if got := glog.Stats.Warning.Lines() - before; got != 0 {
		t.Errorf("%d warnings with a nameserver, want none", got)
	}
}
