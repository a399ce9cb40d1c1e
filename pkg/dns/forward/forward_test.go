package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// serve runs a DNS server on UDP and TCP of one free port until the test ends.
func serve(tb testing.TB, handler dns.HandlerFunc) netip.AddrPort {
	tb.Helper()
	packets, listener := bothFree(tb)
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: listener, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.ActivateAndServe() }()
		<-started
		tb.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := s.ShutdownContext(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				tb.Errorf("stopping server: %v", err)
			}
			<-ended
		})
	}
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// packetServer calls handle with every datagram that comes to a free port.
func packetServer(tb testing.TB, handle func(query []byte, answer func([]byte))) netip.AddrPort {
	tb.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			handle(buffer[:n], func(p []byte) {
				_, _ = conn.WriteToUDPAddrPort(p, from)
			})
		}
	}()
	tb.Cleanup(func() { conn.Close(); <-ended })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dead reads and never answers.
func dead(tb testing.TB) netip.AddrPort {
	tb.Helper()
	return packetServer(tb, func([]byte, func([]byte)) {})
}

// closed is a port that refuses datagrams. A socket connected to somewhere else
// holds it, so that nobody else gets it while the test runs.
func closed(tb testing.TB) netip.AddrPort {
	tb.Helper()
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// bothFree returns a UDP socket and a TCP listener on one port of 127.0.0.1.
func bothFree(tb testing.TB) (net.PacketConn, net.Listener) {
	tb.Helper()
	var last error
	var config net.ListenConfig
	for range 20 { // the port that UDP got may be taken for TCP
		packets, err := config.ListenPacket(tb.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		listener, err := config.Listen(tb.Context(), "tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, listener
		}
		packets.Close()
		last = err
	}
	tb.Fatal(last)
	return nil, nil
}

func record(tb testing.TB, s string) dns.RR {
	tb.Helper()
	rr, err := dns.NewRR(s)
	if err != nil {
		tb.Fatal(err)
	}
	return rr
}

// answering gives one A record with the address ip.
func answering(tb testing.TB, ip string) dns.HandlerFunc {
	tb.Helper()
	return func(w dns.ResponseWriter, req *dns.Msg) {
		m := new(dns.Msg).SetReply(req)
		m.Answer = []dns.RR{record(tb, req.Question[0].Name+" 77 IN A "+ip)}
		_ = w.WriteMsg(m)
	}
}

func rcode(rcode int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, req *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(req, rcode)) }
}

// forwarder asks addrs and is quick to ask the next, but leaves time to a busy
// machine.
func forwarder(addrs ...netip.AddrPort) *Forwarder {
	f := New(Options{Timeout: 10 * time.Second, Patience: 50 * time.Millisecond, Retransmit: 10 * time.Second, Grace: 150 * time.Millisecond, TCPTimeout: 400 * time.Millisecond})
	f.SetNameservers(addrs)
	return f
}

// hasty gives up after 400 ms.
func hasty(addrs ...netip.AddrPort) *Forwarder {
	f := New(Options{Timeout: 400 * time.Millisecond, Patience: 50 * time.Millisecond})
	f.SetNameservers(addrs)
	return f
}

func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(name, qtype)
}

// addresses are the A records of m.
func addresses(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	return strings.Join(all, " ")
}

func TestExchange(t *testing.T) {
	addr := serve(t, answering(t, "192.0.2.1"))
	f := forwarder(addr)
	req := question("WwW.example.org.", dns.TypeA)
	got, from, err := f.Exchange(t.Context(), req, false)
	if err != nil {
		t.Fatal(err)
	}
	if from != addr || got.Id != req.Id || got.Question[0] != req.Question[0] || addresses(got) != "192.0.2.1" || got.Answer[0].Header().Ttl != 77 {
		t.Errorf("from %v, want %v:\n%v", from, addr, got)
	}
	if n := f.InFlight(); n != 0 {
		t.Errorf("%d questions under way afterwards", n)
	}
}

// startWith makes the next question start at the nameserver with index i.
func startWith(f *Forwarder, i int) {
	n := uint64(len(*f.nameservers.Load()))
	f.turn.Store(n + uint64(i) - 1)
}

// eventually waits until condition is true.
func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// reshaped answers each query with its own bytes as a reply without records,
// changed by change.
func reshaped(tb testing.TB, change func(reply []byte) []byte) netip.AddrPort {
	tb.Helper()
	return packetServer(tb, func(query []byte, answer func([]byte)) {
		m := new(dns.Msg)
		if err := m.Unpack(query); err != nil {
			tb.Errorf("query: %v", err)
			return
		}
		reply, err := new(dns.Msg).SetReply(m).Pack()
		if err != nil {
			tb.Error(err)
			return
		}
		answer(change(reply))
	})
}

// slow answers after 5 s, or when the test ends.
func slow(tb testing.TB) netip.AddrPort {
	tb.Helper()
	return serve(tb, func(w dns.ResponseWriter, req *dns.Msg) {
		select {
		case <-time.After(5 * time.Second):
		case <-tb.Context().Done():
		}
		answering(tb, "192.0.2.66")(w, req)
	})
}

// elsewhere answers from another port than it was asked at.
func elsewhere(tb testing.TB) netip.AddrPort {
	tb.Helper()
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		tb.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, req *dns.Msg) {
		reply, err := new(dns.Msg).SetReply(req).Pack()
		if err != nil {
			tb.Error(err)
		}
		_, _ = other.WriteTo(reply, w.RemoteAddr())
	})}
	ended := make(chan struct{})
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { defer close(ended); _ = server.ActivateAndServe() }()
	<-started
	tb.Cleanup(func() { _ = server.Shutdown(); <-ended; _ = other.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// badServers are all the ways in which a nameserver is of no use.
var badServers = []struct {
	name  string
	serve func(tb testing.TB) netip.AddrPort
	// alone is what the error says, or the rcode of the reply, where there is
	// no other nameserver.
	alone   string
	atOnce  bool // the next nameserver is asked without waiting
	failing bool // it is failing afterwards
}{
	{"dead", dead, "no reply in ", false, true},
	{"closed port", closed, "connection refused", true, true},
	{"slow", slow, "no reply in ", false, true},
	{"SERVFAIL", func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeServerFailure)) }, "SERVFAIL", true, true},
	{"REFUSED", func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeRefused)) }, "REFUSED", true, true},
	{"FORMERR to all", func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeFormatError)) }, "FORMERR", true, false},
	{"NOTIMP to all", func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeNotImplemented)) }, "NOTIMP", true, false},
	{"REFUSED, header only", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte {
			p[3], p[5] = dns.RcodeRefused, 0
			return p[:headerSize]
		})
	}, "REFUSED", true, true},
	{"NOERROR, header only", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[5] = 0; return p[:headerSize] })
	}, "the last for another question", false, true},
	{"garbage", func(tb testing.TB) netip.AddrPort {
		return packetServer(tb, func(_ []byte, answer func([]byte)) { answer([]byte("HTTP/1.1 400 Bad Request")) })
	}, "datagrams ignored, the last for another ID", false, true},
	{"empty datagram", func(tb testing.TB) netip.AddrPort {
		return packetServer(tb, func(_ []byte, answer func([]byte)) { answer(nil) })
	}, "shorter than a header", false, true},
	{"malformed record", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[7] = 1; return append(p, 0xc0, 0x0c, 0, 1) })
	}, "malformed reply", true, true},
	{"fewer records than promised", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[7] = 3; return p })
	}, "malformed reply: 0 records in place of 3", true, true},
	{"OPT for an answer", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[7] = 1; return append(p, 0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0) })
	}, "malformed reply: OPT out of place", true, true},
	{"wrong ID", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[0] ^= 0x40; return p })
	}, "the last for another ID", false, true},
	{"not a response", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[2] &^= 0x80; return p })
	}, "the last for not a response", false, true},
	{"wrong opcode", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[2] |= dns.OpcodeNotify << 3; return p })
	}, "the last for another opcode", false, true},
	{"wrong name", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[headerSize+1] ^= 1; return p })
	}, "the last for another question", false, true},
	{"wrong type", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[len(p)-3] = byte(dns.TypeTXT); return p })
	}, "the last for another question", false, true},
	{"wrong class", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[len(p)-1] = byte(dns.ClassCHAOS); return p })
	}, "the last for another question", false, true},
	{"no question", func(tb testing.TB) netip.AddrPort {
		return reshaped(tb, func(p []byte) []byte { p[5] = 0; return p })
	}, "the last for another question", false, true},
	{"from another port", elsewhere, "no reply in ", false, true},
}

func TestFailover(t *testing.T) {
	for _, tt := range badServers {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bad := tt.serve(t)
			good := serve(t, answering(t, "192.0.2.1"))
			f := forwarder(bad, good)
			for try := range 3 {
				startWith(f, 0)
				before := time.Now()
				got, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
				took := time.Since(before)
				if err != nil || from != good || addresses(got) != "192.0.2.1" {
					t.Fatalf("try %d: from %v, want %v, error %v:\n%v", try, from, good, err, got)
				}
				if took > 5*time.Second {
					t.Errorf("try %d took %v of the time-out of 10s", try, took)
				}
				if first := try == 0; first && !tt.atOnce && took < 50*time.Millisecond {
					t.Errorf("took %v although the first nameserver says nothing that counts", took)
				}
			}
			h := f.Health()[0]
			if h.Failing != tt.failing || h.Failing != (h.ConsecutiveFailures > 0) || h.Failing == (h.LastError == "") || h.Failing == h.LastFailure.IsZero() {
				t.Errorf("failing should be %v: %+v", tt.failing, h)
			}
			if tt.failing && h.Questions != 1 {
				t.Errorf("asked %d times while it was failing and its back-off was not over", h.Questions-1)
			}
			h = f.Health()[1]
			if h.Failing || h.Questions != 3 || h.Failures != 0 || h.LastSuccess.IsZero() || h.RTT <= 0 || h.Addr != good {
				t.Errorf("good nameserver: %+v", h)
			}
		})
	}
}

func TestAlone(t *testing.T) {
	for _, tt := range badServers {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bad := tt.serve(t)
			f := hasty(bad)
			req := question("example.org.", dns.TypeA)
			got, from, err := f.Exchange(t.Context(), req, false)
			if err == nil {
				if dns.RcodeToString[got.Rcode] != tt.alone || from != bad || got.Id != req.Id || len(got.Question) != 1 || got.Question[0] != req.Question[0] {
					t.Errorf("from %v, want rcode %s:\n%v", from, tt.alone, got)
				}
				return
			}
			var e *ExchangeError
			if !errors.As(err, &e) || got != nil || from.IsValid() || len(e.Tries) != 1 || e.Tries[0].Addr != bad || e.Cause != nil || e.Question != req.Question[0] {
				t.Errorf("error %#v, reply %v from %v", err, got, from)
			}
			if !strings.HasPrefix(err.Error(), "forwarding example.org. A: "+bad.String()+": ") || !strings.Contains(err.Error(), tt.alone) {
				t.Errorf("error %q does not say %q of %v", err, tt.alone, bad)
			}
			if tt.name == "closed port" && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error %v is not ECONNREFUSED", err)
			}
		})
	}
}

// TestOneGoodAmongDead is about the very first question, wherever it starts.
func TestOneGoodAmongDead(t *testing.T) {
	good := serve(t, answering(t, "192.0.2.1"))
	for _, n := range []int{2, 3, 10, 40} {
		for _, at := range []int{0, 1, n - 1} {
			t.Run(fmt.Sprintf("%d of %d", at, n), func(t *testing.T) {
				t.Parallel()
				addrs := make([]netip.AddrPort, n)
				for i := range addrs {
					addrs[i] = dead(t)
				}
				addrs[at] = good
				f := forwarder(addrs...)
				startWith(f, 0)
				got, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
				if err != nil || from != good || addresses(got) != "192.0.2.1" {
					t.Errorf("from %v, want %v, error %v", from, good, err)
				}
			})
		}
	}
}

// TestManyDead has the default times and so many dead nameservers that asking
// one each 400 ms would not come to the good one.
func TestManyDead(t *testing.T) {
	t.Parallel()
	addrs := make([]netip.AddrPort, 20)
	for i := range addrs {
		addrs[i] = dead(t)
	}
	addrs[19] = serve(t, answering(t, "192.0.2.1"))
	f := New(Options{})
	f.SetNameservers(addrs)
	startWith(f, 0)
	if _, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || from != addrs[19] {
		t.Errorf("from %v, want %v, error %v", from, addrs[19], err)
	}
}

// TestAllDead is about the default times, and that the first server does not
// use them up.
func TestAllDead(t *testing.T) {
	t.Parallel()
	addrs := []netip.AddrPort{dead(t), dead(t), closed(t)}
	f := New(Options{})
	f.SetNameservers(addrs)
	startWith(f, 0)
	before := time.Now()
	got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
	took := time.Since(before)
	if err == nil {
		t.Fatalf("got %v", got)
	}
	if took < 3*time.Second || took > 4*time.Second {
		t.Errorf("took %v, want 3.5s and never 4s", took)
	}
	for _, want := range []string{addrs[0].String() + ": no reply in 3.", addrs[1].String() + ": no reply in 3.", addrs[2].String() + ": connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want one with %q", err, want)
		}
	}
	for _, h := range f.Health() {
		if !h.Failing || h.Questions != 1 {
			t.Errorf("health %+v", h)
		}
	}

	// Now that all are known to fail they are asked nonetheless.
	f.SetNameservers(append(f.Nameservers()[:2:2], serve(t, answering(t, "192.0.2.1"))))
	if got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || addresses(got) != "192.0.2.1" {
		t.Errorf("after one came back: %v, error %v", got, err)
	}
}

func TestWhichReply(t *testing.T) {
	servfail := func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeServerFailure)) }
	refused := func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeRefused)) }
	notimp := func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeNotImplemented)) }
	nxdomain := func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeNameError)) }
	nodata := func(tb testing.TB) netip.AddrPort { return serve(tb, rcode(dns.RcodeSuccess)) }
	good := func(tb testing.TB) netip.AddrPort { return serve(tb, answering(tb, "192.0.2.1")) }
	truncated := func(tb testing.TB) netip.AddrPort { // and nobody listens on TCP
		return reshaped(tb, func(p []byte) []byte { p[2] |= 0x02; return p })
	}
	type servers []func(tb testing.TB) netip.AddrPort
	for _, tt := range []struct {
		name    string
		servers servers
		from    int
		rcode   int
	}{
		{"NXDOMAIN is an answer", servers{nxdomain, good}, 0, dns.RcodeNameError},
		{"NODATA is an answer", servers{nodata, good}, 0, dns.RcodeSuccess},
		{"NXDOMAIN after SERVFAIL", servers{servfail, nxdomain}, 1, dns.RcodeNameError},
		{"all SERVFAIL", servers{servfail, servfail, servfail}, 0, dns.RcodeServerFailure},
		{"all REFUSED", servers{refused, refused}, 0, dns.RcodeRefused},
		{"SERVFAIL is better than REFUSED", servers{refused, servfail, refused}, 1, dns.RcodeServerFailure},
		{"NOTIMP is better than REFUSED", servers{refused, notimp}, 1, dns.RcodeNotImplemented},
		{"SERVFAIL is better than NOTIMP", servers{notimp, servfail}, 1, dns.RcodeServerFailure},
		{"REFUSED is better than nothing", servers{refused, closed}, 0, dns.RcodeRefused},
		{"SERVFAIL and a dead one", servers{servfail, dead}, 0, dns.RcodeServerFailure},
		{"dead and then SERVFAIL", servers{dead, servfail}, 1, dns.RcodeServerFailure},
		{"truncated is better than SERVFAIL", servers{servfail, truncated}, 1, dns.RcodeSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var addrs []netip.AddrPort
			for _, s := range tt.servers {
				addrs = append(addrs, s(t))
			}
			f := hasty(addrs...)
			startWith(f, 0)
			got, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
			if err != nil {
				t.Fatal(err)
			}
			if from != addrs[tt.from] || got.Rcode != tt.rcode {
				t.Errorf("from %v, want %v; rcode %d, want %d", from, addrs[tt.from], got.Rcode, tt.rcode)
			}
		})
	}
}

// TestGrace has SERVFAIL from one nameserver while the other is known as dead:
// it is not waited for to the end.
func TestGrace(t *testing.T) {
	t.Parallel()
	f := New(Options{Timeout: 20 * time.Second, Patience: 20 * time.Millisecond, Grace: 50 * time.Millisecond, BackoffMin: time.Hour})
	gone, servfail := dead(t), serve(t, rcode(dns.RcodeServerFailure))
	f.SetNameservers([]netip.AddrPort{gone, serve(t, answering(t, "192.0.2.1"))})
	startWith(f, 0)
	if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || !f.Health()[0].Failing {
		t.Fatalf("error %v, health %+v", err, f.Health())
	}
	f.SetNameservers([]netip.AddrPort{gone, servfail})
	before := time.Now()
	got, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
	if err != nil || from != servfail || got.Rcode != dns.RcodeServerFailure {
		t.Errorf("from %v, error %v", from, err)
	}
	if took := time.Since(before); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestHedge(t *testing.T) {
	t.Parallel()
	// The first answers late, after the second was asked, and before it.
	asked := make(chan struct{})
	first := serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		select {
		case <-asked:
		case <-t.Context().Done():
		}
		answering(t, "192.0.2.1")(w, req)
	})
	second := packetServer(t, func([]byte, func([]byte)) {
		select {
		case <-asked:
		default:
			close(asked)
		}
	})
	f := New(Options{Timeout: 20 * time.Second, Patience: time.Second, Retransmit: 20 * time.Second})
	f.SetNameservers([]netip.AddrPort{first, second})
	startWith(f, 0)
	_, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
	if err != nil || from != first {
		t.Fatalf("from %v, want the first, %v; error %v", from, first, err)
	}
	for i, h := range f.Health() {
		if h.Failing || h.Failures != 0 || h.Questions != 1 {
			t.Errorf("health of %d: %+v", i, h)
		}
	}
	if h := f.Health()[1]; !h.LastSuccess.IsZero() {
		t.Errorf("the second did not answer: %+v", h)
	}
}

func TestRetransmission(t *testing.T) {
	t.Parallel()
	var count atomic.Int32
	addr := serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		if count.Add(1) == 3 {
			answering(t, "192.0.2.1")(w, req)
		}
	})
	f := New(Options{Timeout: 20 * time.Second, Retransmit: 20 * time.Millisecond})
	f.SetNameservers([]netip.AddrPort{addr})
	got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
	if err != nil || addresses(got) != "192.0.2.1" {
		t.Errorf("error %v:\n%v", err, got)
	}
	if h := f.Health()[0]; h.Questions != 1 || h.RTT != 0 {
		t.Errorf("the RTT of a repeated datagram is not known: %+v", h)
	}
}

func TestTruncation(t *testing.T) {
	big := func(w dns.ResponseWriter, req *dns.Msg) {
		m := new(dns.Msg).SetReply(req)
		for i := range 200 {
			m.Answer = append(m.Answer, record(t, fmt.Sprintf("%s 30 IN A 192.0.2.%d", req.Question[0].Name, i)))
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			m.Truncate(payloadSize)
		}
		_ = w.WriteMsg(m)
	}
	for _, overTCP := range []bool{false, true} {
		t.Run(fmt.Sprintf("followed, client over TCP %v", overTCP), func(t *testing.T) {
			f := forwarder(serve(t, big))
			got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), overTCP)
			if err != nil || got.Truncated || len(got.Answer) != 200 {
				t.Errorf("error %v:\n%v", err, got)
			}
		})
	}
	for _, tt := range []struct {
		name string
		tcp  dns.HandlerFunc
	}{
		{"silence over TCP", func(dns.ResponseWriter, *dns.Msg) {}},
		{"SERVFAIL over TCP", rcode(dns.RcodeServerFailure)},
		{"close over TCP", func(w dns.ResponseWriter, _ *dns.Msg) { _ = w.Close() }},
		{"wrong ID over TCP", func(w dns.ResponseWriter, req *dns.Msg) { req.Id++; _ = w.WriteMsg(new(dns.Msg).SetReply(req)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := forwarder(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
				if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
					big(w, req)
				} else {
					tt.tcp(w, req)
				}
			}))
			before := time.Now()
			got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), true)
			if err != nil || !got.Truncated || len(got.Answer) == 0 || got.Rcode != dns.RcodeSuccess {
				t.Errorf("error %v:\n%v", err, got)
			}
			if took := time.Since(before); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	t.Run("larger than the buffer", func(t *testing.T) {
		f := forwarder(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
			m := new(dns.Msg).SetReply(req)
			for i := range 250 {
				m.Answer = append(m.Answer, record(t, fmt.Sprintf("h%d.%s 30 IN A 192.0.2.%d", i, req.Question[0].Name, i)))
			}
			_ = w.WriteMsg(m)
		}))
		got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
		if err != nil || len(got.Answer) != 250 {
			t.Errorf("error %v, %d records", err, len(got.Answer))
		}
	})
	t.Run("cut in a record", func(t *testing.T) {
		f := forwarder(reshaped(t, func(p []byte) []byte {
			p[2] |= 0x02
			p[7] = 1
			return append(p, 0xc0, 0x0c, 0, 1)
		}))
		got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
		if err != nil || !got.Truncated || len(got.Answer) != 0 {
			t.Errorf("error %v:\n%v", err, got)
		}
	})
}

// TestUpstreamQuery looks at what the nameserver is sent.
func TestUpstreamQuery(t *testing.T) {
	var seen atomic.Pointer[dns.Msg]
	f := forwarder(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		seen.Store(req.Copy())
		m := new(dns.Msg).SetReply(req)
		m.Authoritative, m.RecursionAvailable, m.AuthenticatedData = true, true, true
		m.SetEdns0(4096, true)
		m.Extra = append(m.Extra, record(t, "a.example.org. 5 IN A 192.0.2.5"))
		_ = w.WriteMsg(m)
	}))
	for _, tt := range []struct {
		name   string
		change func(*dns.Msg)
		want   string // RD AD CD DO
	}{
		{"plain", func(m *dns.Msg) { m.RecursionDesired = false }, "false false false false"},
		{"RD", func(*dns.Msg) {}, "true false false false"},
		{"AD", func(m *dns.Msg) { m.AuthenticatedData = true }, "true true false false"},
		{"CD", func(m *dns.Msg) { m.CheckingDisabled = true }, "true false true false"},
		{"EDNS without DO", func(m *dns.Msg) { m.SetEdns0(512, false) }, "true false false false"},
		{"DO and options", func(m *dns.Msg) {
			m.SetEdns0(4096, true)
			m.IsEdns0().Option = []dns.EDNS0{
				&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
				&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)},
			}
		}, "true false false true"},
		{"records in the question", func(m *dns.Msg) { m.Extra = []dns.RR{record(t, "x. TXT y")} }, "true false false false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := question("WWW.example.org.", dns.TypeAAAA)
			tt.change(req)
			before := req.Copy()
			got, _, err := f.Exchange(t.Context(), req, false)
			if err != nil {
				t.Fatal(err)
			}
			m := seen.Load()
			o := m.IsEdns0()
			if o == nil || o.UDPSize() != 1232 || len(o.Option) != 0 || o.Version() != 0 || len(m.Extra) != 1 || len(m.Answer)+len(m.Ns) != 0 {
				t.Fatalf("asked with\n%v", m)
			}
			if bits := fmt.Sprint(m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled, o.Do()); bits != tt.want {
				t.Errorf("RD AD CD DO %s, want %s", bits, tt.want)
			}
			if len(m.Question) != 1 || m.Question[0] != req.Question[0] || m.Opcode != dns.OpcodeQuery || m.Response {
				t.Errorf("asked\n%v", m)
			}
			if req.String() != before.String() {
				t.Errorf("the request became\n%v", req)
			}
			if got.IsEdns0() != nil || len(got.Extra) != 1 || !got.Authoritative || !got.RecursionAvailable || !got.AuthenticatedData {
				t.Errorf("got\n%v", got)
			}
		})
	}
}

func TestWithoutEDNS(t *testing.T) {
	var withEDNS, without atomic.Int32
	refusing := func(code int) dns.HandlerFunc {
		return func(w dns.ResponseWriter, req *dns.Msg) {
			if req.IsEdns0() == nil {
				without.Add(1)
				answering(t, "192.0.2.1")(w, req)
				return
			}
			withEDNS.Add(1)
			m := new(dns.Msg).SetRcode(req, code)
			if code == dns.RcodeBadVers {
				m.SetEdns0(512, false)
			} else {
				m.Question = nil // a header alone
			}
			_ = w.WriteMsg(m)
		}
	}
	for _, code := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers} {
		t.Run(dns.RcodeToString[code], func(t *testing.T) {
			withEDNS.Store(0)
			without.Store(0)
			f := forwarder(serve(t, refusing(code)))
			ask := func() {
				t.Helper()
				got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
				if err != nil || addresses(got) != "192.0.2.1" {
					t.Fatalf("error %v:\n%v", err, got)
				}
			}
			ask()
			ask()
			if a, b := withEDNS.Load(), without.Load(); a != 1 || b != 2 {
				t.Errorf("asked %d times with EDNS and %d times without, want 1 and 2", a, b)
			}
			if h := f.Health()[0]; h.Failing || h.Failures != 0 || h.Questions != 2 {
				t.Errorf("health %+v", h)
			}
			s := (*f.nameservers.Load())[0]
			s.mu.Lock()
			left := time.Until(s.noEDNSUntil)
			s.noEDNSUntil = time.Now()
			s.mu.Unlock()
			if left < 9*time.Minute || left > 10*time.Minute {
				t.Errorf("EDNS is to be tried again in %v, want 10m", left)
			}
			ask()
			if a := withEDNS.Load(); a != 2 {
				t.Errorf("asked %d times with EDNS, want 2: time is over", a)
			}
		})
	}
	t.Run("FORMERR either way is not remembered", func(t *testing.T) {
		f := forwarder(serve(t, rcode(dns.RcodeFormatError)))
		if got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || got.Rcode != dns.RcodeFormatError {
			t.Errorf("error %v:\n%v", err, got)
		}
		if s := (*f.nameservers.Load())[0]; !s.edns(time.Now()) {
			t.Error("asks without EDNS from now on")
		}
	})
	t.Run("FORMERR and then silence", func(t *testing.T) {
		f := hasty(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
			if req.IsEdns0() != nil {
				rcode(dns.RcodeFormatError)(w, req)
			}
		}))
		if got, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || got.Rcode != dns.RcodeFormatError {
			t.Errorf("error %v:\n%v", err, got)
		}
	})
}

func TestReplyAsItCame(t *testing.T) {
	f := forwarder(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		m := new(dns.Msg).SetReply(req)
		switch req.Question[0].Name {
		case "unknown.example.org.":
			m.Answer = []dns.RR{record(t, `unknown.example.org. 11 IN TYPE65280 \# 3 010203`)}
		case "cookie.example.org.":
			m.SetEdns0(1232, false)
			m.Rcode = dns.RcodeBadCookie
		case "chain.example.org.":
			m.Answer = []dns.RR{record(t, "CHAIN.example.org. 0 IN CNAME b.example.net."), record(t, "b.example.net. 2147483647 IN A 192.0.2.2")}
			m.Ns = []dns.RR{record(t, "example.net. 7 IN NS ns.example.net.")}
			m.Extra = []dns.RR{record(t, "ns.example.net. 8 IN AAAA 2001:db8::1")}
		}
		_ = w.WriteMsg(m)
	}))
	for _, tt := range []struct{ name, want string }{
		{"unknown.example.org.", `unknown.example.org.	11	CLASS1	TYPE65280	\# 3 010203`},
		{"cookie.example.org.", "BADCOOKIE"},
		{"chain.example.org.", "CHAIN.example.org.	0	IN	CNAME	b.example.net.\nb.example.net.	2147483647	IN	A	192.0.2.2\nexample.net.	7	IN	NS	ns.example.net.\nns.example.net.	8	IN	AAAA	2001:db8::1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := f.Exchange(t.Context(), question(tt.name, dns.TypeANY), false)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			if got.Rcode != dns.RcodeSuccess {
				lines = append(lines, dns.RcodeToString[got.Rcode])
			}
			for _, rr := range slices.Concat(got.Answer, got.Ns, got.Extra) {
				lines = append(lines, rr.String())
			}
			if s := strings.Join(lines, "\n"); s != tt.want {
				t.Errorf("got\n%s\nwant\n%s", s, tt.want)
			}
			if got.Rcode > 0xf {
				got.SetEdns0(1232, false)
			}
			if _, err := got.Pack(); err != nil {
				t.Errorf("packing: %v", err)
			}
		})
	}
}

func TestNotForwardable(t *testing.T) {
	f := forwarder(dead(t))
	for _, tt := range []struct {
		name string
		req  *dns.Msg
	}{
		{"no question", new(dns.Msg)},
		{"two questions", &dns.Msg{Question: []dns.Question{{Name: "a.", Qtype: 1, Qclass: 1}, {Name: "b.", Qtype: 1, Qclass: 1}}}},
		{"AXFR", question("example.org.", dns.TypeAXFR)},
		{"IXFR", question("example.org.", dns.TypeIXFR)},
		{"NOTIFY", new(dns.Msg).SetNotify("example.org.")},
		{"a response", new(dns.Msg).SetReply(question("example.org.", dns.TypeA))},
		{"no dot at the end", question("example.org", dns.TypeA)},
		{"no name", question("", dns.TypeA)},
		{"long label", question(strings.Repeat("a", 64)+".org.", dns.TypeA)},
		{"long name", question(strings.Repeat("a.", 200), dns.TypeA)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _, err := f.Exchange(t.Context(), tt.req, false); !errors.Is(err, ErrNotForwardable) {
				t.Errorf("got %v, error %v", got, err)
			}
		})
	}
	if n := f.InFlight(); n != 0 {
		t.Errorf("%d questions under way", n)
	}
	t.Run("longest name", func(t *testing.T) {
		f := forwarder(serve(t, answering(t, "192.0.2.1")))
		name := strings.Repeat(strings.Repeat("a", 62)+".", 4) + "b."
		for len(name) < 254 {
			name = "c" + name
		}
		if _, _, err := f.Exchange(t.Context(), question(name, dns.TypeA), false); err != nil {
			t.Errorf("%d characters: %v", len(name), err)
		}
		if got, _, err := f.Exchange(t.Context(), question(".", dns.TypeNS), false); err != nil {
			t.Errorf("root: %v, error %v", got, err)
		}
	})
}

func TestIPv6(t *testing.T) {
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "[::1]:0")
	if err != nil {
		t.Skip("needs IPv6: ", err)
	}
	server := &dns.Server{PacketConn: conn, Handler: answering(t, "192.0.2.1")}
	started, ended := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { defer close(ended); _ = server.ActivateAndServe() }()
	<-started
	defer func() { _ = server.Shutdown(); <-ended }()
	addr := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	f := forwarder(addr)
	if _, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || from != addr {
		t.Errorf("from %v, want %v, error %v", from, addr, err)
	}
}

// TestLocalErrors is about what is not the nameserver's fault.
func TestLocalErrors(t *testing.T) {
	for _, tt := range []struct {
		err     error
		failing bool
	}{
		{syscall.EMFILE, false}, {syscall.ENFILE, false}, {syscall.EADDRNOTAVAIL, false}, {syscall.ENOBUFS, false},
		{syscall.ECONNREFUSED, true}, {syscall.ENETUNREACH, true}, {syscall.EHOSTUNREACH, true},
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			s := newNameserver(netip.MustParseAddrPort("192.0.2.1:53"), Options{}.withDefaults())
			tr := &try{server: s, started: time.Now(), open: true}
			tr.take(event{try: tr, err: withoutAddr(&net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("socket", tt.err)})})
			if h := s.health(); h.Failing != tt.failing || tr.open || !errors.Is(tr.err, tt.err) || strings.Contains(tr.err.Error(), "dial") {
				t.Errorf("error %v, health %+v", tr.err, h)
			}
		})
	}
}

// TestPanic has the parser, or anything else in a try, panic.
func TestPanic(t *testing.T) {
	events := make(chan event, 1)
	tr := &try{server: newNameserver(dead(t), Options{}.withDefaults()), events: events} // without forwarder
	tr.run(t.Context())
	if ev := <-events; ev.interim || ev.msg != nil || ev.err == nil || !strings.Contains(ev.err.Error(), "panic") {
		t.Errorf("event %+v", ev)
	}
}

func TestNoNameservers(t *testing.T) {
	f := New(Options{})
	if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); !errors.Is(err, ErrNoNameservers) {
		t.Errorf("error %v", err)
	}
	if a, h := f.Nameservers(), f.Health(); len(a) != 0 || len(h) != 0 || f.InFlight() != 0 {
		t.Errorf("nameservers %v, health %v, %d under way", a, h, f.InFlight())
	}
}

func TestOverloaded(t *testing.T) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	replies := map[netip.AddrPort][]byte{} // to whom
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 512)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			reply := slices.Clone(buffer[:n])
			reply[2] |= 0x80
			mu.Lock()
			replies[from] = reply
			mu.Unlock()
		}
	}()
	defer func() { conn.Close(); <-ended }()
	// The server's buffer does not hold 1,000 questions that come at once.
	f := New(Options{Timeout: 30 * time.Second, Retransmit: 200 * time.Millisecond})
	f.SetNameservers([]netip.AddrPort{conn.LocalAddr().(*net.UDPAddr).AddrPort()})
	errs := make(chan error, 1000)
	for range 1000 {
		go func() {
			_, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
			errs <- err
		}()
	}
	eventually(t, "1,000 questions", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(replies) == 1000
	})
	if n := f.InFlight(); n != 1000 {
		t.Errorf("%d questions under way", n)
	}
	before := time.Now()
	if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); !errors.Is(err, ErrOverloaded) {
		t.Errorf("question 1,001: %v", err)
	}
	if took := time.Since(before); took > time.Second {
		t.Errorf("ErrOverloaded took %v", took)
	}
	mu.Lock()
	for to, reply := range replies {
		if _, err := conn.WriteToUDPAddrPort(reply, to); err != nil {
			t.Error(err)
		}
	}
	mu.Unlock()
	for range 1000 {
		if err := <-errs; err != nil {
			t.Errorf("held question: %v", err)
		}
	}
	if n := f.InFlight(); n != 0 {
		t.Errorf("%d questions under way afterwards", n)
	}
}

// TestSwap has questions all the while the nameservers change. None is lost.
func TestSwap(t *testing.T) {
	a, b, c := serve(t, answering(t, "192.0.2.1")), serve(t, answering(t, "192.0.2.2")), serve(t, answering(t, "192.0.2.3"))
	sets := [][]netip.AddrPort{{a, b}, {b, c}, {c}, {a}}
	f := New(Options{Timeout: 20 * time.Second})
	f.SetNameservers(sets[0])
	var left atomic.Int32
	left.Store(1500)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := 0; left.Load() > 0; i++ {
		f.SetNameservers(sets[i%len(sets)])
		if n := len(f.Health()); n == 0 {
			t.Error("no health")
		}
		runtime.Gosched()
	}
	wg.Wait()
}

func TestSwapWhileUnderWay(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	old := serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		close(asked)
		<-release
		answering(t, "192.0.2.1")(w, req)
	})
	f := New(Options{Timeout: 20 * time.Second, Retransmit: 20 * time.Second})
	f.SetNameservers([]netip.AddrPort{old})
	done := make(chan error, 1)
	go func() {
		_, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
		if err == nil && from != old {
			err = fmt.Errorf("answer from %v", from)
		}
		done <- err
	}()
	<-asked
	next := serve(t, answering(t, "192.0.2.2"))
	f.SetNameservers([]netip.AddrPort{next})
	if _, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil || from != next {
		t.Errorf("after the swap: from %v, error %v", from, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSetNameservers(t *testing.T) {
	gone, good := closed(t), serve(t, answering(t, "192.0.2.1"))
	f := forwarder(gone, good)
	startWith(f, 0)
	if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil {
		t.Fatal(err)
	}
	before := f.Health()
	mapped := netip.AddrPortFrom(netip.AddrFrom16(gone.Addr().As16()), gone.Port())
	f.SetNameservers([]netip.AddrPort{{}, good, mapped, gone, netip.AddrPortFrom(gone.Addr(), 0)})
	if got := f.Nameservers(); !slices.Equal(got, []netip.AddrPort{good, gone}) {
		t.Errorf("nameservers %v, want %v and %v", got, good, gone)
	}
	if after := f.Health(); len(after) != 2 || after[0] != before[1] || after[1] != before[0] || !after[1].Failing {
		t.Errorf("health %+v, was %+v", after, before)
	}
	f.SetNameservers(nil)
	f.SetNameservers([]netip.AddrPort{gone})
	if after := f.Health(); after[0] != (Health{Addr: gone}) {
		t.Errorf("health %+v outlived its nameserver", after[0])
	}
}

// descriptors is how many files and sockets are open.
func descriptors(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Skip("counting sockets needs /proc: ", err)
	}
	return len(entries)
}

func TestCancel(t *testing.T) {
	truncatedAndSilent := serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			m := new(dns.Msg).SetReply(req)
			m.Truncated = true
			_ = w.WriteMsg(m)
		}
	})
	for _, tt := range []struct {
		name string
		addr netip.AddrPort
	}{
		{"while waiting for a datagram", dead(t)},
		{"while waiting over TCP", truncatedAndSilent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := New(Options{Timeout: time.Minute, Patience: time.Millisecond, TCPTimeout: time.Minute})
			f.SetNameservers([]netip.AddrPort{tt.addr, dead(t), dead(t)})
			startWith(f, 0)
			running := goleak.IgnoreCurrent()
			open := descriptors(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, _, err := f.Exchange(ctx, question("example.org.", dns.TypeA), false)
				done <- err
			}()
			eventually(t, "three sockets", func() bool { return descriptors(t) >= open+3 })
			before := time.Now()
			cancel()
			err := <-done
			var e *ExchangeError
			if !errors.Is(err, context.Canceled) || !errors.As(err, &e) || len(e.Tries) == 0 {
				t.Errorf("error %v", err)
			}
			if took := time.Since(before); took > time.Second {
				t.Errorf("took %v to end", took)
			}
			if n := f.InFlight(); n != 0 {
				t.Errorf("%d questions under way", n)
			}
			for _, h := range f.Health() {
				if h.Failing {
					t.Errorf("a cancelled question was held against %+v", h)
				}
			}
			if err := goleak.Find(running); err != nil {
				t.Error(err)
			}
			// The TCP server's side of the connection closes in its own time.
			eventually(t, "all sockets closed", func() bool { return descriptors(t) <= open+1 })
		})
	}
	t.Run("deadline of the caller", func(t *testing.T) {
		f := New(Options{})
		f.SetNameservers([]netip.AddrPort{dead(t)})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		before := time.Now()
		_, _, err := f.Exchange(ctx, question("example.org.", dns.TypeA), false)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("took %v", took)
		}
		if h := f.Health()[0]; h.Failing && h.LastFailure.Sub(before) < 400*time.Millisecond {
			t.Errorf("the caller's hurry was held against %+v", h)
		}
	})
	t.Run("cancelled before", func(t *testing.T) {
		f := New(Options{})
		f.SetNameservers([]netip.AddrPort{dead(t)})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := f.Exchange(ctx, question("example.org.", dns.TypeA), false); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// TestFlood has the right reply after many wrong ones, and wrong ones without
// end.
func TestFlood(t *testing.T) {
	t.Run("answer after 500", func(t *testing.T) {
		addr := packetServer(t, func(query []byte, answer func([]byte)) {
			m := new(dns.Msg)
			if err := m.Unpack(query); err != nil {
				t.Error(err)
				return
			}
			reply, err := new(dns.Msg).SetReply(m).Pack()
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 500 {
				wrong := slices.Clone(reply)
				wrong[0], wrong[1] = byte(i>>8)^reply[0]^0x80, byte(i)
				answer(wrong)
				if i%100 == 99 {
					time.Sleep(time.Millisecond) // the socket's buffer holds some 250
				}
			}
			answer(reply)
		})
		f := New(Options{})
		f.SetNameservers([]netip.AddrPort{addr})
		if _, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false); err != nil {
			t.Error(err)
		}
	})
	t.Run("without end", func(t *testing.T) {
		var ended atomic.Bool
		addr := packetServer(t, func(query []byte, answer func([]byte)) {
			wrong := slices.Clone(query)
			wrong[0] ^= 1
			wrong[2] |= 0x80
			for range 200_000 {
				if ended.Load() {
					return
				}
				answer(wrong)
			}
		})
		f := New(Options{Timeout: 300 * time.Millisecond})
		f.SetNameservers([]netip.AddrPort{addr})
		before := time.Now()
		_, _, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
		took := time.Since(before)
		ended.Store(true)
		var ignored int
		if err == nil {
			t.Fatal("no error")
		}
		_, rest, _ := strings.Cut(err.Error(), "ms, ")
		if _, scanErr := fmt.Sscanf(rest, "%d datagrams ignored", &ignored); scanErr != nil {
			t.Fatalf("error %q: %v", err, scanErr)
		}
		if most := freeIgnored + int(took/ignorePause+1)*ignoredPerPause; ignored == 0 || ignored > most {
			t.Errorf("looked at %d datagrams, want 1 to %d", ignored, most)
		}
		if took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRotation(t *testing.T) {
	a, b, c := serve(t, answering(t, "192.0.2.1")), serve(t, answering(t, "192.0.2.2")), serve(t, answering(t, "192.0.2.3"))
	f := New(Options{Timeout: 20 * time.Second, Patience: 10 * time.Second})
	f.SetNameservers([]netip.AddrPort{a, b, c})
	ask := func(n int) map[netip.AddrPort]int {
		count := map[netip.AddrPort]int{}
		for range n {
			_, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
			if err != nil {
				t.Fatal(err)
			}
			count[from]++
		}
		return count
	}
	if got := ask(30); got[a] != 10 || got[b] != 10 || got[c] != 10 {
		t.Errorf("30 questions went to %v", got)
	}
	gone := closed(t)
	f.SetNameservers([]netip.AddrPort{a, gone, c})
	ask(3) // finds out
	if got := ask(30); got[a] != 15 || got[c] != 15 {
		t.Errorf("with one failing, 30 questions went to %v", got)
	}
}

// TestRecovery has a failing nameserver come back: it is asked first once its
// back-off is over, and takes its turns again.
func TestRecovery(t *testing.T) {
	var works atomic.Bool
	back := serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		if works.Load() {
			answering(t, "192.0.2.1")(w, req)
		}
	})
	other := serve(t, answering(t, "192.0.2.2"))
	f := New(Options{Timeout: 20 * time.Second, Patience: 100 * time.Millisecond, Retransmit: 20 * time.Second, BackoffMin: time.Hour, BackoffMax: 3 * time.Hour})
	f.SetNameservers([]netip.AddrPort{back, other})
	s := (*f.nameservers.Load())[0]
	ask := func() netip.AddrPort {
		t.Helper()
		_, from, err := f.Exchange(t.Context(), question("example.org.", dns.TypeA), false)
		if err != nil {
			t.Fatal(err)
		}
		return from
	}
	passBackoff := func(want time.Duration) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.backoff != want {
			t.Errorf("back-off %v, want %v", s.backoff, want)
		}
		s.backoffStart = time.Now().Add(-s.backoff)
	}
	startWith(f, 0)
	ask()
	for range 5 {
		ask()
	}
	if h := f.Health()[0]; !h.Failing || h.Questions != 1 || h.ConsecutiveFailures != 1 {
		t.Fatalf("health %+v", h)
	}
	for i, want := range []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour, 3 * time.Hour} {
		passBackoff(want)
		for range 3 {
			ask() // the first of them tries it
		}
		if h := f.Health()[0]; h.Questions != uint64(i)+2 || h.ConsecutiveFailures != i+2 {
			t.Fatalf("health %+v, want %d questions", h, i+2)
		}
	}
	works.Store(true)
	if from := ask(); from != other {
		t.Errorf("asked %v before its time", from)
	}
	passBackoff(3 * time.Hour)
	if from := ask(); from != back {
		t.Errorf("answer from %v, want the one that came back", from)
	}
	if h := f.Health()[0]; h.Failing || h.ConsecutiveFailures != 0 || h.LastError == "" {
		t.Errorf("health %+v", h)
	}
	if a, b := ask(), ask(); a == b {
		t.Errorf("no turns: %v twice", a)
	}
}

// TestUnpredictable looks at the source ports and IDs of 200 questions.
func TestUnpredictable(t *testing.T) {
	ports, ids := map[string]bool{}, map[uint16]bool{}
	var mu sync.Mutex
	f := forwarder(serve(t, func(w dns.ResponseWriter, req *dns.Msg) {
		mu.Lock()
		defer mu.Unlock()
		ports[w.RemoteAddr().String()] = true
		ids[req.Id] = true
		_ = w.WriteMsg(new(dns.Msg).SetReply(req))
	}))
	for range 200 {
		req := question("example.org.", dns.TypeA)
		req.Id = 7
		if _, _, err := f.Exchange(t.Context(), req, false); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	// 200 of 28,000 ports and of 65,536 IDs: fewer than 190 has a chance below 1e-9.
	if len(ports) < 190 || len(ids) < 190 {
		t.Errorf("%d ports and %d IDs for 200 questions", len(ports), len(ids))
	}
}

func BenchmarkExchange(b *testing.B) {
	addr := packetServer(b, func(query []byte, answer func([]byte)) {
		size := len(query) - optSize
		reply := slices.Concat(query[:size], []byte{0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1})
		reply[2] |= 0x80
		reply[7], reply[11] = 1, 0
		answer(reply)
	})
	f := New(Options{})
	f.SetNameservers([]netip.AddrPort{addr})
	req := question("www.example.org.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := f.Exchange(b.Context(), req, false); err != nil {
			b.Fatal(err)
		}
	}
}
