package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// silent returns the address of a nameserver that takes questions and answers
// none, over UDP and TCP.
func silent(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		udp, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			l.Close() // UDP has the port in use
			continue
		}
		t.Cleanup(func() {
			l.Close()
			udp.Close()
		})
		return l.Addr().String()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return ""
}

// TestDeadUpstream has no upstream nameserver that answers: SERVFAIL comes
// within the client's time-out, and the zone is answered as ever.
func TestDeadUpstream(t *testing.T) {
	c := cluster(t)
	ns := ownNamespace(t, c)
	external := clusterIPService("site", "")
	external.Spec.Type, external.Spec.ExternalName, external.Spec.Ports = "ExternalName", "www.example.org", nil
	createService(t, c, ns, external)
	for _, tt := range []struct {
		name        string
		nameservers string
	}{
		{"refused", harness.DeadNameserver},
		{"silent", silent(t)},
		{"two silent and one refused", silent(t) + "," + harness.DeadNameserver + "," + silent(t)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: tt.nameservers,
			})
			watch := watchName(t, k.Addr, "kubernetes.default.svc."+zone)
			// All at one time, since each takes its time.
			var wg sync.WaitGroup
			for _, q := range []harness.Question{
				{Name: "www.example.org.", Type: dns.TypeA},
				{Name: "80.2.0.192.in-addr.arpa.", Type: dns.TypePTR},
				{Name: "site." + ns + ".svc." + zone, Type: dns.TypeA},
				{Name: "site." + ns + ".svc." + zone, Type: dns.TypeAAAA},
			} {
				for _, tcp := range []bool{false, true} {
					q := q
					q.Server, q.TCP, q.Timeout = k.Addr, tcp, 10*time.Second
					wg.Go(func() {
						start := time.Now()
						reply, err := harness.Ask(t.Context(), q)
						if took := time.Since(start); took > 4*time.Second {
							t.Errorf("%s took %v, want less than 4s", q.Name, took)
						}
						if err != nil {
							t.Errorf("%s: %v, want SERVFAIL", q.Name, err)
						} else if reply.Rcode != dns.RcodeServerFailure {
							t.Errorf("%s: got\n%s\nwant SERVFAIL", q.Name, reply)
						}
					})
				}
			}
			wg.Wait()
			reply := ask(t, harness.Question{Server: k.Addr, Name: "site." + ns + ".svc." + zone, Type: dns.TypeCNAME})
			if len(reply.Answer) != 1 {
				t.Errorf("CNAME needs no upstream, got\n%s", reply)
			}
			watch.stop(t)
		})
	}
}

// TestFailover has one good nameserver among bad ones: it answers, from the
// first question on, and soon once it is known which are bad.
func TestFailover(t *testing.T) {
	c := cluster(t)
	good := harness.StartUpstream(t, "testdata/upstream.conf")
	for _, tt := range []struct{ name, nameservers string }{
		{"the first is silent", silent(t) + "," + good},
		{"the first refuses", harness.DeadNameserver + "," + good},
		{"the last is silent", good + "," + silent(t)},
		{"four are bad", silent(t) + "," + harness.DeadNameserver + "," + silent(t) + "," + good + "," + silent(t)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: tt.nameservers,
			})
			var last time.Duration
			for range 10 {
				start := time.Now()
				reply := ask(t, harness.Question{Server: k.Addr, Name: "www.example.org.", Type: dns.TypeA})
				last = time.Since(start)
				if len(reply.Answer) != 1 {
					t.Fatalf("got\n%s\nwant one answer", reply)
				}
			}
			if last > time.Second {
				t.Errorf("the tenth question took %v, as if it had not been learnt who is bad", last)
			}
		})
	}
}

// TestManyForwarded has more questions under way than kube-dns forwards at one
// time: those get SERVFAIL at once, and the zone's names go on.
func TestManyForwarded(t *testing.T) {
	// Of the questions 1,000 may be under way. Few come from one socket, as
	// their replies come all at one time, and have to fit into its buffer.
	const sockets, each, limit = 15, 100, 1000
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: silent(t),
	})
	start := time.Now()
	var soon, late atomic.Int32
	var wg sync.WaitGroup
	for i := range sockets {
		conn, err := net.Dial("udp", k.Addr)
		must(t, err)
		defer conn.Close()
		for j := range each {
			m := new(dns.Msg)
			m.SetQuestion(fmt.Sprintf("n%d-%d.example.org.", i, j), dns.TypeA)
			m.Id = uint16(j)
			b, err := m.Pack()
			must(t, err)
			_, err = conn.Write(b)
			must(t, err)
		}
		wg.Go(func() {
			if err := countServfails(conn, each, start.Add(15*time.Second), func() {
				if time.Since(start) < 2*time.Second {
					soon.Add(1)
				} else {
					late.Add(1)
				}
			}); err != nil {
				t.Errorf("socket %d: %v", i, err)
			}
		})
		before := time.Now()
		ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
		if took := time.Since(before); took > time.Second {
			t.Errorf("with %d questions under way, one for the zone took %v", (i+1)*each, took)
		}
	}
	wg.Wait()
	t.Logf("%d questions were answered SERVFAIL soon, %d after the nameserver had its time", soon.Load(), late.Load())
	if got, want := int(soon.Load()), sockets*each-limit; got < want {
		t.Errorf("%d were answered soon, want the %d past the limit", got, want)
	}
	if late.Load() == 0 {
		t.Error("none waited for the nameserver")
	}
}

// countServfails reads n replies, all SERVFAIL and to different questions, and
// calls count for each.
func countServfails(conn net.Conn, n int, deadline time.Time, count func()) error {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	buf := make([]byte, 65535)
	seen := map[uint16]bool{}
	for len(seen) < n {
		size, err := conn.Read(buf)
		if err != nil {
			return fmt.Errorf("%d of %d questions are answered: %w", len(seen), n, err)
		}
		reply := new(dns.Msg)
		if err := reply.Unpack(buf[:size]); err != nil {
			return err
		}
		if reply.Rcode != dns.RcodeServerFailure || seen[reply.Id] {
			return fmt.Errorf("got\n%s\nwant SERVFAIL, once", reply)
		}
		seen[reply.Id] = true
		count()
	}
	return nil
}

// TestOwnAddress names kube-dns itself as its nameserver, which would make a
// question go round for ever.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c),
		Args: []string{"--nameservers={addr}," + harness.StartUpstream(t, "testdata/upstream.conf")},
	})
	awaitAddress(t, k.Addr, "www.example.org.", "192.0.2.80", 5*time.Second)
	warned := false
	for line := range strings.Lines(k.Log.String()) {
		warned = warned || strings.HasPrefix(line, "W") && strings.Contains(line, k.Addr)
	}
	if !warned {
		t.Errorf("no warning names %s in the log:\n%s", k.Addr, k.Log)
	}
}
