package forward

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// serve runs a DNS server on UDP and TCP of one free port until the test ends.
func serve(t testing.TB, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	var packets net.PacketConn
	var listener net.Listener
	var err error
	for range 20 { // the port that UDP got may be taken for TCP
		packets, err = net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener, err = net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			break
		}
		packets.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: listener, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		ended := make(chan error, 1)
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := s.ShutdownContext(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("stopping server: %v", err)
			}
			<-ended
		})
	}
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// packetServer calls handle with every datagram that comes to a free port.
func packetServer(t testing.TB, handle func(query []byte, answer func([]byte))) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
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
	t.Cleanup(func() { conn.Close(); <-ended })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dead reads and never answers.
func dead(t testing.TB) netip.AddrPort {
	return packetServer(t, func([]byte, func([]byte)) {})
}

// closed is a port where nobody listens.
func closed(t testing.TB) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func record(t testing.TB, s string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(s)
	if err != nil {
		t.Fatal(err)
	}
	return rr
}

// answering gives one A record with the address ip.
func answering(t testing.TB, ip string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, req *dns.Msg) {
		m := new(dns.Msg).SetReply(req)
		m.Answer = []dns.RR{record(t, req.Question[0].Name+" 77 IN A "+ip)}
		_ = w.WriteMsg(m)
	}
}

func rcode(rcode int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, req *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(req, rcode)) }
}

// forwarder has short times and the nameservers given.
func forwarder(addrs ...netip.AddrPort) *Forwarder {
	f := New(Options{Timeout: time.Second, Patience: 50 * time.Millisecond, Retransmit: 150 * time.Millisecond, Grace: 150 * time.Millisecond, TCPTimeout: 400 * time.Millisecond})
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
