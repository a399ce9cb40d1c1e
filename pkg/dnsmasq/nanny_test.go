package dnsmasq

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"kubedns/pkg/await"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dnsmasq/dnsmasqtest"
	"kubedns/pkg/freeport"
)

func TestMain(m *testing.M) {
	if os.Getenv("DNSMASQ_TEST") == "guarded" {
		fmt.Fprintln(os.Stderr, RunGuarded(os.Args[1:]))
		os.Exit(127)
	}
	// glog's default is files in /tmp.
	if err := flag.Set("logtostderr", "true"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// nannyTest is a nanny that runs a real dnsmasq on a free port of 127.0.0.1.
type nannyTest struct {
	*Nanny
	addr   string // dnsmasq's
	dir    string // the configuration's
	resolv string // resolv.conf
	stop   func() error
}

// startNanny prepares a nanny, lets change do what it likes to it, and runs it
// until the test ends. It returns once dnsmasq answers.
func startNanny(t *testing.T, args []string, change func(*nannyTest)) *nannyTest {
	t.Helper()
	nt := prepareNanny(t, args, change)
	nt.run(t)
	nt.awaitAnswering(t)
	await.Until(t, 5*time.Second, "dnsmasq is ready", func() bool { return nt.pid() != 0 })
	return nt
}

func prepareNanny(t *testing.T, args []string, change func(*nannyTest)) *nannyTest {
	t.Helper()
	path := dnsmasqtest.Path(t)
	folder := dnsmasqtest.Dir(t)
	nt := &nannyTest{addr: freeport.Addr(t), dir: filepath.Join(folder, "config"), resolv: filepath.Join(folder, "resolv.conf")}
	mkdir(t, nt.dir)
	writeFile(t, nt.resolv, "nameserver 192.0.2.53\n")
	_, port, _ := net.SplitHostPort(nt.addr)
	all := []string{"--conf-file=/dev/null", "--no-hosts", "--listen-address=127.0.0.1", "--bind-interfaces", "--port=" + port}
	if os.Geteuid() == 0 && !slices.Contains(args, "--user=nobody") {
		all = append(all, "--user=root")
	}
	nt.Nanny = New(Options{
		Exec: path, Args: append(all, args...), ConfigDir: nt.dir, SyncInterval: 100 * time.Millisecond, Restart: true,
		StateDir: filepath.Join(folder, "state"), ResolvConfPath: nt.resolv,
	})
	nt.limits.resolvConf = 20 * time.Millisecond
	if change != nil {
		change(nt)
	}
	return nt
}

// run runs the nanny until the test ends or stop is called, whose error is
// Run's.
func (nt *nannyTest) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	if err := nt.prepare(ctx); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- nt.supervise(ctx) }()
	stopped := false
	nt.stop = func() error {
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Second):
			return fmt.Errorf("the nanny does not end")
		}
	}
	t.Cleanup(func() {
		if stopped {
			return
		}
		if err := nt.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (nt *nannyTest) awaitAnswering(t *testing.T) {
	t.Helper()
	await.Until(t, 10*time.Second, "dnsmasq answers", func() bool {
		q := new(dns.Msg)
		q.SetQuestion("version.bind.", dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		_, _, err := (&dns.Client{Timeout: time.Second}).ExchangeContext(t.Context(), q, nt.addr)
		return err == nil
	})
}

// write makes text the value of a configuration key.
func (nt *nannyTest) write(t *testing.T, key, text string) {
	t.Helper()
	aside := filepath.Join(filepath.Dir(nt.dir), "aside")
	writeFile(t, aside, text)
	if err := os.Rename(aside, filepath.Join(nt.dir, key)); err != nil {
		t.Fatal(err)
	}
}

func (nt *nannyTest) writeJSON(t *testing.T, key string, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	nt.write(t, key, string(text))
}

// lookup returns the address that dnsmasq has for a name that nobody asked for
// before, below domain. It is "" when there is no answer in 200 ms.
func (nt *nannyTest) lookup(t *testing.T, domain string) string {
	t.Helper()
	return lookupAt(t, nt.addr, uniqueName(domain))
}

func lookupAt(t *testing.T, addr, name string) string {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	reply, _, err := (&dns.Client{Timeout: 200 * time.Millisecond}).ExchangeContext(t.Context(), q, addr)
	if err != nil {
		return ""
	}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return dns.RcodeToString[reply.Rcode]
}

var lastName atomic.Uint64

func uniqueName(domain string) string {
	return dns.Fqdn("n" + strconv.FormatUint(lastName.Add(1), 36) + "." + domain)
}

// awaitLookup waits until names of domain have the address want.
func (nt *nannyTest) awaitLookup(t *testing.T, domain, want string) {
	t.Helper()
	got := ""
	await.Until(t, 10*time.Second, "names of "+domain+" have "+want, func() bool {
		got = nt.lookup(t, domain)
		return got == want
	})
}

func (nt *nannyTest) awaitCount(t *testing.T, c prometheus.Metric, want float64) {
	t.Helper()
	await.Until(t, 10*time.Second, fmt.Sprintf("the counter is %v", want), func() bool { return valueOf(t, c) == want })
}

// servers are those that dnsmasq has.
func (nt *nannyTest) servers(t *testing.T) string {
	t.Helper()
	stats, err := nt.super.client.Servers(t.Context())
	if err != nil {
		return err.Error()
	}
	var addrs []string
	for _, s := range stats {
		addrs = append(addrs, s.Addr)
	}
	return strings.Join(addrs, " ")
}

func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var value dto.Metric
	if err := m.Write(&value); err != nil {
		t.Fatal(err)
	}
	return value.GetCounter().GetValue()
}

// pid is dnsmasq's, 0 while there is none that answers.
func (nt *nannyTest) pid() int {
	if p := nt.super.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// upstream answers every A question with one address. It is a DNS server of
// its own, on 127.0.0.1.
type upstream struct {
	addr    string
	queries atomic.Uint64
}

func startUpstream(t *testing.T, answer string) *upstream {
	t.Helper()
	u := &upstream{}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		u.queries.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
				A:   net.ParseIP(answer),
			}}
		}
		_ = w.WriteMsg(m)
	})
	packets, stream := listenBoth(t)
	u.addr = packets.LocalAddr().String()
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: stream, Handler: handler}} {
		ended := make(chan error, 1)
		up := make(chan struct{})
		server.NotifyStartedFunc = func() { close(up) }
		go func() { ended <- server.ActivateAndServe() }()
		<-up
		t.Cleanup(func() {
			_ = server.Shutdown()
			if err := <-ended; err != nil {
				t.Errorf("serving: %v", err)
			}
		})
	}
	return u
}

func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		stream, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", stream.Addr().String())
		if err == nil {
			return packets, stream
		}
		_ = stream.Close()
	}
	t.Fatal("no free port")
	return nil, nil
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func stub(addr string) map[string][]string { return map[string][]string{"stub.example": {addr}} }

// TestServersChangeWithoutRestart goes through all that changes dnsmasq's
// servers on SIGHUP.
func TestServersChangeWithoutRestart(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.writeJSON(t, "stubDomains", stub(a.addr))
		nt.writeJSON(t, "upstreamNameservers", []string{b.addr})
	})
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.awaitLookup(t, "other.example", "192.0.2.2")
	pid := nt.pid()

	nt.writeJSON(t, "stubDomains", stub(b.addr))
	nt.awaitLookup(t, "stub.example", "192.0.2.2")
	nt.writeJSON(t, "upstreamNameservers", []string{a.addr})
	nt.awaitLookup(t, "other.example", "192.0.2.1")
	// The domain goes away, so that its names are asked upstream.
	nt.write(t, "stubDomains", "{}")
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.writeJSON(t, "stubDomains", map[string][]string{"stub.example": {b.addr}, "sub.stub.example": {a.addr}})
	nt.awaitLookup(t, "stub.example", "192.0.2.2")
	nt.awaitLookup(t, "sub.stub.example", "192.0.2.1")

	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 4)
	if got := nt.pid(); got != pid {
		t.Errorf("dnsmasq is process %d, was %d: it was restarted", got, pid)
	}
	// The last good configuration is the active one.
	cfg, err := nt.state.loadLastGood()
	want := &config.Config{}
	if data, warnings, parseErr := config.Parse(map[string]string{
		"stubDomains":         fmt.Sprintf(`{"stub.example":[%q],"sub.stub.example":[%q]}`, b.addr, a.addr),
		"upstreamNameservers": fmt.Sprintf(`[%q]`, a.addr),
	}); parseErr != nil || len(warnings) > 0 {
		t.Fatal(parseErr, warnings)
	} else {
		want = data
	}
	if err != nil || !cfg.Equal(want) {
		t.Errorf("last good configuration %v, %v, want %v", cfg, err, want)
	}
}

// TestResolvConf follows resolv.conf as long as the configuration names no
// upstreams.
func TestResolvConf(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	nt := startNanny(t, nil, func(nt *nannyTest) { writeFile(t, nt.resolv, "nameserver 192.0.2.7\nnameserver 2001:db8::7\n") })
	steps := []struct {
		name   string
		change func()
		want   string
	}{
		{"at start", func() {}, "192.0.2.7:53 [2001:db8::7]:53"},
		{"another file", func() { writeFile(t, nt.resolv, "nameserver 192.0.2.8\n") }, "192.0.2.8:53"},
		{"upstreams are configured", func() { nt.writeJSON(t, "upstreamNameservers", []string{a.addr}) }, a.addr},
		{"not any longer", func() { nt.write(t, "upstreamNameservers", "") }, "192.0.2.8:53"},
	}
	for _, step := range steps {
		step.change()
		got := ""
		ticker := time.NewTicker(10 * time.Millisecond)
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); <-ticker.C {
			if got = nt.servers(t); got == step.want {
				break
			}
		}
		ticker.Stop()
		if got != step.want {
			t.Fatalf("%s: dnsmasq has %q, want %q", step.name, got, step.want)
		}
	}
	// An empty file is one that is being written.
	writeFile(t, nt.resolv, "")
	nt.writeJSON(t, "stubDomains", stub(a.addr)) // so that there is something to wait for
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.write(t, "stubDomains", "")
	await.Until(t, 5*time.Second, "the stub domain is gone", func() bool { return nt.lookup(t, "stub.example") != "192.0.2.1" })
	if got := nt.servers(t); got != "192.0.2.8:53" {
		t.Errorf("with an empty resolv.conf dnsmasq has %q", got)
	}
	if got := valueOf(t, nt.metrics.restarts.WithLabelValues("asked")); got != 0 {
		t.Errorf("%v restarts", got)
	}
}

// TestRestartsWhereSIGHUPCannot has what SIGHUP cannot change.
func TestRestartsWhereSIGHUPCannot(t *testing.T) {
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	host, port, _ := net.SplitHostPort(a.addr)
	tests := []struct {
		name string
		args []string
		set  func(t *testing.T, nt *nannyTest)
		pre  string // of other.example without upstreams configured
	}{
		{
			name: "the operator's own servers file",
			args: []string{"--servers-file=FOLDER/own"},
			set: func(t *testing.T, nt *nannyTest) {
				writeFile(t, filepath.Join(filepath.Dir(nt.dir), "own"), "server="+host+"#"+port+"\n")
			},
			pre: "192.0.2.1",
		},
		{
			name: "the operator's own resolv-file",
			args: []string{"--resolv-file=FOLDER/own"},
			set: func(t *testing.T, nt *nannyTest) {
				writeFile(t, filepath.Join(filepath.Dir(nt.dir), "own"), "nameserver 192.0.2.77\n")
			},
		},
		{
			name: "no folder to write to",
			set: func(t *testing.T, nt *nannyTest) {
				t.Setenv("TMPDIR", "/dev/null")
				nt.opts.StateDir = "/dev/null/state"
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			nt := prepareNanny(t, nil, nil)
			folder := filepath.Dir(nt.dir)
			for _, arg := range test.args {
				nt.opts.Args = append(nt.opts.Args, strings.ReplaceAll(arg, "FOLDER", folder))
			}
			test.set(t, nt)
			if strings.Contains(test.name, "servers file") {
				nt.write(t, "upstreamNameservers", "")
				writeFile(t, nt.resolv, "")
			}
			nt.run(t)
			nt.awaitAnswering(t)
			if test.pre != "" {
				nt.awaitLookup(t, "other.example", test.pre)
			}
			nt.writeJSON(t, "stubDomains", stub(b.addr))
			nt.awaitLookup(t, "stub.example", "192.0.2.2")
			if !strings.Contains(test.name, "servers file") {
				nt.writeJSON(t, "upstreamNameservers", []string{b.addr})
				nt.awaitLookup(t, "other.example", "192.0.2.2")
			}
			if got := valueOf(t, nt.metrics.restarts.WithLabelValues("asked")); got < 1 {
				t.Errorf("%v restarts, want some", got)
			}
			if got := valueOf(t, nt.metrics.restarts.WithLabelValues("died")); got != 0 {
				t.Errorf("dnsmasq died %v times", got)
			}
		})
	}
}

// TestInvalidAtStart starts with a configuration that is invalid: the last good
// one, kept by a nanny before, else the default.
func TestInvalidAtStart(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	var stateDir string
	nt := startNanny(t, nil, func(nt *nannyTest) {
		stateDir = nt.opts.StateDir
		nt.writeJSON(t, "stubDomains", stub(a.addr))
	})
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	if err := nt.stop(); err != nil {
		t.Fatal(err)
	}
	t.Run("last good", func(t *testing.T) {
		nt := startNanny(t, nil, func(nt *nannyTest) {
			nt.opts.StateDir = stateDir
			nt.write(t, "stubDomains", "{")
		})
		nt.awaitLookup(t, "stub.example", "192.0.2.1")
		if got := valueOf(t, nt.metrics.reloads.WithLabelValues(resultRefused)); got != 1 {
			t.Errorf("%v configurations refused, want 1", got)
		}
	})
	t.Run("default", func(t *testing.T) {
		nt := startNanny(t, nil, func(nt *nannyTest) { nt.write(t, "stubDomains", "{") })
		if got := nt.servers(t); got != "192.0.2.53:53" {
			t.Errorf("servers %v, want resolv.conf's", got)
		}
	})
}

// TestRestartDnsmasqFalse ignores changes, but not the first configuration.
func TestRestartDnsmasqFalse(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.opts.Restart = false
		nt.writeJSON(t, "stubDomains", stub(a.addr))
		writeFile(t, nt.resolv, "nameserver 192.0.2.7\n")
	})
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.writeJSON(t, "stubDomains", stub(b.addr))
	// What is no change of the configuration still counts, and comes later.
	writeFile(t, nt.resolv, "nameserver 192.0.2.8\n")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 1)
	if got := nt.lookup(t, "stub.example"); got != "192.0.2.1" {
		t.Errorf("stub.example has %q, want the address from before the change", got)
	}
}

// TestOwnDomainAsStubDomain: a stub domain that dnsmasq's own arguments have too
// leaves nothing behind when it goes. Its names are not asked upstream.
func TestOwnDomainAsStubDomain(t *testing.T) {
	t.Parallel()
	upstream, fixed, other := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2"), startUpstream(t, "192.0.2.3")
	nt := startNanny(t, []string{"--server=/cluster.local/" + hashAddr(fixed.addr)}, func(nt *nannyTest) {
		nt.writeJSON(t, "upstreamNameservers", []string{upstream.addr})
		nt.writeJSON(t, "stubDomains", map[string][]string{"cluster.local": {other.addr}})
	})
	nt.awaitLookup(t, "example.org", "192.0.2.1")
	nt.write(t, "stubDomains", "")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 1)
	before := upstream.queries.Load()
	for range 20 {
		if got := nt.lookup(t, "cluster.local"); got != "192.0.2.2" {
			t.Errorf("a name of cluster.local has %q, want 192.0.2.2", got)
		}
	}
	if n := upstream.queries.Load() - before; n > 0 {
		t.Errorf("the upstream nameserver was asked %d times", n)
	}
}

// TestPassingErrors: what the machine cannot do now is done later, without
// another change of the configuration.
func TestPassingErrors(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	nt := startNanny(t, nil, func(nt *nannyTest) { nt.writeJSON(t, "stubDomains", stub(a.addr)) })
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	aside := nt.state.path + ".aside"
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(nt.state.path, aside)
	nt.writeJSON(t, "stubDomains", stub(b.addr))
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultRefused), 1)
	if got := nt.lookup(t, "stub.example"); got != "192.0.2.1" {
		t.Errorf("stub.example has %q while the servers file cannot be written", got)
	}
	rename(aside, nt.state.path)
	nt.awaitLookup(t, "stub.example", "192.0.2.2")

	// The same for nameservers.
	rename(nt.state.path, aside)
	writeFile(t, nt.resolv, "nameserver 192.0.2.8\n")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultRefused), 2)
	rename(aside, nt.state.path)
	await.Until(t, 5*time.Second, "the new nameserver is active", func() bool { return strings.Contains(nt.servers(t), "192.0.2.8:53") })
}

// TestRunEndsEarly: what was prepared is taken back.
func TestRunEndsEarly(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	nt := prepareNanny(t, nil, func(nt *nannyTest) { nt.opts.StateDir, nt.opts.Guard = "/dev/null", []string{"/nonesuch"} })
	if err := nt.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "starting the guard") {
		t.Errorf("Run without its guard: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "dnsmasq-nanny-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := prepareNanny(t, nil, nil).Run(stopped); err != nil {
		t.Errorf("Run that is told to stop while it prepares: %v", err)
	}
}

// TestMetricsAddr reads the metrics over HTTP.
func TestMetricsAddr(t *testing.T) {
	t.Parallel()
	addr := freeport.Addr(t)
	a := startUpstream(t, "192.0.2.1")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.opts.MetricsAddr = addr
		nt.writeJSON(t, "stubDomains", stub(a.addr))
	})
	nt.write(t, "stubDomains", "[]")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultRefused), 1)
	text := get(t, "http://"+addr+"/metrics")
	for _, want := range []string{
		`kubedns_nanny_reloads_total{result="refused"} 1`,
		`kubedns_nanny_dnsmasq_restarts_total{cause="died"} 0`,
		`kubedns_nanny_server_in_force{domain="stub.example",server="` + a.addr + `"} 1`,
		`kubedns_nanny_server_in_force{domain="",server="192.0.2.53:53"} 1`,
		"kubedns_build_info{", "kubedns_nanny_last_good_timestamp_seconds 1.", "go_goroutines",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// hashAddr writes an address as dnsmasq does.
func hashAddr(addr string) string { return strings.Replace(addr, ":", "#", 1) }

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// TestServersFileUnreadable has dnsmasq become a user who cannot read the
// servers file: its servers become arguments.
func TestServersFileUnreadable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's dnsmasq can become another user")
	}
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	nt := startNanny(t, []string{"--user=nobody"}, func(nt *nannyTest) {
		nt.limits.hup = 300 * time.Millisecond
		closed := t.TempDir()
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		nt.opts.StateDir = filepath.Join(closed, "state")
		nt.writeJSON(t, "stubDomains", stub(a.addr))
	})
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.writeJSON(t, "stubDomains", stub(b.addr))
	nt.awaitLookup(t, "stub.example", "192.0.2.2")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 1)
}

// TestHUPWithoutEffect has a dnsmasq that does not react: it is restarted to
// have its new servers.
func TestHUPWithoutEffect(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.limits.takeover, nt.limits.grace = time.Second, 100*time.Millisecond
		nt.limits.probePeriod = time.Minute // it shall not be found deaf
	})
	nt.writeJSON(t, "stubDomains", stub("192.0.2.99:53"))
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 1)
	if err := syscall.Kill(nt.pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nt.writeJSON(t, "stubDomains", stub(a.addr))
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	for counter, want := range map[prometheus.Counter]float64{
		nt.metrics.reloads.WithLabelValues(resultFailed):  1,
		nt.metrics.reloads.WithLabelValues(resultSuccess): 2,
		nt.metrics.restarts.WithLabelValues("asked"):      1,
	} {
		nt.awaitCount(t, counter, want)
	}
}
