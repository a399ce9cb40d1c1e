package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
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
	"golang.org/x/sys/unix"

	"kubedns/pkg/await"
	"kubedns/pkg/dnsmasq/counters"
	"kubedns/pkg/dnsmasq/dnsmasqtest"
	"kubedns/pkg/freeport"
)

// TestMain is this program, or a client of dnsmasq, when the environment says
// so: the tests run themselves.
func TestMain(m *testing.M) {
	switch os.Getenv("NANNY_TEST") {
	case "nanny":
		os.Exit(run(os.Args))
	case "ask":
		os.Exit(ask(os.Args[1]))
	}
	os.Exit(m.Run())
}

// ask prints dnsmasq's version and servers on one line.
func ask(addr string) int {
	client := counters.Client{Addr: addr, Timeout: time.Second}
	version, err := client.Version(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	servers, err := client.Servers(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(version, servers)
	return 0
}

// flagSet has glog's flags, as flag.CommandLine does.
func flagSet(t *testing.T) *flag.FlagSet {
	t.Helper()
	set := flag.NewFlagSet("dnsmasq-nanny", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	flag.CommandLine.VisitAll(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "test.") {
			return
		}
		set.Var(f.Value, f.Name, f.Usage)
		before := f.Value.String()
		if f.Name != "log_backtrace_at" { // its zero value cannot be set
			t.Cleanup(func() { _ = f.Value.Set(before) })
		}
	})
	return set
}

const (
	stockArgs = "-k --cache-size=1000 --no-negcache --dns-loop-detect --log-facility=- --server=/cluster.local/127.0.0.1#10053 --server=/in-addr.arpa/127.0.0.1#10053 --server=/ip6.arpa/127.0.0.1#10053"
	stockTail = "-configDir=/etc/k8s/dns/dnsmasq-nanny -restartDnsmasq=true -- " + stockArgs
)

func TestParseFlags(t *testing.T) {
	tests := []struct {
		name        string
		args        string
		v           string
		logToStderr string
		rest        string
		restart     bool
		err         string
	}{
		{name: "stock", args: "-v=2 " + stockTail, v: "2", logToStderr: "true", rest: stockArgs, restart: true},
		{name: "older", args: "-v=2 -logtostderr=true " + stockTail, v: "2", logToStderr: "true", rest: stockArgs, restart: true},
		{name: "older still", args: "--v=2 -logtostderr " + stockTail, v: "2", logToStderr: "true", rest: stockArgs, restart: true},
		{name: "none", v: "0", logToStderr: "true"},
		{name: "two dashes", args: "--v=3 --restartDnsmasq --logtostderr=false --vmodule=nanny=4", v: "3", logToStderr: "false", restart: true},
		{name: "dnsmasq's own --", args: "-- -k -- x", v: "0", logToStderr: "true", rest: "-k -- x"},
		{name: "dnsmasq's flags look like ours", args: "-- -v=9 --configDir=/x", v: "0", logToStderr: "true", rest: "-v=9 --configDir=/x"},
		{name: "no --", args: "-v=2 dnsmasq -k", err: `unexpected argument "dnsmasq": dnsmasq's own arguments come after --`},
		{name: "no flag of ours", args: "-k", err: "flag provided but not defined: -k"},
		{name: "negative", args: "-drainPeriod=-1s", err: "-drainPeriod is negative: -1s"},
		{name: "no duration", args: "-syncInterval=10", err: "invalid value"},
		{name: "help", args: "--help", err: "help requested"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			set := flagSet(t)
			opts, _, err := parseFlags(set, strings.Fields(test.args))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(opts.Args, " "); got != test.rest {
				t.Errorf("dnsmasq's arguments %q, want %q", got, test.rest)
			}
			if opts.Restart != test.restart {
				t.Errorf("restartDnsmasq %v, want %v", opts.Restart, test.restart)
			}
			for name, want := range map[string]string{"v": test.v, "logtostderr": test.logToStderr} {
				if got := set.Lookup(name).Value.String(); got != want {
					t.Errorf("-%s is %s, want %s", name, got, want)
				}
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	opts, _, err := parseFlags(flagSet(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(opts.Exec, opts.ConfigDir, opts.Restart, opts.SyncInterval, opts.KubednsServer, opts.LogInterval, opts.DrainPeriod, opts.MetricsAddr)
	if want := fmt.Sprintln("/usr/sbin/dnsmasq", "/etc/k8s/dns/dnsmasq-nanny", false, "10s", "127.0.0.1:10053", "0s", "7s", ""); got != want {
		t.Errorf("defaults %s, want %s", got, want)
	}
}

// program is this program, running.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// start runs command with arguments as the nanny until the test ends.
func start(t *testing.T, command string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(command, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "NANNY_TEST=nanny", "GORACE=atexit_sleep_ms=0")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = p.cmd.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
		}
	}()
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		<-read
		_ = r.Close()
		if t.Failed() {
			t.Logf("the nanny wrote:\n%s", strings.Join(p.lines, "\n"))
		}
	})
	return p
}

// since returns the lines from number n on.
func (p *program) since(n int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines[n:]...)
}

func containing(lines []string, text string) []string {
	var found []string
	for _, line := range lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// skip skips a test that needs something, and fails where there is no excuse.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// local are arguments for a dnsmasq on loopback, at addr.
func local(addr, user string) []string {
	_, port, _ := net.SplitHostPort(addr)
	return []string{"--conf-file=/dev/null", "--no-hosts", "--listen-address=127.0.0.1", "--bind-interfaces", "--port=" + port, "--user=" + user}
}

func startLocal(t *testing.T, addr, dir, user string, flags ...string) *program {
	t.Helper()
	return startWith(t, local(addr, user), addr, dir, flags...)
}

// startWith starts the nanny with dnsmasq's own arguments and waits until
// dnsmasq answers at addr.
func startWith(t *testing.T, own []string, addr, dir string, flags ...string) *program {
	t.Helper()
	args := append([]string{"-v=2", "-dnsmasqExec=" + dnsmasqtest.Path(t), "-configDir=" + dir, "-restartDnsmasq=true", "-syncInterval=50ms",
		"-stateDir=" + filepath.Join(dnsmasqtest.Dir(t), "state")}, flags...)
	p := start(t, self(t), append(append(args, "--"), own...)...)
	await.Until(t, 10*time.Second, "dnsmasq answers", func() bool { return answers(addr) })
	return p
}

func answers(addr string) bool {
	_, err := (&counters.Client{Addr: addr, Timeout: time.Second}).Version(context.Background())
	return err == nil
}

// currentUser is one that dnsmasq need not change.
func currentUser(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return "root"
	}
	return "nobody" // ignored by a dnsmasq that is not root
}

// startUpstream starts a DNS server that answers every question with 192.0.2.1, and
// returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	addr := freeport.Addr(t)
	up := make(chan struct{})
	server := &dns.Server{Addr: addr, Net: "udp", NotifyStartedFunc: func() { close(up) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ListenAndServe() }()
	<-up
	t.Cleanup(func() { _ = server.Shutdown() })
	return addr
}

// TestBadInput has every mistake that a configuration can have leave dnsmasq
// answering, with the configuration from before, and be told in one line.
func TestBadInput(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t)
	dir := filepath.Join(dnsmasqtest.Dir(t), "config")
	must(t, os.Mkdir(dir, 0o755))
	good := fmt.Sprintf(`{"stub.example":[%q]}`, upstream)
	// put makes what is at aside what is at path, without a moment between.
	aside := filepath.Join(filepath.Dir(dir), "aside")
	put := func(path string) {
		t.Helper()
		err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
		if errors.Is(err, os.ErrNotExist) {
			err = os.Rename(aside, path)
		}
		must(t, err)
		must(t, os.RemoveAll(aside))
	}
	write := func(key, text string) {
		t.Helper()
		must(t, os.WriteFile(aside, []byte(text), 0o644))
		put(filepath.Join(dir, key))
	}
	write("stubDomains", good)
	addr := freeport.Addr(t)
	p := startLocal(t, addr, dir, currentUser(t), "-drainPeriod=0s")
	n := 0
	resolves := func() bool {
		n++
		q := new(dns.Msg)
		q.SetQuestion(fmt.Sprintf("n%d.stub.example.", n), dns.TypeA)
		reply, _, err := (&dns.Client{Timeout: time.Second}).Exchange(q, addr)
		return err == nil && len(reply.Answer) == 1
	}
	await.Until(t, 5*time.Second, "the stub domain answers", resolves)

	tests := []struct {
		name, key, text string
		change          func() // in place of writing text to key
		want            string
		accepted        bool // the rest of the configuration counts
		gone            bool // and it has no stub domain
	}{
		{name: "broken JSON", key: "stubDomains", text: `{"stub.example":`, want: "stubDomains: "},
		{name: "JSON of the wrong shape", key: "stubDomains", text: `["192.0.2.1"]`, want: "stubDomains: "},
		{name: "wrong shape further in", key: "stubDomains", text: `{"stub.example":"192.0.2.1"}`, want: "stubDomains: "},
		{name: "upstreams of the wrong shape", key: "upstreamNameservers", text: `{"a":1}`, want: "upstreamNameservers: "},
		{name: "a domain that is none", key: "stubDomains", text: `{"a b":["192.0.2.1"]}`, want: `domain "a b" is not a DNS name`},
		{name: "a domain with a line break", key: "stubDomains", text: `{"a\nserver=192.0.2.9":["192.0.2.1"]}`, want: "is not a DNS name"},
		{name: "an empty list", key: "stubDomains", text: `{"stub.example":[]}`, want: `domain "stub.example": no servers`},
		{name: "a URL", key: "stubDomains", text: `{"stub.example":["https://192.0.2.1"]}`, want: `server "https://192.0.2.1": a URL`},
		{name: "a name with a blank", key: "stubDomains", text: `{"stub.example":["ns example.org"]}`, want: `server "ns example.org": has a blank`},
		{name: "port 0", key: "stubDomains", text: `{"stub.example":["1.2.3.4:0"]}`, want: `server "1.2.3.4:0": port "0"`},
		{name: "port 99999", key: "upstreamNameservers", text: `["1.2.3.4:99999"]`, want: `nameserver "1.2.3.4:99999": port "99999"`},
		{name: "half a bracket", key: "stubDomains", text: `{"stub.example":["[::1"]}`, want: `server "[::1": no ]`},
		{name: "a name as upstream", key: "upstreamNameservers", text: `["ns.example.org"]`, want: `nameserver "ns.example.org": not an IP address`},
		{name: "an interface that is not there", key: "upstreamNameservers", text: `["fe80::1%nonesuch0"]`, want: "refused by dnsmasq: bad command line options: bad interface name"},
		{name: "not UTF-8", key: "upstreamNameservers", text: "\xff\xfe", want: "is not UTF-8"},
		{name: "a folder in place of a file", change: func() { must(t, os.Mkdir(filepath.Join(dir, "upstreamNameservers"), 0o755)) }, want: "upstreamNameservers: a folder in place of a file"},
		{
			name: "a folder in place of the file in use", change: func() {
				must(t, os.Mkdir(aside, 0o755))
				put(filepath.Join(dir, "stubDomains"))
			}, want: "stubDomains: a folder in place of a file",
		},
		{name: "a file in place of the directory", change: func() {
			must(t, os.WriteFile(aside, nil, 0o644))
			put(dir)
		}, want: "is not a directory"},
		{name: "an unknown key", key: "stubdomains", text: "{}", want: `unknown key "stubdomains"`, accepted: true},
		{
			name: "a name that does not resolve", key: "stubDomains", text: fmt.Sprintf(`{"stub.example":["gone.cluster.local",%q]}`, upstream),
			want: `server "gone.cluster.local" does not resolve, leaving it out`, accepted: true,
		},
		{name: "the directory gone", change: func() { must(t, os.RemoveAll(dir)) }, want: dir + " does not exist", accepted: true, gone: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			from := len(p.since(0))
			if test.change != nil {
				test.change()
			} else {
				write(test.key, test.text)
			}
			await.Until(t, 15*time.Second, "the mistake is told: "+test.want, func() bool { return len(containing(p.since(from), test.want)) > 0 })
			if test.gone {
				if !answers(addr) {
					t.Error("dnsmasq does not answer")
				}
			} else if !resolves() {
				t.Error("the stub domain does not answer")
			}
			// Back to what is good, be it the way it was.
			if info, err := os.Stat(dir); err != nil || !info.IsDir() {
				must(t, os.Mkdir(aside, 0o755))
				must(t, os.WriteFile(filepath.Join(aside, "stubDomains"), []byte(good), 0o644))
				put(dir)
			}
			write("stubDomains", good)
			entries, err := os.ReadDir(dir)
			must(t, err)
			for _, entry := range entries {
				if entry.Name() != "stubDomains" {
					must(t, os.RemoveAll(filepath.Join(dir, entry.Name())))
				}
			}
			await.Until(t, 5*time.Second, "the stub domain answers", resolves)
			if !test.accepted {
				await.Until(t, 5*time.Second, "the configuration is valid again", func() bool { return len(containing(p.since(from), "is valid again")) > 0 })
			}
			lines := p.since(from)
			if got := containing(lines, test.want); len(got) != 1 {
				t.Errorf("%d lines say what is wrong, want one:\n%s", len(got), strings.Join(got, "\n"))
			}
			if got := len(containing(lines, "configuration refused")); (got == 0) != test.accepted {
				t.Errorf("%d configurations were refused", got)
			}
		})
	}
	if got := containing(p.since(0), "dnsmasq died"); len(got) > 0 {
		t.Errorf("dnsmasq died:\n%s", strings.Join(got, "\n"))
	}
}

// TestConfigurationFilesLogged: the log has what is read of dnsmasq's files, and
// what is not.
func TestConfigurationFilesLogged(t *testing.T) {
	t.Parallel()
	dir, addr := dnsmasqtest.Dir(t), freeport.Addr(t)
	file, script := filepath.Join(dir, "a.conf"), filepath.Join(dir, "script")
	must(t, os.WriteFile(file, []byte("no-poll\n"), 0o644))
	must(t, os.WriteFile(script, []byte("#!/bin/sh\necho no-resolv\n"), 0o755))
	args := append(local(addr, currentUser(t)), "--conf-dir="+dir+",*.conf", "--conf-script="+script)
	p := startWith(t, args, addr, dnsmasqtest.Dir(t), "-drainPeriod=0s")
	for _, want := range []string{
		"read dnsmasq's configuration files " + file + "; a change to them needs a restart",
		"not reading the output of --conf-script=" + script + "; these options have no effect on the nanny there: address, conf-dir, ",
	} {
		if got := containing(p.since(0), want); len(got) != 1 {
			t.Errorf("%d lines have %q, want one", len(got), want)
		}
	}
}

// TestOwnAddressAtStart: a server that is dnsmasq itself is left out with a
// warning, also when nothing changes from then on.
func TestOwnAddressAtStart(t *testing.T) {
	t.Parallel()
	dir, addr := dnsmasqtest.Dir(t), freeport.Addr(t)
	must(t, os.WriteFile(filepath.Join(dir, "upstreamNameservers"), []byte(fmt.Sprintf("[%q]", addr)), 0o644))
	p := startLocal(t, addr, dir, currentUser(t), "-drainPeriod=0s")
	await.Until(t, 5*time.Second, "the warning", func() bool { return len(containing(p.since(0), addr+": it is dnsmasq's own address")) > 0 })
}

// TestIgnoredOnce: a change that does not count is told once, that of a folder too.
func TestIgnoredOnce(t *testing.T) {
	t.Parallel()
	dir, addr := dnsmasqtest.Dir(t), freeport.Addr(t)
	p := startLocal(t, addr, dir, currentUser(t), "-drainPeriod=0s", "-restartDnsmasq=false", "-logInterval=100ms")
	const ignored, tick = "ignored without -restartDnsmasq", "queries forwarded"
	ticks := func(from, n int) func() bool {
		return func() bool { return len(containing(p.since(from), tick)) >= n }
	}
	await.Until(t, 5*time.Second, "statistics", ticks(0, 1))
	must(t, os.Mkdir(filepath.Join(dir, "stubDomains"), 0o755))
	await.Until(t, 5*time.Second, ignored, func() bool { return len(containing(p.since(0), ignored)) > 0 })
	// Three intervals of statistics are at least four of looking at the folder.
	await.Until(t, 5*time.Second, "more statistics", ticks(len(p.since(0)), 3))
	if got := containing(p.since(0), ignored); len(got) != 1 {
		t.Errorf("%d lines, want one:\n%s", len(got), strings.Join(got, "\n"))
	}
}

// TestRelativeStateDir: dnsmasq, whose working directory is another one, finds
// its servers file, so that changes take no restart.
func TestRelativeStateDir(t *testing.T) {
	dir, addr := dnsmasqtest.Dir(t), freeport.Addr(t)
	t.Chdir(dnsmasqtest.Dir(t))
	p := startLocal(t, addr, dir, currentUser(t), "-drainPeriod=0s", "-stateDir=state")
	must(t, os.WriteFile(filepath.Join(dir, "stubDomains"), []byte(`{"stub.example":["192.0.2.1"]}`), 0o644))
	await.Until(t, 10*time.Second, "the servers are active", func() bool { return len(containing(p.since(0), "servers active after")) > 0 })
	if got := containing(p.since(0), "restarting dnsmasq with new arguments"); len(got) > 0 {
		t.Errorf("dnsmasq was restarted: %s", got[0])
	}
}

// TestSignals: the first one drains, the second one ends it all.
func TestSignals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		drain   string
		signals []syscall.Signal
		code    int
		least   time.Duration
	}{
		{"SIGTERM", "-drainPeriod=300ms", []syscall.Signal{syscall.SIGTERM}, 0, 300 * time.Millisecond},
		{"SIGINT, no drain", "-drainPeriod=0s", []syscall.Signal{syscall.SIGINT}, 0, 0},
		{"two signals", "-drainPeriod=1m", []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, 1, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			addr := freeport.Addr(t)
			p := startLocal(t, addr, dnsmasqtest.Dir(t), currentUser(t), test.drain)
			pids := dnsmasqs(t, p.cmd.Process.Pid)
			began := time.Now()
			for i, s := range test.signals {
				must(t, p.cmd.Process.Signal(s))
				await.Until(t, 5*time.Second, "the signal is received", func() bool { return len(containing(p.since(0), "received ")) > i })
			}
			select {
			case <-p.ended:
			case <-time.After(8 * time.Second):
				t.Fatal("the nanny does not end")
			}
			if took := time.Since(began); took < test.least {
				t.Errorf("it ended after %v, want %v", took, test.least)
			}
			if got := p.cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("status %d, want %d", got, test.code)
			}
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("dnsmasq, process %d, is still there", pid)
				}
			}
		})
	}
}

// TestKilled: dnsmasq and its children do not outlive a nanny that is killed,
// also when dnsmasq has become another user, which makes the kernel forget the
// parent-death signal.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) {
			if user != currentUser(t) && os.Geteuid() != 0 {
				t.Skip("only root can become another user")
			}
			t.Parallel()
			addr := freeport.Addr(t)
			p := startLocal(t, addr, dnsmasqtest.Dir(t), user)
			conn, err := net.Dial("tcp", addr)
			must(t, err)
			defer conn.Close()
			var pids []int
			await.Until(t, 5*time.Second, "dnsmasq has a child", func() bool {
				pids = dnsmasqs(t, p.cmd.Process.Pid)
				return len(pids) == 2
			})
			must(t, p.cmd.Process.Kill())
			for _, pid := range pids {
				await.Until(t, 5*time.Second, fmt.Sprintf("process %d of %v has ended", pid, pids), func() bool { return !alive(pid) })
			}
		})
	}
}

// dnsmasqs are the processes below pid that run dnsmasq.
func dnsmasqs(t *testing.T, pid int) []int {
	t.Helper()
	var found []int
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			must(t, err)
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); strings.TrimSpace(string(name)) == "dnsmasq" {
				found = append(append(found, child), dnsmasqs(t, child)...)
			}
		}
	}
	return found
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// TestUsageErrors: what ends at once, and how.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	dnsmasqtest.Path(t)
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"version", []string{"-version"}, 0, "dev"},
		{"help", []string{"-h"}, 0, "-restartDnsmasq"},
		{"unknown flag", []string{"-bogus"}, 2, "flag provided but not defined: -bogus"},
		{"no --", []string{"dnsmasq"}, 2, "dnsmasq's own arguments come after --"},
		{"dnsmasq refuses its arguments", []string{"-configDir=/nonesuch", "--", "--bogus"}, 1, "dnsmasq's own arguments: refused by dnsmasq: bad command line options"},
		{"no dnsmasq", []string{"-dnsmasqExec=/nonesuch", "--", "-k"}, 1, "/nonesuch: no such file or directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(self(t), test.args...)
			cmd.Env = append(os.Environ(), "NANNY_TEST=nanny", "GORACE=atexit_sleep_ms=0")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("status %d, output %q, want %d, %q", got, out, test.code, test.want)
			}
		})
	}
}

// TestStockOnPort53 runs the stock arguments on port 53 of a network namespace,
// with as few privileges as there may be.
func TestStockOnPort53(t *testing.T) {
	t.Parallel()
	dnsmasq := dnsmasqtest.Path(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can make a network namespace")
	}
	for _, tool := range []string{"ip", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, "%s is needed: %v", tool, err)
		}
	}
	ns := fmt.Sprintf("nanny-test-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		skip(t, "no network namespaces: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", ns).Run() })
	if out, err := exec.Command("ip", "-n", ns, "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The test's own folder is for root alone.
	bin := filepath.Join(dnsmasqtest.Dir(t), "nanny")
	program, err := os.ReadFile(self(t))
	must(t, err)
	must(t, os.WriteFile(bin, program, 0o755))

	tests := []struct {
		name string
		priv []string
	}{
		{
			"an unprivileged user with NET_BIND_SERVICE",
			[]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all,+net_bind_service", "--inh-caps=-all,+net_bind_service", "--ambient-caps=-all,+net_bind_service"},
		},
		{
			"the stock pod's root with NET_BIND_SERVICE and SETGID",
			[]string{"--bounding-set=-all,+net_bind_service,+setgid", "--inh-caps=-all"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := dnsmasqtest.Dir(t)
			// For root it can be made, for others not.
			state := filepath.Join(dnsmasqtest.Dir(t), "state")
			args := append([]string{"netns", "exec", ns, "setpriv"}, test.priv...)
			args = append(args, bin, "-v=2", "-dnsmasqExec="+dnsmasq, "-configDir="+dir, "-restartDnsmasq=true", "-stateDir="+state, "-drainPeriod=0s", "--")
			p := start(t, "ip", append(args, strings.Fields(stockArgs)...)...)
			said := func() string {
				cmd := exec.Command("ip", "netns", "exec", ns, self(t), "127.0.0.1:53")
				cmd.Env = append(os.Environ(), "NANNY_TEST=ask", "GORACE=atexit_sleep_ms=0")
				out, _ := cmd.Output()
				return string(out)
			}
			await.Until(t, 10*time.Second, "dnsmasq answers", func() bool { return strings.HasPrefix(said(), "dnsmasq-") })
			pids := dnsmasqs(t, p.cmd.Process.Pid)
			must(t, os.WriteFile(filepath.Join(dir, "stubDomains"), []byte(`{"stub.example":["192.0.2.1:5353"]}`), 0o644))
			await.Until(t, 10*time.Second, "the new server is active", func() bool { return strings.Contains(said(), "192.0.2.1:5353") })
			if again := dnsmasqs(t, p.cmd.Process.Pid); len(pids) != 1 || len(again) != 1 || pids[0] != again[0] {
				t.Errorf("dnsmasq is %v, was %v: not one that was not restarted", again, pids)
			}
			must(t, p.cmd.Process.Signal(syscall.SIGTERM))
			<-p.ended
			if got := p.cmd.ProcessState.ExitCode(); got != 0 {
				t.Errorf("status %d", got)
			}
			if got := containing(p.since(0), "Operation not permitted"); len(got) > 0 {
				t.Errorf("something was not permitted:\n%s", strings.Join(got, "\n"))
			}
		})
	}
}
