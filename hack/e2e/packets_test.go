package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// question is a message that asks for the API server's Service.
func question(t testing.TB, change func(m *dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion("kubernetes.default.svc."+zone, dns.TypeA)
	m.Id = 4711
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sendUDP sends one datagram and returns the reply, or nil when there is none
// for a while.
func sendUDP(t *testing.T, server string, packet []byte, wait time.Duration) *dns.Msg {
	t.Helper()
	conn, err := net.Dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	must(t, conn.SetReadDeadline(time.Now().Add(wait)))
	buf := make([]byte, 65535)
	n, err := conn.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, buf[:n])
}

// sendTCP sends the messages in one connection and returns the replies until
// one is missing for a while, or the connection ends.
func sendTCP(t *testing.T, server string, wait time.Duration, packets ...[]byte) []*dns.Msg {
	t.Helper()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, packet := range packets {
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)); err != nil {
			break // it may have been closed because of an earlier one
		}
	}
	return readTCP(t, conn, wait)
}

func readTCP(t *testing.T, conn net.Conn, wait time.Duration) []*dns.Msg {
	t.Helper()
	var replies []*dns.Msg
	for {
		must(t, conn.SetReadDeadline(time.Now().Add(wait)))
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return replies
		}
		buf := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, buf); err != nil {
			t.Errorf("a reply over TCP is cut: %v", err)
			return replies
		}
		replies = append(replies, unpack(t, buf))
	}
}

func unpack(t *testing.T, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("the reply %x is no message: %v", b, err)
	}
	return m
}

// TestNoQuestions sends messages that are no questions, over UDP and TCP.
func TestNoQuestions(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	good := question(t, nil)
	counts := func(qd, an, ns, ar uint16) []byte {
		b := append([]byte(nil), good...)
		for i, n := range []uint16{qd, an, ns, ar} {
			binary.BigEndian.PutUint16(b[4+2*i:], n)
		}
		return b
	}
	twice := append(append([]byte(nil), good...), good[12:]...)
	binary.BigEndian.PutUint16(twice[4:], 2)
	opcode := func(op int) []byte { return question(t, func(m *dns.Msg) { m.Opcode = op }) }
	optTwice := question(t, func(m *dns.Msg) {
		for range 2 {
			o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
			o.SetUDPSize(1232)
			m.Extra = append(m.Extra, o)
		}
	})
	compressed := append([]byte(nil), good[:12]...)
	compressed = append(compressed, 0xc0, 12, 0, 1, 0, 1) // a name that points at itself

	const none = -1
	for _, tt := range []struct {
		name   string
		packet []byte
		// want are the rcodes that are right, none for silence.
		want []int
	}{
		{"question", good, []int{dns.RcodeSuccess}},
		{"reply", question(t, func(m *dns.Msg) { m.Response = true }), []int{none}},
		{"reply without a question", question(t, func(m *dns.Msg) { m.Response = true; m.Question = nil }), []int{none}},
		{"no question", counts(0, 0, 0, 0)[:12], []int{dns.RcodeFormatError}},
		{"two questions", twice, []int{dns.RcodeFormatError}},
		{"a count without its question", counts(2, 0, 0, 0), []int{dns.RcodeFormatError}},
		{"a count without its answer", counts(1, 1, 0, 0), []int{dns.RcodeFormatError}},
		{"a count without its additional record", counts(1, 0, 0, 1), []int{dns.RcodeFormatError}},
		{"a question that is cut", good[:20], []int{dns.RcodeFormatError}},
		{"a name that points at itself", compressed, []int{dns.RcodeFormatError}},
		{"a header that is cut", good[:11], []int{none, dns.RcodeFormatError}},
		{"one octet", good[:1], []int{none, dns.RcodeFormatError}},
		{"two OPT records", optTwice, []int{dns.RcodeFormatError}},
		{"NOTIFY", opcode(dns.OpcodeNotify), []int{dns.RcodeNotImplemented}},
		{"UPDATE", opcode(dns.OpcodeUpdate), []int{dns.RcodeNotImplemented}},
		{"STATUS", opcode(dns.OpcodeStatus), []int{dns.RcodeNotImplemented}},
		{"IQUERY", opcode(dns.OpcodeIQuery), []int{dns.RcodeNotImplemented}},
		{"opcode 15", opcode(15), []int{dns.RcodeNotImplemented}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wait := 2 * time.Second
			silence := tt.want[0] == none
			if silence {
				wait = 300 * time.Millisecond
			}
			check := func(network string, reply *dns.Msg) {
				t.Helper()
				got := none
				if reply != nil {
					got = reply.Rcode
					if len(tt.packet) >= 2 && reply.Id != binary.BigEndian.Uint16(tt.packet) || !reply.Response {
						t.Errorf("over %s the reply is\n%s\nwhich is to another message", network, reply)
					}
				}
				for _, want := range tt.want {
					if got == want {
						return
					}
				}
				t.Errorf("over %s the rcode is %d, want one of %d (%d is silence)", network, got, tt.want, none)
			}
			check("UDP", sendUDP(t, k.Addr, tt.packet, wait))
			var first *dns.Msg
			if replies := sendTCP(t, k.Addr, wait, tt.packet); len(replies) > 0 {
				first = replies[0]
			}
			check("TCP", first)
		})
	}
}

// TestTCPStreams has clients that use TCP in ways that are allowed.
func TestTCPStreams(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})

	t.Run("many questions in one connection, without waiting", func(t *testing.T) {
		var packets [][]byte
		for i := range 200 {
			packets = append(packets, question(t, func(m *dns.Msg) { m.Id = uint16(i) }))
		}
		replies := sendTCP(t, k.Addr, 2*time.Second, packets...)
		seen := map[uint16]bool{}
		for _, r := range replies {
			seen[r.Id] = true
		}
		if len(replies) != len(packets) || len(seen) != len(packets) {
			t.Errorf("%d replies to %d questions, %d different", len(replies), len(packets), len(seen))
		}
	})

	t.Run("an octet at a time", func(t *testing.T) {
		conn, err := net.Dial("tcp", k.Addr)
		must(t, err)
		defer conn.Close()
		packet := question(t, nil)
		for _, b := range append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...) {
			_, err := conn.Write([]byte{b})
			must(t, err)
		}
		if replies := readTCP(t, conn, time.Second); len(replies) != 1 || len(replies[0].Answer) != 1 {
			t.Errorf("%d replies, want one with an answer", len(replies))
		}
	})

	t.Run("a connection that says nothing holds up nobody", func(t *testing.T) {
		for range 50 {
			conn, err := net.Dial("tcp", k.Addr)
			must(t, err)
			defer conn.Close()
		}
		start := time.Now()
		ask(t, harness.Question{Server: k.Addr, TCP: true, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
		if took := time.Since(start); took > time.Second {
			t.Errorf("a question took %v", took)
		}
	})

	t.Run("a message that ends early", func(t *testing.T) {
		conn, err := net.Dial("tcp", k.Addr)
		must(t, err)
		_, err = conn.Write([]byte{0, 100, 1, 2, 3})
		must(t, err)
		must(t, conn.Close())
		ask(t, harness.Question{Server: k.Addr, TCP: true, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
	})
}

// TestRandomPackets sends noise, and messages with a few octets changed, over
// UDP and TCP: kube-dns goes on, has caught no panic and keeps no goroutine.
func TestRandomPackets(t *testing.T) {
	const nUDP, nTCP = 4000, 400
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c),
		Nameservers: harness.StartUpstream(t, "testdata/upstream.conf"),
		Args:        []string{"--federations=mars=fed.example.org"},
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := []string{
		"kubernetes.default.svc." + zone, "*.default.svc." + zone, "_https._tcp.kubernetes.default.svc." + zone,
		"1.0.96.10.in-addr.arpa.", "10-0-0-1.default.pod." + zone, "x.default.mars.svc." + zone, zone, ".", "www.example.org.",
		"dns-version." + zone, "ns.dns." + zone,
	}
	var packets [][]byte
	for i := range nUDP {
		switch i % 3 {
		case 0: // noise
			b := make([]byte, rng.IntN(600))
			for j := range b {
				b[j] = byte(rng.Uint32())
			}
			packets = append(packets, b)
		case 1: // any type and class
			packets = append(packets, question(t, func(m *dns.Msg) {
				m.Question[0] = dns.Question{Name: names[rng.IntN(len(names))], Qtype: uint16(rng.Uint32()), Qclass: uint16(rng.IntN(256))}
				if rng.IntN(2) == 0 {
					m.SetEdns0(uint16(rng.Uint32()), rng.IntN(2) == 0)
				}
			}))
		default: // a few octets changed, and the end cut
			b := question(t, func(m *dns.Msg) {
				m.Question[0].Name = names[rng.IntN(len(names))]
				m.SetEdns0(1232, false)
			})
			for range 1 + rng.IntN(4) {
				b[rng.IntN(len(b))] = byte(rng.Uint32())
			}
			if rng.IntN(4) == 0 {
				b = b[:rng.IntN(len(b))]
			}
			packets = append(packets, b)
		}
	}
	goroutines, _ := k.ScrapeMetrics(t).Value("go_goroutines")

	conn, err := net.Dial("udp", k.Addr)
	must(t, err)
	defer conn.Close()
	for i, packet := range packets {
		_, err := conn.Write(packet)
		must(t, err)
		if i%100 == 99 {
			// What is sent faster than it is read is lost, and tests nothing.
			ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA, Timeout: 10 * time.Second})
		}
	}
	for i := 0; i+4 <= nTCP; i += 4 {
		conn, err := net.Dial("tcp", k.Addr)
		must(t, err)
		for _, packet := range packets[i : i+4] {
			if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)); err != nil {
				break // the server may have had enough
			}
		}
		must(t, conn.Close())
	}

	reply := ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
	if len(reply.Answer) != 1 {
		t.Errorf("after the noise the reply is\n%s", reply)
	}
	m := k.ScrapeMetrics(t)
	if v, ok := m.Value("kubedns_panics_total"); !ok || v != 0 {
		t.Errorf("kubedns_panics_total is %v (%v), want 0", v, ok)
	}
	harness.Eventually(t, 30*time.Second, func() error {
		// The scrape's own connection has some.
		if now, _ := k.ScrapeMetrics(t).Value("go_goroutines"); now > goroutines+10 {
			return fmt.Errorf("%v goroutines, %v before", now, goroutines)
		}
		return nil
	})
}
