package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

var (
	overloadTime = flag.Duration("load.overload", 4*time.Second, "how long TestOverload asks twice as much as can be answered")
	upstreamTime = flag.Duration("load.upstream", 600*time.Millisecond, "how long each round of TestUpstreamsUnderLoad is")
)

// A sampler asks questions at an even rate over one socket, and counts the
// answers. Times are from the question to when the kernel received the answer.
type sampler struct {
	conn   *timestamped
	packet func(n int) []byte // the n-th question; its ID is set
	rcode  int                // of a right answer
	sent   int

	received chan struct{} // closed once nothing is read any more; nil before ask

	mu       sync.Mutex
	asked    map[uint16]time.Time
	right    []time.Duration
	failures int // SERVFAIL
	wrong    string
}

func newSampler(t *testing.T, server string, rcode int, packet func(n int) []byte) *sampler {
	t.Helper()
	s := &sampler{conn: dialTimestamped(t, server), packet: packet, rcode: rcode, asked: map[uint16]time.Time{}}
	_ = s.conn.SetReadBuffer(1 << 20)
	return s
}

// run asks until ctx is done and then waits for the answers that are still to
// come, as long as patience.
func (s *sampler) run(ctx context.Context, rate int, patience time.Duration) {
	s.ask(ctx, rate)
	s.await(patience)
}

// ask asks until ctx is done. It may be called again, until await.
func (s *sampler) ask(ctx context.Context, rate int) {
	if s.received == nil {
		s.received = make(chan struct{})
		go s.receive()
	}
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	start, before := time.Now(), s.sent
	for ctx.Err() == nil {
		for due := before + int(time.Since(start).Seconds()*float64(rate)); s.sent < due && ctx.Err() == nil; {
			b := s.packet(s.sent)
			id := uint16(s.sent)
			binary.BigEndian.PutUint16(b, id)
			s.mu.Lock()
			s.asked[id] = time.Now()
			s.mu.Unlock()
			s.sent++
			_, _ = s.conn.Write(b) // it is lost then
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// await waits for the answers that are still to come, as long as patience, and
// ends the sampler: its figures are complete.
func (s *sampler) await(patience time.Duration) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-ticker.C {
		s.mu.Lock()
		waiting := len(s.asked)
		s.mu.Unlock()
		if waiting == 0 {
			break
		}
	}
	_ = s.conn.SetReadDeadline(time.Now())
	<-s.received
}

func (s *sampler) receive() {
	defer close(s.received)
	for {
		b, at, err := s.conn.receive()
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return
		}
		if len(b) < 12 {
			continue
		}
		s.mu.Lock()
		id := binary.BigEndian.Uint16(b)
		asked, ok := s.asked[id]
		delete(s.asked, id)
		switch rcode := int(b[3] & 15); {
		case !ok:
		case rcode == s.rcode:
			s.right = append(s.right, max(at.Sub(asked), 0))
		case rcode == dns.RcodeServerFailure:
			s.failures++
		default:
			s.wrong = fmt.Sprintf("rcode %s", dns.RcodeToString[rcode])
		}
		s.mu.Unlock()
	}
}

// share is how many of the questions were answered rightly, of 1.
func (s *sampler) share() float64 { return float64(len(s.right)) / float64(max(s.sent, 1)) }

// percentile is the time that p percent of the right answers took at the most.
func (s *sampler) percentile(p float64) time.Duration {
	if len(s.right) == 0 {
		return 0
	}
	slices.Sort(s.right)
	return s.right[int(p/100*float64(len(s.right)-1))]
}

func (s *sampler) String() string {
	return fmt.Sprintf("%d asked, %d answered (median %v, 99%% %v), %d SERVFAIL", s.sent, len(s.right),
		s.percentile(50).Round(time.Microsecond), s.percentile(99).Round(time.Microsecond), s.failures)
}

// sample runs a sampler for d.
func sample(t *testing.T, s *sampler, rate int, d time.Duration) *sampler {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	s.run(ctx, rate, time.Second)
	return s
}

// zoneQuestion asks for a Service, outsideQuestion for another name of the
// world each time.
func zoneQuestion(t testing.TB) func(int) []byte {
	t.Helper()
	b := rawQuestion(0, wireName(t, "web.shop.svc.cluster.local."), dns.TypeA, dns.ClassINET)
	return func(int) []byte { return b }
}

func outsideQuestion(t testing.TB) func(int) []byte {
	t.Helper()
	return func(n int) []byte {
		return rawQuestion(0, fmt.Sprintf("\x08n%07d\x07example\x03org\x00", n%10_000_000), dns.TypeA, dns.ClassINET)
	}
}

// flood sends packets as fast as rate says, 0 being as fast as it can, until
// ctx is done, and reads no answer. It returns how many it has sent.
func flood(ctx context.Context, server netip.AddrPort, rate int, packets [][]byte) (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(fd)
	if err := errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1),
		syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()}),
	); err != nil {
		return 0, err
	}
	start, sent := time.Now(), 0
	for ctx.Err() == nil {
		for range 64 {
			if _, err := syscall.Write(fd, packets[sent%len(packets)]); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				return sent, err
			}
			sent++
		}
		if rate > 0 {
			if early := time.Duration(float64(sent)/float64(rate)*float64(time.Second)) - time.Since(start); early > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(early):
				}
			}
		}
	}
	return sent, nil
}

// answeredTotal is how many questions kube-dns has answered.
func answeredTotal(t *testing.T, k *harness.KubeDNS) int {
	t.Helper()
	v, _ := k.ScrapeMetrics(t).Value("skydns_skydns_dns_request_count_total")
	return int(v)
}

// TestOverload asks kube-dns, which has one core, twice as much as it can
// answer: outside names are shed before the zone's, it stays ready and healthy
// in the eyes of the sidecar, and a second after the end it is as fast as ever.
func TestOverload(t *testing.T) {
	const (
		normal = 5 * time.Millisecond
		// Shedding makes it answer more than before, and that is to be half.
		factor = 3
	)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: fastKubeDNS(t), Nameservers: startQuickUpstream(t).String(),
		Env:  []string{"GOMAXPROCS=1"},
		Args: []string{"--manifests=" + hostileManifests(t)},
	})
	server := netip.MustParseAddrPort(k.Addr)
	port := freeTCPPort(t)
	harness.StartProgram(t, program(t, "sidecar", false), "--v=2", "--prometheus-addr=127.0.0.1", "--prometheus-port="+port,
		"--probe=kubedns,"+k.Addr+",kubernetes.default.svc.cluster.local,2,SRV")
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	healthy := func() error {
		status, body, err := harness.Get(t.Context(), client, "http://127.0.0.1:"+port+"/healthcheck/kubedns")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	}
	harness.Eventually(t, 20*time.Second, healthy)

	outside := outsideQuestion(t)
	packets := overloadPackets(t, outside)
	quiet := sample(t, newSampler(t, k.Addr, dns.RcodeSuccess, zoneQuestion(t)), 500, time.Second)

	// What it can do is what it does when it has more to do than it can.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	before := answeredTotal(t, k)
	start := time.Now()
	sent, err := flood(ctx, server, 0, packets)
	cancel()
	must(t, err)
	capacity := int(float64(answeredTotal(t, k)-before) / time.Since(start).Seconds())
	possible := int(float64(sent) / time.Since(start).Seconds())
	t.Logf("%d questions a second are answered of %d that the test can ask; quiet: %v", capacity, possible, quiet)

	ctx, cancel = context.WithTimeout(t.Context(), *overloadTime)
	defer cancel()
	zoneShare := newSampler(t, k.Addr, dns.RcodeSuccess, zoneQuestion(t))
	outsideShare := newSampler(t, k.Addr, dns.RcodeNameError, outside)
	var wg sync.WaitGroup
	var flooded atomic.Int64
	const floods = 2
	for range floods {
		wg.Go(func() {
			n, err := flood(ctx, server, factor*capacity/floods, packets)
			flooded.Add(int64(n))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() { zoneShare.run(ctx, 200, 2*time.Second) })
	wg.Go(func() { outsideShare.run(ctx, 200, 2*time.Second) })
	before = answeredTotal(t, k)
	start = time.Now()
	probes, notReady, unhealthy := 0, 0, 0
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var slowest time.Duration
	for ctx.Err() == nil {
		asked := time.Now()
		probes++
		if status, _ := k.Readiness(t); status != http.StatusOK {
			notReady++
		}
		slowest = max(slowest, time.Since(asked))
		if err := healthy(); err != nil {
			unhealthy++
		}
		<-ticker.C
	}
	took := time.Since(start)
	answered := answeredTotal(t, k) - before
	ended := time.Now()

	recovered := awaitAsFast(t, k, ended, max(2*quiet.percentile(99), normal))
	wg.Wait()
	t.Logf("%.0f questions a second for %v, of which %.0f were answered; the zone: %v; outside: %v; %d looks at readiness, the slowest %v; normal again after %v",
		float64(flooded.Load())/took.Seconds(), took.Round(time.Millisecond), float64(answered)/took.Seconds(), zoneShare, outsideShare, probes,
		slowest.Round(time.Millisecond), recovered.Round(time.Millisecond))

	if notReady > 0 || slowest > 2*time.Second {
		t.Errorf("%d of %d times it was not ready, the slowest look took %v", notReady, probes, slowest)
	}
	// Every second question is lost, and those of the sidecar among them; the
	// kubelet takes five failures in a row for one.
	if unhealthy > probes/4 {
		t.Errorf("%d of %d times the sidecar found it unhealthy, want a quarter at most", unhealthy, probes)
	}
	if recovered > time.Second {
		t.Errorf("normal %v after the end, want 1s", recovered)
	}
	if float64(flooded.Load()) < 1.1*float64(answered) {
		t.Skipf("the machine is too busy to judge: %d questions were sent, and %d answered", flooded.Load(), answered)
	}
	if in, out := zoneShare.share(), outsideShare.share(); in < 0.25 || out > in/3 {
		t.Errorf("%.0f%% of the zone's questions are answered, %.0f%% of others: want a quarter at least, and a third of that at most", 100*in, 100*out)
	}
	checkCalm(t, k)
}

// overloadPackets are questions of which three in four are the zone's, half of
// them with 60 answers and more; the others are those of outside.
func overloadPackets(t *testing.T, outside func(i int) []byte) [][]byte {
	t.Helper()
	var packets [][]byte
	zonePackets := [][]byte{
		slices.Clone(zoneQuestion(t)(0)),
		question(t, func(m *dns.Msg) {
			m.SetQuestion("crowd.big.svc.cluster.local.", dns.TypeA)
			m.SetEdns0(1232, false)
		}),
		question(t, func(m *dns.Msg) { m.SetQuestion("nosuch.shop.svc.cluster.local.", dns.TypeA) }),
	}
	for i := range 4096 {
		if i%4 == 3 {
			packets = append(packets, outside(i))
		} else {
			packets = append(packets, zonePackets[i%4])
		}
	}
	return packets
}

// awaitAsFast waits until 20 answers in a row take no longer than most, and
// returns how long after ended the first of them was asked for.
func awaitAsFast(t *testing.T, k *harness.KubeDNS, ended time.Time, most time.Duration) time.Duration {
	t.Helper()
	recovered := time.Duration(0)
	again := dialTimestamped(t, k.Addr)
	again.patience = 100 * time.Millisecond
	for inRow := 0; inRow < 20; {
		b := zoneQuestion(t)(0)
		binary.BigEndian.PutUint16(b, uint16(inRow+1))
		asked := time.Now()
		if _, latency, err := again.ask(b); err != nil || latency > most {
			inRow = 0
		} else if inRow++; inRow == 1 {
			recovered = asked.Sub(ended)
		}
		if time.Since(ended) > 20*time.Second {
			t.Fatal("20s after the end it is not as fast as before")
		}
	}
	return recovered
}

// TestUpstreamsUnderLoad has nameservers that are dead, refuse or take 5 s
// while 2,000 outside questions a second come: the zone's 99th percentile stays
// within twice its quiet value, which is measured in turn.
func TestUpstreamsUnderLoad(t *testing.T) {
	const (
		rate   = 2000
		rounds = 3
		// Rounds as short as the default's are at the mercy of a busy machine;
		// those of -load.upstream=5s are not.
		strictFrom   = 2 * time.Second
		floor, loose = 2 * time.Millisecond, 50 * time.Millisecond
	)
	slow := func(t *testing.T) string {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		must(t, err)
		t.Cleanup(func() { pc.Close() })
		go func() {
			buf := make([]byte, 4096)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				reply := slices.Clone(buf[:n])
				reply[2] |= 0x80
				timer := time.AfterFunc(5*time.Second, func() { _, _ = pc.WriteTo(reply, from) })
				context.AfterFunc(ctx, func() { timer.Stop() })
			}
		}()
		return pc.LocalAddr().String()
	}
	start := func(nameserver string) *harness.KubeDNS {
		return harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: fastKubeDNS(t), Nameservers: nameserver, Args: []string{"--manifests=" + hostileManifests(t)},
		})
	}
	type instance struct {
		name    string
		k       *harness.KubeDNS
		outside *sampler
		memory  int // kB, before
		p99     []time.Duration
	}
	calm := &instance{k: start(harness.DeadNameserver)} // nobody asks it for outside names
	instances := []*instance{
		{name: "silent", k: start(silent(t))},
		{name: "refusing", k: start(harness.DeadNameserver)},
		{name: "slow", k: start(slow(t))},
	}
	measure := func(i *instance) {
		s := sample(t, newSampler(t, i.k.Addr, dns.RcodeSuccess, zoneQuestion(t)), 1000, *upstreamTime)
		i.p99 = append(i.p99, s.percentile(99))
		if s.share() < 0.99 {
			t.Errorf("%s: of the zone's %d questions %d are answered", i.name, s.sent, len(s.right))
		}
	}
	for _, i := range instances {
		i.outside = newSampler(t, i.k.Addr, dns.RcodeSuccess, outsideQuestion(t))
		i.memory = harness.ProcessUsage(t, i.k.PID()).RSS
	}
	for range rounds {
		// The machine is as busy with outside names meanwhile, for which another
		// instance is asked.
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			instances[1].outside.ask(ctx, rate)
		}()
		measure(calm)
		cancel()
		<-done
		for _, i := range instances {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				i.outside.ask(ctx, rate)
			}()
			measure(i)
			cancel()
			<-done
		}
	}
	quiet := harness.Median(calm.p99)
	for _, i := range instances {
		t.Run(i.name, func(t *testing.T) {
			i.outside.await(5 * time.Second)
			asked, failed := i.outside.sent, i.outside.failures
			t.Logf("99%% of the zone's: quiet %v, with %d questions a second that nobody answers %v; %d asked, %d SERVFAIL; memory %d kB before, %d kB at most",
				calm.p99, rate, i.p99, asked, failed, i.memory, harness.ProcessUsage(t, i.k.PID()).HWM)
			if failed < asked*9/10 {
				t.Errorf("%d of %d outside questions got SERVFAIL", failed, asked)
			}
			checkCalm(t, i.k)
			bound := loose
			if *upstreamTime >= strictFrom {
				bound = floor
			}
			if got, want := harness.Median(i.p99), max(2*quiet, bound); got > want {
				// With nothing to do it answers within a fraction of that.
				if quiet > bound/2 {
					t.Skipf("the machine is too busy to judge: 99%% of the zone's questions are answered within %v, and within %v with nothing else to do", got, quiet)
				}
				t.Errorf("99%% of the zone's questions are answered within %v, want %v", got, want)
			}
		})
	}
}
