package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/treecache"
)

// framed is a message with its length before it (RFC 1035 section 4.2.2).
func framed(wire []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
}

// readFramed reads one message.
func readFramed(conn net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(conn, b)
	return b, err
}

func mustWrite(tb testing.TB, conn net.Conn, b []byte) {
	tb.Helper()
	if _, err := conn.Write(b); err != nil {
		tb.Fatal(err)
	}
}

// expectEOF fails unless the server closes the connection without a further
// message.
func expectEOF(tb testing.TB, conn net.Conn) {
	tb.Helper()
	var timeout net.Error
	if b, err := readFramed(conn); err == nil {
		tb.Errorf("got %x, want the end", b)
	} else if errors.As(err, &timeout) && timeout.Timeout() {
		tb.Error("the connection stays open")
	}
}

// A thousand questions are sent before a reply is read (RFC 7766 section
// 6.2.1.1). All are answered, by ID; slow ones do not hold up the others.
func TestTCPPipelining(t *testing.T) {
	s, _, release := newHeldServer(t, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	const asked, slowOnes = 1000, maxPipelined / 2
	direct, slow := pack(t, newQuestion(t, webA, nil)), pack(t, newQuestion(t, "www.example.org. A", nil))
	query := func(id int) []byte {
		if id%20 == 0 {
			return numbered(slow, id)
		}
		return numbered(direct, id)
	}
	var all []byte
	for id := range asked {
		all = append(all, framed(query(id))...)
	}
	mustWrite(t, conn, all)
	seen := make([]bool, asked)
	released := false
	for i := range asked {
		if i == asked-slowOnes {
			released = true
			close(release)
		}
		b, err := readFramed(conn)
		if err != nil {
			t.Fatalf("after %d of %d replies: %v", i, asked, err)
		}
		id := int(binary.BigEndian.Uint16(b))
		if id >= asked || seen[id] {
			t.Fatalf("reply %d is nobody's, or came twice", id)
		}
		seen[id] = true
		m := checkReply(t, query(id), b, true, s.udpSize)
		if len(m.Answer) != 1 || (id%20 == 0) != released {
			t.Fatalf("reply %d after %d others: %s", id, i, s.text(m))
		}
	}
	// The connection is good for more.
	checkReply(t, direct, exchange(t, conn, direct), true, s.udpSize)
}

// Slow questions beyond the bound of a connection wait, in the network where
// need be, and are answered in the end.
func TestTCPPipeliningBound(t *testing.T) {
	s, running, release := newHeldServer(t, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	slow := pack(t, newQuestion(t, "www.example.org. A", nil))
	for id := range 3 * maxPipelined {
		mustWrite(t, conn, framed(numbered(slow, id)))
	}
	for range maxPipelined {
		<-running
	}
	select {
	case <-running:
		t.Errorf("more than %d at one time", maxPipelined)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	for range 3 * maxPipelined {
		if _, err := readFramed(conn); err != nil {
			t.Fatal(err)
		}
	}
}

// A message may come in any pieces.
func TestTCPPieces(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	if err := conn.(*net.TCPConn).SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	wire := pack(t, newQuestion(t, webA, nil))
	for _, size := range []int{1, 2, 3, 7} {
		for piece := range slices.Chunk(slices.Concat(framed(wire), framed(numbered(wire, 5))), size) {
			mustWrite(t, conn, piece)
		}
		for range 2 {
			if b, err := readFramed(conn); err != nil || len(b) < headerLen {
				t.Fatalf("pieces of %d: %x, %v", size, b, err)
			}
		}
	}
}

// Messages without a reply, of no length among them, leave the connection
// usable; malformed ones are answered on it.
func TestTCPOddMessages(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { _, o.Forwarder = newUpstream(t, nil) })
	r := s.listen(t, "::1")
	conn := dial(t, "tcp", r.addr)
	wire := pack(t, newQuestion(t, webA, nil))
	for _, p := range packets(t) {
		mustWrite(t, conn, framed(p.wire))
		if p.want == "" {
			query := numbered(wire, 0x7777)
			if got := exchange(t, conn, query); binary.BigEndian.Uint16(got) != 0x7777 {
				t.Fatalf("%s: got %x", p.name, got)
			}
			continue
		}
		b, err := readFramed(conn)
		if err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		if got := s.text(checkReply(t, p.wire, b, true, s.udpSize)); got != p.want {
			t.Errorf("%s: got %s, want %s", p.name, got, p.want)
		}
	}
	// The longest message that there can be, with its padding.
	long := pack(t, newQuestion(t, webA, withOPT(1232, 0, false, &dns.EDNS0_PADDING{Padding: make([]byte, dns.MaxMsgSize-len(wire)-optLen-4)})))
	if len(long) != dns.MaxMsgSize {
		t.Fatalf("%d octets", len(long))
	}
	checkReply(t, long, exchange(t, conn, long), true, s.udpSize)
}

// A client may close its side once it has asked; it still gets its replies.
func TestTCPHalfClose(t *testing.T) {
	s, _, release := newHeldServer(t, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	mustWrite(t, conn, slices.Concat(framed(pack(t, newQuestion(t, "www.example.org. A", nil))), framed(pack(t, newQuestion(t, webA, nil)))))
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := readFramed(conn); err != nil {
		t.Fatal(err)
	}
	close(release)
	if _, err := readFramed(conn); err != nil {
		t.Fatal(err)
	}
	expectEOF(t, conn)
	eventually(t, "the connection is gone", func() bool { return s.gather(t)["kubedns_tcp_connections"] == 0 })
}

// A connection on which nothing is asked is closed after the idle time, and so
// is one on which half a message comes; one that asks again and again is not.
func TestTCPIdle(t *testing.T) {
	const idle = 500 * time.Millisecond
	s := newTestServer(t, fixture(), func(o *Options) { o.TCPIdleTimeout = idle })
	r := s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, webA, nil))
	for _, tt := range []struct {
		name string
		sent []byte
	}{
		{"nothing", nil}, {"half a length", []byte{0}}, {"a length", []byte{0xff, 0xff}}, {"half a message", framed(wire)[:20]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			conn := dial(t, "tcp", r.addr)
			if tt.sent != nil {
				mustWrite(t, conn, tt.sent)
			}
			expectEOF(t, conn)
			if d := time.Since(start); d < idle {
				t.Errorf("closed after %v", d)
			}
		})
	}
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, "tcp", r.addr)
		tick := time.NewTicker(idle / 6)
		defer tick.Stop()
		for range 12 {
			checkReply(t, wire, exchange(t, conn, wire), true, s.udpSize)
			<-tick.C
		}
	})
	t.Run("drip", func(t *testing.T) {
		t.Parallel()
		// An octet at a time does not keep a connection open.
		conn := dial(t, "tcp", r.addr)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			expectEOF(t, conn)
		}()
		tick := time.NewTicker(idle / 10)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				if time.Since(start) > patience {
					t.Fatal("the connection stays open")
				}
				if _, err := conn.Write([]byte{1}); err != nil {
					<-ended
					return
				}
			}
		}
	})
}

// A client that does not read loses its connection, and keeps nobody else from
// being answered.
func TestTCPReaderThatNeverReads(t *testing.T) {
	s := newTestServer(t, []*treecache.Records{
		headless("ns", "big", nil, manyEndpoints(3000)...), clusterIP("default", "web", nil, "10.96.0.10"),
	}, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	big := framed(pack(t, newQuestion(t, "big.ns.svc.cluster.local. A", nil)))
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		if _, err := conn.Write(big); err != nil {
			break // the server does not read more either
		}
	}
	wire := pack(t, newQuestion(t, webA, nil))
	for _, network := range []string{"udp", "tcp"} {
		start := time.Now()
		checkReply(t, wire, exchange(t, dial(t, network, r.addr), wire), network == "tcp", s.udpSize)
		if d := time.Since(start); d > tcpWriteTimeout/2 {
			t.Errorf("%s: another client waited %v", network, d)
		}
	}
	start := time.Now()
	eventually(t, "the connection is closed", func() bool { return s.gather(t)["kubedns_tcp_connections"] <= 1 })
	if d := time.Since(start); d > 2*tcpWriteTimeout {
		t.Errorf("closed after %v", d)
	}
}

// Serve does not wait for a client that does not read.
func TestTCPStopWhileWriting(t *testing.T) {
	s := newTestServer(t, []*treecache.Records{headless("ns", "big", nil, manyEndpoints(3000)...)}, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	big := framed(pack(t, newQuestion(t, "big.ns.svc.cluster.local. A", nil)))
	if err := conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		if _, err := conn.Write(big); err != nil {
			break
		}
	}
	start := time.Now()
	r.end(t)
	if d := time.Since(start); d > tcpWriteTimeout/2 {
		t.Errorf("Serve took %v to end", d)
	}
}

// Past a client's bound, a new connection closes the client's own that has been
// idle longest.
func TestTCPConnectionLimitPerClient(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { o.MaxTCPConnectionsPerClient = 3 })
	r := s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, webA, nil))
	ask := func(conn net.Conn) {
		t.Helper()
		checkReply(t, wire, exchange(t, conn, wire), true, s.udpSize)
	}
	first, second, third := dial(t, "tcp", r.addr), dial(t, "tcp", r.addr), dial(t, "tcp", r.addr)
	for _, conn := range []net.Conn{first, second, third, first} {
		ask(conn)
	}
	fourth := dial(t, "tcp", r.addr)
	ask(fourth)
	expectEOF(t, second)
	for _, conn := range []net.Conn{first, third, fourth} {
		ask(conn)
	}
	if n := s.gather(t)["kubedns_tcp_connections"]; n != 3 {
		t.Errorf("%v connections, want 3", n)
	}
}

// A connection that waits for a forwarded question's answer is not idle, however
// long ago the question came.
func TestTCPConnectionLimitWaiting(t *testing.T) {
	s, asked, release := newHeldServer(t, func(o *Options) { o.MaxTCPConnectionsPerClient = 2 })
	r := s.listen(t, "127.0.0.1")
	wire, forwarded := pack(t, newQuestion(t, webA, nil)), pack(t, newQuestion(t, "www.example.org. A", nil))
	waiting, idle := dial(t, "tcp", r.addr), dial(t, "tcp", r.addr)
	mustWrite(t, waiting, framed(forwarded))
	<-asked
	checkReply(t, wire, exchange(t, idle, wire), true, s.udpSize)
	third := dial(t, "tcp", r.addr)
	checkReply(t, wire, exchange(t, third, wire), true, s.udpSize)
	expectEOF(t, idle)
	close(release)
	reply, err := readFramed(waiting)
	if err != nil {
		t.Fatal(err)
	}
	checkReply(t, forwarded, reply, true, s.udpSize)
}

// A client whose connections are all idle, silent or with half a message, is
// answered on a new one at once.
func TestTCPIdleConnectionsOfOneClient(t *testing.T) {
	const idle = 300 // more than the default bound
	for _, tt := range []struct {
		name string
		sent func(wire []byte) []byte
	}{
		{"silent", func([]byte) []byte { return nil }},
		{"half a message", func(wire []byte) []byte { return framed(wire)[:len(wire)/2] }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newTestServer(t, fixture(), func(o *Options) { o.TCPIdleTimeout = time.Minute })
			r := s.listen(t, "127.0.0.1")
			wire := pack(t, newQuestion(t, webA, nil))
			for range idle {
				if conn, sent := dial(t, "tcp", r.addr), tt.sent(wire); sent != nil {
					// It fails where the server has closed the connection already.
					_, _ = conn.Write(sent)
				}
			}
			start := time.Now()
			conn := dial(t, "tcp", r.addr)
			if _, err := conn.Write(framed(wire)); err != nil {
				t.Fatal(err)
			}
			reply, err := readFramed(conn)
			if err != nil {
				t.Fatalf("no reply on a new connection: %v", err)
			}
			checkReply(t, wire, reply, true, s.udpSize)
			if d := time.Since(start); d > time.Second {
				t.Errorf("answered after %v, want 1s at most", d)
			}
			if n := s.gather(t)["kubedns_tcp_connections"]; n > 250 {
				t.Errorf("%v connections, want 250 at most", n)
			}
		})
	}
}

// Past the bound of all, the connection that was idle for the longest makes
// room for a new one.
func TestTCPConnectionLimit(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { o.MaxTCPConnections = 3 })
	r := s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, webA, nil))
	ask := func(conn net.Conn) { checkReply(t, wire, exchange(t, conn, wire), true, s.udpSize) }
	first, second, third := dial(t, "tcp", r.addr), dial(t, "tcp", r.addr), dial(t, "tcp", r.addr)
	for _, conn := range []net.Conn{first, second, third, first} {
		ask(conn)
	}
	ask(dial(t, "tcp", r.addr))
	expectEOF(t, second)
	ask(first)
	ask(third)
	if n := s.gather(t)["kubedns_tcp_connections"]; n != 3 {
		t.Errorf("%v connections, want 3", n)
	}
}

// Serve ends promptly with connections open: idle ones, half a message, and
// answers under way, which end with the context.
func TestTCPStop(t *testing.T) {
	asked := make(chan struct{})
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(ctx context.Context, _ *dns.Msg, _ bool) (*dns.Msg, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	r := s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, webA, nil))
	idle, half, slow := dial(t, "tcp", r.addr), dial(t, "tcp", r.addr), dial(t, "tcp", r.addr)
	exchange(t, idle, wire)
	mustWrite(t, half, framed(wire)[:9])
	mustWrite(t, slow, framed(pack(t, newQuestion(t, "www.example.org. A", nil))))
	<-asked
	eventually(t, "three connections", func() bool { return s.gather(t)["kubedns_tcp_connections"] == 3 })
	start := time.Now()
	r.end(t)
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Serve took %v to end", d)
	}
	if n := s.gather(t)["kubedns_tcp_connections"]; n != 0 {
		t.Errorf("%v connections left", n)
	}
	expectEOF(t, idle)
}

// A client that goes away while its answers are under way.
func TestTCPClientGone(t *testing.T) {
	s, asked, release := newHeldServer(t, nil)
	r := s.listen(t, "127.0.0.1")
	conn := dial(t, "tcp", r.addr)
	for id := range 10 {
		mustWrite(t, conn, framed(numbered(pack(t, newQuestion(t, "www.example.org. A", nil)), id)))
		<-asked
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	close(release)
	eventually(t, "the connection is gone", func() bool { return s.gather(t)["kubedns_tcp_connections"] == 0 })
	wire := pack(t, newQuestion(t, webA, nil))
	checkReply(t, wire, exchange(t, dial(t, "tcp", r.addr), wire), true, s.udpSize)
}

// A connection that is kept open after a long question and a long answer keeps
// little memory: a thousand of them must not fill a container's.
func TestTCPMemory(t *testing.T) {
	s := newTestServer(t, []*treecache.Records{headless("ns", "big", nil, manyEndpoints(3000)...)}, nil)
	s.tcpIdle = time.Minute // all of them are to be open at the end, on a slow machine too
	r := s.listen(t, "127.0.0.1")
	question := newQuestion(t, "big.ns.svc.cluster.local. A", nil)
	long := pack(t, newQuestion(t, "big.ns.svc.cluster.local. A",
		withOPT(1232, 0, false, &dns.EDNS0_PADDING{Padding: make([]byte, dns.MaxMsgSize-len(pack(t, question))-optLen-4)})))
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // the second one empties pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const conns = 100
	before := heap()
	for range conns {
		exchange(t, dial(t, "tcp", r.addr), long)
	}
	if n := s.gather(t)["kubedns_tcp_connections"]; n != conns {
		t.Fatalf("%v connections, want %d", n, conns)
	}
	if each := (int64(heap()) - int64(before)) / conns; each > 24<<10 {
		t.Errorf("each connection keeps %d octets", each)
	}
}

// A length that is announced takes no memory before the octets come.
func TestTCPAnnounced(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	client, conn := net.Pipe()
	defer client.Close()
	defer conn.Close()
	least := uint64(math.MaxUint64)
	for range 5 { // what else allocates meanwhile does not each time
		in := bufio.NewReaderSize(bytes.NewReader(append([]byte{0xff, 0xff}, make([]byte, 100)...)), readBuffer)
		c := &session{s: s.Server, conn: &tcpConn{Conn: conn}, in: in, w: s.newWorker()}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := c.next()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Fatal("next() has the whole of a message that did not come")
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > 8<<10 {
		t.Errorf("102 octets of a message of 65,535 have taken %d", least)
	}
}
