package server

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// pipeConn is a connection from an address.
type pipeConn struct {
	net.Conn
	from netip.AddrPort
}

func (c pipeConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }

func newPipe(t *testing.T, from string) pipeConn {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	return pipeConn{here, netip.MustParseAddrPort(from)}
}

// isClosed reports whether a pipe's end was closed.
func isClosed(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		return true
	}
	_, err := c.Write([]byte{0})
	return err != nil && !isTimeout(err)
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // a pipe's error is not wrapped
	return ok && e.Timeout()
}

func TestConnTable(t *testing.T) {
	table := newConnTable(4, 2)
	a1, a2 := table.add(newPipe(t, "192.0.2.1:1")), table.add(newPipe(t, "192.0.2.1:2"))
	b1, b2 := table.add(newPipe(t, "192.0.2.2:1")), table.add(newPipe(t, "192.0.2.2:2"))
	conns := map[string]*tcpConn{"a1": a1, "a2": a2, "b1": b1, "b2": b2}
	var closed []string
	// want fails unless the connections that are closed are those that were
	// before and one more.
	want := func(name string) {
		t.Helper()
		if name != "" {
			closed = append(closed, name)
		}
		for name, c := range conns {
			if got, want := isClosed(t, c), slices.Contains(closed, name); got != want {
				t.Errorf("%s closed: %v, want %v", name, got, want)
			}
		}
		open := len(conns) - len(closed)
		if got := table.size(); got != open {
			t.Errorf("the size is %d, want %d", got, open)
		}
	}
	want("")
	a1.active.Store(20)
	a2.active.Store(15)
	b1.active.Store(10)
	b2.active.Store(5)
	// A client past its bound: its own, though others are idle for longer. An
	// IPv4 address counts the same in IPv6's form.
	conns["a3"] = table.add(newPipe(t, "[::ffff:192.0.2.1]:3"))
	want("a2")
	// All past the bound: the longest idle of all.
	conns["c"] = table.add(newPipe(t, "192.0.2.3:1"))
	want("b2")
	// One that waits for an answer is not idle.
	b1.pending.Store(1)
	conns["d"] = table.add(newPipe(t, "192.0.2.4:1"))
	want("a1")
	// Unless all do.
	for _, c := range conns {
		c.pending.Store(1)
	}
	conns["e"] = table.add(newPipe(t, "192.0.2.5:1"))
	conns["e"].pending.Store(1)
	want("b1")
	// To free a descriptor, though the table has room.
	table.all = 100
	conns["a3"].active.Store(50)
	if !table.makeRoom() {
		t.Error("makeRoom closed nothing")
	}
	want("a3")
	for _, c := range conns {
		table.remove(c) // its goroutine ends later
	}
	if table.size() != 0 || len(table.byClient) != 0 {
		t.Errorf("left: %d connections, %d clients", table.size(), len(table.byClient))
	}
	if table.makeRoom() {
		t.Error("an empty table made room")
	}
}

func TestLogLimiter(t *testing.T) {
	var s logLimiter
	start := timeNow()
	for i, want := range []struct {
		after time.Duration
		n     int
		ok    bool
	}{
		{0, 1, true}, {0, 0, false}, {999 * time.Millisecond, 0, false}, {time.Second, 3, true},
		{1500 * time.Millisecond, 0, false}, {10 * time.Second, 2, true}, {20 * time.Second, 1, true},
	} {
		if n, ok := s.due(start.Add(want.after)); n != want.n || ok != want.ok {
			t.Errorf("occurrence %d, after %v: %d, %v; want %d, %v", i, want.after, n, ok, want.n, want.ok)
		}
	}
}

func TestDescriptorsFor(t *testing.T) {
	for _, tt := range []struct {
		n     int
		limit uint64
		want  int
	}{
		{1000, 1 << 20, 1000}, {1000, 2000, 1000}, {1000, 1999, 999}, {1000, 1024, 512}, {1000, 64, 32}, {1000, 1, 1},
		{1000, 1<<64 - 1, 1000}, // RLIM_INFINITY
	} {
		if got := descriptorsFor(tt.n, tt.limit); got != tt.want {
			t.Errorf("%d connections, %d files: %d, want %d", tt.n, tt.limit, got, tt.want)
		}
	}
}

func TestRateLimiter(t *testing.T) {
	if newRateLimiter(0) != nil {
		t.Error("0 is no limit")
	}
	l := newRateLimiter(10)
	now := time.Unix(1000, 0).UnixNano()
	client, other := []byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}
	count := func(client []byte, n int, now int64) (allowed int) {
		for range n {
			if l.allow(client, now) {
				allowed++
			}
		}
		return allowed
	}
	if got := count(client, 100, now); got != 10 {
		t.Errorf("%d of 100 at once are allowed, want 10", got)
	}
	if got := count(other, 5, now); got != 5 {
		t.Errorf("%d of another client's 5 are allowed", got)
	}
	if got := count(client, 100, now+int64(500*time.Millisecond)); got != 5 {
		t.Errorf("%d are allowed half a second later, want 5", got)
	}
	if got := count(client, 100, now+int64(time.Hour)); got != 10 {
		t.Errorf("%d are allowed after an hour, want 10: what was not used is lost", got)
	}
	slips := 0
	for range 100 {
		if l.slip() {
			slips++
		}
	}
	if slips != 50 {
		t.Errorf("%d of 100 past the bound get TC, want 50", slips)
	}
	if n := testing.AllocsPerRun(100, func() { l.allow(client, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestClientAddr(t *testing.T) {
	v4 := make([]byte, unix.SizeofSockaddrInet4)
	v4[0] = unix.AF_INET
	copy(v4[4:], []byte{192, 0, 2, 1})
	v6 := make([]byte, unix.SizeofSockaddrInet6)
	v6[0] = unix.AF_INET6
	v6[23] = 7
	for name, tt := range map[string]struct {
		in   []byte
		want string
	}{
		"IPv4": {v4, "\xc0\x00\x02\x01"}, "IPv6": {v6, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"},
		"cut": {v6[:20], ""}, "none": {nil, ""},
	} {
		if got := string(clientAddr(tt.in)); got != tt.want {
			t.Errorf("%s: %x, want %x", name, got, tt.want)
		}
	}
}

// Past its bound, a client gets nothing or TC without records; over TCP it
// gets its answers.
func TestRateOverUDP(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { o.MaxAnswersPerSecond = 5 })
	r := s.listen(t, "127.0.0.1")
	question := pack(t, newQuestion(t, webA, nil))
	conn := dial(t, "udp", r.addr)
	const asked = 100
	for range asked {
		if _, err := conn.Write(question); err != nil {
			t.Fatal(err)
		}
	}
	full, cut := 0, 0
	buf := make([]byte, 4096)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			break
		}
		m := new(dns.Msg)
		if err := m.Unpack(buf[:n]); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Truncated && len(m.Answer) == 0 && n <= len(question):
			cut++
		case len(m.Answer) == 1:
			full++
		default:
			t.Errorf("got %v", m)
		}
	}
	// The machine may take a second over it, or more.
	if full < 5 || full > asked/2 || cut == 0 || cut > asked/2 {
		t.Errorf("%d answers and %d with TC of %d questions, with 5 answers a second", full, cut, asked)
	}
	if got := s.gather(t)["kubedns_rate_limited_total"]; got != float64(asked-full) {
		t.Errorf("%v counted, want %d", got, asked-full)
	}
	exchange(t, dial(t, "tcp", r.addr), question)
}

// While a socket is overloaded, what would be forwarded is answered SERVFAIL, and
// the zone's names are answered.
func TestOverloadedSheds(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) {
			t.Error("forwarded")
			return nil, context.Canceled
		})
	})
	w := s.newWorker()
	w.overloaded = true
	for question, want := range map[string]int{webA: dns.RcodeSuccess, "www.example.org. A": dns.RcodeServerFailure} {
		out := w.handle(t.Context(), pack(t, newQuestion(t, question, nil)), nil, false, nil)
		m := new(dns.Msg)
		if err := m.Unpack(out); err != nil || m.Rcode != want {
			t.Errorf("%s: %v, %v; want %s", question, err, m, dns.RcodeToString[want])
		}
	}
	if got := s.gather(t)["kubedns_forward_overloaded_total"]; got != 1 {
		t.Errorf("%v counted as shed, want 1", got)
	}
}

func TestOverloadDetector(t *testing.T) {
	var p overloadDetector
	const ms = int64(time.Millisecond)
	start := timeNow().UnixNano()
	for i, tt := range []struct {
		ms     int64
		n      int
		waited bool
		want   bool
	}{
		{0, batchSize, false, false}, // the first
		{100, batchSize, false, false},
		{101, batchSize, false, true},
		{102, batchSize - 1, false, false}, // all that there was
		{202, batchSize, false, false},
		{203, batchSize, false, true},
		// Clients that send as many at a time as a batch has, and wait.
		{204, batchSize, true, false},
		{300, batchSize, true, false},
		{400, batchSize, false, false},
		{401, batchSize, false, true},
	} {
		if got := p.note(tt.n, tt.waited, start+tt.ms*ms); got != tt.want {
			t.Errorf("batch %d, of %d after %d ms, waited %v: behind %v, want %v", i, tt.n, tt.ms, tt.waited, got, tt.want)
		}
	}
}

// A read reports whether there was nothing to read at first.
func TestReadWaited(t *testing.T) {
	u, err := listenUDP(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), 512)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.conn.Close() })
	addr, err := netip.ParseAddrPort(u.conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, "udp", addr)
	for _, late := range []bool{false, true, false} {
		send := func() {
			if _, err := conn.Write([]byte("question")); err != nil {
				t.Error(err)
			}
		}
		if late {
			timer := time.AfterFunc(200*time.Millisecond, send)
			t.Cleanup(func() { timer.Stop() })
		} else {
			send()
		}
		if n, err := u.read(); n != 1 || err != nil || u.waited != late {
			t.Errorf("sent late: %v; read %d, %v, waited %v", late, n, err, u.waited)
		}
	}
}
