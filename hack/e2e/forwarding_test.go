package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
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
	const n = 1500 // of which 1,000 may be under way
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: silent(t),
	})
	conn, err := net.Dial("udp", k.Addr)
	must(t, err)
	defer conn.Close()
	start := time.Now()
	for i := range n {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)
		m.Id = uint16(i)
		b, err := m.Pack()
		must(t, err)
		_, err = conn.Write(b)
		must(t, err)
		if i%100 == 99 {
			before := time.Now()
			ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
			if took := time.Since(before); took > time.Second {
				t.Errorf("with %d questions under way, one for the zone took %v", i, took)
			}
		}
	}
	soon, late := 0, 0
	buf := make([]byte, 65535)
	seen := map[uint16]bool{}
	for len(seen) < n {
		must(t, conn.SetReadDeadline(start.Add(8*time.Second)))
		size, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("%d of %d questions are answered: %v", len(seen), n, err)
		}
		reply := unpack(t, buf[:size])
		if reply.Rcode != dns.RcodeServerFailure {
			t.Errorf("got\n%s\nwant SERVFAIL", reply)
		}
		seen[reply.Id] = true
		if time.Since(start) < 2*time.Second {
			soon++
		} else {
			late++
		}
	}
	t.Logf("%d of %d questions were answered SERVFAIL soon, %d after all nameservers had their time", soon, n, late)
	if soon < n-1000 {
		t.Errorf("%d were answered soon, want the %d past the limit", soon, n-1000)
	}
	if late == 0 {
		t.Error("none waited for the nameserver")
	}
}

// TestOwnAddress names kube-dns itself as its nameserver, which would make a
// question go round for ever.
func TestOwnAddress(t *testing.T) {
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
