package apiserver

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns"
	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// forEachList runs a test against an API server that lists all at once and one
// that does so in small pages.
func forEachList(t *testing.T, f func(t *testing.T, pageSize int)) {
	t.Helper()
	for _, pageSize := range []int{2, 1000} {
		t.Run(fmt.Sprintf("pages of %d", pageSize), func(t *testing.T) {
			t.Parallel()
			f(t, pageSize)
		})
	}
}

// TestClusterHistory follows random histories over watches
// that end and changes that no watch has seen, and compares with the tree that
// the last state alone makes.
func TestClusterHistory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	forEachList(t, func(t *testing.T, pageSize int) {
		t.Helper()
		g := clustertest.Generator{Rand: rand.New(rand.NewPCG(seed, 0))}
		s, final := newAPIServer(t, pageSize), clustertest.NewState()
		for range 30 {
			s.change(g.Change(final))
		}
		kd := s.kubeDNS(t)
		clustertest.Start(t, kd.Run)
		for round := range 2 {
			for range 60 {
				s.do(func() { s.change(g.Change(final)) })
				// Where nothing else follows, each event alone has to do.
				if g.IntN(2) == 0 {
					if diff := clustertest.WaitForTree(kd, sourcetest.Tree(final)); diff != "" {
						t.Fatalf("seed %d, round %d: %s", seed, round, diff)
					}
				}
			}
			// While nobody can watch, objects change and go unseen: the
			// next list does not have them.
			s.do(func() {
				s.restart()
				for range 40 {
					s.change(g.Change(final))
				}
				s.restart()
			})
			for range 10 {
				s.do(func() { s.change(g.Change(final)) })
			}
			diff := clustertest.WaitForTree(kd, sourcetest.Tree(final))
			if diff != "" {
				t.Fatalf("seed %d, round %d: %s", seed, round, diff)
			}
		}
		if !kd.HasSynced() {
			t.Error("not synced")
		}
		if n := get(s, func() int { return s.lists["services"] }); n < 3 {
			t.Errorf("the services were listed %d times: the watches did not come too late", n)
		}
	})
}

// TestClusterDeletedUnseen: what was deleted while no watch was open is gone, and
// the other owner of an address stays.
func TestClusterDeletedUnseen(t *testing.T) {
	forEachList(t, func(t *testing.T, pageSize int) {
		t.Helper()
		s := newAPIServer(t, pageSize)
		services, all := clustertest.Parse(t, clustertest.HeadlessDB+`
---
{kind: Service, metadata: {name: other}, spec: {clusterIP: 192.0.2.1}}
---
{kind: Service, metadata: {name: moved}, spec: {clusterIP: None}}`+
			clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`+
			clustertest.Slice6+`endpoints: [{addresses: ["2001:db8::1"], hostname: a}]}`)
		for _, o := range services {
			s.set(o)
		}
		for _, o := range all {
			s.set(o)
		}
		kd := s.kubeDNS(t)
		clustertest.Start(t, kd.Run)
		clustertest.Eventually(t, "the records are complete", kd.HasSynced)
		if got := clustertest.ReverseNames(kd.Tree(), clustertest.Addrs("192.0.2.1")[0]); len(got) != 2 {
			t.Fatalf("PTR records %q", got)
		}
		// One slice goes, and another of that name belongs to another Service.
		moved := all[1].DeepCopy()
		moved.Labels[discoveryv1.LabelServiceName] = "moved"
		s.do(func() {
			s.restart()
			s.remove(all[0])
			s.set(moved)
			s.restart()
		})
		want := clustertest.Lines(`
			3365393837663430.other.default.svc A 192.0.2.1
			a.moved.default.svc AAAA 2001:db8::1
			moved.default.svc AAAA 2001:db8::1
			other.default.svc A 192.0.2.1
			1.2.0.192.in-addr.arpa. PTR other.default.svc
			1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR a.moved.default.svc`)
		clustertest.Eventually(t, "the slice is gone", func() bool { return len(clustertest.ReverseNames(kd.Tree(), clustertest.Addrs("192.0.2.1")[0])) == 1 })
		clustertest.Eventually(t, "the other slice has moved", func() bool {
			return slices.Equal(clustertest.ReverseNames(kd.Tree(), clustertest.Addrs("2001:db8::1")[0]), []string{"a.moved.default.svc.cluster.local."})
		})
		if got := clustertest.ZoneText(kd.Tree()); got != want {
			t.Errorf("records\n%s\nwant\n%s", got, want)
		}
		// A Service that goes unseen.
		s.do(func() {
			s.restart()
			s.remove(services[2])
			s.remove(services[1])
			s.restart()
		})
		clustertest.Eventually(t, "nothing is left", func() bool { return clustertest.ZoneText(kd.Tree()) == "" })
	})
}

// TestClusterSync: nothing is complete before both resources are listed, what
// is missing is said in words, and the API server's refusals are counted.
func TestClusterSync(t *testing.T) {
	forEachList(t, func(t *testing.T, pageSize int) {
		t.Helper()
		s := newAPIServer(t, pageSize)
		services, all := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
		s.set(services[0])
		s.set(all[0])
		s.failures["services"] = http.StatusForbidden
		s.failures["endpointslices"] = http.StatusInternalServerError
		src, kd := s.source(t)
		registry := prometheus.NewPedanticRegistry()
		if err := errors.Join(registry.Register(kd), registry.Register(src)); err != nil {
			t.Fatal(err)
		}
		if got, want := kd.Missing(), "services not listed yet; endpointslices not listed yet"; got != want {
			t.Errorf("before Run, Missing() = %q, want %q", got, want)
		}
		stop := clustertest.Start(t, kd.Run)
		for _, want := range []string{"services not listed yet: ", "services is Forbidden", "endpointslices not listed yet: ", "endpointslices is Internal Server Error"} {
			clustertest.Eventually(t, "the API server's error shows: "+want, func() bool { return strings.Contains(kd.Missing(), want) })
		}
		clustertest.Eventually(t, "the refusals are counted", func() bool {
			return clustertest.Metric(t, registry, "kubedns_apiserver_errors_total", "services", "forbidden") > 0 &&
				clustertest.Metric(t, registry, "kubedns_apiserver_errors_total", "endpointslices", "internalerror") > 0
		})
		if !kd.Status().LastContact.IsZero() {
			t.Error("a refusal counts as contact")
		}

		s.do(func() { s.failures["services"] = 0 })
		want := "endpointslices not listed yet"
		clustertest.Eventually(t, "the services are listed", func() bool { return strings.HasPrefix(kd.Missing(), want) })
		if kd.HasSynced() {
			t.Error("synced without the slices")
		}
		s.do(func() { s.failures["endpointslices"] = 0 })
		clustertest.Eventually(t, "the records are complete", kd.HasSynced)
		if got := kd.Missing(); got != "" {
			t.Errorf("Missing() = %q once synced", got)
		}
		if got := clustertest.ZoneText(kd.Tree()); !strings.Contains(got, "a.db.default.svc A 192.0.2.1") {
			t.Errorf("synced with the records\n%s", got)
		}
		for name, want := range map[string]float64{"kubedns_services": 1, "kubedns_endpoint_slices": 1} {
			if got := clustertest.Metric(t, registry, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
		for rrtype, want := range map[string]float64{"A": 1, "AAAA": 0, "SRV": 0, "PTR": 1, "CNAME": 0} {
			if got := clustertest.Metric(t, registry, "kubedns_records", rrtype); got != want {
				t.Errorf("kubedns_records of type %s = %v, want %v", rrtype, got, want)
			}
		}
		if got := clustertest.Metric(t, registry, "kubedns_apiserver_last_contact_seconds"); got < 0 || got > 60 {
			t.Errorf("the last contact was %v s ago", got)
		}

		// The API server goes away: answers stay, and its absence shows.
		stop()
		if got := clustertest.ZoneText(kd.Tree()); !strings.Contains(got, "a.db.default.svc A 192.0.2.1") {
			t.Errorf("after the end the records are\n%s", got)
		}
	})
}

// TestClusterAway: an API server that is away after the records were complete
// changes no record, and is said to be away.
func TestClusterAway(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.1}}`)
	s.set(services[0])
	src, kd := s.source(t)
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(kd), registry.Register(src)); err != nil {
		t.Fatal(err)
	}
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	before := clustertest.ZoneText(kd.Tree())
	s.do(func() {
		s.failures["services"], s.failures["endpointslices"] = http.StatusUnauthorized, http.StatusUnauthorized
		s.restart()
	})
	clustertest.Eventually(t, "the refusals are counted", func() bool {
		return clustertest.Metric(t, registry, "kubedns_apiserver_errors_total", "services", "unauthorized") > 0
	})
	if got := clustertest.ZoneText(kd.Tree()); got != before || !kd.HasSynced() || kd.Missing() != "" {
		t.Errorf("synced %v, missing %q, records\n%s\nwant\n%s", kd.HasSynced(), kd.Missing(), got, before)
	}
}

// TestClusterWarns: a failure is warned of at once, then once a minute while it
// lasts, and at once after the API server was heard in between.
func TestClusterWarns(t *testing.T) {
	c := newContact()
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		name  string
		after time.Duration
		heard bool
		want  bool
	}{
		{"the first", 0, false, true},
		{"soon again", 30 * time.Second, false, false},
		{"a minute later", time.Minute, false, true},
		{"soon after that", 61 * time.Second, false, false},
		{"heard in between", 62 * time.Second, true, true},
	} {
		if step.heard {
			c.heard("services")
		}
		if got := c.note("services", io.ErrUnexpectedEOF, start.Add(step.after)); got != step.want {
			t.Errorf("%s: warned %v, want %v", step.name, got, step.want)
		}
		if got := c.note("configmaps", io.ErrUnexpectedEOF, start.Add(step.after)); !step.heard && got != step.want {
			t.Errorf("%s: warned %v of the ConfigMap, want %v", step.name, got, step.want)
		}
	}
}

// TestMetricsWhileStarting: metrics may be asked for at any time.
func TestMetricsWhileStarting(t *testing.T) {
	t.Parallel()
	src, kd := newAPIServer(t, 1000).source(t)
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(kd), registry.Register(src)); err != nil {
		t.Fatal(err)
	}
	const name = "kubedns_apiserver_last_contact_seconds"
	if got := clustertest.Metric(t, registry, name); got > 60 {
		t.Errorf("%s is %v before the start", name, got)
	}
	clustertest.Start(t, kd.Run)
	clustertest.Metric(t, registry, name)
}

// TestClusterNodes: Nodes are watched while a federation is configured, and
// only then.
func TestClusterNodes(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	node := func(name string, labels map[string]string) {
		s.do(func() { s.set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}) })
	}
	node("b", map[string]string{"topology.kubernetes.io/zone": "zb", "topology.kubernetes.io/region": "r"})
	node("a", map[string]string{"topology.kubernetes.io/zone": "za"}) // without a region it does not count
	src, kd := s.source(t)
	stop := clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	target := func() string {
		name, ok := kd.Federated([]string{"web", "default", "fed"})
		if !ok {
			return "no federation"
		}
		return name
	}
	watched := func() int { return get(s, func() int { return s.watches["nodes"] }) }
	lists := func() int { return get(s, func() int { return s.lists["nodes"] }) }
	if watched() != 0 || lists() != 0 || target() != "no federation" {
		t.Errorf("without a federation: %d watches, %d lists, %q", watched(), lists(), target())
	}
	want := "web.default.fed.svc.zb.r.example.org."
	for round := range 3 {
		kd.SetFederations(map[string]string{"fed": "example.org"})
		clustertest.Eventually(t, "the topology is known", func() bool { return target() == want })
		// What was listed shows before the watch has begun.
		clustertest.Eventually(t, "the nodes are watched", func() bool { return watched() == 1 })
		// Another configuration goes on with the same watch.
		n := lists()
		kd.SetFederations(map[string]string{"fed": "example.org", "other": "example.com"})
		clustertest.Eventually(t, "the configuration is taken", func() bool { return len(src.nodes.changed) == 0 })
		if got := lists(); got != n || watched() != 1 {
			t.Errorf("round %d: the nodes were listed anew, or have %d watches", round, watched())
		}
		kd.SetFederations(map[string]string{})
		clustertest.Eventually(t, "the watch is closed", func() bool { return watched() == 0 })
		if got := target(); got != "no federation" {
			t.Errorf("round %d: federated to %q", round, got)
		}
		if zone, region := src.Topology(); zone != "" || region != "" {
			t.Errorf("round %d: topology %q, %q without a watch", round, zone, region)
		}
	}
	// The first Node by name that has both counts, the older labels as well.
	kd.SetFederations(map[string]string{"fed": "example.org"})
	clustertest.Eventually(t, "the topology is known", func() bool { return target() == want })
	node("a", map[string]string{"failure-domain.beta.kubernetes.io/zone": "za", "failure-domain.beta.kubernetes.io/region": "ra"})
	clustertest.Eventually(t, "a change of the nodes shows", func() bool { return target() == "web.default.fed.svc.za.ra.example.org." })
	stop()
	clustertest.Eventually(t, "the watch is closed", func() bool { return watched() == 0 })
}

// TestClusterStops: Run returns in whatever state it is told to, and leaves no
// goroutine.
func TestClusterStops(t *testing.T) {
	for _, tt := range []struct {
		name  string
		until func(t *testing.T, s *apiServer, kd *dns.KubeDNS)
	}{
		{"at once", func(*testing.T, *apiServer, *dns.KubeDNS) {}},
		{"while the API server refuses", func(t *testing.T, s *apiServer, _ *dns.KubeDNS) {
			t.Helper()
			s.do(func() { s.failures["services"] = http.StatusForbidden })
			clustertest.Eventually(t, "it was asked", func() bool { return get(s, func() int { return s.lists["endpointslices"] }) > 0 })
		}},
		{"once synced, with a federation", func(t *testing.T, s *apiServer, kd *dns.KubeDNS) {
			t.Helper()
			kd.SetFederations(map[string]string{"fed": "example.org"})
			clustertest.Eventually(t, "the records are complete", kd.HasSynced)
			clustertest.Eventually(t, "the nodes are watched", func() bool { return get(s, func() int { return s.watches["nodes"] }) == 1 })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			s := newAPIServer(t, 1000)
			kd := s.kubeDNS(t)
			stop := clustertest.Start(t, kd.Run)
			tt.until(t, s, kd)
			stop()
			s.CloseClientConnections()
			s.Close()
			goleak.VerifyNone(t, before)
		})
	}
}

// TestProgrammingDuration: each kind of Service is measured from its change to
// its records; what was there at the start is not.
func TestProgrammingDuration(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: old, creationTimestamp: "2024-05-01T12:00:00Z"}, spec: {clusterIP: 192.0.2.1}}`)
	s.set(services[0])
	src, kd := s.source(t)
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(kd), registry.Register(src)); err != nil {
		t.Fatal(err)
	}
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	if n := clustertest.Metric(t, registry, "kubedns_dns_programming_duration_seconds"); n != 0 {
		t.Errorf("%v measurements of what was there at the start", n)
	}
	later, all := clustertest.Parse(t, `{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.2}}
---
{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: example.org}}
---
`+clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.3]}]}`)
	s.do(func() {
		for _, o := range later {
			// A Service's creation has whole seconds; that of the one before
			// the start would not count.
			o.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second))
			s.set(o)
		}
	})
	for _, kind := range []string{"cluster_ip", "external_name"} {
		clustertest.Eventually(t, kind+" is measured", func() bool {
			return clustertest.Metric(t, registry, "kubedns_dns_programming_duration_seconds", kind) == 1
		})
	}
	clustertest.Eventually(t, "the headless Service is known", func() bool { return kd.Status().Services == 4 })
	before := clustertest.Metric(t, registry, "kubedns_dns_programming_duration_seconds", "headless")
	all[0].Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	s.do(func() { s.set(all[0]) })
	clustertest.Eventually(t, "headless is measured", func() bool {
		return clustertest.Metric(t, registry, "kubedns_dns_programming_duration_seconds", "headless") > before
	})
}

// TestNoAPIServer: what answers in place of an API server, kindly and with 200,
// is no contact, and takes nothing away.
func TestNoAPIServer(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.1}}`)
	s.set(services[0])
	kd := s.kubeDNS(t)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	var asked atomic.Int64
	s.do(func() {
		s.instead = func(w http.ResponseWriter) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"status": "ok"}`) // whoever asked may be gone
		}
		s.restart()
	})
	clustertest.Eventually(t, "both were asked again", func() bool { return asked.Load() > 3 })
	before := kd.Status().LastContact
	asked.Store(0)
	clustertest.Eventually(t, "both were asked again", func() bool { return asked.Load() > 3 })
	if now := kd.Status().LastContact; now != before {
		t.Errorf("contact at %v and at %v", before, now)
	}
	if !strings.Contains(clustertest.ZoneText(kd.Tree()), "192.0.2.1") {
		t.Error("the records are gone")
	}
}
