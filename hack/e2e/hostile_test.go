package e2e

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

var (
	hostilePackets = flag.Int("hostile.packets", 100_000, "how many mutated packets TestMutatedPackets sends")
	hostileSeed    = flag.Uint64("hostile.seed", 0, "seed of TestMutatedPackets; 0: another one each time")
	hostileTypes   = flag.Int("hostile.types", 331, "TestEveryType asks for each type whose number this divides, and those that have a name")
)

// crowdSize is how many endpoints the headless Service crowd has: their
// addresses take 16 kB over TCP, and do not fit into a datagram.
const crowdSize = 1000

// hostileManifests writes the Services that the tests of hostile peers and of
// load ask for, and returns the directory.
func hostileManifests(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	service := func(namespace, name, spec string) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", name, namespace, spec)
	}
	service("default", "kubernetes", "clusterIP: 10.96.0.1, ports: [{name: https, port: 443}]")
	service("shop", "web", "clusterIP: 10.96.20.7, ports: [{name: http, port: 80}]")
	service("shop", "both", `clusterIP: 10.96.20.8, clusterIPs: [10.96.20.8, "2001:db8:96::8"], ipFamilies: [IPv4, IPv6], ports: [{name: http, port: 80}]`)
	service("shop", "site", "type: ExternalName, externalName: www.example.org")
	service("shop", "inside", "type: ExternalName, externalName: web.shop.svc.cluster.local")
	service("shop", "loop", "type: ExternalName, externalName: loop.shop.svc.cluster.local")
	headless := func(namespace, name string, n int) {
		service(namespace, name, "clusterIP: None, ports: [{name: sql, port: 5432}]")
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-x, namespace: %s, labels: {kubernetes.io/service-name: %s}}\n"+
			"addressType: IPv4\nports: [{name: sql, port: 5432}]\nendpoints:\n", name, namespace, name)
		for i := range n {
			fmt.Fprintf(&b, "- {addresses: [10.244.%d.%d], hostname: %s-%d}\n", i/250, i%250+1, name, i)
		}
	}
	headless("shop", "db", 3)
	headless("big", "crowd", crowdSize)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "services.yaml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// startHostile starts kube-dns on hostileManifests, with an upstream nameserver
// in the test that knows no name.
func startHostile(t *testing.T, binary string, args ...string) *harness.KubeDNS {
	t.Helper()
	return harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary:      binary,
		Nameservers: startQuickUpstream(t).String(),
		Args:        append([]string{"--manifests=" + hostileManifests(t)}, args...),
	})
}

// startQuickUpstream starts a nameserver that answers NXDOMAIN to whatever it
// is asked over UDP.
func startQuickUpstream(t testing.TB) netip.AddrPort {
	t.Helper()
	return startUDPServer(t, func(b []byte) []byte {
		b[2] |= 0x80
		b[3] = 0x80 | dns.RcodeNameError
		return b
	})
}

// startUDPServer answers each datagram with what answer makes of it; nil is
// silence. It ends with the test.
func startUDPServer(t testing.TB, answer func(b []byte) []byte) netip.AddrPort {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn := pc.(*net.UDPConn)
	_ = conn.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 65535)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n < 12 {
				continue
			}
			if reply := answer(buf[:n]); reply != nil {
				_, _ = conn.WriteToUDPAddrPort(reply, from)
			}
		}
	}()
	addr, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// rawQuestion is a question for the name, which is given in wire form.
func rawQuestion(id uint16, name string, qtype, qclass uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, name...)
	b = binary.BigEndian.AppendUint16(b, qtype)
	return binary.BigEndian.AppendUint16(b, qclass)
}

// wireName is a name in wire form.
func wireName(t testing.TB, name string) string {
	t.Helper()
	var b [255]byte
	n, err := dns.PackDomainName(name, b[:], 0, nil, false)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(b[:n])
}

// sentinel is the ID of the question that is sent behind others: once it is
// answered, so are those before it, unless they get silence or are forwarded.
const sentinel = 0xfffe

// silence as an rcode is that there is no reply.
const silence = -1

// hostileCase is a packet and what is right for it.
type hostileCase struct {
	name   string
	packet []byte
	rcode  int
}

// hostileCases are the edges of RFC 1035 and RFC 6891.
func hostileCases(t testing.TB) []hostileCase {
	t.Helper()
	web := wireName(t, "web.shop.svc.cluster.local.")
	good := rawQuestion(4711, web, dns.TypeA, dns.ClassINET)
	edit := func(b []byte, at int, v ...byte) []byte {
		b = slices.Clone(b)
		copy(b[at:], v)
		return b
	}
	with := func(b []byte, section int, records ...string) []byte {
		b = slices.Clone(b)
		binary.BigEndian.PutUint16(b[4+2*section:], binary.BigEndian.Uint16(b[4+2*section:])+uint16(len(records)))
		return append(b, strings.Join(records, "")...)
	}
	raw := func(name string) []byte { return rawQuestion(4711, name, dns.TypeA, dns.ClassINET) }
	// opt is an OPT record; rdlen is what its length says.
	opt := func(version byte, rdlen int, rdata string) string {
		return "\x00\x00\x29\x04\xd0\x00" + string(version) + "\x00\x00" + string([]byte{byte(rdlen >> 8), byte(rdlen)}) + rdata
	}
	plain := opt(0, 0, "")
	const a = "\x01x\x00\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\xc0\x00\x02\x01"
	label := func(n int) string { return string([]byte{byte(n)}) + strings.Repeat("a", n) }
	long := strings.Repeat(label(63), 3) // 192 octets
	const ok, formErr, notImp, nxDomain = dns.RcodeSuccess, dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeNameError
	list := []hostileCase{
		{"a good question", good, ok},
		{"QDCOUNT 0 with a question", edit(good, 4, 0, 0), formErr},
		{"QDCOUNT 0 without", edit(good, 4, 0, 0)[:12], formErr},
		{"QDCOUNT 1 without", good[:12], formErr},
		{"QDCOUNT 2 with one", edit(good, 4, 0, 2), formErr},
		{"QDCOUNT 2 with two", append(edit(good, 4, 0, 2), good[12:]...), formErr},
		{"QDCOUNT 65535", edit(good, 4, 0xff, 0xff), formErr},
		{"ANCOUNT 65535 without", edit(good, 6, 0xff, 0xff), formErr},
		{"NSCOUNT 65535 without", edit(good, 8, 0xff, 0xff), formErr},
		{"ARCOUNT 65535 without", edit(good, 10, 0xff, 0xff), formErr},
		{"all counts 65535 over octets of 0", append(edit(good, 6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), make([]byte, 3000)...), formErr},
		{"a reply", edit(good, 2, 0x81), silence},
		{"a reply that is NOTIFY", edit(good, 2, 0xa1), silence},
		{"a reply without a question", edit(edit(good, 2, 0x81), 4, 0, 0)[:12], silence},
		{"a name that points to itself", raw("\xc0\x0c"), formErr},
		{"a name that points to the header", raw("\xc0\x00"), formErr},
		{"a name that points forward", raw("\xc0\x12\x01a\x00"), formErr},
		{"a label, then a pointer back to it", raw("\x01a\xc0\x0c"), formErr},
		{"two pointers that point to each other", raw("\xc0\x0e\xc0\x0c"), formErr},
		{"a pointer past the end", raw("\xff\xff"), formErr},
		{"half a pointer", raw("\xc0")[:13], formErr},
		{"a record whose name points to itself", with(good, 3, "\xc0"+string([]byte{byte(len(good))})+a[3:]), ok}, // nothing follows it
		{"a record whose name points past the end", with(good, 1, "\xff\xff"+a[3:]), ok},
		{"label type 01", raw("\x41\x08abcdefgh\x00"), formErr},
		{"label type 10", raw("\x80\x00"), formErr},
		{"a label of 63 octets", raw(label(63) + web), nxDomain},
		{"a label of 64 octets", raw("\x40" + strings.Repeat("a", 64) + web), formErr},
		{"a name of 255 octets", raw(long + label(61) + "\x00"), nxDomain},
		{"a name of 255 octets in the zone", raw(label(63) + label(63) + label(63) + label(255-192-1-len(web)) + web), nxDomain},
		{"a name of 256 octets", raw(long + label(62) + "\x00"), formErr},
		{"a name of 127 labels", raw(strings.Repeat("\x01a", 127) + "\x00"), nxDomain},
		{"a name of 128 labels", raw(strings.Repeat("\x01a", 128) + "\x00"), formErr},
		{"a name without its end", append(slices.Clone(good[:12]), long...), formErr},
		{"one OPT", with(good, 3, plain), ok},
		{"two OPT", with(good, 3, plain, plain), formErr},
		{"two OPT with a record between", with(good, 3, plain, a, plain), formErr},
		{"OPT in the answer section", with(good, 1, plain), formErr},
		{"OPT in the authority section", with(good, 2, plain), formErr},
		{"OPT at a name", with(good, 3, "\x01a"+plain), formErr},
		{"EDNS version 1", with(good, 3, opt(1, 0, "")), dns.RcodeBadVers},
		{"EDNS version 255", with(good, 3, opt(255, 0, "")), dns.RcodeBadVers},
		{"OPT with RDLENGTH 65535", with(good, 3, opt(0, 65535, "")), formErr},
		{"OPT with an option", with(good, 3, opt(0, 6, "\xfd\xe9\x00\x02xx")), ok},
		{"OPT with an option longer than it", with(good, 3, opt(0, 6, "\xfd\xe9\x00\x03xx")), formErr},
		{"OPT with half an option", with(good, 3, opt(0, 3, "\xfd\xe9\x00")), formErr},
		{"OPT with an option of 65535 octets", with(good, 3, opt(0, 4, "\xfd\xe9\xff\xff")), formErr},
		{"a record with RDLENGTH 65535", with(good, 3, a[:11]+"\xff\xff"+a[13:]), formErr},
		{"octets behind the end", append(slices.Clone(good), make([]byte, 500)...), ok},
		{"class 0", rawQuestion(4711, web, dns.TypeA, 0), dns.RcodeRefused},
		{"class CHAOS", rawQuestion(4711, web, dns.TypeA, dns.ClassCHAOS), dns.RcodeRefused},
		{"class HESIOD", rawQuestion(4711, web, dns.TypeA, dns.ClassHESIOD), dns.RcodeRefused},
		{"class NONE", rawQuestion(4711, web, dns.TypeA, dns.ClassNONE), dns.RcodeRefused},
		{"class ANY", rawQuestion(4711, web, dns.TypeA, dns.ClassANY), ok},
		{"class 65535", rawQuestion(4711, web, dns.TypeA, 65535), dns.RcodeRefused},
		{"AXFR", rawQuestion(4711, wireName(t, "cluster.local."), dns.TypeAXFR, dns.ClassINET), dns.RcodeRefused},
		{"IXFR", rawQuestion(4711, wireName(t, "cluster.local."), dns.TypeIXFR, dns.ClassINET), dns.RcodeRefused},
		{"octets of 255", slices.Repeat([]byte{255}, 64), silence},
		{"octets of 0", make([]byte, 64), formErr},
	}
	for opcode := 1; opcode < 16; opcode++ {
		list = append(list, hostileCase{fmt.Sprintf("opcode %d", opcode), edit(good, 2, byte(opcode)<<3), notImp})
	}
	// A question with a record in each section and OPT, cut at each octet.
	full := with(with(with(good, 1, a), 2, a), 3, opt(0, 6, "\xfd\xe9\x00\x02xx"))
	list = append(list, hostileCase{"a record in each section", full, ok})
	for n := range full {
		want := formErr
		if n < 12 {
			want = silence
		}
		list = append(list, hostileCase{fmt.Sprintf("%d octets of %d", n, len(full)), full[:n], want})
	}
	return list
}

// TestHostilePackets sends the edges of RFC 1035 and RFC 6891 over UDP and TCP,
// each with a good question behind it, which has to be answered.
func TestHostilePackets(t *testing.T) {
	k := startHostile(t, kubeDNS(t))
	after := rawQuestion(sentinel, wireName(t, "web.shop.svc.cluster.local."), dns.TypeA, dns.ClassINET)
	udp, err := net.Dial("udp", k.Addr)
	must(t, err)
	defer udp.Close()
	tcp, err := net.Dial("tcp", k.Addr)
	must(t, err)
	defer tcp.Close()
	buf := make([]byte, 65535)
	overUDP := func(b []byte) error {
		_, err := udp.Write(b)
		return err
	}
	for _, network := range []struct {
		name string
		send func(b []byte) error
		read func() ([]byte, error)
	}{
		{"UDP", overUDP, func() ([]byte, error) {
			must(t, udp.SetReadDeadline(time.Now().Add(5*time.Second)))
			n, err := udp.Read(buf)
			return buf[:n], err
		}},
		{"TCP", func(b []byte) error {
			_, err := tcp.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
			return err
		}, func() ([]byte, error) {
			must(t, tcp.SetReadDeadline(time.Now().Add(5*time.Second)))
			return readFrame(tcp, buf)
		}},
	} {
		for _, tt := range hostileCases(t) {
			t.Run(network.name+" "+tt.name, func(t *testing.T) {
				must(t, network.send(tt.packet))
				must(t, network.send(after))
				// What is forwarded may come behind the sentinel's reply.
				replies, wait := map[uint16]*dns.Msg{}, 2
				if tt.rcode == silence {
					wait = 1
				}
				for len(replies) < wait {
					b, err := network.read()
					if err != nil {
						t.Fatalf("%d replies, want %d: %v", len(replies), wait, err)
					}
					m := unpack(t, b)
					replies[m.Id] = m
				}
				if m := replies[sentinel]; m == nil || len(m.Answer) != 1 {
					t.Fatalf("the good question behind it has the reply\n%v", m)
				}
				if tt.rcode == silence {
					return
				}
				checkHostileReply(t, replies[binary.BigEndian.Uint16(tt.packet)], tt)
			})
		}
	}

	t.Run("odd datagrams", func(t *testing.T) {
		// Of no octet, and longer than a question may be.
		for _, n := range []int{0, 4097, 65507} {
			b := make([]byte, n)
			copy(b, question(t, nil))
			must(t, overUDP(b))
		}
		must(t, overUDP(after))
		must(t, udp.SetReadDeadline(time.Now().Add(5*time.Second)))
		n, err := udp.Read(buf)
		must(t, err)
		if m := unpack(t, buf[:n]); m.Id != sentinel || len(m.Answer) != 1 {
			t.Errorf("got\n%v\nwant the reply to the question behind them", m)
		}
	})
	checkCalm(t, k)
}

func checkHostileReply(t *testing.T, m *dns.Msg, tt hostileCase) {
	t.Helper()
	if m == nil {
		t.Fatal("the reply has another ID")
	}
	if m.Rcode != tt.rcode {
		t.Errorf("rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[tt.rcode])
	}
	if !m.Response || m.Opcode != int(tt.packet[2]>>3&15) {
		t.Errorf("response %v, opcode %d in\n%v", m.Response, m.Opcode, m)
	}
	if (len(m.Answer) > 0) != (tt.rcode == dns.RcodeSuccess) {
		t.Errorf("%d answers in\n%v", len(m.Answer), m)
	}
}

// readFrame reads a message with its length before it into buf.
func readFrame(conn net.Conn, buf []byte) ([]byte, error) {
	if _, err := readFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	return readFull(conn, buf[:n])
}

func readFull(conn net.Conn, b []byte) ([]byte, error) {
	for n := 0; n < len(b); {
		m, err := conn.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += m
	}
	return b, nil
}

// checkCalm checks that kube-dns runs and has caught no panic.
func checkCalm(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	select {
	case <-k.Exited():
		t.Fatal("kube-dns has ended")
	default:
	}
	if v, ok := k.ScrapeMetrics(t).Value("kubedns_panics_total"); !ok || v != 0 {
		t.Errorf("kubedns_panics_total is %v (%v), want 0", v, ok)
	}
}

// exchangeMany asks packets over one UDP socket, some at a time, and returns
// the replies in their order. It sets the IDs. What is lost is asked again.
func exchangeMany(t *testing.T, server string, packets [][]byte) [][]byte {
	t.Helper()
	const window = 64 // as many as kube-dns reads at once, which is no overload
	conn, err := net.Dial("udp", server)
	must(t, err)
	defer conn.Close()
	replies := make([][]byte, len(packets))
	buf := make([]byte, 65535)
	for start := 0; start < len(packets); start += window {
		end := min(start+window, len(packets))
		missing := end - start
		for tries := 0; missing > 0; tries++ {
			if tries == 5 {
				t.Fatalf("%d of the questions from %x on have no reply", missing, packets[start])
			}
			for i := start; i < end; i++ {
				if replies[i] == nil {
					binary.BigEndian.PutUint16(packets[i], uint16(i))
					_, err := conn.Write(packets[i])
					must(t, err)
				}
			}
			must(t, conn.SetReadDeadline(time.Now().Add(2*time.Second)))
			for missing > 0 {
				n, err := conn.Read(buf)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				must(t, err)
				// The index is the one in the window that has this ID.
				i := start + int(uint16(binary.BigEndian.Uint16(buf)-uint16(start)))
				if i < end && replies[i] == nil {
					replies[i] = slices.Clone(buf[:n])
					missing--
				}
			}
		}
	}
	return replies
}

// TestEveryType asks for types over all of their range at each kind of name: a
// name that exists has NOERROR for any, with records of no other type; one that
// does not has NXDOMAIN for any.
func TestEveryType(t *testing.T) {
	k := startHostile(t, fastKubeDNS(t), "--federations=mars=fed.example.org")
	var types []uint16
	for i := range 1 << 16 {
		if _, known := dns.TypeToString[uint16(i)]; known || i%*hostileTypes == 0 || i == 1<<16-1 {
			types = append(types, uint16(i))
		}
	}
	const exists, missing, either = 0, 1, 2
	for _, tt := range []struct {
		name string
		is   int
	}{
		{"cluster.local.", exists}, {"svc.cluster.local.", exists}, {"shop.svc.cluster.local.", exists},
		{"web.shop.svc.cluster.local.", exists}, {"both.shop.svc.cluster.local.", exists},
		{"_http._tcp.web.shop.svc.cluster.local.", exists}, {"_tcp.web.shop.svc.cluster.local.", exists},
		{"db.shop.svc.cluster.local.", exists}, {"db-0.db.shop.svc.cluster.local.", exists}, {"crowd.big.svc.cluster.local.", exists},
		{"10-1-2-3.shop.pod.cluster.local.", exists}, {"dns-version.cluster.local.", exists},
		{"7.20.96.10.in-addr.arpa.", exists},
		{"inside.shop.svc.cluster.local.", exists},
		{"nosuch.shop.svc.cluster.local.", missing}, {"a.web.shop.svc.cluster.local.", missing}, {"nosuch.cluster.local.", missing},
		{"_nosuch._tcp.web.shop.svc.cluster.local.", missing}, {"x-1-2-3.shop.pod.cluster.local.", missing},
		{"www.example.org.", missing}, {".", missing}, {"9.9.9.9.in-addr.arpa.", missing},
		{"*.shop.svc.cluster.local.", either}, {"site.shop.svc.cluster.local.", either}, {"loop.shop.svc.cluster.local.", either},
		{"ns.dns.cluster.local.", either}, {"web.shop.mars.svc.cluster.local.", either}, {"_http._tcp.*.shop.svc.cluster.local.", either},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wire := wireName(t, tt.name)
			packets := make([][]byte, len(types))
			for i, qtype := range types {
				packets[i] = rawQuestion(0, wire, qtype, dns.ClassINET)
			}
			for i, b := range exchangeMany(t, k.Addr, packets) {
				m, qtype := unpack(t, b), types[i]
				if len(m.Question) != 1 || m.Question[0] != (dns.Question{Name: tt.name, Qtype: qtype, Qclass: dns.ClassINET}) {
					t.Fatalf("TYPE%d: the question came back as %v", qtype, m.Question)
				}
				want := []int{[]int{dns.RcodeSuccess, dns.RcodeNameError}[tt.is%2]}
				switch {
				case qtype == dns.TypeAXFR || qtype == dns.TypeIXFR:
					want = []int{dns.RcodeRefused}
				case tt.is == either:
					want = []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure}
				}
				if !slices.Contains(want, m.Rcode) {
					t.Errorf("TYPE%d: rcode %s, want %d", qtype, dns.RcodeToString[m.Rcode], want)
				}
				for _, rr := range m.Answer {
					if rrtype := rr.Header().Rrtype; rrtype != qtype && rrtype != dns.TypeCNAME && qtype != dns.TypeANY {
						t.Errorf("TYPE%d: the answer %s", qtype, rr)
					}
				}
				if tt.is != either && strings.HasSuffix(tt.name, "cluster.local.") && len(m.Answer) == 0 && !m.Truncated && m.Rcode != dns.RcodeRefused &&
					(len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA) {
					t.Errorf("TYPE%d: a negative reply without the zone's SOA:\n%v", qtype, m)
				}
			}
		})
	}
	checkCalm(t, k)
}

// A mutator makes packets out of good ones, from a seed.
type mutator struct {
	rng    *rand.Rand
	corpus [][]byte
}

func newMutator(t testing.TB, seed uint64) *mutator {
	t.Helper()
	m := &mutator{rng: rand.New(rand.NewPCG(seed, 1))}
	for _, name := range []string{
		"web.shop.svc.cluster.local.", "both.shop.svc.cluster.local.", "_http._tcp.web.shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local.",
		"crowd.big.svc.cluster.local.", "*.shop.svc.cluster.local.", "site.shop.svc.cluster.local.", "loop.shop.svc.cluster.local.",
		"10-1-2-3.shop.pod.cluster.local.", "7.20.96.10.in-addr.arpa.", "www.example.org.", ".", "web.shop.mars.svc.cluster.local.", "version.bind.",
		"8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.8.b.d.0.1.0.0.2.ip6.arpa.",
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeANY, dns.TypeSOA} {
			q := new(dns.Msg)
			q.SetQuestion(name, qtype)
			add := func(change func()) {
				change()
				b, err := q.Pack()
				if err != nil {
					t.Fatal(err)
				}
				m.corpus = append(m.corpus, b)
			}
			add(func() {})
			add(func() {
				q.SetEdns0(1232, true)
				o := q.IsEdns0()
				o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
					&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)})
			})
			add(func() {
				q.Compress = true
				rr, err := dns.NewRR(name + " 30 IN MX 10 mail." + strings.TrimPrefix(name, "."))
				if err != nil {
					t.Fatal(err)
				}
				q.Answer, q.Ns = []dns.RR{rr}, []dns.RR{rr, rr}
			})
		}
	}
	for _, c := range hostileCases(t) {
		m.corpus = append(m.corpus, c.packet)
	}
	return m
}

// next is another packet, of 65,535 octets at most.
func (m *mutator) next() []byte {
	b := slices.Clone(m.corpus[m.rng.IntN(len(m.corpus))])
	at := func() int { return m.rng.IntN(len(b) + 1) }
	for range 1 + m.rng.IntN(4) {
		switch i := at(); m.rng.IntN(9) {
		case 0: // another octet
			if i < len(b) {
				b[i] = byte(m.rng.Uint32())
			}
		case 1: // another bit
			if i < len(b) {
				b[i] ^= 1 << m.rng.IntN(8)
			}
		case 2: // one more or less, as of a length or count
			if i < len(b) {
				b[i] += byte(m.rng.IntN(2)*2 - 1)
			}
		case 3: // the end cut
			b = b[:i]
		case 4: // octets put in
			b = slices.Insert(b, i, slices.Repeat([]byte{byte(m.rng.Uint32())}, 1+m.rng.IntN(70))...)
		case 5: // octets taken out
			b = slices.Delete(b, i, min(len(b), i+1+m.rng.IntN(12)))
		case 6: // a pointer
			if i+1 < len(b) {
				b[i], b[i+1] = 0xc0|byte(m.rng.IntN(2)), byte(m.rng.Uint32())
			}
		case 7: // the end of another packet
			other := m.corpus[m.rng.IntN(len(m.corpus))]
			b = append(b[:i], other[min(i, len(other)):]...)
		case 8: // a count
			if len(b) >= 12 {
				binary.BigEndian.PutUint16(b[4+2*m.rng.IntN(4):], uint16(m.rng.IntN(4)*m.rng.IntN(1<<16)))
			}
		}
	}
	return b[:min(len(b), 65535)]
}

// TestMutatedPackets sends packets that chance has changed, over UDP and TCP,
// while a good client asks: kube-dns lives, catches no panic, answers the good
// client, and takes no more memory than before.
func TestMutatedPackets(t *testing.T) {
	// What is sent may be forwarded, 100 at a time, and TCP connections come and
	// go: a few MB, of which the collector keeps as much again.
	const moreMemory = 24 << 10 // kB
	seed := *hostileSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%d packets, seed %d", *hostilePackets, seed)
	k := startHostile(t, fastKubeDNS(t), "--federations=mars=fed.example.org", "--udp-sockets=2")
	good := startGoodClient(t, k)
	before := harness.ProcessUsage(t, k.PID())
	goroutines, _ := k.ScrapeMetrics(t).Value("go_goroutines")
	start := time.Now()

	const senders = 2
	var replies, sent atomic.Int64
	var wg sync.WaitGroup
	for i := range senders {
		m := newMutator(t, seed+uint64(i))
		wg.Go(func() {
			if err := sendMutated(m, k.Addr, *hostilePackets/senders, &sent, &replies); err != nil {
				t.Errorf("sender %d, after %d packets: %v", i, sent.Load(), err)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	good.stop(t)
	checkCalm(t, k)
	after := harness.ProcessUsage(t, k.PID())
	t.Logf("%d packets in %v, %d replies; good client: %v; memory %d kB before, %d kB at most; %v of processor time for each packet",
		sent.Load(), took.Round(time.Millisecond), replies.Load(), good, before.RSS, after.HWM, (after.CPU-before.CPU)/time.Duration(sent.Load()))
	if sent.Load() < int64(*hostilePackets) || replies.Load() < sent.Load()/4 {
		t.Errorf("%d packets sent, %d replies: that tests little", sent.Load(), replies.Load())
	}
	if after.HWM > before.RSS+moreMemory {
		t.Errorf("kube-dns took %d kB, %d kB before: want %d kB more at most", after.HWM, before.RSS, moreMemory)
	}
	harness.Eventually(t, 30*time.Second, func() error {
		// The scrape's own connection has some.
		if now, _ := k.ScrapeMetrics(t).Value("go_goroutines"); now > goroutines+10 {
			return fmt.Errorf("%v goroutines, %v before", now, goroutines)
		}
		return nil
	})
}

// sendMutated sends n packets, one in 50 over TCP. Behind some of them comes a
// good question that has to be answered before it goes on, so that nothing is
// lost unread. Each reply must be a message and a reply.
func sendMutated(m *mutator, server string, n int, sent, replies *atomic.Int64) error {
	const together = 50
	conn, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.(*net.UDPConn).SetReadBuffer(4 << 20)
	var name [255]byte
	end, err := dns.PackDomainName("web.shop.svc.cluster.local.", name[:], 0, nil, false)
	if err != nil {
		return err
	}
	after := rawQuestion(sentinel, string(name[:end]), dns.TypeA, dns.ClassINET)
	buf := make([]byte, 65535)
	check := func(b []byte) error {
		if len(b) < 12 || b[2]&0x80 == 0 {
			return fmt.Errorf("got %x, which is no reply", b)
		}
		if err := new(dns.Msg).Unpack(b); err != nil {
			return fmt.Errorf("got %x: %w", b, err)
		}
		replies.Add(1)
		return nil
	}
	for done := 0; done < n; {
		for range together - 1 {
			b := m.next()
			if len(b) >= 2 && binary.BigEndian.Uint16(b) == sentinel {
				b[0] = 0
			}
			// Longer ones than a datagram may be are cut.
			if _, err := conn.Write(b[:min(len(b), 65507)]); err != nil {
				return err
			}
		}
		if _, err := conn.Write(after); err != nil {
			return err
		}
		if err := sendMutatedTCP(m, server); err != nil {
			return err
		}
		done += together
		sent.Add(together)
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		for {
			size, err := conn.Read(buf)
			if err != nil {
				return fmt.Errorf("waiting for the reply to the good question: %w", err)
			}
			if err := check(buf[:size]); err != nil {
				return err
			}
			if binary.BigEndian.Uint16(buf) == sentinel {
				break
			}
		}
	}
	return nil
}

// sendMutatedTCP sends a packet over a new connection, its length right or not.
func sendMutatedTCP(m *mutator, server string) error {
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	b := m.next()
	length := len(b)
	if m.rng.IntN(4) == 0 {
		length = m.rng.IntN(1 << 16)
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(length)), b...))
	return err
}
