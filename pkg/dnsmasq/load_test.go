package dnsmasq

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/await"
	"kubedns/pkg/dnsmasq/dnsmasqtest"
)

// clientTimeout is when a question without an answer is lost, as with glibc.
const clientTimeout = 5 * time.Second

// load asks dnsmasq questions at a steady rate, each for a name that nobody has
// asked for before, each once: what gets no answer is not asked again.
type load struct {
	conn     *net.UDPConn
	domains  []string
	patience time.Duration // how long to wait for the last answers

	mu      sync.Mutex
	sent    int
	waiting map[uint16]time.Time
	times   []time.Duration // from question to answer
	answers []answer
	rcodes  map[string]int
	lost    int
	dropped int // questions and answers that the kernel threw away, as their reader had no processor time
}

// forwardMax has dnsmasq refuse no question when the upstream, which is in the
// test, has no processor for a moment.
const forwardMax = "--dns-forward-max=10000"

// stalled is how long, in total, something on this machine has waited for a
// processor. Limits of time are for a machine that is not busy, so that they
// are extended by what has been waited meanwhile. It is 0 where the kernel does
// not tell.
func stalled(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	_, total, _ := strings.Cut(string(text), "total=")
	total, _, _ = strings.Cut(total, "\n")
	us, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		t.Fatalf("/proc/pressure/cpu: %v", err)
	}
	return time.Duration(us) * time.Microsecond
}

// judge begins a measurement on a machine that others may also use. The
// function that it returns reports a number out of bounds: as an error or, when
// something has waited for a processor more than half of the time since, so that
// the numbers tell of the machine alone, by skipping the rest of the test.
func judge(t *testing.T) func(format string, args ...any) {
	t.Helper()
	began, before := time.Now(), stalled(t)
	return func(format string, args ...any) {
		t.Helper()
		if waited, took := stalled(t)-before, time.Since(began); waited > took/2 {
			t.Skipf("the machine is too busy to judge, for %v of %v something has waited for a processor: %s", waited, took, fmt.Sprintf(format, args...))
		}
		t.Errorf(format, args...)
	}
}

// outage is how long something took, and how long something waited for a
// processor meanwhile.
type outage struct{ took, stalled time.Duration }

func (o outage) less() time.Duration { return o.took - o.stalled }

type answer struct{ asked, came time.Time }

// startLoad asks rate questions a second about names of the domains, in turn,
// until the function that it returns is called, which waits for the last
// answers.
func startLoad(t *testing.T, addr string, rate int, domains ...string) (*load, func()) {
	t.Helper()
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	droppedBefore := dropped(t, addr) // the client's socket is new
	l := &load{conn: conn.(*net.UDPConn), domains: domains, patience: clientTimeout, waiting: map[uint16]time.Time{}, rcodes: map[string]int{}}
	_ = l.conn.SetReadBuffer(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	sending := make(chan struct{})
	wg.Go(func() {
		defer close(sending)
		l.send(ctx, rate)
	})
	wg.Go(l.receive)
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-sending
		deadline := time.Now().Add(l.patience)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		countDropped := func() int { return dropped(t, addr) - droppedBefore + dropped(t, conn.LocalAddr().String()) }
		for l.outstanding() > 0 && time.Now().Before(deadline) {
			<-ticker.C
			if l.outstanding() <= countDropped() {
				break // nothing else can come
			}
		}
		l.dropped = countDropped()
		_ = conn.Close()
		wg.Wait()
		l.lost += len(l.waiting)
	}
	t.Cleanup(stop)
	return l, stop
}

// dropped is how many packets the kernel has thrown away at the UDP socket of
// 127.0.0.1 that has addr's port, for its buffer was full.
func dropped(t *testing.T, addr string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(addr)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 13 || fields[1] != fmt.Sprintf("0100007F:%04X", at.Port()) {
			continue
		}
		n, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("no UDP socket at %s", addr)
	return 0
}

func (l *load) outstanding() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

func (l *load) send(ctx context.Context, rate int) {
	const tick = 5 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	began := time.Now()
	for id := uint16(1); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for due := int(time.Since(began).Seconds() * float64(rate)); l.sent < due; id++ {
			q := new(dns.Msg)
			q.SetQuestion(uniqueName(l.domains[l.sent%len(l.domains)]), dns.TypeA)
			q.Id = id
			packet, err := q.Pack()
			if err != nil {
				panic(err)
			}
			now := time.Now()
			l.mu.Lock()
			if _, old := l.waiting[id]; old {
				l.lost++ // it comes round in 32 s
			}
			l.waiting[id] = now
			l.sent++
			l.mu.Unlock()
			// An error is one that an earlier question has brought about, as
			// that nobody listens at the port.
			for range 3 {
				if _, err := l.conn.Write(packet); err == nil {
					break
				}
			}
		}
	}
}

func (l *load) receive() {
	packet := make([]byte, 4096)
	for {
		n, err := l.conn.Read(packet)
		if err != nil {
			if isRefused(err) {
				continue
			}
			return
		}
		if n < 12 {
			continue
		}
		now := time.Now()
		id, rcode := binary.BigEndian.Uint16(packet), int(packet[3]&0xf)
		l.mu.Lock()
		if asked, ok := l.waiting[id]; ok {
			delete(l.waiting, id)
			l.times = append(l.times, now.Sub(asked))
			l.answers = append(l.answers, answer{asked, now})
			l.rcodes[dns.RcodeToString[rcode]]++
		}
		l.mu.Unlock()
	}
}

// answeredAfter returns when the first question that was asked after since was
// answered, ok being false while none was.
func (l *load) answeredAfter(since time.Time) (at time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.answers) - 1; i >= 0 && l.answers[i].came.After(since); i-- {
		if l.answers[i].asked.After(since) {
			at, ok = l.answers[i].came, true
		}
	}
	return at, ok
}

func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.times)
	slow := 0
	for _, d := range l.times {
		if d > 500*time.Millisecond {
			slow++
		}
	}
	at := func(q float64) time.Duration {
		if len(l.times) == 0 {
			return 0
		}
		return l.times[int(q*float64(len(l.times)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d questions, %d lost, %d dropped by a busy machine, %v, times: median %v, 99%% %v, longest %v, %d over 0.5s",
		l.sent, l.lost, l.dropped, l.rcodes, at(0.5), at(0.99), at(1), slow)
}

// idleClients keeps n TCP connections to dnsmasq open. The function that it
// returns asks one question on each and returns how many were answered.
func idleClients(t *testing.T, addr string, n int) func(name string) int {
	t.Helper()
	var conns []*dns.Conn
	for range n {
		conn, err := (&dns.Client{Net: "tcp", Timeout: 5 * time.Second}).Dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	return func(name string) int {
		answered := 0
		for _, conn := range conns {
			q := new(dns.Msg)
			q.SetQuestion(name, dns.TypeA)
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if err := conn.WriteMsg(q); err != nil {
				continue
			}
			if _, err := conn.ReadMsg(); err == nil {
				answered++
			}
		}
		return answered
	}
}

// TestReloadsUnderLoad changes stub domains and upstream nameservers 50 times
// while 2,000 questions a second are asked.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	const changes, period, rate = 50, 300 * time.Millisecond, 2000
	fixed := startUpstream(t, "192.0.2.9")
	servers := []*upstream{startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")}
	nt := startNanny(t, []string{"--cache-size=1000", "--no-negcache", "--dns-loop-detect", forwardMax,
		"--server=/cluster.local/" + hashAddr(fixed.addr)}, func(nt *nannyTest) {
		nt.writeJSON(t, "stubDomains", map[string][]string{"stub.example": {servers[0].addr}, "gone.example": {servers[0].addr}})
		nt.writeJSON(t, "upstreamNameservers", []string{servers[0].addr, servers[1].addr})
	})
	pid := nt.pid()
	wrong := judge(t)
	askIdle := idleClients(t, nt.addr, 5)
	l, stop := startLoad(t, nt.addr, rate, "svc.cluster.local", "stub.example", "gone.example", "other.example")

	// Each change moves the stub domain to the other server; every other one
	// takes a whole domain or one of the two upstreams away.
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var longest outage
	for i := range changes {
		now, other := servers[i%2], servers[(i+1)%2]
		stubDomains := map[string][]string{"stub.example": {other.addr}}
		upstreams := []string{now.addr}
		if i%2 == 1 {
			stubDomains["gone.example"] = []string{other.addr}
			upstreams = append(upstreams, other.addr)
		}
		began, stalledBefore := time.Now(), stalled(t)
		nt.writeJSON(t, "stubDomains", stubDomains)
		nt.writeJSON(t, "upstreamNameservers", upstreams)
		want := []string{"192.0.2.2", "192.0.2.1"}[i%2]
		nt.awaitLookup(t, "stub.example", want)
		if o := (outage{time.Since(began), stalled(t) - stalledBefore}); o.less() >= longest.less() {
			longest = o
		}
		<-ticker.C
	}
	stop()
	t.Logf("load: %v", l)
	t.Logf("from a file's change to an answer of the new server: %v at the longest, %v of it waiting for a processor", longest.took, longest.stalled)
	if l.lost > l.dropped || l.rcodes["NOERROR"]+l.lost != l.sent {
		wrong("lost or failed: %v", l)
	}
	if want := int(rate * changes * period.Seconds() * 5 / 6); l.sent < want {
		wrong("only %d questions in %v, want %d", l.sent, changes*period, want)
	}
	if longest.less() > time.Second {
		wrong("new servers active after %v, want 1s at most", longest.less())
	}
	if got := askIdle(uniqueName("svc.cluster.local")); got != 5 {
		wrong("%d of 5 idle TCP clients are still served", got)
	}
	if got := nt.pid(); got != pid {
		wrong("dnsmasq is process %d, was %d", got, pid)
	}
	if got := valueOf(t, nt.metrics.reloads.WithLabelValues(resultSuccess)); got < changes {
		t.Errorf("%v reloads, want %d at the least", got, changes)
	}
}

// TestRestarts forces 20 restarts by what SIGHUP cannot change: whether
// resolv.conf is read, with an operator's own --resolv-file.
func TestRestarts(t *testing.T) {
	t.Parallel()
	const restarts = 20
	fixed, other := startUpstream(t, "192.0.2.9"), startUpstream(t, "192.0.2.1")
	own := filepath.Join(dnsmasqtest.Dir(t), "resolv.conf")
	writeFile(t, own, "nameserver 192.0.2.77\n")
	nt := startNanny(t, []string{forwardMax, "--server=/cluster.local/" + hashAddr(fixed.addr), "--resolv-file=" + own}, nil)
	l, stop := startLoad(t, nt.addr, 200, "svc.cluster.local")
	l.patience = 0 // what is asked while dnsmasq is away is lost
	var downs []outage
	wrong := judge(t)
	for i := range restarts {
		pid := 0
		await.Until(t, 5*time.Second, "dnsmasq is ready", func() bool { pid = nt.pid(); return pid != 0 })
		idleClients(t, nt.addr, 5)
		if i%2 == 0 {
			nt.writeJSON(t, "upstreamNameservers", []string{other.addr})
		} else {
			nt.write(t, "upstreamNameservers", "")
		}
		before := stalled(t)
		await.Until(t, 10*time.Second, "dnsmasq is stopped", func() bool { return syscall.Kill(pid, 0) != nil })
		downs = append(downs, outage{nt.backAfter(t, l, time.Now()), stalled(t) - before})
	}
	stop()
	reportDowns(t, wrong, l, downs)
	if got := valueOf(t, nt.metrics.restarts.WithLabelValues("asked")); got != restarts {
		t.Errorf("%v restarts, want %d", got, restarts)
	}
	// dnsmasq exits when it cannot bind.
	if got := valueOf(t, nt.metrics.restarts.WithLabelValues("died")); got != 0 {
		t.Errorf("dnsmasq died %v times, its last lines:\n%s", got, nt.output.lastLines())
	}
}

// TestKills kills dnsmasq 20 times under load. Its children for idle TCP
// clients hold its port.
func TestKills(t *testing.T) {
	t.Parallel()
	const kills = 20
	fixed := startUpstream(t, "192.0.2.9")
	nt := startNanny(t, []string{forwardMax, "--server=/cluster.local/" + hashAddr(fixed.addr)}, func(nt *nannyTest) {
		nt.limits.deaths = kills + 1
		nt.limits.healthy = 100 * time.Millisecond // so that all 20 fit into a test
	})
	l, stop := startLoad(t, nt.addr, 2000, "svc.cluster.local")
	l.patience = 0 // what is asked while dnsmasq is away is lost
	var downs []outage
	wrong := judge(t)
	for range kills {
		pid := 0
		await.Until(t, 5*time.Second, "dnsmasq is ready", func() bool { pid = nt.pid(); return pid != 0 })
		idleClients(t, nt.addr, 5)
		at, before := time.Now(), stalled(t)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		downs = append(downs, outage{nt.backAfter(t, l, at), stalled(t) - before})
		await.Until(t, 5*time.Second, "dnsmasq has lived for some time", func() bool { return time.Since(at) > 200*time.Millisecond })
	}
	stop()
	reportDowns(t, wrong, l, downs)
	if got := valueOf(t, nt.metrics.restarts.WithLabelValues("died")); got != kills {
		wrong("dnsmasq died %v times, want %d: a start failed", got, kills)
	}
}

// backAfter returns how long after since a question asked then was answered.
func (nt *nannyTest) backAfter(t *testing.T, l *load, since time.Time) time.Duration {
	t.Helper()
	var at time.Time
	await.Until(t, 10*time.Second, "a question is answered again", func() (ok bool) {
		at, ok = l.answeredAfter(since)
		return ok
	})
	return at.Sub(since)
}

func reportDowns(t *testing.T, wrong func(string, ...any), l *load, downs []outage) {
	t.Helper()
	slices.SortFunc(downs, func(a, b outage) int { return cmp.Compare(a.took, b.took) })
	longest := downs[len(downs)-1]
	t.Logf("load: %v", l)
	t.Logf("%d times away, back after: median %v, longest %v, %v of it waiting for a processor",
		len(downs), downs[len(downs)/2].took, longest.took, longest.stalled)
	for _, d := range downs {
		if d.less() > 300*time.Millisecond {
			wrong("back after %v, %v of it waiting for a processor, want 300ms at most", d.took, d.stalled)
		}
	}
}

// TestReloadsLeakNothing counts goroutines and descriptors, the nanny's and
// dnsmasq's, before and after 500 reloads.
func TestReloadsLeakNothing(t *testing.T) {
	t.Parallel()
	const reloads, alone = 500, "NANNY_TEST_ALONE"
	if os.Getenv(alone) == "" {
		// In a process of its own: other tests have goroutines and descriptors too.
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1", "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			if strings.Contains(string(out), "--- SKIP: "+t.Name()) {
				t.Skipf("skipped:\n%s", out)
			}
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	nt := startNanny(t, nil, func(nt *nannyTest) { nt.limits.resolvConf = 5 * time.Millisecond })
	success := nt.metrics.reloads.WithLabelValues(resultSuccess)
	reload := func(i int) {
		want := valueOf(t, success) + 1
		// The directory is read 50 ms after a change, resolv.conf is not.
		if i%5 == 0 {
			nt.write(t, "stubDomains", fmt.Sprintf(`{"stub.example":["192.0.2.%d"]}`, i%200+1))
		} else {
			writeFile(t, nt.resolv, fmt.Sprintf("nameserver 192.0.2.%d\n", i%200+1))
		}
		nt.awaitCount(t, success, want)
	}
	reload(0)
	type counts struct{ goroutines, own, dnsmasq int }
	// The lowest of many: a question whether dnsmasq is alive needs some for a
	// moment.
	count := func() counts {
		lowest := counts{1 << 30, 1 << 30, 1 << 30}
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for range 100 {
			lowest = counts{
				min(lowest.goroutines, runtime.NumGoroutine()),
				min(lowest.own, descriptors(t, os.Getpid())),
				min(lowest.dnsmasq, descriptors(t, nt.pid())),
			}
			<-ticker.C
		}
		return lowest
	}
	before := count()
	for i := range reloads {
		reload(i + 1)
	}
	after := count()
	t.Logf("goroutines, own descriptors, dnsmasq's: %v before, %v after %d reloads", before, after, reloads)
	if after != before {
		t.Errorf("%+v after %d reloads, %+v before", after, reloads, before)
	}
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
