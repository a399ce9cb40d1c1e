package e2e

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// TestProgrammingLatency measures the time from the API server's reply to the
// first right answer, 100 times for each kind of change. The bounds are wide,
// as machines that run tests are busy; the log has the figures.
func TestProgrammingLatency(t *testing.T) {
	const n = 100
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: fastKubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	ns := ownNamespace(t, c)
	createService(t, c, ns, headlessService("crowd"))
	conn, err := dns.Dial("udp", k.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	for _, tt := range []struct {
		name   string
		change func(t *testing.T, i int) (name string)
	}{
		{"a Service", func(t *testing.T, i int) string {
			t.Helper()
			name := fmt.Sprintf("fresh-%d", i)
			createService(t, c, ns, clusterIPService(name, ""))
			return name + "." + ns + ".svc." + zone
		}},
		{"an endpoint of a headless Service", func(t *testing.T, i int) string {
			t.Helper()
			createSlice(t, c, ns, slice(fmt.Sprintf("crowd-%d", i), "crowd", i, fmt.Sprintf("10.210.0.%d", i+1)))
			return fmt.Sprintf("p%d.crowd.%s.svc.%s", i, ns, zone)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var took []time.Duration
			for i := range n {
				name := tt.change(t, i)
				start := time.Now()
				askUntilAnswered(t, conn, name)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			p50, p99 := took[n/2], took[n*99/100-1]
			t.Logf("programming latency of %s: median %v, p99 %v, most %v, least %v", tt.name, p50, p99, took[n-1], took[0])
			if p50 > 50*time.Millisecond {
				t.Errorf("median is %v, want 50ms at most", p50)
			}
			if p99 > 500*time.Millisecond {
				t.Errorf("p99 is %v, want 500ms at most", p99)
			}
		})
	}
}

// askUntilAnswered asks for name, each question as soon as the last one is
// answered, until there is an address.
func askUntilAnswered(t *testing.T, conn *dns.Conn, name string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	m := new(dns.Msg)
	for time.Now().Before(deadline) {
		m.SetQuestion(name, dns.TypeA)
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
		reply, err := conn.ReadMsg()
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // as it comes from the socket
				continue
			}
			t.Fatal(err)
		}
		if reply.Id == m.Id && len(reply.Answer) > 0 {
			return
		}
	}
	t.Fatalf("%s is not answered after 30s", name)
}
