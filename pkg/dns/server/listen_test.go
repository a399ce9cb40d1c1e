package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/await"
)

// patience is how long a test waits for what is to happen soon.
const patience = 20 * time.Second

// running is a server that listens.
type running struct {
	addr  netip.AddrPort
	stop  context.CancelFunc
	ended chan error // has Serve's result
}

// listen serves at an address, "127.0.0.1", on a free port, until the test
// ends, and fails the test unless Serve then ends without an error.
func (s *testServer) listen(tb testing.TB, address string) *running {
	tb.Helper()
	l, err := s.Listen(tb.Context(), netip.AddrPortFrom(addr(address), 0))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{addr: l.Addr(), stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- s.Serve(ctx, l) }()
	tb.Cleanup(func() { r.end(tb) })
	return r
}

// end stops the server and waits for Serve to end.
func (r *running) end(tb testing.TB) {
	tb.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			tb.Errorf("Serve: %v", err)
		}
		r.ended <- nil
	case <-time.After(patience):
		tb.Error("Serve does not end")
	}
}

// dial connects to a server that is to end with the test.
func dial(tb testing.TB, network string, to netip.AddrPort) net.Conn {
	tb.Helper()
	var d net.Dialer
	conn, err := d.DialContext(tb.Context(), network, to.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	return conn
}

// exchange asks over conn, which frames TCP, and waits for a reply.
func exchange(tb testing.TB, conn net.Conn, wire []byte) []byte {
	tb.Helper()
	c := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	if _, err := c.Write(wire); err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, dns.MaxMsgSize)
	n, err := c.Read(b)
	if err != nil {
		tb.Fatalf("no reply to %x: %v", wire, err)
	}
	return b[:n]
}

// eventually waits until ok.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	await.Until(tb, patience, what, ok)
}

// Every row is answered in the same way over UDP and TCP, IPv4 and IPv6, by
// sockets bound to one address or to any. An IPv4 address that was asked is
// the reply's source whatever the socket is bound to: a connected socket takes
// nothing else.
func TestSockets(t *testing.T) {
	s, _ := newAsyncServer(t, func(o *Options) { o.Sockets = 2 })
	for _, tt := range []struct {
		bind string
		ask  []string
	}{
		{"127.0.0.1", []string{"127.0.0.1"}},
		{"127.0.0.3", []string{"127.0.0.3"}},
		{"0.0.0.0", []string{"127.0.0.1", "127.0.0.2", "127.255.255.254", "::1"}},
		{"::", []string{"::1", "127.0.0.1", "127.0.0.2"}},
		{"::1", []string{"::1"}},
	} {
		t.Run(tt.bind, func(t *testing.T) {
			r := s.listen(t, tt.bind)
			for _, to := range tt.ask {
				for _, network := range []string{"udp", "tcp"} {
					conn := dial(t, network, netip.AddrPortFrom(addr(to), r.addr.Port()))
					for _, row := range append(directTests, asyncTests...) {
						wire := pack(t, newQuestion(t, row.question, nil))
						m := checkReply(t, wire, exchange(t, conn, wire), network == "tcp", s.udpSize)
						if got, want := s.text(m), wantText(row.want); got != want {
							t.Errorf("%s, %s at %s\ngot  %s\nwant %s", row.question, network, to, got, want)
						}
					}
				}
			}
		})
	}
}

// A second server at the same address is an error, and what the first has
// bound stays usable.
func TestListenTwice(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	r := s.listen(t, "127.0.0.1")
	if l, err := newTestServer(t, nil, nil).Listen(t.Context(), r.addr); err == nil {
		t.Errorf("a second server at %v", r.addr)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	} else if !strings.Contains(err.Error(), r.addr.String()) {
		t.Errorf("error %q does not say where", err)
	}
	wire := pack(t, newQuestion(t, webA, nil))
	checkReply(t, wire, exchange(t, dial(t, "udp", r.addr), wire), false, s.udpSize)
}

// What is bound and never served can be closed.
func TestListenClose(t *testing.T) {
	s := newTestServer(t, nil, nil)
	l, err := s.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	again, err := s.Listen(t.Context(), l.Addr())
	if err != nil {
		t.Fatalf("the address is not free again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// LastQuestion is when a question came last, over UDP or TCP.
func TestLastQuestion(t *testing.T) {
	s := newTestServer(t, fixture(), nil)
	if !s.LastQuestion().IsZero() {
		t.Errorf("%v before the first", s.LastQuestion())
	}
	r := s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, webA, nil))
	for _, network := range []string{"udp", "tcp"} {
		before := time.Now()
		exchange(t, dial(t, network, r.addr), wire)
		if last := s.LastQuestion(); last.Before(before) || last.After(time.Now()) {
			t.Errorf("%s: %v is not between %v and now", network, last, before)
		}
	}
}

// One listener ends while another has deferred answers, which then are
// written.
func TestTwoListeners(t *testing.T) {
	s, asked, release := newHeldServer(t, nil)
	a, b := s.listen(t, "127.0.0.1"), s.listen(t, "127.0.0.1")
	wire := pack(t, newQuestion(t, "www.example.org. A", nil))
	var wg sync.WaitGroup
	for _, network := range []string{"udp", "tcp"} {
		conn := dial(t, network, b.addr)
		wg.Go(func() {
			if m := checkReply(t, wire, exchange(t, conn, wire), network == "tcp", s.udpSize); len(m.Answer) != 1 {
				t.Errorf("%s: %v", network, m)
			}
		})
		<-asked
	}
	a.end(t)
	close(release)
	wg.Wait()
}

// A panic is SERVFAIL, counted, and the server goes on: over UDP and TCP, on
// the direct and on the asynchronous way.
func TestPanics(t *testing.T) {
	s, _ := newAsyncServer(t, func(o *Options) {
		o.Forwarder = fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) { panic("forwarder") })
	})
	s.backend.wildcards = func(string) { panic("backend") }
	s.backend.synced.Store(true)
	var broken bool
	var mu sync.Mutex
	s.backend.hasSynced = func() bool {
		mu.Lock()
		defer mu.Unlock()
		if broken {
			panic("HasSynced")
		}
		return true
	}
	setBroken := func(b bool) {
		mu.Lock()
		defer mu.Unlock()
		broken = b
	}
	r := s.listen(t, "127.0.0.1")
	panics := 0.0
	for _, network := range []string{"udp", "tcp"} {
		conn := dial(t, network, r.addr)
		for _, tt := range []struct {
			question string
			direct   bool
		}{
			{webA, true}, {"10.0.96.10.in-addr.arpa. PTR", true}, {"www.example.org. A", false},
			{"ext.default.svc.cluster.local. A", false}, {"*.default.svc.cluster.local. SRV", false},
		} {
			for _, opt := range []bool{false, true} {
				req := newQuestion(t, tt.question, nil)
				req.RecursionDesired = true
				if opt {
					withOPT(1232, 0, true)(req)
				}
				wire := pack(t, req)
				setBroken(tt.direct)
				m := checkReply(t, wire, exchange(t, conn, wire), network == "tcp", s.udpSize)
				setBroken(false)
				if got := s.text(m); got != "SERVFAIL rd ra" {
					t.Errorf("%s %s: %s", network, tt.question, got)
				}
				panics++
				if got := s.gather(t)["kubedns_panics_total"]; got != panics {
					t.Errorf("%s %s: %v panics counted, want %v", network, tt.question, got, panics)
				}
				wire = pack(t, newQuestion(t, webA, nil))
				if m := checkReply(t, wire, exchange(t, conn, wire), network == "tcp", s.udpSize); len(m.Answer) != 1 {
					t.Errorf("%s, after a panic: %s", network, s.text(m))
				}
			}
		}
	}
	// Slots of names with an asterisk are free again.
	s.backend.wildcards = nil
	for range 10 {
		if m := s.ask(t, newQuestion(t, "*.default.svc.cluster.local. A", nil), false); len(m.Answer) != 2 {
			t.Errorf("an asterisk after panics: %s", s.text(m))
		}
	}
	eventually(t, "no name with an asterisk is left", func() bool { return s.wildcards.waiting.Load() == 0 })
}

// A Forwarder that answers neither a reply nor an error is a panic as well.
func TestNilReply(t *testing.T) {
	var none *dns.Msg
	s := newTestServer(t, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) { return none, nil })
	})
	for _, question := range []string{"www.example.org. A", "ext.default.svc.cluster.local. A"} {
		if got := s.text(s.ask(t, newQuestion(t, question, nil), false)); got != "SERVFAIL ra" {
			t.Errorf("%s: %s", question, got)
		}
	}
}

// A panic is logged with its question, and then for a second no other.
func TestPanicLog(t *testing.T) {
	var l panicLog
	wire := pack(t, newQuestion(t, webA, nil))
	now := time.Now()
	l.log("first", wire)
	next := l.next
	if d := next.Sub(now); d < time.Second || d > time.Second+patience {
		t.Fatalf("the next is logged in %v", d)
	}
	for range 100 {
		l.log("more", wire)
	}
	if l.next != next && time.Now().Before(next) {
		t.Error("logged more than once in a second")
	}
	for _, tt := range []struct {
		name string
		msg  []byte
		want string
	}{
		{"question", wire, "web.default.svc.cluster.local.\tIN\t A"},
		{"none", wire[:headerLen], fmt.Sprintf("%x", wire[:headerLen])},
		{"empty", nil, ""},
		{"garbage", make([]byte, 5000), strings.Repeat("00", 512)},
	} {
		if got := describe(tt.msg); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
