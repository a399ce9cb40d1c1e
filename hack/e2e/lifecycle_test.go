package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// TestBeforeSync looks at a kube-dns that cannot reach the API server yet.
func TestBeforeSync(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	api, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := harness.StartProxy(t, api.Host, harness.ProxyRefuse)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary:      kubeDNS(t),
		Kubeconfig:  kubeconfig(t, c, "", "https://"+proxy.Addr),
		Nameservers: harness.StartUpstream(t, "testdata/upstream.conf"),
		Args:        []string{"--initial-sync-timeout=500ms"},
		NoWait:      true,
	})
	// From the first moment there is an answer, and it is not yes.
	harness.Eventually(t, 10*time.Second, func() error {
		status, body := k.Readiness(t)
		switch {
		case status == 0:
			return fmt.Errorf("nobody answers: %s", body)
		case status != http.StatusServiceUnavailable || strings.TrimSpace(body) == "":
			t.Fatalf("/readiness answers %d %q, want 503 and why", status, body)
		}
		return nil
	})
	awaitRcode(t, k.Addr, "www.example.org.", dns.RcodeSuccess, 10*time.Second)
	for _, q := range []struct {
		name  string
		qtype uint16
	}{
		{"kubernetes.default.svc.cluster.local.", dns.TypeA},
		{"nosuch.default.svc.cluster.local.", dns.TypeA},
		{"nosuch.cluster.local.", dns.TypeTXT},
		{"1.0.96.10.in-addr.arpa.", dns.TypePTR},
		{"80.2.0.192.in-addr.arpa.", dns.TypePTR},
	} {
		for _, tcp := range []bool{false, true} {
			if reply := ask(t, harness.Question{Server: k.Addr, TCP: tcp, Name: q.name, Type: q.qtype}); reply.Rcode != dns.RcodeRefused {
				t.Errorf("%s before the records are complete: got\n%s\nwant REFUSED", q.name, reply)
			}
		}
	}
	// The time-out ends nothing: the log says what is missing.
	harness.Eventually(t, 10*time.Second, func() error {
		if log := k.Log.String(); !strings.Contains(log, "not ready") {
			return fmt.Errorf("no line of the log says not ready:\n%s", log)
		}
		return nil
	})
	if status, body := k.Readiness(t); status != http.StatusServiceUnavailable {
		t.Errorf("/readiness answers %d %q after --initial-sync-timeout, want 503", status, body)
	}
	proxy.SetMode(t, harness.ProxyForward)
	k.AwaitReady(t, 90*time.Second)
	awaitAddress(t, k.Addr, "kubernetes.default.svc."+zone, "10.96.0.1", time.Second)
}

// TestDrain ends a kube-dns with SIGTERM.
func TestDrain(t *testing.T) {
	c := cluster(t)
	admin := adminKubeconfig(t, c)
	name := "kubernetes.default.svc." + zone
	unready := func(t *testing.T, k *harness.KubeDNS) {
		t.Helper()
		harness.Eventually(t, 2*time.Second, func() error {
			if status, body := k.Readiness(t); status != http.StatusServiceUnavailable || body == "" {
				return fmt.Errorf("/readiness answers %d %q, want 503 and why", status, body)
			}
			return nil
		})
	}
	exits := func(t *testing.T, k *harness.KubeDNS, start time.Time, least, most time.Duration) {
		t.Helper()
		code, err := k.Wait(most + 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < least || took > most {
			t.Errorf("it took %v to exit, want %v to %v", took, least, most)
		}
		if code != 0 {
			t.Errorf("it exited with %d, want 0", code)
		}
	}
	signal := func(t *testing.T, k *harness.KubeDNS, sig syscall.Signal) time.Time {
		t.Helper()
		if err := k.Signal(sig); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	}

	t.Run("while questions come, for the whole period", func(t *testing.T) {
		t.Parallel()
		const period = 4 * time.Second
		k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: kubeDNS(t), Kubeconfig: admin, Args: []string{"--drain-period=" + period.String()},
		})
		watch := watchName(t, k.Addr, name)
		start := signal(t, k, syscall.SIGTERM)
		unready(t, k)
		// Every question until shortly before the end is answered.
		harness.Eventually(t, period, func() error {
			if time.Since(start) < period-500*time.Millisecond {
				return fmt.Errorf("the drain period has not passed")
			}
			return nil
		})
		watch.stop(t)
		exits(t, k, start, period-500*time.Millisecond, period+5*time.Second)
	})

	for name, sig := range map[string]syscall.Signal{
		"early when no question comes": syscall.SIGTERM, "SIGINT drains too": syscall.SIGINT,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary: kubeDNS(t), Kubeconfig: admin, Args: []string{"--drain-period=60s"},
			})
			start := signal(t, k, sig)
			unready(t, k)
			exits(t, k, start, 1900*time.Millisecond, 15*time.Second)
		})
	}

	t.Run("a second signal ends it at once", func(t *testing.T) {
		t.Parallel()
		k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: kubeDNS(t), Kubeconfig: admin, Args: []string{"--drain-period=60s"}, NoCheckExit: true,
		})
		watchName(t, k.Addr, name)
		signal(t, k, syscall.SIGTERM)
		unready(t, k)
		start := signal(t, k, syscall.SIGTERM)
		if _, err := k.Wait(5 * time.Second); err != nil {
			t.Errorf("%v after the second signal: %v", time.Since(start), err)
		}
	})

	t.Run("before it is ready", func(t *testing.T) {
		t.Parallel()
		api, err := url.Parse(c.URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := harness.StartProxy(t, api.Host, harness.ProxyRefuse)
		k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: kubeDNS(t), NoWait: true,
			Kubeconfig: kubeconfig(t, c, "", "https://"+proxy.Addr),
			Args:       []string{"--drain-period=60s"},
		})
		unready(t, k)
		start := signal(t, k, syscall.SIGTERM)
		exits(t, k, start, 0, 15*time.Second)
	})
}

// TestRotation asks over and over: answers of equal rank change places.
func TestRotation(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	ns := ownNamespace(t, c)
	createService(t, c, ns, headlessService("wheel"))
	createSlice(t, c, ns, slice("wheel-x", "wheel", 0, "10.213.0.1", "10.213.0.2", "10.213.0.3"))
	name := "wheel." + ns + ".svc." + zone
	awaitRcode(t, k.Addr, name, dns.RcodeSuccess, 10*time.Second)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		first := map[string]int{}
		const asked = 300
		for range asked {
			reply := ask(t, harness.Question{Server: k.Addr, Name: name, Type: qtype})
			if len(reply.Answer) != 3 {
				t.Fatalf("got\n%s\nwant three answers", reply)
			}
			first[reply.Answer[0].String()]++
		}
		if len(first) != 3 {
			t.Errorf("%s: in %d replies only %v came first, want each of three", dns.TypeToString[qtype], asked, first)
		}
		for rr, n := range first {
			// A fair choice is below a quarter of its share once in a very long while.
			if n < asked/12 {
				t.Errorf("%s: %q came first %d times of %d", dns.TypeToString[qtype], rr, n, asked)
			}
		}
	}
}
