// Package apptest runs a whole kube-dns inside a test, on free ports of
// 127.0.0.1 and with a directory of manifests in place of an API server.
package apptest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/cmd/kube-dns/app"
	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/await"
	"kubedns/pkg/freeport"
)

// manifest is a Service with a cluster IP and a port.
const manifest = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: 192.0.2.7, ports: [{name: http, port: 80}]}}`

// KubeDNS is a running kube-dns. It serves the Service default/web, 192.0.2.7,
// and forwards to 192.0.2.53.
type KubeDNS struct {
	// Manifests and ConfigDir are the directories of --manifests and --config-dir.
	Manifests, ConfigDir string
	// Health and Metrics are URLs, "http://127.0.0.1:4711" and
	// "http://127.0.0.1:4712/metrics"; DNS is host:port.
	Health, Metrics, DNS string

	t     *testing.T
	stop  context.CancelFunc
	ended chan struct{}
	err   error // once ended is closed
}

// Start runs kube-dns until the test's end, and returns once it is ready.
func Start(t *testing.T, args ...string) *KubeDNS {
	t.Helper()
	k := &KubeDNS{t: t, Manifests: t.TempDir(), ConfigDir: t.TempDir(), ended: make(chan struct{})}
	if err := os.WriteFile(filepath.Join(k.Manifests, "web.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	dnsPort, healthPort, metricsPort := FreePort(t), FreePort(t), FreePort(t)
	k.DNS = fmt.Sprintf("127.0.0.1:%d", dnsPort)
	k.Health = fmt.Sprintf("http://127.0.0.1:%d", healthPort)
	k.Metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort)
	args = append([]string{
		"--manifests=" + k.Manifests, "--dns-bind-address=127.0.0.1", fmt.Sprintf("--dns-port=%d", dnsPort),
		fmt.Sprintf("--healthz-port=%d", healthPort), "--nameservers=192.0.2.53", "--config-dir=" + k.ConfigDir,
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
	k.stop = stop
	go func() {
		defer close(k.ended)
		k.err = app.Run(ctx, o)
	}()
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	k.Await("ready", func() bool { code, _ := k.Get("/readiness"); return code == http.StatusOK })
	return k
}

// FreePort returns a port of 127.0.0.1 that nothing listens on.
func FreePort(t *testing.T) int {
	t.Helper()
	return int(netip.MustParseAddrPort(freeport.Addr(t)).Port())
}

// Drain has kube-dns begin to end.
func (k *KubeDNS) Drain() { k.stop() }

// Stop has kube-dns end, waits until it has, and returns what Run returned. It
// can be called more than once.
func (k *KubeDNS) Stop() error {
	k.stop()
	select {
	case <-k.ended:
		return k.err
	case <-time.After(15 * time.Second):
		return fmt.Errorf("not ended 15 s after it was to end")
	}
}

// Await waits until done returns true, for 10 s at most.
func (k *KubeDNS) Await(what string, done func() bool) {
	k.t.Helper()
	await.Until(k.t, 10*time.Second, what, done)
}

// Get asks the health port for a path, or any server for a URL. Without an
// answer the code is 0, and the body says why.
func (k *KubeDNS) Get(path string) (code int, body string) {
	k.t.Helper()
	code, _, body, err := k.do(http.MethodGet, path, nil)
	if err != nil {
		return 0, err.Error()
	}
	return code, body
}

// Fetch asks the health port for a path with a header.
func (k *KubeDNS) Fetch(method, path string, header http.Header) (code int, got http.Header, body string) {
	k.t.Helper()
	code, got, body, err := k.do(method, path, header)
	if err != nil {
		k.t.Fatal(err)
	}
	return code, got, body
}

func (k *KubeDNS) do(method, path string, header http.Header) (code int, got http.Header, body string, err error) {
	k.t.Helper()
	url := k.Health + path
	if strings.HasPrefix(path, "http:") {
		url = path
	}
	req, err := http.NewRequestWithContext(k.t.Context(), method, url, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header = header.Clone()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(b), err
}

// Ask asks a question over UDP.
func (k *KubeDNS) Ask(name string, qtype uint16) *dns.Msg {
	k.t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	reply, err := dns.Exchange(m, k.DNS)
	if err != nil {
		k.t.Fatalf("%s: %v", name, err)
	}
	return reply
}
