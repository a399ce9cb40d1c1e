package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// udpFrom opens a UDP socket at a loopback address.
func udpFrom(t testing.TB, from, server string) *net.UDPConn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
	conn, err := d.Dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	udp := conn.(*net.UDPConn)
	_ = udp.SetReadBuffer(4 << 20)
	return udp
}

// limitedReplies is what came back to one client.
type limitedReplies struct{ full, cut, octets int }

// collect reads until nothing comes for a while. A reply is whole or has TC and
// no record.
func collect(t *testing.T, conn net.Conn) (r limitedReplies) {
	t.Helper()
	buf := make([]byte, 65535)
	for {
		must(t, conn.SetReadDeadline(time.Now().Add(500*time.Millisecond)))
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return r
		}
		must(t, err)
		r.octets += n
		switch m := unpack(t, buf[:n]); {
		case m.Rcode != dns.RcodeSuccess:
			t.Errorf("got\n%v", m)
		case m.Truncated && len(m.Answer) == 0:
			r.cut++
		default:
			r.full++
		}
	}
}

// TestRateLimit has --max-answers-per-second: a client past it gets TC or
// nothing, so that whoever forges its address sends it less than it sends
// itself; others are answered, and many addresses take no memory.
func TestRateLimit(t *testing.T) {
	const perSecond = 20
	k := startHostile(t, fastKubeDNS(t), fmt.Sprintf("--max-answers-per-second=%d", perSecond), "--udp-sockets=1")
	packet := func(name string, udpSize uint16) []byte {
		return question(t, func(m *dns.Msg) {
			m.SetQuestion(name, dns.TypeA)
			if udpSize > 0 {
				m.SetEdns0(udpSize, false)
			}
		})
	}
	web := packet("web.shop.svc.cluster.local.", 0)

	t.Run("one client asks too much", func(t *testing.T) {
		const asked = 2000
		greedy, modest := udpFrom(t, "127.0.4.1", k.Addr), udpFrom(t, "127.0.4.2", k.Addr)
		// What it asks for has 4 kB of answers.
		crowd := packet("crowd.big.svc.cluster.local.", 4096)
		start := time.Now()
		for i := range asked {
			_, err := greedy.Write(crowd)
			must(t, err)
			if i%(asked/perSecond*2) == 0 { // half of what it may
				_, err := modest.Write(web)
				must(t, err)
			}
		}
		took := time.Since(start)
		got, other := collect(t, greedy), collect(t, modest)
		// A second's worth at once, then so many a second.
		if most := int(perSecond*(1+took.Seconds())) + perSecond/2; got.cut+got.full == 0 || got.full > most {
			t.Errorf("%d answers in %v, want 1 to %d", got.full, took, most)
		}
		if other.cut > 0 || other.full != perSecond/2 {
			t.Errorf("another client has %d answers and %d with TC, want %d and none", other.full, other.cut, perSecond/2)
		}
		past := asked - got.full
		if got.cut == 0 || got.cut > (past+1)/2 {
			t.Errorf("%d replies with TC to the %d questions past the limit, want half at the most", got.cut, past)
		}
		if spent := got.octets - got.full*4096; spent > past*len(crowd)/2 {
			t.Errorf("%d octets of questions past the limit brought %d", past*len(crowd), spent)
		}
		if v, _ := k.ScrapeMetrics(t).Value("kubedns_rate_limited_total"); int(v) < past {
			t.Errorf("kubedns_rate_limited_total is %v, want %d", v, past)
		}
		t.Logf("%d questions in %v: %d answers, %d with TC, %d octets for %d", asked, took.Round(time.Millisecond), got.full, got.cut, got.octets, asked*len(crowd))

		// An honest client takes TC for a reason to come over TCP.
		conn, err := dialFrom("127.0.4.1", k.Addr)
		must(t, err)
		defer conn.Close()
		reply, _, err := askTCP("", conn, crowd)
		must(t, err)
		if m := unpack(t, reply); len(m.Answer) != crowdSize {
			t.Errorf("over TCP %d answers, want %d", len(m.Answer), crowdSize)
		}
	})

	t.Run("many addresses", func(t *testing.T) {
		const addresses, answered = 50_000, 100
		ask := func(i int, read bool) {
			t.Helper()
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, byte(10+i>>16), byte(i>>8), byte(i))}}
			conn, err := d.Dial("udp", k.Addr)
			must(t, err)
			defer conn.Close()
			_, err = conn.Write(web)
			must(t, err)
			if read {
				must(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
				buf := make([]byte, 512)
				n, err := conn.Read(buf)
				must(t, err)
				if m := unpack(t, buf[:n]); len(m.Answer) != 1 {
					t.Errorf("address %d got\n%v", i, m)
				}
			}
		}
		for i := range 1000 {
			ask(addresses+i, i%answered == 0)
		}
		heap := func() float64 {
			m := k.ScrapeMetrics(t)
			v, _ := m.Value("process_resident_memory_bytes")
			return v
		}
		before := heap()
		for i := range addresses {
			ask(i, i%(addresses/answered) == 0)
		}
		const most = 4 << 20 // the collector's to and fro; of an entry for each it would be more
		grown := heap() - before
		t.Logf("memory grew by %.0f octets for %d addresses", grown, addresses)
		if grown > most {
			t.Errorf("memory grew by %.0f octets for %d addresses, want %d at most", grown, addresses, most)
		}
	})
	checkCalm(t, k)
}
