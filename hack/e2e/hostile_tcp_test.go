package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

var hostileTime = flag.Duration("hostile.time", 4*time.Second, "how long TestHostileTCP goes on")

// dialFrom opens a TCP connection from a loopback address.
func dialFrom(from, server string) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		// One that does not read is to be noticed soon.
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10))
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	conn, err := d.Dial("tcp", server)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// A peer is how a hostile peer behaves on one connection. It returns when the
// connection has ended, which happens at the latest when ctx is done.
type peer struct {
	name  string
	from  string // its address
	n     int    // how many there are at a time
	serve func(ctx context.Context, conn net.Conn)
}

// besiege has the peers at kube-dns until the function that it returns is
// called. Whose connection ends opens another one. opened counts them.
func besiege(t *testing.T, server string, peers []peer) (opened *atomic.Int64, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	opened = new(atomic.Int64)
	for _, p := range peers {
		for range p.n {
			wg.Go(func() {
				for ctx.Err() == nil {
					if conn, err := dialFrom(p.from, server); err == nil {
						opened.Add(1)
						release := context.AfterFunc(ctx, func() { conn.Close() })
						p.serve(ctx, conn)
						release()
						conn.Close()
					}
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
				}
			})
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return opened, stop
}

// readAll reads until the connection ends.
func readAll(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// hostilePeers are 1,000 idle connections and those that are worse.
func hostilePeers(t *testing.T, pipelined *atomic.Int64) []peer {
	t.Helper()
	frame := func(name string, qtype uint16) []byte {
		q := rawQuestion(1, wireName(t, name), qtype, dns.ClassINET)
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	}
	short, long := frame("web.shop.svc.cluster.local.", dns.TypeA), frame("crowd.big.svc.cluster.local.", dns.TypeA)
	var questions []byte
	const together = 1000
	for range together {
		questions = append(questions, short...)
	}
	idle := func(_ context.Context, conn net.Conn) { readAll(conn) }
	var peers []peer
	for i := range 4 {
		peers = append(peers, peer{"idle", fmt.Sprintf("127.0.1.%d", i+1), 250, idle})
	}
	return append(peers,
		peer{"half a message", "127.0.1.5", 100, func(_ context.Context, conn net.Conn) {
			// All of the longest but for its last octet.
			if _, err := conn.Write(append([]byte{0xff, 0xff}, make([]byte, 65534)...)); err == nil {
				readAll(conn)
			}
		}},
		peer{"an octet a second", "127.0.1.6", 50, func(ctx context.Context, conn net.Conn) {
			for _, b := range short {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}},
		peer{"a thousand questions", "127.0.1.7", 4, func(_ context.Context, conn net.Conn) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, 65537)
				for range together {
					if _, err := readFrame(conn, buf); err != nil {
						return
					}
					pipelined.Add(1)
				}
			}()
			if _, err := conn.Write(questions); err != nil {
				conn.Close()
			}
			<-done
		}},
		peer{"never reads", "127.0.1.8", 50, func(_ context.Context, conn net.Conn) {
			for {
				if _, err := conn.Write(long); err != nil {
					return
				}
			}
		}},
	)
}

// TestHostileTCP has 1,000 idle connections, half messages, an octet a second,
// 1,000 questions at once and readers that never read, all at one time: good
// clients are answered as ever, and memory and connections are bounded.
func TestHostileTCP(t *testing.T) {
	const (
		bound       = 50 * time.Millisecond
		connections = 1000
		// Each connection has a question of 64 KiB at the most, its answer, that
		// once more with its length before it, and a goroutine.
		each = 3*64 + 16 // kB
	)
	k := startHostile(t, fastKubeDNS(t))
	before := harness.ProcessUsage(t, k.PID())
	var pipelined atomic.Int64
	opened, stop := besiege(t, k.Addr, hostilePeers(t, &pipelined))
	harness.Eventually(t, 20*time.Second, func() error {
		if n, _ := k.ScrapeMetrics(t).Value("kubedns_tcp_connections"); n < connections {
			return fmt.Errorf("%v connections", n)
		}
		return nil
	})
	good := startGoodClient(t, k)
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	most := 0.0
	for end := time.Now().Add(*hostileTime); time.Now().Before(end); <-ticker.C {
		v, _ := k.ScrapeMetrics(t).Value("kubedns_tcp_connections")
		most = max(most, v)
	}
	good.stop(t)
	stop()
	after := harness.ProcessUsage(t, k.PID())
	t.Logf("%d connections opened, %v at a time, %d pipelined questions answered; memory %d kB before, %d kB at most; good client: %v",
		opened.Load(), most, pipelined.Load(), before.RSS, after.HWM, good)
	good.within(t, bound)
	if most > connections || most < connections*9/10 {
		t.Errorf("%v connections at a time, want %d", most, connections)
	}
	if pipelined.Load() < 1000 {
		t.Errorf("%d pipelined questions were answered", pipelined.Load())
	}
	if limit := before.RSS + connections*each; after.HWM > limit {
		t.Errorf("%d kB of memory, %d kB before: want %d kB at most", after.HWM, before.RSS, limit)
	}
	checkCalm(t, k)
}

// TestTCPLimits has more connections than one client may have, and than all
// may, and leaves them idle.
func TestTCPLimits(t *testing.T) {
	const all, each = 60, 25
	const idle = 1500 * time.Millisecond
	k := startHostile(t, kubeDNS(t), fmt.Sprintf("--max-tcp-connections=%d", all), fmt.Sprintf("--max-tcp-connections-per-client=%d", each),
		"--tcp-idle-timeout="+idle.String())
	packet := question(t, func(m *dns.Msg) { m.SetQuestion("web.shop.svc.cluster.local.", dns.TypeA) })
	// open opens n connections of a client, and returns those that answer.
	open := func(from string, n int) (alive []net.Conn) {
		for range n {
			conn, err := dialFrom(from, k.Addr)
			must(t, err)
			t.Cleanup(func() { conn.Close() })
			if _, _, err := askTCP("", conn, packet); err == nil {
				alive = append(alive, conn)
			}
		}
		return alive
	}
	connections := func() int {
		v, _ := k.ScrapeMetrics(t).Value("kubedns_tcp_connections")
		return int(v)
	}
	first := open("127.0.2.1", each+15)
	if len(first) != each+15 {
		t.Fatalf("%d connections of one client are served, want %d: its own idle for the longest go", len(first), each+15)
	}
	if got := connections(); got != each {
		t.Errorf("%d connections, want %d", got, each)
	}
	for i, conn := range first {
		if _, _, err := askTCP("", conn, packet); (err == nil) != (i >= 15) {
			t.Fatalf("connection %d of %d is served: %v", i, each+15, err == nil)
		}
	}
	for _, from := range []string{"127.0.2.2", "127.0.2.3", "127.0.2.4"} {
		if got := len(open(from, each)); got != each {
			t.Errorf("%d connections of another client are served, want %d: the ones idle for the longest go", got, each)
		}
	}
	last := time.Now()
	if got := connections(); got > all {
		t.Errorf("%d connections, want %d at most", got, all)
	}
	// Of the first client's, idle for the longest, none is left.
	for _, conn := range first {
		if _, _, err := askTCP("", conn, packet); err == nil {
			t.Fatal("a connection that was idle for the longest is still served")
		}
	}
	harness.Eventually(t, idle+5*time.Second, func() error {
		if got := connections(); got > 0 {
			return fmt.Errorf("%d connections", got)
		}
		return nil
	})
	if took := time.Since(last); took < idle/2 {
		t.Errorf("the last one was closed after %v, want %v", took, idle)
	}
}

// withFiles writes a script that runs the program with at most n open files,
// and returns its path.
func withFiles(t *testing.T, program string, n int) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "kube-dns")
	text := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", n, program)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return script
}

// TestOutOfDescriptors has so many idle TCP connections, then so many questions
// that a dead nameserver is asked, that kube-dns has no descriptor left: it
// answers over UDP, is ready all the while, answers over TCP again, and does
// not fill the log.
func TestOutOfDescriptors(t *testing.T) {
	const files = 64
	packet := question(t, func(m *dns.Msg) { m.SetQuestion("web.shop.svc.cluster.local.", dns.TypeA) })
	start := func(t *testing.T, nameservers string) *harness.KubeDNS {
		t.Helper()
		return harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: withFiles(t, fastKubeDNS(t), files), Nameservers: nameservers,
			Args: []string{"--manifests=" + hostileManifests(t), "--tcp-idle-timeout=1m"},
		})
	}
	check := func(t *testing.T, k *harness.KubeDNS) {
		t.Helper()
		good := dialTimestamped(t, k.Addr)
		defer good.Close()
		if _, _, err := good.ask(packet); err != nil {
			t.Errorf("over UDP: %v", err)
		}
		if status, body := k.Readiness(t); status != http.StatusOK {
			t.Errorf("/readiness answers %d: %s", status, body)
		}
	}

	t.Run("idle connections", func(t *testing.T) {
		k := start(t, startQuickUpstream(t).String())
		for i := range 4 * files {
			conn, err := dialFrom("127.0.3.1", k.Addr)
			must(t, err)
			defer conn.Close()
			if i%files == 0 {
				check(t, k)
			}
		}
		check(t, k)
		// A nameserver is asked over a socket, which takes a descriptor.
		reply := ask(t, harness.Question{Server: k.Addr, Name: "www.example.org.", Type: dns.TypeA})
		if reply.Rcode != dns.RcodeNameError {
			t.Errorf("an outside name has the reply\n%s\nwant the nameserver's, NXDOMAIN", reply)
		}
		// Long before any of them has been idle for too long.
		harness.Eventually(t, 5*time.Second, func() error {
			_, _, err := askTCP(k.Addr, nil, packet)
			return err
		})
	})

	t.Run("questions at a dead nameserver", func(t *testing.T) {
		k := start(t, silent(t))
		began := time.Now()
		failed, dead := 0, dialTimestamped(t, k.Addr)
		for i := 0; time.Since(began) < 2500*time.Millisecond; i++ {
			for j := range 20 {
				_, err := dead.Write(rawQuestion(uint16(i*20+j), wireName(t, fmt.Sprintf("n%d-%d.example.org.", i, j)), dns.TypeA, dns.ClassINET))
				must(t, err)
			}
			if i%5 == 0 {
				conn, err := net.DialTimeout("tcp", k.Addr, 100*time.Millisecond)
				must(t, err) // the kernel accepts it
				must(t, conn.SetDeadline(time.Now().Add(100*time.Millisecond)))
				_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...))
				must(t, err)
				if _, err := readFrame(conn, make([]byte, 65537)); errors.Is(err, os.ErrDeadlineExceeded) {
					failed++
				}
				conn.Close()
			}
			good := dialTimestamped(t, k.Addr)
			if _, _, err := good.ask(packet); err != nil {
				t.Errorf("over UDP: %v", err)
			}
			good.Close()
			<-time.After(20 * time.Millisecond)
		}
		took := time.Since(began)
		n := strings.Count(k.Log.String(), "accepting TCP")
		t.Logf("in %v accepting failed with %d lines in the log; %d TCP connections were not answered meanwhile", took.Round(time.Millisecond), n, failed)
		if n == 0 {
			t.Error("it was never out of descriptors: that tests nothing")
		}
		if limit := int(took/time.Second) + 2; n > limit {
			t.Errorf("%d lines in the log, want %d at most", n, limit)
		}
		// The nameserver's time is 3.5 s; what is accepted by then is served.
		harness.Eventually(t, 10*time.Second, func() error {
			_, _, err := askTCP(k.Addr, nil, packet)
			return err
		})
		check(t, k)
	})
}
