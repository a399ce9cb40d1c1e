package e2e

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

const zone = "cluster.local."

// TestRecords plays the cases against two kube-dns, one on IPv4 and one on
// IPv6, which must agree.
func TestRecords(t *testing.T) {
	c := cluster(t)
	upstream := harness.StartUpstream(t, "testdata/upstream.conf")
	options := harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: upstream,
	}
	servers := []string{harness.StartKubeDNS(t, options).Addr}
	if ipv6(t) {
		options.Host = "::1"
		servers = append(servers, harness.StartKubeDNS(t, options).Addr)
	}
	p := &harness.Player{Cluster: c, Servers: servers, Zone: zone, Timeout: 10 * time.Second}
	p.Play(t, harness.LoadCases(t, "testdata/cases/*.yaml"))
}

// TestFederation plays the cases of federations.
func TestFederation(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c),
		Nameservers: harness.StartUpstream(t, "testdata/upstream.conf"),
		Args:        []string{"--federations=mars=fed.example.org"},
	})
	p := &harness.Player{Cluster: c, Servers: []string{k.Addr}, Zone: zone, Timeout: 10 * time.Second}
	p.Play(t, harness.LoadCases(t, "testdata/federation/*.yaml"))
}

// TestOtherDomain asks a kube-dns whose cluster domain is another, which is
// spelled with capitals and without its dot.
func TestOtherDomain(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Args: []string{"--domain=K8s.example.net"},
	})
	for _, tt := range []struct {
		name, qname string
		qtype       uint16
		want        string
	}{
		{"service", "kubernetes.default.svc.k8s.example.net.", dns.TypeA, "kubernetes.default.svc.k8s.example.net. 30 IN A 10.96.0.1"},
		{"reverse", "1.0.96.10.in-addr.arpa.", dns.TypePTR, "1.0.96.10.in-addr.arpa. 30 IN PTR kubernetes.default.svc.k8s.example.net."},
		{"version", "dns-version.k8s.example.net.", dns.TypeTXT, `dns-version.k8s.example.net. 28800 IN TXT "1.1.0"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reply := ask(t, harness.Question{Server: k.Addr, Name: tt.qname, Type: tt.qtype})
			if len(reply.Answer) != 1 {
				t.Fatalf("%d answers, want %q, in\n%s", len(reply.Answer), tt.want, reply)
			}
			if got := strings.Join(strings.Fields(reply.Answer[0].String()), " "); !strings.EqualFold(got, tt.want) {
				t.Errorf("answer %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("the default domain is another server's", func(t *testing.T) {
		reply := ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc.cluster.local.", Type: dns.TypeA})
		if reply.Rcode != dns.RcodeServerFailure || reply.Authoritative {
			t.Errorf("got\n%s\nwant SERVFAIL, since it is forwarded and no upstream answers", reply)
		}
	})
}

// TestEveryAddress asks a kube-dns that listens on all addresses of one
// family: the reply must come from the address that was asked.
func TestEveryAddress(t *testing.T) {
	c := cluster(t)
	for _, tt := range []struct{ host, asked string }{
		{"0.0.0.0", "127.0.0.1"},
		{"0.0.0.0", "127.0.0.2"},
		{"::", "::1"},
	} {
		t.Run(tt.host+" asked at "+tt.asked, func(t *testing.T) {
			if strings.Contains(tt.host, ":") && !ipv6(t) {
				t.Skip("no IPv6 on this machine")
			}
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Host: tt.host,
			})
			_, port, err := net.SplitHostPort(k.Addr)
			if err != nil {
				t.Fatal(err)
			}
			for _, tcp := range []bool{false, true} {
				reply := ask(t, harness.Question{
					Server: net.JoinHostPort(tt.asked, port), TCP: tcp,
					Name: "kubernetes.default.svc.cluster.local.", Type: dns.TypeA,
				})
				if len(reply.Answer) != 1 {
					t.Errorf("tcp %v: got\n%s\nwant one answer", tcp, reply)
				}
			}
		})
	}
}

// ask asks and fails the test where there is no reply.
func ask(t testing.TB, q harness.Question) *harness.Reply {
	t.Helper()
	reply, err := harness.Ask(t.Context(), q)
	if err != nil {
		t.Fatalf("asking %s for %s %s: %v", q.Server, q.Name, dns.TypeToString[q.Type], err)
	}
	return reply
}

// ipv6 reports whether this machine has ::1.
func ipv6(t testing.TB) bool {
	t.Helper()
	c, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Logf("no IPv6 on this machine, so nothing is asked over it: %v", err)
		return false
	}
	c.Close()
	return true
}
