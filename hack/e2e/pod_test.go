package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// TestPod runs a pod of the base and of the overlay direct, and asks it.
func TestPod(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, dir string
		direct    bool
		ipv6      bool
	}{
		{name: "base", dir: pods.DeployDir},
		{name: "direct", dir: filepath.Join(pods.DeployDir, "overlays", "direct"), direct: true},
		{name: "dual-stack", dir: filepath.Join(pods.DeployDir, "overlays", "dual-stack"), ipv6: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !pods.InOwnNetwork(t) {
				return
			}
			pods.PrepareNetwork(t, nil)
			c := ownCluster(t)
			pods.MakeObjects(t, c)
			upstream := harness.StartUpstream(t, "testdata/upstream.conf")
			stub := harness.StartUpstream(t, pods.StubConfig(t))
			p := pods.Start(t, c, tt.dir)
			p.AwaitHealthy(t)
			checkPrivileges(t, p)
			configure(t, p, stub, upstream)
			askPod(t, tt.direct)
			if tt.ipv6 {
				for _, server := range []string{"[::1]:53", "[::1]:10053"} {
					if reply := ask(t, harness.Question{Server: server, Name: "web.default.svc.cluster.local.", Type: dns.TypeA}); len(reply.Answer) != 1 {
						t.Errorf("%s answers\n%s", server, reply)
					}
				}
			}
			checkEndpoints(t, p)
			t.Run("metrics of rules and dashboard", func(t *testing.T) { checkMetricNames(t, p) })
			checkRefusal(t, p)
		})
	}
}

// TestPodStock runs the pod that clusters with kube-dns 1.2x have, of which
// nothing but the images is new, and the user of dnsmasq: where ports below
// 1024 are kept for root, as here, it has to be root.
func TestPodStock(t *testing.T) {
	if !pods.InOwnNetwork(t) {
		return
	}
	pods.PrepareNetwork(t, []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "1024"}})
	c := ownCluster(t)
	pods.MakeObjects(t, c)
	upstream := harness.StartUpstream(t, "testdata/upstream.conf")
	stub := harness.StartUpstream(t, pods.StubConfig(t))
	pods.NewApplier(t, c).ApplyAll(t, pods.Kustomize(t, pods.DeployDir))
	p := pods.Start(t, c, "testdata/pod-stock")
	p.AwaitHealthy(t)
	configure(t, p, stub, upstream)
	askPod(t, false)
}

// configure gives the pod a stub domain and an upstream nameserver, and waits
// until it has them.
func configure(t testing.TB, p *pods.Pod, stub, upstream string) {
	t.Helper()
	p.SetConfig(t, map[string]string{
		"stubDomains":         fmt.Sprintf(`{"corp.example.net": [%q]}`, stub),
		"upstreamNameservers": fmt.Sprintf(`[%q]`, upstream),
	})
	harness.Eventually(t, 20*time.Second, func() error {
		reply, err := harness.Ask(t.Context(), harness.Question{Server: pods.Server, Name: "db.corp.example.net.", Type: dns.TypeA})
		if err == nil && len(reply.Answer) == 0 {
			err = fmt.Errorf("no answer in %s", reply)
		}
		return err
	})
}

// askPod asks a question of each kind.
func askPod(t *testing.T, direct bool) {
	t.Helper()
	for _, tt := range []struct {
		name, qname string
		qtype       uint16
		tcp         bool
		rcode       int
		want        []string // the answers' data, in any order
		directOnly  bool
	}{
		{name: "cluster IP", qname: "web.default.svc.cluster.local.", qtype: dns.TypeA, want: []string{"10.96.7.7"}},
		{name: "cluster IP over TCP", qname: "web.default.svc.cluster.local.", qtype: dns.TypeA, tcp: true, want: []string{"10.96.7.7"}},
		{name: "NODATA", qname: "web.default.svc.cluster.local.", qtype: dns.TypeAAAA},
		{name: "headless", qname: "db.default.svc.cluster.local.", qtype: dns.TypeA, want: []string{"10.244.1.1", "10.244.1.2", "10.244.1.3"}},
		{name: "endpoint", qname: "p1.db.default.svc.cluster.local.", qtype: dns.TypeA, want: []string{"10.244.1.2"}},
		{name: "SRV", qname: "_http._tcp.web.default.svc.cluster.local.", qtype: dns.TypeSRV, want: []string{"10 100 80 web.default.svc.cluster.local."}},
		{name: "PTR", qname: "7.7.96.10.in-addr.arpa.", qtype: dns.TypePTR, want: []string{"web.default.svc.cluster.local."}},
		{name: "pod", qname: "10-244-9-9.default.pod.cluster.local.", qtype: dns.TypeA, want: []string{"10.244.9.9"}},
		{name: "NXDOMAIN", qname: "nosuch.default.svc.cluster.local.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "the service itself", qname: "kube-dns.kube-system.svc.cluster.local.", qtype: dns.TypeA, want: []string{"10.96.0.10"}},
		{name: "upstream", qname: "www.example.org.", qtype: dns.TypeA, want: []string{"192.0.2.80"}},
		{name: "upstream over TCP", qname: "www.example.org.", qtype: dns.TypeAAAA, tcp: true, want: []string{"2001:db8::80"}},
		{name: "text upstream over TCP", qname: "text.example.org.", qtype: dns.TypeTXT, tcp: true, want: []string{`"as the upstream has it"`}},
		{name: "stub domain", qname: "db.corp.example.net.", qtype: dns.TypeA, want: []string{"192.0.2.55"}},
		{name: "stub domain over TCP", qname: "db.corp.example.net.", qtype: dns.TypeA, tcp: true, want: []string{"192.0.2.55"}},
		{name: "ExternalName upstream", qname: "docs.default.svc.cluster.local.", qtype: dns.TypeA, want: []string{"www.example.org.", "192.0.2.80"}},
		{name: "ExternalName in a stub domain", qname: "partner.default.svc.cluster.local.", qtype: dns.TypeA, want: []string{"db.corp.example.net.", "192.0.2.55"}, directOnly: true},
		{name: "a reverse name that nobody has", qname: "9.9.9.203.in-addr.arpa.", qtype: dns.TypePTR, rcode: dns.RcodeNameError},
	} {
		if tt.directOnly && !direct {
			continue // elsewhere kube-dns asks the upstream nameservers for external names, not dnsmasq
		}
		t.Run(tt.name, func(t *testing.T) {
			reply := ask(t, harness.Question{Server: pods.Server, Name: tt.qname, Type: tt.qtype, TCP: tt.tcp})
			var got []string
			for _, rr := range reply.Answer {
				got = append(got, strings.TrimPrefix(rr.String(), rr.Header().String()))
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if reply.Rcode != tt.rcode || !slices.Equal(got, tt.want) {
				t.Errorf("%s, answers %q; want %s, %q", dns.RcodeToString[reply.Rcode], got, dns.RcodeToString[tt.rcode], tt.want)
			}
		})
	}
}

// checkEndpoints asks what probes and Prometheus ask.
func checkEndpoints(t *testing.T, p *pods.Pod) {
	t.Helper()
	for _, tt := range []struct{ path, want string }{
		{"8081/readiness", "ok"},
		{"8081/cache?name=web.default.svc.cluster.local", "10.96.7.7"},
		{"10054/healthcheck/kubedns", `"IsOk":true`},
		{"10054/healthcheck/dnsmasq", `"IsOk":true`},
		{"10054/healthz", "ok"},
		{"10054/metrics", "kubedns_dnsmasq_hits"},
		{"10055/metrics", "skydns_skydns_dns_request_count_total"},
		{"10056/metrics", `kubedns_nanny_server_in_force{domain="corp.example.net"`},
	} {
		t.Run(tt.path, func(t *testing.T) {
			if status, body := p.Get(t, tt.path); status != http.StatusOK || !strings.Contains(body, tt.want) {
				t.Errorf("%d, want 200 and %q in\n%s", status, tt.want, body)
			}
		})
	}
}

// checkPrivileges looks at every process of the pod.
func checkPrivileges(t *testing.T, p *pods.Pod) {
	t.Helper()
	for name, pid := range map[string]int{
		"kubedns": p.PID(t, "kubedns"), "nanny": p.PID(t, "dnsmasq"), "dnsmasq": p.DnsmasqPID(t), "sidecar": p.PID(t, "sidecar"),
	} {
		t.Run(name+" has no privileges", func(t *testing.T) {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				t.Fatal(err)
			}
			status := map[string]string{}
			for line := range strings.Lines(string(text)) {
				key, value, _ := strings.Cut(line, ":")
				status[key] = strings.Join(strings.Fields(value), " ")
			}
			for key, want := range map[string]string{
				"Uid": "1001 1001 1001 1001", "Gid": "1001 1001 1001 1001", "NoNewPrivs": "1", "Seccomp": "2",
				"CapPrm": strings.Repeat("0", 16), "CapEff": strings.Repeat("0", 16), "CapBnd": strings.Repeat("0", 16), "CapAmb": strings.Repeat("0", 16),
			} {
				if status[key] != want {
					t.Errorf("%s is %q, want %q", key, status[key], want)
				}
			}
		})
	}
}

// checkRefusal gives the pod a ConfigMap with a mistake: what was in force
// stays, and can be seen to.
func checkRefusal(t *testing.T, p *pods.Pod) {
	t.Helper()
	t.Run("a ConfigMap with a mistake is refused", func(t *testing.T) {
		p.SetConfig(t, map[string]string{"stubDomains": `{"corp.example.net": ["192.0.2.300"]}`})
		harness.Eventually(t, 20*time.Second, func() error {
			if _, body := p.Get(t, "10056/metrics"); !strings.Contains(body, `kubedns_nanny_reloads_total{result="refused"} 1`) {
				return fmt.Errorf("the nanny has not refused it")
			}
			return nil
		})
		reply := ask(t, harness.Question{Server: pods.Server, Name: "db.corp.example.net.", Type: dns.TypeA})
		if len(reply.Answer) != 1 {
			t.Errorf("the stub domain is gone: %s", reply)
		}
	})
}
