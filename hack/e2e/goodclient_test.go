package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// runDelays tells how long threads of a process have been ready to run and not
// run: the second figure of schedstat. It keeps the files open, since it looks
// at each question.
type runDelays struct {
	pid   int
	files map[string]*os.File
	looks int
}

// now returns the delay of each thread, by its file; none where the kernel does
// not tell.
func (r *runDelays) now() map[string]time.Duration {
	if r.looks%50 == 0 { // there may be new threads
		for _, name := range harness.Schedstats(r.pid) {
			if r.files == nil {
				r.files = map[string]*os.File{}
			}
			if r.files[name] == nil {
				if f, err := os.Open(name); err == nil {
					r.files[name] = f
				}
			}
		}
	}
	r.looks++
	delays := map[string]time.Duration{}
	var b [128]byte
	for name, f := range r.files {
		n, err := f.ReadAt(b[:], 0)
		if n == 0 && err != nil { // the thread has ended
			f.Close()
			delete(r.files, name)
			continue
		}
		if _, waited, ok := harness.ParseSchedstat(b[:n]); ok {
			delays[name] = waited
		}
	}
	return delays
}

func (r *runDelays) close() {
	for _, f := range r.files {
		f.Close()
	}
}

// delayed is how long the threads have waited for a processor between the two
// looks, one after the other: a question may need several. As Go runs no more
// of them at a time than there are cores, they wait for others' threads.
func delayed(before, after map[string]time.Duration) time.Duration {
	var all time.Duration
	for thread, d := range after {
		all += d - before[thread]
	}
	return all
}

// goodAnswer is how long an answer took. waited is for how long the threads of
// kube-dns, and of the test, waited for a processor meanwhile: that is of the
// machine and what else runs on it.
type goodAnswer struct{ took, waited time.Duration }

func (a goodAnswer) own() time.Duration { return max(a.took-a.waited, 0) }

// A goodClient asks kube-dns what any client asks, over UDP and TCP, for a name
// that there is and for ones that there are not, one after the other. As a
// measure of the test itself it asks a bare echo in the test the same way.
type goodClient struct {
	pid    int
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	answers map[string][]goodAnswer // by what was asked, "UDP A"
	wrong   []string
}

const (
	echoUDP = "UDP echo"
	echoTCP = "TCP echo"
)

// startGoodClient begins to ask, 50 questions a second over UDP and as many
// over TCP, until stop.
func startGoodClient(t *testing.T, k *harness.KubeDNS) *goodClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g := &goodClient{pid: k.PID(), cancel: cancel, answers: map[string][]goodAnswer{}}
	t.Cleanup(func() {
		cancel()
		g.wg.Wait()
	})
	echoAddr := startUDPServer(t, func(b []byte) []byte { return b })
	echoListener := startTCPEcho(t)
	udp, echo := dialTimestamped(t, k.Addr), dialTimestamped(t, echoAddr.String())
	var kept net.Conn
	g.wg.Go(func() {
		g.every(ctx, 20*time.Millisecond, []goodQuestion{
			{"UDP A", true, func(b []byte) ([]byte, time.Duration, error) { return udp.ask(b) }},
			{"UDP NXDOMAIN", false, func(b []byte) ([]byte, time.Duration, error) { return udp.ask(b) }},
			{echoUDP, false, func(b []byte) ([]byte, time.Duration, error) { return echo.ask(b) }},
		})
	})
	g.wg.Go(func() {
		defer func() {
			if kept != nil {
				kept.Close()
			}
		}()
		g.every(ctx, 20*time.Millisecond, []goodQuestion{
			{"TCP A", true, func(b []byte) ([]byte, time.Duration, error) { return askTCP(k.Addr, nil, b) }},
			{"TCP NXDOMAIN, connection kept", false, func(b []byte) ([]byte, time.Duration, error) {
				if kept == nil {
					var err error
					if kept, err = net.Dial("tcp", k.Addr); err != nil {
						return nil, 0, err
					}
				}
				reply, took, err := askTCP("", kept, b)
				if errors.Is(err, io.EOF) { // it was idle, as the test had no processor
					kept.Close()
					if kept, err = net.Dial("tcp", k.Addr); err != nil {
						return nil, 0, err
					}
					reply, took, err = askTCP("", kept, b)
				}
				if err != nil {
					kept.Close()
					kept = nil
				}
				return reply, took, err
			}},
			{echoTCP, false, func(b []byte) ([]byte, time.Duration, error) { return askTCP(echoListener, nil, b) }},
		})
	})
	return g
}

type goodQuestion struct {
	kind   string
	exists bool
	ask    func(question []byte) (reply []byte, took time.Duration, err error)
}

// every asks the questions in turn, one each interval.
func (g *goodClient) every(ctx context.Context, interval time.Duration, questions []goodQuestion) {
	kubeDelays, ownDelays := &runDelays{pid: g.pid}, &runDelays{pid: os.Getpid()}
	defer kubeDelays.close()
	defer ownDelays.close()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		q := questions[n%len(questions)]
		name := "web.shop.svc.cluster.local."
		if !q.exists {
			name = fmt.Sprintf("n%d.shop.svc.cluster.local.", n)
		}
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		b, err := m.Pack()
		if err != nil {
			g.note(q.kind, goodAnswer{}, err.Error())
			continue
		}
		kube, own := kubeDelays.now(), ownDelays.now()
		reply, took, err := q.ask(b)
		a := goodAnswer{took, delayed(kube, kubeDelays.now()) + delayed(own, ownDelays.now())}
		wrong := ""
		switch {
		case err != nil:
			wrong = fmt.Sprintf("%s: no answer: %v", q.kind, err)
		case q.kind == echoUDP || q.kind == echoTCP:
		default:
			want := dns.RcodeNameError
			if q.exists {
				want = dns.RcodeSuccess
			}
			r := new(dns.Msg)
			if err := r.Unpack(reply); err != nil || r.Rcode != want || (len(r.Answer) == 1) != q.exists {
				wrong = fmt.Sprintf("%s: got %v\n%v", q.kind, err, r)
			}
		}
		g.note(q.kind, a, wrong)
	}
}

func (g *goodClient) note(kind string, a goodAnswer, wrong string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers[kind] = append(g.answers[kind], a)
	if wrong != "" {
		g.wrong = append(g.wrong, wrong)
	}
}

// stop ends the asking. All must have been answered, and rightly.
func (g *goodClient) stop(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 10*time.Second, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.answers) < 6 {
			return fmt.Errorf("only %v was asked", slices.Collect(maps.Keys(g.answers)))
		}
		return nil
	})
	g.cancel()
	g.wg.Wait()
	if len(g.wrong) > 0 {
		t.Errorf("%d of the good client's questions were not answered rightly, the first: %s", len(g.wrong), g.wrong[0])
	}
}

// within checks that the answers took less than bound: 99 of 100 of them, and
// the longest. What a bare echo took at the most, and what was waited for a
// processor, is not kube-dns's.
func (g *goodClient) within(t *testing.T, bound time.Duration) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for kind, all := range g.answers {
		if kind == echoUDP || kind == echoTCP {
			continue
		}
		echo := g.answers[kind[:3]+" echo"]
		if got, own := quantile(all, 0.99), quantile(echo, 0.99); got > bound+own {
			t.Errorf("%s: 99%% are answered within %v, want %v; a bare echo took %v", kind, got, bound, own)
		}
		if got, own := quantile(all, 1), quantile(echo, 1); got > bound+own {
			t.Errorf("%s: the longest took %v, want %v; a bare echo took %v at the most", kind, got, bound, own)
		}
	}
}

// quantile is the time that a share of the answers took at the most, without
// what was waited for a processor.
func quantile(answers []goodAnswer, share float64) time.Duration {
	if len(answers) == 0 {
		return 0
	}
	own := make([]time.Duration, len(answers))
	for i, a := range answers {
		own[i] = a.own()
	}
	slices.Sort(own)
	return own[int(share*float64(len(own)-1))]
}

// String has, of each kind, the number, the median, 99 % and the longest.
func (g *goodClient) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(g.answers)) {
		all := g.answers[kind]
		var raw time.Duration
		for _, a := range all {
			raw = max(raw, a.took)
		}
		fmt.Fprintf(&b, "\n  %s: %d, median %v, 99%% %v, longest %v (%v with the wait for a processor)", kind, len(all),
			quantile(all, 0.5).Round(time.Microsecond), quantile(all, 0.99).Round(time.Microsecond), quantile(all, 1).Round(time.Microsecond), raw.Round(time.Microsecond))
	}
	return b.String()
}

// startTCPEcho sends back what comes, and returns its address.
func startTCPEcho(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// askTCP asks over conn, or over a new connection where that is nil. The time
// includes its opening.
func askTCP(server string, conn net.Conn, question []byte) ([]byte, time.Duration, error) {
	start := time.Now()
	if conn == nil {
		var err error
		if conn, err = net.DialTimeout("tcp", server, 5*time.Second); err != nil {
			return nil, 0, err
		}
		defer conn.Close()
	}
	if err := conn.SetDeadline(start.Add(5 * time.Second)); err != nil {
		return nil, 0, err
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)); err != nil {
		return nil, 0, err
	}
	reply, err := readFrame(conn, make([]byte, 65537))
	return reply, time.Since(start), err
}

// timestamped is a UDP socket that knows when the kernel received a datagram:
// what the test is late in reading it does not count.
type timestamped struct {
	*net.UDPConn
	patience time.Duration // for ask; 0 is 5 s
	buf      [65535]byte
	oob      [128]byte
}

func dialTimestamped(t testing.TB, server string) *timestamped {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(server)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1) })
	if err := errors.Join(err, serr); err != nil {
		t.Fatal(err)
	}
	return &timestamped{UDPConn: conn}
}

// receive reads a datagram and returns when the kernel received it.
func (c *timestamped) receive() ([]byte, time.Time, error) {
	n, oobn, _, _, err := c.ReadMsgUDPAddrPort(c.buf[:], c.oob[:])
	at := time.Now()
	if err != nil {
		return nil, at, err
	}
	messages, err := syscall.ParseSocketControlMessage(c.oob[:oobn])
	if err != nil {
		return nil, at, err
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == syscall.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return c.buf[:n], at, nil
}

// ask asks a question and returns the reply with its ID, which is the next
// one's to overwrite.
func (c *timestamped) ask(question []byte) ([]byte, time.Duration, error) {
	patience := c.patience
	if patience == 0 {
		patience = 5 * time.Second
	}
	start := time.Now()
	if err := c.SetDeadline(start.Add(patience)); err != nil {
		return nil, 0, err
	}
	if _, err := c.Write(question); err != nil {
		return nil, 0, err
	}
	for {
		b, at, err := c.receive()
		if err != nil {
			return nil, 0, err
		}
		if len(b) >= 2 && string(b[:2]) == string(question[:2]) {
			return b, max(at.Sub(start), 0), nil
		}
	}
}
