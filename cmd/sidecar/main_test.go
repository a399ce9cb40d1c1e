package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/await"
	"kubedns/pkg/freeport"
)

// sidecarPath is the program, built once for all tests as for a release but for
// its version.
var sidecarPath string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sidecar-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	sidecarPath = filepath.Join(dir, "sidecar")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X kubedns/pkg/version.Version=1.2.3", "-o", sidecarPath, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building sidecar: %v\n%s", err, out)
		return 1
	}
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests wait more than they compute
		panic(err)
	}
	return m.Run()
}

// portOf returns the port of "127.0.0.1:53".
func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestExit is what an operator sees of a command line that is wrong, or that
// asks for words alone: bad flags are one line and exit status 2.
func TestExit(t *testing.T) {
	t.Parallel()
	inUse, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inUse.Close() })
	port := portOf(t, inUse.Addr().String())
	const probe = "--probe=dns,127.0.0.1:53,example.org"
	tests := []struct {
		name   string
		args   []string
		status int
		stdout string // a part of it; empty: nothing
		stderr string // a part of its only line; empty: nothing
	}{
		{name: "help", args: []string{"--help"}, stdout: "--probe label,server,name[,interval[,type[,uncached]]]"},
		{name: "help with one dash", args: []string{"-help"}, stdout: "--dnsmasq-poll-interval-ms"},
		{name: "short help", args: []string{"-h"}, stdout: "--prometheus-namespace"},
		{name: "version", args: []string{"--version"}, stdout: "sidecar 1.2.3"},
		{name: "unknown flag", args: []string{"--prob=x"}, status: 2, stderr: "sidecar: unknown flag: --prob"},
		{name: "unknown flag with a line break", args: []string{"--a\nb"}, status: 2, stderr: `unknown flag: --a\nb`},
		{name: "argument", args: []string{"probe"}, status: 2, stderr: `unexpected argument "probe"`},
		{name: "probe without value", args: []string{"--probe"}, status: 2, stderr: "--probe"},
		{name: "interval 0", args: []string{probe + ",0"}, status: 2, stderr: `interval "0": must be 0.01 to 86400 seconds`},
		{name: "interval negative", args: []string{probe + ",-1"}, status: 2, stderr: `interval "-1"`},
		{name: "interval not a number", args: []string{probe + ",x"}, status: 2, stderr: `interval "x": must be a number of seconds`},
		{name: "empty name", args: []string{"--probe=dns,127.0.0.1,"}, status: 2, stderr: `name "": must not be empty`},
		{name: "label with a blank", args: []string{"--probe=d s,127.0.0.1,a"}, status: 2, stderr: `label "d s"`},
		{name: "label with a dash", args: []string{"--probe=d-s,127.0.0.1,a"}, status: 2, stderr: `label "d-s"`},
		{name: "label with a line break", args: []string{"--probe=d\ns,127.0.0.1,a"}, status: 2, stderr: `label "d\ns"`},
		{name: "label twice", args: []string{probe, probe}, status: 2, stderr: `more than one probe with the label "dns"`},
		{name: "unknown type", args: []string{probe + ",5,X"}, status: 2, stderr: `type "X" must be A, AAAA, SRV or ANY`},
		{name: "two fields", args: []string{"--probe=dns,127.0.0.1"}, status: 2, stderr: "2 fields, must be"},
		{name: "seven fields", args: []string{probe + ",5,A,uncached,x"}, status: 2, stderr: "7 fields, must be"},
		{name: "probe's port", args: []string{"--probe=dns,127.0.0.1:65536,a"}, status: 2, stderr: `port "65536" must be 1 to 65535`},
		{name: "prometheus port too large", args: []string{"--prometheus-port=65536"}, status: 2, stderr: "--prometheus-port"},
		{name: "prometheus port 0", args: []string{"--prometheus-port=0"}, status: 2, stderr: "--prometheus-port 0 must be 1 to 65535"},
		{name: "dnsmasq port negative", args: []string{"--dnsmasq-port=-1"}, status: 2, stderr: "--dnsmasq-port"},
		{name: "dnsmasq port 0", args: []string{"--dnsmasq-port=0"}, status: 2, stderr: "--dnsmasq-port 0 must be 1 to 65535"},
		{name: "dnsmasq address", args: []string{"--dnsmasq-addr=127.0.0.1:53"}, status: 2, stderr: `--dnsmasq-addr "127.0.0.1:53" must be an IP address or a host name`},
		{name: "dnsmasq address empty", args: []string{"--dnsmasq-addr="}, status: 2, stderr: `--dnsmasq-addr ""`},
		{name: "prometheus address", args: []string{"--prometheus-addr=1.2.3"}, status: 2, stderr: `--prometheus-addr "1.2.3" must be`},
		{name: "poll interval 0", args: []string{"--dnsmasq-poll-interval-ms=0"}, status: 2, stderr: "--dnsmasq-poll-interval-ms 0 must be 1 to 86400000"},
		{name: "poll interval beyond a day", args: []string{"--dnsmasq-poll-interval-ms=9223372036854775807"}, status: 2, stderr: "must be 1 to 86400000"},
		{name: "flush frequency 0", args: []string{"--log-flush-frequency=0"}, status: 2, stderr: "--log-flush-frequency"},
		{name: "namespace", args: []string{"--prometheus-namespace=kube-dns"}, status: 2, stderr: `namespace "kube-dns" must be letters`},
		{name: "path", args: []string{"--prometheus-path=metrics"}, status: 2, stderr: `path "metrics": must begin with a slash`},
		{name: "path taken", args: []string{"--prometheus-path=/healthz"}, status: 2, stderr: `path "/healthz": is taken`},
		{name: "verbosity", args: []string{"--v=x"}, status: 2, stderr: `"x"`},
		{name: "address in use", args: []string{"--prometheus-addr=127.0.0.1", "--prometheus-port=" + port}, status: 1,
			stderr: "listening on 127.0.0.1:" + port + ": bind: address already in use"},
		{name: "address of another host", args: []string{"--prometheus-addr=192.0.2.1"}, status: 1,
			stderr: "listening on 192.0.2.1:10054: bind: cannot assign requested address"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), sidecarPath, test.args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != test.status {
				t.Errorf("exit status %d, want %d", got, test.status)
			}
			if got := stdout.String(); (got == "") != (test.stdout == "") || !strings.Contains(got, test.stdout) {
				t.Errorf("standard output %q, want %q", got, test.stdout)
			}
			got := stderr.String()
			if (got == "") != (test.stderr == "") || !strings.Contains(got, test.stderr) || strings.Count(got, "\n") > 1 {
				t.Errorf("standard error %q, want one line with %q", got, test.stderr)
			}
		})
	}
}

// program is the running program.
type program struct {
	cmd    *exec.Cmd
	url    string
	client http.Client
	mu     sync.Mutex
	log    bytes.Buffer
	ended  chan error
}

// startProgram starts the program on a free port and waits until it serves.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	addr := freeport.Addr(t)
	port := portOf(t, addr)
	p := &program{
		cmd: exec.CommandContext(context.WithoutCancel(t.Context()), sidecarPath, append(args, "--prometheus-addr=127.0.0.1", "--prometheus-port="+port)...),
		url: "http://" + addr, ended: make(chan error, 1),
		client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
	}
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, unless the test failed
		if t.Failed() {
			t.Logf("sidecar said:\n%s", p.logged())
		}
	})
	waitFor(t, "sidecar serves", func() bool { _, err := p.get(t.Context(), "/healthz"); return err == nil })
	return p
}

// Write takes what the program logs.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *program) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *program) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// metric returns the value of one series, -1 if it is not there.
func (p *program) metric(t *testing.T, series string) float64 {
	t.Helper()
	text, err := p.get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	return -1
}

// stop sends sig and checks that the program ends well within a second.
func (p *program) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("after %v: %v, want exit status 0", sig, err)
		}
		t.Logf("%v: ended after %v", sig, time.Since(began))
	case <-time.After(time.Second):
		t.Errorf("has not ended 1s after %v", sig)
	}
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await.Until(t, 20*time.Second, what, condition)
}

// A probe and a poll that wait for an answer do not hold up the end.
func TestSignals(t *testing.T) {
	t.Parallel()
	silent, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	port := portOf(t, silent.LocalAddr().String())
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, "--probe=dns,"+silent.LocalAddr().String()+",example.org,1",
				"--dnsmasq-port="+port, "--dnsmasq-poll-interval-ms=1")
			waitFor(t, "the first probe", func() bool {
				body, err := p.get(t.Context(), "/healthcheck/dns")
				return err == nil && strings.Contains(body, "timeout after 1s")
			})
			p.stop(t, sig)
		})
	}
}

// fakeDNS answers as dnsmasq does the questions for its counters, and any
// other with an A record.
func fakeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: q.Question[0].Qclass}
	switch {
	case h.Name == "servers.bind.":
		m.Answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{"192.0.2.1#53 3 1"}}}
	case h.Class == dns.ClassCHAOS:
		m.Answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{"7"}}}
	default:
		m.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 7)}}
	}
	_ = w.WriteMsg(m)
}

func serveDNS(t *testing.T, addr string) (stop func()) {
	t.Helper()
	started, failed := make(chan struct{}), make(chan error, 1)
	s := &dns.Server{Addr: addr, Net: "udp", Handler: dns.HandlerFunc(fakeDNS), NotifyStartedFunc: func() { close(started) }}
	go func() { failed <- s.ListenAndServe() }()
	select {
	case <-started:
	case err := <-failed:
		t.Fatal(err)
	}
	return func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

// Polls that fail, and probes, are logged when it begins and when it ends.
func TestLog(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	port := portOf(t, addr)
	p := startProgram(t, "--dnsmasq-port="+port, "--dnsmasq-poll-interval-ms=20", "--probe=dns,"+addr+",example.org,0.1,A")
	const pollErrors, probeErrors, up, success = "kubedns_dnsmasq_errors", "kubedns_probe_dns_errors", "kubedns_dnsmasq_up", `kubedns_probe_success{probe="dns"}`
	fail := func() {
		polls, probes := p.metric(t, pollErrors), p.metric(t, probeErrors)
		waitFor(t, "five failures of each", func() bool { return p.metric(t, pollErrors) >= polls+5 && p.metric(t, probeErrors) >= probes+5 })
	}
	fail()
	for range 2 {
		stop := serveDNS(t, addr)
		waitFor(t, "good polls and probes", func() bool { return p.metric(t, up) == 1 && p.metric(t, success) == 1 })
		stop()
		fail()
	}
	p.stop(t, syscall.SIGTERM)
	log := p.logged()
	for text, want := range map[string]int{
		"sidecar: polling dnsmasq: asking " + addr: 3, "all counters available again": 2,
		",A: connection refused\n": 3, ",A: right answer in ": 2, "was: connection refused": 2,
		"sidecar: serving HTTP on": 1, "sidecar: stopped": 1,
	} {
		if got := strings.Count(log, text); got != want {
			t.Errorf("%q is %d times in the log, want %d", text, got, want)
		}
	}
}

// An hour's worth of the stock pod's probes and polls, 720 of each.
func TestMemory(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	port := portOf(t, addr)
	defer serveDNS(t, addr)()
	p := startProgram(t, "--v=2", "--dnsmasq-port="+port, "--dnsmasq-poll-interval-ms=10",
		"--probe=kubedns,"+addr+",example.org,0.01,A", "--probe=dnsmasq,"+addr+",example.org,0.01,A", "--probe=through,"+addr+",example.org,0.01,A,uncached")
	waitFor(t, "720 probes", func() bool {
		// Prometheus and kubelet ask meanwhile.
		for _, path := range []string{"/healthcheck/kubedns", "/healthcheck/dnsmasq"} {
			if _, err := p.get(t.Context(), path); err != nil {
				t.Fatal(err)
			}
		}
		return p.metric(t, `kubedns_probe_duration_seconds_count{probe="through"}`) >= 720
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("no /proc to read the memory from")
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	var kilobytes int
	if _, err := fmt.Sscan(after, &kilobytes); err != nil {
		t.Fatalf("reading VmRSS: %v in %s", err, status)
	}
	t.Logf("%d kB", kilobytes)
	if kilobytes >= 20_000 {
		t.Errorf("%d kB of memory, want less than 20,000", kilobytes)
	}
	p.stop(t, syscall.SIGTERM)
}
