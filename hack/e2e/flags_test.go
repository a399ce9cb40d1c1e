package e2e

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
)

func newHTTPServer(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// runToEnd runs the program and returns what it said and its exit code; it
// must end within 20 s.
func runToEnd(t *testing.T, env []string, bin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(cmd.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("it did not end: %s", errOut.String())
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// TestBadFlags gives flags that are wrong: one line that says which and why,
// and status 2.
func TestBadFlags(t *testing.T) {
	bin := kubeDNS(t)
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		says []string // texts of the line
	}{
		{"unknown", []string{"--nosuch=1"}, nil, []string{"nosuch"}},
		{"argument", []string{"extra"}, nil, []string{"extra"}},
		{"port not a number", []string{"--dns-port=dns"}, nil, []string{"dns-port", "dns"}},
		{"port 0", []string{"--dns-port=0"}, nil, []string{"dns-port", "0"}},
		{"port too large", []string{"--dns-port=65536"}, nil, []string{"dns-port", "65536"}},
		{"healthz port", []string{"--healthz-port=-1"}, nil, []string{"healthz-port", "-1"}},
		{"domain", []string{"--domain=cluster_local."}, nil, []string{"domain", "cluster_local"}},
		{"domain with an empty label", []string{"--domain=cluster..local"}, nil, []string{"domain", "cluster..local"}},
		{"domain with a long label", []string{"--domain=" + strings.Repeat("a", 64)}, nil, []string{"domain"}},
		{"no domain", []string{"--domain="}, nil, []string{"domain"}},
		{"nameserver", []string{"--nameservers=192.0.2.1,ns.example.org"}, nil, []string{"nameservers", "ns.example.org"}},
		{"nameserver's port", []string{"--nameservers=192.0.2.1:0"}, nil, []string{"nameservers", "192.0.2.1:0"}},
		{"bind address", []string{"--dns-bind-address=localhost"}, nil, []string{"dns-bind-address", "localhost"}},
		{"federation", []string{"--federations=mars"}, nil, []string{"federations", "mars"}},
		{"config-map and config-dir", []string{"--config-map=a", "--config-dir=/b"}, nil, []string{"config-map", "config-dir"}},
		{"federations and config-map", []string{"--federations=a=example.org", "--config-map=a"}, nil, []string{"federations", "config-map"}},
		{"federations and config-dir", []string{"--federations=a=example.org", "--config-dir=/b"}, nil, []string{"federations", "config-dir"}},
		{"duration", []string{"--config-period=10"}, nil, []string{"config-period", "10"}},
		{"negative duration", []string{"--config-period=-10s"}, nil, []string{"config-period", "-10s"}},
		{"PROMETHEUS_PORT", nil, []string{"PROMETHEUS_PORT=metrics"}, []string{"PROMETHEUS_PORT", "metrics"}},
		{"verbosity", []string{"--v=high"}, nil, []string{"v", "high"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := runToEnd(t, tt.env, bin, tt.args...)
			if code != 2 {
				t.Errorf("exit status %d, want 2", code)
			}
			if stdout != "" {
				t.Errorf("standard output is %q, want nothing", stdout)
			}
			if strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "goroutine") {
				t.Errorf("it said %q, want one line", stderr)
			}
			for _, text := range tt.says {
				if !strings.Contains(stderr, text) {
					t.Errorf("it said %q, want %q in it", stderr, text)
				}
			}
		})
	}
}

// TestFailedStart has flags that are right and a machine on which they do not
// work.
func TestFailedStart(t *testing.T) {
	c := cluster(t)
	bin, admin := kubeDNS(t), adminKubeconfig(t, c)
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	_, taken, err := net.SplitHostPort(udp.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		says string
	}{
		{"no kubeconfig", []string{"--kubecfg-file=/nonexistent/kubeconfig", "--dns-port=" + taken}, "/nonexistent/kubeconfig"},
		{"a port in use", []string{"--kubecfg-file=" + admin, "--dns-bind-address=127.0.0.1", "--dns-port=" + taken, "--healthz-port=" + freeTCPPort(t)}, taken},
		{"an address that is not here", []string{"--kubecfg-file=" + admin, "--dns-bind-address=192.0.2.1", "--dns-port=" + taken, "--healthz-port=" + freeTCPPort(t)}, "192.0.2.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, stderr, code := runToEnd(t, nil, bin, tt.args...)
			if code != 1 {
				t.Errorf("exit status %d, want 1", code)
			}
			if !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "goroutine ") {
				t.Errorf("it said %q, want %q and no stack", stderr, tt.says)
			}
		})
	}
}

func freeTCPPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestInformation has the flags that print and exit.
func TestInformation(t *testing.T) {
	bin := kubeDNS(t)
	for _, tt := range []struct{ flag, says string }{
		{"--version", "kube-dns"},
		{"--help", "--kubecfg-file"},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			stdout, stderr, code := runToEnd(t, nil, bin, tt.flag)
			if code != 0 || !strings.Contains(stdout, tt.says) || stderr != "" {
				t.Errorf("exit status %d, output %q, errors %q; want 0 and %q", code, stdout, stderr, tt.says)
			}
		})
	}
}

// TestGoodFlags starts kube-dns with spellings that manifests have.
func TestGoodFlags(t *testing.T) {
	c := cluster(t)
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"stock manifest", []string{"--config-dir=/nonexistent/kube-dns-config", "--v=2"}},
		{"underscores", []string{"--config_dir=/nonexistent/kube-dns-config", "--config_period=1s", "--initial_sync_timeout=60s"}},
		{"older logging", []string{"-v=2", "--logtostderr=true", "--vmodule=nosuch=4", "--log-flush-frequency=5s"}},
		{"nameservers with blanks", []string{"--nameservers= 192.0.2.1 , 192.0.2.2:5353 "}},
		{"domain without its dot", []string{"--domain=cluster.local"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Args: tt.args,
			})
			awaitAddress(t, k.Addr, "kubernetes.default.svc."+zone, "10.96.0.1", time.Second)
		})
	}
}

// TestMasterURL gives a URL that overrides the kubeconfig's, with a variable.
func TestMasterURL(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary:     kubeDNS(t),
		Kubeconfig: kubeconfig(t, c, "", "https://127.0.0.1:9"),
		Env:        []string{"E2E_API=" + strings.TrimPrefix(c.URL, "https://")},
		Args:       []string{"--kube-master-url=https://$E2E_API"},
	})
	awaitAddress(t, k.Addr, "kubernetes.default.svc."+zone, "10.96.0.1", time.Second)
}
