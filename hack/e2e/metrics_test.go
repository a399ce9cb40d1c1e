package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// TestMetrics asks questions and looks which metrics have moved, each by one.
func TestMetrics(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c),
		Nameservers: harness.StartUpstream(t, "testdata/upstream.conf"),
	})
	ns := ownNamespace(t, c)
	createService(t, c, ns, headlessService("crowd"))
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("10.214.0.%d", i+1))
	}
	createSlice(t, c, ns, slice("crowd-x", "crowd", 0, all...))
	crowd := "crowd." + ns + ".svc." + zone
	harness.Eventually(t, 10*time.Second, func() error {
		if got, _ := addresses(t, k.Addr, crowd); len(got) != len(all) {
			return fmt.Errorf("%d addresses, want %d", len(got), len(all))
		}
		return nil
	})

	askAndCount(t, k, crowd)
	m := k.ScrapeMetrics(t)
	checkValues(t, m)
	t.Run("programming duration has every kind of Service", func(t *testing.T) { checkProgrammingDuration(t, c, k, ns) })
	t.Run("errors of the API server are a counter by resource and reason", func(t *testing.T) {
		// Until something fails it may have no sample; its family says what it is.
		if f := m["kubedns_apiserver_errors_total"]; f != nil && f.GetType().String() != "COUNTER" {
			t.Errorf("its type is %s", f.GetType())
		}
	})
}

// Names of metrics, as SkyDNS had them.
const (
	metricRequests = "skydns_skydns_dns_request_count_total"
	metricDuration = "skydns_skydns_dns_request_duration_seconds"
	metricSize     = "skydns_skydns_dns_response_size_bytes"
	metricErrors   = "skydns_skydns_dns_error_count_total"
)

// askAndCount asks questions of each kind, and looks what each has counted;
// crowd is a name with more answers than UDP takes.
func askAndCount(t *testing.T, k *harness.KubeDNS, crowd string) {
	t.Helper()
	for _, tt := range []struct {
		name, qname string
		qtype       uint16
		tcp         bool
		system      string
		cause       string // "" is none
	}{
		{"address", "kubernetes.default.svc." + zone, dns.TypeA, false, "auth", ""},
		{"address over TCP", "kubernetes.default.svc." + zone, dns.TypeA, true, "auth", ""},
		{"SRV", "_https._tcp.kubernetes.default.svc." + zone, dns.TypeSRV, false, "auth", ""},
		{"wildcard", "*.default.svc." + zone, dns.TypeA, false, "auth", ""},
		{"nxdomain", "nosuch.default.svc." + zone, dns.TypeA, false, "auth", "nxdomain"},
		{"nodata", "kubernetes.default.svc." + zone, dns.TypeAAAA, false, "auth", "nodata"},
		{"truncated", crowd, dns.TypeA, false, "auth", "truncated"},
		{"reverse", "1.0.96.10.in-addr.arpa.", dns.TypePTR, false, "reverse", ""},
		{"outside", "www.example.org.", dns.TypeA, false, "recursive", ""},
		{"outside nxdomain", "nosuch.example.org.", dns.TypeA, false, "recursive", "nxdomain"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := k.ScrapeMetrics(t)
			ask(t, harness.Question{Server: k.Addr, TCP: tt.tcp, Name: tt.qname, Type: tt.qtype})
			moved := func(after harness.Metrics, name string, labels ...string) float64 {
				b, _ := before.Value(name, labels...)
				a, _ := after.Value(name, labels...)
				return a - b
			}
			// The reply may be here before it has been counted.
			harness.Eventually(t, 2*time.Second, func() error {
				if n := moved(k.ScrapeMetrics(t), metricRequests); n < 1 {
					return fmt.Errorf("%s moved by %v, want 1", metricRequests, n)
				}
				return nil
			})
			after := k.ScrapeMetrics(t)
			for _, name := range []string{metricRequests, metricDuration, metricSize} {
				if n := moved(after, name); n != 1 {
					t.Errorf("%s moved by %v, want 1", name, n)
				}
				if n := moved(after, name, "system", tt.system); n != 1 {
					t.Errorf("%s{system=%q} moved by %v, want 1", name, tt.system, n)
				}
			}
			want := 1.0
			if tt.cause == "" {
				want = 0
			}
			if n := moved(after, metricErrors); n != want {
				t.Errorf("%s moved by %v, want %v", metricErrors, n, want)
			}
			if n := moved(after, metricErrors, "system", tt.system, "cause", tt.cause); n != want {
				t.Errorf("%s{system=%q,cause=%q} moved by %v, want %v", metricErrors, tt.system, tt.cause, n, want)
			}
		})
	}
}

// checkValues looks at what there is whether anything was asked or not.
func checkValues(t *testing.T, m harness.Metrics) {
	t.Helper()
	t.Run("every cause is there from the start", func(t *testing.T) {
		for _, system := range []string{"auth", "recursive", "reverse"} {
			for _, cause := range []string{"nxdomain", "nodata", "truncated", "refused", "overflow", "servfail"} {
				if _, ok := m.Value(metricErrors, "system", system, "cause", cause); !ok {
					t.Errorf("%s{system=%q,cause=%q} is missing", metricErrors, system, cause)
				}
			}
		}
	})
	for _, tt := range []struct {
		name   string
		labels []string
		least  float64
		most   float64
	}{
		{"skydns_skydns_dns_cachemiss_count_total", nil, 1, 1e6},
		{"kubedns_services", nil, 2, 1e4},
		{"kubedns_endpoint_slices", nil, 1, 1e4},
		{"kubedns_records", []string{"type", "A"}, 101, 1e5},
		{"kubedns_records", []string{"type", "SRV"}, 101, 1e5},
		{"kubedns_records", []string{"type", "PTR"}, 101, 1e5},
		{"kubedns_records", []string{"type", "AAAA"}, 0, 1e5},
		{"kubedns_config_last_reload_successful", nil, 1, 1},
		{"kubedns_config_last_reload_success_timestamp_seconds", nil, 1e9, 1e11},
		{"kubedns_apiserver_last_contact_seconds", nil, 0, 120},
		{"kubedns_panics_total", nil, 0, 0},
		{"kubedns_build_info", nil, 1, 1},
		{"go_goroutines", nil, 1, 1000},
		{"process_resident_memory_bytes", nil, 1e6, 1e10},
	} {
		t.Run(tt.name+strings.Join(tt.labels, ""), func(t *testing.T) {
			v, ok := m.Value(tt.name, tt.labels...)
			if !ok {
				t.Fatal("it is missing")
			}
			if v < tt.least || v > tt.most {
				t.Errorf("it is %v, want %v to %v", v, tt.least, tt.most)
			}
		})
	}
}

// checkProgrammingDuration makes a Service of each kind in the Namespace ns.
func checkProgrammingDuration(t *testing.T, c *harness.ControlPlane, k *harness.KubeDNS, ns string) {
	t.Helper()
	// A Service's creation has whole seconds, and what is older than the
	// program is not measured.
	harness.NextSecond(t)
	createService(t, c, ns, clusterIPService("single", ""))
	external := clusterIPService("external", "")
	external.Spec.Type, external.Spec.ExternalName, external.Spec.Ports = "ExternalName", "www.example.org", nil
	createService(t, c, ns, external)
	triggered := slice("crowd-y", "crowd", 100, "10.214.1.1")
	triggered.Annotations = map[string]string{
		"endpoints.kubernetes.io/last-change-trigger-time": time.Now().UTC().Format(time.RFC3339Nano),
	}
	createSlice(t, c, ns, triggered)
	for _, kind := range []string{"cluster_ip", "headless", "external_name"} {
		harness.Eventually(t, 5*time.Second, func() error {
			if v, _ := k.ScrapeMetrics(t).Value("kubedns_dns_programming_duration_seconds", "service_kind", kind); v == 0 {
				return fmt.Errorf("service_kind %q has no observation", kind)
			}
			return nil
		})
	}
}

// TestMetricsEnvironment sets the names and the path that the environment may
// set.
func TestMetricsEnvironment(t *testing.T) {
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c),
		Env: []string{"PROMETHEUS_PATH=/own", "PROMETHEUS_NAMESPACE=mine", "PROMETHEUS_SUBSYSTEM=here"},
	})
	ask(t, harness.Question{Server: k.Addr, Name: "kubernetes.default.svc." + zone, Type: dns.TypeA})
	status, body, err := harness.Get(t.Context(), http.DefaultClient, k.Metrics+"/own")
	if err != nil || status != http.StatusOK {
		t.Fatalf("GET /own: %d %v", status, err)
	}
	if !strings.Contains(body, "\nmine_here_dns_request_count_total{") {
		t.Errorf("mine_here_dns_request_count_total is missing in\n%s", body)
	}
	if strings.Contains(body, "skydns") {
		t.Error("a metric is still named skydns")
	}
}

// TestCacheDump reads /cache as operators do.
func TestCacheDump(t *testing.T) {
	type node struct {
		ChildNodes map[string]json.RawMessage
		Entries    map[string]struct {
			Host     string `json:"host"`
			Port     int    `json:"port"`
			Priority int    `json:"priority"`
			Weight   int    `json:"weight"`
			TTL      int    `json:"ttl"`
		}
	}
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	parse := func(t *testing.T, text string) node {
		t.Helper()
		var n node
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return n
	}
	hasAddress := func(t *testing.T, n node) {
		t.Helper()
		for _, e := range n.Entries {
			if e.Host == "10.96.0.1" && e.TTL == 30 {
				return
			}
		}
		t.Errorf("the entries are %+v, want one with the host 10.96.0.1", n.Entries)
	}
	// walk goes from the root along the domain's labels from the right.
	walk := func(t *testing.T, text string, labels ...string) node {
		t.Helper()
		n := parse(t, text)
		for _, label := range labels {
			child, ok := n.ChildNodes[label]
			if !ok {
				t.Fatalf("no child %q in %s", label, text)
			}
			n = parse(t, string(child))
		}
		return n
	}
	ns := ownNamespace(t, c)
	createService(t, c, ns, clusterIPService("beside", "10.96.31.1"))
	awaitAddress(t, k.Addr, "beside."+ns+".svc."+zone, "10.96.31.1", 10*time.Second)
	status, body := k.Get(t, "/cache")
	if status != http.StatusOK {
		t.Fatalf("/cache answers %d %q", status, body)
	}
	t.Run("all", func(t *testing.T) {
		if !strings.Contains(body, "\n\t") {
			t.Error("/cache is not indented with tabs")
		}
		hasAddress(t, walk(t, body, "local", "cluster", "svc", "default", "kubernetes"))
		walk(t, body, "local", "cluster", "svc", ns, "beside")
	})
	t.Run("one name", func(t *testing.T) {
		status, body := k.Get(t, "/cache?name=kubernetes.default.svc.cluster.local")
		if status != http.StatusOK {
			t.Fatalf("it answers %d %q", status, body)
		}
		hasAddress(t, walk(t, body, "local", "cluster", "svc", "default", "kubernetes"))
		if strings.Contains(body, "beside") {
			t.Errorf("it has more than the name asked for: %s", body)
		}
	})
	t.Run("below a name that is not there", func(t *testing.T) {
		if status, body := k.Get(t, "/cache?name=nosuch.default.svc.cluster.local"); status != http.StatusNotFound {
			t.Errorf("it answers %d %q, want 404", status, body)
		}
	})
}

// TestUserAgent makes sure that the API server can tell who asks it.
func TestUserAgent(t *testing.T) {
	t.Parallel()
	agents := make(chan string, 100)
	srv := newHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case agents <- r.UserAgent() + " " + r.Header.Get("Accept"):
		default:
		}
		http.Error(w, "not here", http.StatusNotFound)
	})
	harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), NoWait: true,
		Env:  []string{"E2E_MASTER=" + strings.TrimPrefix(srv, "http://")},
		Args: []string{"--kube-master-url=http://${E2E_MASTER}"},
	})
	want := regexp.MustCompile(`^kube-dns/\S+ \(` + runtime.GOOS + `/` + runtime.GOARCH + `\).* application/vnd.kubernetes.protobuf`)
	select {
	case agent := <-agents:
		if !want.MatchString(agent) {
			t.Errorf("user agent and accepted types are %q, want %v", agent, want)
		}
	case <-time.After(20 * time.Second):
		t.Error("the URL of --kube-master-url was not asked")
	}
}
