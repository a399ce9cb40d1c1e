package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// TestRollingReplacement replaces two instances of kube-dns behind one address,
// one after the other, under load: no question is lost. That the test sees what
// is lost, a kube-dns that does not drain shows.
func TestRollingReplacement(t *testing.T) {
	t.Parallel()
	t.Run("drained", func(t *testing.T) {
		t.Parallel()
		load := roll(t, "--drain-period=5s")
		if lost := load.lost(); len(lost) > 0 {
			t.Errorf("%d questions were lost, the first: %s", len(lost), lost[0])
		}
	})
	t.Run("not drained", func(t *testing.T) {
		t.Parallel()
		load := roll(t, "--drain-period=1ms")
		if lost := load.lost(); len(lost) == 0 {
			t.Error("no question was lost, although no instance went on until the balancer had taken it out")
		} else {
			t.Logf("%d questions were lost, the first: %s", len(lost), lost[0])
		}
	})
}

// roll replaces two instances under load.
func roll(t *testing.T, drain string) *rollingLoad {
	t.Helper()
	c := cluster(t)
	o := harness.KubeDNSOptions{Binary: fastKubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Args: []string{drain, "--v=0"}}
	b := startBalancer(t)
	taken := func(k *harness.KubeDNS, want bool) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, func() error {
			if b.has(k) != want {
				return fmt.Errorf("that the balancer sends questions to %s is %v", k.Addr, !want)
			}
			return nil
		})
	}
	old := []*harness.KubeDNS{harness.StartKubeDNS(t, o), harness.StartKubeDNS(t, o)}
	for _, k := range old {
		b.add(k)
		taken(k, true)
	}
	load := startRollingLoad(t, b.addr)
	for _, k := range old {
		if err := k.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		taken(k, false)
		out := time.Since(start)
		if code, err := k.Wait(30 * time.Second); err != nil || code != 0 {
			t.Fatalf("it exited with %d (%v), want 0", code, err)
		}
		t.Logf("an instance was taken out %v after SIGTERM, and had ended after %v", out.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		b.remove(k)
		fresh := harness.StartKubeDNS(t, o)
		b.add(fresh)
		taken(fresh, true)
	}
	load.stop(t)
	return load
}

// rollingLoad asks until it is stopped: 600 questions a second where the
// machine allows, a tenth of them over TCP.
type rollingLoad struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	start  time.Time

	mu      sync.Mutex
	asked   map[string]int // by kind
	renewed int            // TCP connections that were ended before an answer
	failed  []string
}

// A rollingAsker asks one question.
type rollingAsker interface {
	ask(m *dns.Msg) (*dns.Msg, error)
	close()
}

func startRollingLoad(t *testing.T, addr string) *rollingLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &rollingLoad{cancel: cancel, start: time.Now(), asked: map[string]int{}}
	t.Cleanup(func() {
		cancel()
		l.wg.Wait()
	})
	for _, kind := range []struct {
		name   string
		askers int
		open   func() rollingAsker
	}{
		// One socket for all, as a program has; or a port for each, as a resolver has.
		{"UDP, one socket", 9, func() rollingAsker { return &rollingConn{addr: addr, network: "udp"} }},
		{"UDP, a socket for each", 9, func() rollingAsker { return &rollingConn{addr: addr, network: "udp", once: true} }},
		{"TCP, a connection for each", 1, func() rollingAsker { return &rollingConn{addr: addr, network: "tcp", once: true} }},
		{"TCP, one connection", 1, func() rollingAsker { return &rollingConn{addr: addr, network: "tcp", load: l} }},
	} {
		for range kind.askers {
			l.wg.Go(func() { l.run(ctx, kind.name, kind.open()) })
		}
	}
	return l
}

func (l *rollingLoad) run(ctx context.Context, kind string, asker rollingAsker) {
	defer asker.close()
	ticker := time.NewTicker(time.Second / 30)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		m := new(dns.Msg)
		m.SetQuestion("kubernetes.default.svc."+zone, dns.TypeA)
		asked := time.Now()
		reply, err := asker.ask(m)
		failure := ""
		switch {
		case err != nil:
			failure = err.Error()
		case len(reply.Answer) != 1:
			failure = reply.String()
		default:
			if a, ok := reply.Answer[0].(*dns.A); !ok || a.A.String() != "10.96.0.1" {
				failure = reply.String()
			}
		}
		l.mu.Lock()
		l.asked[kind]++
		if failure != "" {
			l.failed = append(l.failed, fmt.Sprintf("%s, asked %s: %s", kind, asked.Format("15:04:05.000"), failure))
		}
		l.mu.Unlock()
	}
}

func (l *rollingLoad) lost() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

func (l *rollingLoad) stop(t *testing.T) {
	t.Helper()
	took := time.Since(l.start)
	l.cancel()
	l.wg.Wait()
	n := 0
	for _, asked := range l.asked {
		n += asked
	}
	t.Logf("%d questions in %v, %.0f a second: %v; %d TCP connections were ended by an instance's end; %d lost",
		n, took.Round(time.Millisecond), float64(n)/took.Seconds(), l.asked, l.renewed, len(l.failed))
}

// rollingConn asks over one socket or connection, or one for each question. A
// question is asked once: no answer in 5 s is one that is lost. Only where the
// server ends a TCP connection that it has kept open, is the question asked
// again over another, once: RFC 7766 section 6.2.4 has clients do so, since any
// server may close an idle connection just then.
type rollingConn struct {
	addr, network string
	once          bool
	load          *rollingLoad // counts connections that were ended
	conn          *dns.Conn
	answered      bool // over this connection
}

func (r *rollingConn) ask(m *dns.Msg) (*dns.Msg, error) {
	reply, err := r.exchange(m)
	if err == nil {
		return reply, nil
	}
	var netErr net.Error
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	kept := r.answered
	r.close()
	if r.network != "tcp" || r.once || !kept || !ended || errors.As(err, &netErr) && netErr.Timeout() {
		return nil, err
	}
	r.load.mu.Lock()
	r.load.renewed++
	r.load.mu.Unlock()
	return r.exchange(m)
}

func (r *rollingConn) exchange(m *dns.Msg) (*dns.Msg, error) {
	const timeout = 5 * time.Second
	if r.conn == nil {
		conn, err := dns.DialTimeout(r.network, r.addr, timeout)
		if err != nil {
			return nil, err
		}
		r.conn, r.answered = conn, false
	}
	if r.once {
		defer r.close()
	}
	if err := r.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if err := r.conn.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		reply, err := r.conn.ReadMsg()
		if err != nil {
			return nil, err
		}
		if reply.Id == m.Id {
			r.answered = true
			return reply, nil
		}
	}
}

func (r *rollingConn) close() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}
