package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// explanation is what /explain answers as JSON, with the fields of docs/http.md.
type explanation struct {
	Question struct{ Asked, Search, Name, Type string }
	Resolves bool
	Reason   string
	Summary  string
	Advice   string
	Way      string
	Steps    []string
	Replies  []struct {
		Over []struct {
			Name   string
			Octets int
		}
		Rcode                         string
		Flags                         []string
		Answer, Authority, Additional []struct {
			Name, Class, Type, Data string
			TTL                     uint32
		}
	}
	Closest string
	Missing *struct{ Part, Name string }
	Near    []struct{ Name, Why string }
	Service *struct {
		Namespace, Name, Kind, Type, ResourceVersion string
		Addresses                                    []string
		RecordAgeSeconds                             *float64
		Slices                                       []struct {
			Name, LeftOut string
			Endpoints     []struct{ Address, Hostname, LeftOut string }
		}
	}
	Chain []struct {
		Name, Type, Target, Server, Fault string
		TTL                               uint32
		Addresses                         []string
	}
	Owners   []struct{ Name, Service, Why string }
	Search   []struct{ Name, Rcode, Note string }
	Upstream *struct {
		Name, Type, Server, Rcode, Error string
		Nameservers                      []struct{ Address, Result string }
	}
	Dnsmasq struct {
		Asks, Domain, Note string
		Servers            []string
		CachedSeconds      uint32
	}
	Omitted int
}

func explainPath(name, qtype, search string) string {
	v := url.Values{"name": {name}}
	for key, value := range map[string]string{"type": qtype, "search": search} {
		if value != "" {
			v.Set(key, value)
		}
	}
	return "/explain?" + v.Encode()
}

// explain asks k why name is answered as it is.
func explain(t *testing.T, k *harness.KubeDNS, name, qtype, search string) (*explanation, string) {
	t.Helper()
	start := time.Now()
	status, body := k.Get(t, explainPath(name, qtype, search))
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("explaining %s took %v, want 3s at most", name, took)
	}
	e := new(explanation)
	if err := json.Unmarshal([]byte(body), e); status != http.StatusOK || err != nil {
		t.Fatalf("explaining %s: %d, %v in\n%s", name, status, err, body)
	}
	return e, body
}

// situation is a question, and why it is answered as it is.
type situation struct {
	name, qname, qtype, search string

	reason, way, rcode string
	says               []string // texts that stand in the JSON, markup aside
	cached             uint32   // seconds in dnsmasq
}

const explainZone = ".explain-shop.svc.cluster.local"

var situations = []situation{
	{name: "a cluster IP", qname: "web" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30,
		says: []string{`"kind": "cluster IP"`, `"type": "ClusterIP"`, `"resourceVersion": "`, `"recordAgeSeconds": `, `"protocol": "TCP"`, `"number": 80`}},
	{name: "the other family of one", qname: "web" + explainZone, qtype: "AAAA", reason: "no-such-type", way: "tree", rcode: "NOERROR",
		says: []string{`"part": "type"`, `"name": "AAAA"`, "it has A and SRV", `"closest": "web.explain-shop.svc.cluster.local."`}},
	{name: "both families", qname: "both" + explainZone, qtype: "AAAA", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30},
	{name: "spelt in capitals", qname: "WEB.Explain-Shop.SVC.Cluster.Local.", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30},
	{name: "a port", qname: "_http._tcp.web" + explainZone, qtype: "SRV", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30},
	{name: "no such port", qname: "_htpp._tcp.web" + explainZone, qtype: "SRV", reason: "no-such-port", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"part": "port"`, `"name": "_http._tcp.web.explain-shop.svc.cluster.local."`, `"closest": "_tcp.web.explain-shop.svc.cluster.local."`}},
	{name: "no such protocol", qname: "_http._udp.web" + explainZone, qtype: "SRV", reason: "no-such-protocol", way: "tree", rcode: "NXDOMAIN", says: []string{`"part": "protocol"`}},
	{name: "no such Service", qname: "wbe" + explainZone, reason: "no-such-service", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"part": "service"`, `"name": "web.explain-shop.svc.cluster.local."`, "a name like it", `"closest": "explain-shop.svc.cluster.local."`}},
	{name: "a Service of another namespace", qname: "only-here" + explainZone, reason: "no-such-service", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"name": "only-here.explain-tools.svc.cluster.local."`, "the same Service in"}},
	{name: "no such namespace", qname: "web.explain-shpo.svc.cluster.local", reason: "no-such-namespace", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"part": "namespace"`, `"name": "web.explain-shop.svc.cluster.local."`, `"closest": "svc.cluster.local."`}},
	{name: "namespace and Service exchanged", qname: "explain-shop.web.svc.cluster.local", reason: "no-such-namespace", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"name": "web.explain-shop.svc.cluster.local."`}},
	{name: "without svc", qname: "web.explain-shop.cluster.local", reason: "no-such-name", way: "tree", rcode: "NXDOMAIN", says: []string{`"name": "web.explain-shop.svc.cluster.local."`}},
	{name: "a headless Service", qname: "db" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30,
		says: []string{`"kind": "headless"`, `"leftOut": "not ready"`, "address type: IPv6, and A was asked for", "no record comes from a slice of type FQDN"}},
	{name: "a headless Service's port", qname: "_pg._tcp.db" + explainZone, qtype: "SRV", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30,
		says: []string{"no such port: its slice has none of this name and protocol"}},
	{name: "an endpoint", qname: "db-0.db" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30, says: []string{"hostname elsewhere: its name is db-2"}},
	{name: "an endpoint that is not ready", qname: "db-1.db" + explainZone, reason: "endpoint-not-ready", way: "tree", rcode: "NXDOMAIN",
		says: []string{`"part": "endpoint"`, "10.244.9.11, is not ready"}},
	{name: "no such endpoint", qname: "db-7.db" + explainZone, reason: "no-such-endpoint", way: "tree", rcode: "NXDOMAIN", says: []string{`"name": "db-0.db.explain-shop.svc.cluster.local."`}},
	{name: "nothing ready", qname: "idle" + explainZone, reason: "no-ready-endpoint", way: "tree", rcode: "NXDOMAIN", says: []string{"has 1 endpoint, and none is ready", `"leftOut": "not ready"`}},
	{name: "no slice", qname: "alone" + explainZone, reason: "no-endpoint", way: "tree", rcode: "NXDOMAIN", says: []string{"has no EndpointSlice"}},
	{name: "endpoints published while not ready", qname: "p-0.peers" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30, says: []string{`"publishNotReadyAddresses": true`}},
	{name: "below a cluster IP", qname: "db-0.web" + explainZone, reason: "nothing-below-service", way: "tree", rcode: "NXDOMAIN", says: []string{"is not headless"}},
	{name: "an external name inside", qname: "inside" + explainZone, reason: "answered", way: "external", rcode: "NOERROR", cached: 30,
		says: []string{`"target": "web.explain-shop.svc.cluster.local."`, `"server": "kube-dns"`}},
	{name: "an external name of nothing", qname: "nowhere" + explainZone, reason: "target-does-not-exist", way: "external", rcode: "NXDOMAIN", says: []string{`"part": "target"`, `"fault": "NXDOMAIN"`}},
	{name: "an external name outside", qname: "outside" + explainZone, reason: "answered", way: "external", rcode: "NOERROR", cached: 7,
		says: []string{`"name": "docs.example.org."`, `"target": "www.example.org."`, `"ttl": 7`, `"192.0.2.80"`, `"server": "127.0.0.1:`}},
	{name: "an external name outside, of nothing", qname: "outside-gone" + explainZone, reason: "target-does-not-exist", way: "external", rcode: "NXDOMAIN"},
	{name: "an external name's CNAME", qname: "outside" + explainZone, qtype: "CNAME", reason: "answered", way: "external", rcode: "NOERROR", cached: 30},
	{name: "a loop", qname: "loop-a" + explainZone, reason: "loop", way: "external", rcode: "SERVFAIL", says: []string{`"target": "loop-b.explain-shop.svc.cluster.local."`, "a loop"}},
	{name: "below an external name", qname: "a.inside" + explainZone, reason: "nothing-below-service", way: "tree", rcode: "NXDOMAIN"},
	{name: "a pod's name", qname: "10-244-9-1.explain-shop.pod.cluster.local", reason: "answered", way: "pod name", rcode: "NOERROR", cached: 30},
	{name: "no pod's name", qname: "10-244-9-256.explain-shop.pod.cluster.local", reason: "no-pod-address", way: "pod name", rcode: "NXDOMAIN"},
	{name: "a wildcard", qname: "*.explain-tools.svc.cluster.local", reason: "answered", way: "wildcard", rcode: "NOERROR", cached: 30},
	{name: "a wildcard of nothing", qname: "*.explain-nothing.svc.cluster.local", reason: "nothing-matches", way: "wildcard", rcode: "NXDOMAIN"},
	{name: "an address with two owners", qname: "10.244.9.12", reason: "answered", way: "reverse", rcode: "NOERROR", cached: 30,
		says: []string{"2 names have this address", "its Service is older than the next one's", `"name": "a-0.again.explain-shop.svc.cluster.local."`}},
	{name: "a reverse name's other type", qname: "12.9.244.10.in-addr.arpa", qtype: "A", reason: "no-such-type", way: "reverse", rcode: "NOERROR"},
	{name: "an address of nobody", qname: "10.244.77.77", reason: "upstream-no-such-name", way: "forwarded", rcode: "NXDOMAIN", says: []string{"no Service and no endpoint of a headless Service has"}},
	{name: "a name outside", qname: "www.example.org", reason: "answered", way: "forwarded", rcode: "NOERROR", cached: 7, says: []string{`"asks": "upstream"`, `"server": "127.0.0.1:`}},
	{name: "no such name outside", qname: "gone.example.org", reason: "upstream-no-such-name", way: "forwarded", rcode: "NXDOMAIN"},
	{name: "another type outside", qname: "text.example.org", reason: "upstream-no-such-type", way: "forwarded", rcode: "NOERROR"},
	{name: "more than UDP takes, outside", qname: "crowd.example.org", reason: "answered", way: "forwarded", rcode: "NOERROR", says: []string{`"tc"`}},
	{name: "a stub domain", qname: "www.corp.example.org", reason: "upstream-no-such-name", way: "forwarded", rcode: "NXDOMAIN",
		says: []string{`"asks": "stub domain"`, `"domain": "corp.example.org"`, `"192.0.2.53:53"`, "and not kube-dns"}},
	{name: "a federation's Service here", qname: "web.explain-shop.mars.svc.cluster.local", reason: "answered", way: "federation", rcode: "NOERROR", cached: 30,
		says: []string{"is in this cluster and has a ready endpoint"}},
	{name: "a federation's Service there", qname: "orders.shop.mars.svc.cluster.local", reason: "answered", way: "federation", rcode: "NOERROR",
		says: []string{`"target": "orders.shop.mars.svc.zone-a.region-1.fed.example.org."`}},
	{name: "a short name", qname: "web", search: "explain-shop", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30, says: []string{"of 4 questions the first answers"}},
	{name: "a short name with its namespace", qname: "web.explain-shop", search: "explain-tools", reason: "answered", way: "tree", rcode: "NOERROR", cached: 30,
		says: []string{"of 4 questions the second answers", `"name": "web.explain-shop.explain-tools.svc.cluster.local."`}},
	{name: "a short name of nothing", qname: "wbe", search: "explain-shop", reason: "no-such-service", way: "tree", rcode: "NXDOMAIN", says: []string{"none of 4 questions answers", `"name": "web.explain-shop.svc.cluster.local."`}},
	{name: "a name outside in a search path", qname: "www.example.org", search: "explain-shop", reason: "answered", way: "forwarded", rcode: "NOERROR", cached: 7, says: []string{"of 4 questions the fourth answers"}},
	{name: "without the domain", qname: "web.explain-shop.svc", reason: "upstream-", way: "forwarded", says: []string{`"name": "web.explain-shop.svc.cluster.local."`, "search=NAMESPACE"}},
	{name: "the zone's NS", qname: "cluster.local", qtype: "NS", reason: "answered", way: "tree", rcode: "NOERROR"},
	{name: "ANY", qname: "web" + explainZone, qtype: "ANY", reason: "answered", way: "tree", rcode: "NOERROR"},
	{name: "a zone transfer", qname: "cluster.local", qtype: "AXFR", reason: "not-served", way: "not served", rcode: "REFUSED"},
	{name: "more than UDP takes", qname: "crowd" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30, says: []string{`"tc"`, `"name": "UDP 1232"`}},
	{name: "more than is listed", qname: "big" + explainZone, reason: "answered", way: "tree", rcode: "NOERROR", cached: 30, says: []string{"1000 at the most"}},
}

// TestExplain explains each situation, and asks the DNS port the same
// question: the replies must be the same.
func TestExplain(t *testing.T) {
	c := cluster(t)
	applyExplain(t, c)
	config := t.TempDir()
	for file, text := range map[string]string{
		"federations": "mars=fed.example.org", "stubDomains": `{"corp.example.org": ["192.0.2.53"]}`,
	} {
		if err := os.WriteFile(filepath.Join(config, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Nameservers: harness.StartUpstream(t, "testdata/upstream.conf"),
		Args: []string{"--config-dir=" + config},
	})
	// The Nodes are listed once the configuration is read.
	awaitRcode(t, k.Addr, "orders.shop.mars.svc.cluster.local.", dns.RcodeSuccess, 20*time.Second)
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) { s.check(t, k) })
	}
	t.Run("no trace", func(t *testing.T) { explainLeavesNoTrace(t, k) })
	t.Run("bad requests", func(t *testing.T) { explainRefuses(t, k) })
	t.Run("pages", func(t *testing.T) { explainPages(t, k) })
	t.Run("in a terminal", func(t *testing.T) { explainCommand(t, k) })
}

// applyExplain makes the objects.
func applyExplain(t *testing.T, c *harness.ControlPlane) {
	t.Helper()
	for i, file := range []string{"testdata/explain.yaml", "testdata/explain-later.yaml"} {
		if i > 0 {
			harness.NextSecond(t)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := harness.DecodeObjects(string(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if err := c.Apply(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := c.Delete(context.Background(), o); err != nil { // t.Context is done by now
					t.Errorf("cleaning up: %v", err)
				}
			})
		}
	}
	for name, n := range map[string]int{"crowd": 100, "big": 1500} {
		createService(t, c, "explain-shop", headlessService(name))
		var slices []*discoveryv1.EndpointSlice
		for first := 0; first < n; first += 750 {
			var addresses []string
			for i := first; i < min(first+750, n); i++ {
				addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 100+len(name), i>>8, i&0xff))
			}
			s := slice(fmt.Sprintf("%s-%d", name, first), name, first, addresses...)
			slices = append(slices, s)
			createSlice(t, c, "explain-shop", s)
		}
		t.Cleanup(func() {
			ctx := context.Background() // t.Context is done by now
			err := c.Client.CoreV1().Services("explain-shop").Delete(ctx, name, metav1.DeleteOptions{})
			for _, s := range slices {
				err = errors.Join(err, c.Client.DiscoveryV1().EndpointSlices("explain-shop").Delete(ctx, s.Name, metav1.DeleteOptions{}))
			}
			if err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		})
	}
}

func (s situation) check(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	e, body := explain(t, k, s.qname, s.qtype, s.search)
	if !strings.HasPrefix(e.Reason, s.reason) || e.Way != s.way || e.Resolves != (s.reason == "answered") {
		t.Errorf("reason %s, way %s, resolves %v; want %s and %s in\n%s", e.Reason, e.Way, e.Resolves, s.reason, s.way, body)
	}
	if s.rcode != "" && (len(e.Replies) == 0 || e.Replies[0].Rcode != s.rcode) {
		t.Errorf("want the rcode %s in\n%s", s.rcode, body)
	}
	for _, want := range s.says {
		if !strings.Contains(body, want) {
			t.Errorf("want %s in\n%s", want, body)
		}
	}
	if s.cached != 0 && e.Dnsmasq.CachedSeconds != s.cached {
		t.Errorf("cached for %d s, want %d", e.Dnsmasq.CachedSeconds, s.cached)
	}
	if n := explainListed(e); n > 1000 {
		t.Errorf("%d records and endpoints, want 1000 at most", n)
	}
	// What changes between the two questions changes once.
	var err error
	for range 3 {
		if err = sameAsServed(t, k, e); err == nil {
			return
		}
		e, _ = explain(t, k, s.qname, s.qtype, s.search)
	}
	t.Error(err)
}

func explainListed(e *explanation) int {
	n := len(e.Owners)
	for _, r := range e.Replies {
		n += len(r.Answer) + len(r.Authority) + len(r.Additional)
	}
	if e.Service != nil {
		for _, s := range e.Service.Slices {
			n += len(s.Endpoints)
		}
	}
	return n
}

// sameAsServed asks the DNS port what was explained, in each way.
func sameAsServed(t *testing.T, k *harness.KubeDNS, e *explanation) error {
	t.Helper()
	qtype := dns.StringToType[e.Question.Type]
	seen := 0
	for _, r := range e.Replies {
		for _, over := range r.Over {
			seen++
			q := harness.Question{Server: k.Addr, Name: e.Question.Name, Type: qtype}
			switch over.Name {
			case "TCP":
				q.TCP = true
			case "UDP 1232":
				q.EDNS = ptr(uint16(1232))
			case "UDP 512":
			default:
				return fmt.Errorf("a reply over %q", over.Name)
			}
			got := ask(t, q)
			if rcode := dns.RcodeToString[got.Rcode]; rcode != r.Rcode {
				return fmt.Errorf("%s: %s is answered, %s was explained", over.Name, rcode, r.Rcode)
			}
			flags := map[string]bool{
				"qr": got.Response, "aa": got.Authoritative, "tc": got.Truncated, "rd": got.RecursionDesired,
				"ra": got.RecursionAvailable, "ad": got.AuthenticatedData, "cd": got.CheckingDisabled,
			}
			for flag, set := range flags {
				if slices.Contains(r.Flags, flag) != set {
					return fmt.Errorf("%s: flag %s is %v, and explained are %v", over.Name, flag, set, r.Flags)
				}
			}
			if got.Size != over.Octets && !got.Truncated {
				return fmt.Errorf("%s: %d octets, %d were explained", over.Name, got.Size, over.Octets)
			}
			var want [3][]string
			for i, section := range [][]struct {
				Name, Class, Type, Data string
				TTL                     uint32
			}{r.Answer, r.Authority, r.Additional} {
				for _, rr := range section {
					want[i] = append(want[i], fmt.Sprintf("%s\t%d\t%s\t%s\t%s", rr.Name, rr.TTL, rr.Class, rr.Type, rr.Data))
				}
			}
			for i, section := range [][]dns.RR{got.Answer, got.Ns, got.Extra} {
				var served []string
				for _, rr := range section {
					if rr.Header().Rrtype != dns.TypeOPT {
						served = append(served, rr.String())
					}
				}
				if err := sameRecords(served, want[i], got.Truncated, e.Omitted > 0); err != nil {
					return fmt.Errorf("%s: section %d: %w", over.Name, i, err)
				}
			}
		}
	}
	if seen != 3 {
		return fmt.Errorf("%d ways to ask are explained, want 3", seen)
	}
	return nil
}

// sameRecords compares records as sets. Of a truncated reply, which has those
// whose turn it is, only the number counts; what is explained may leave some
// out.
func sameRecords(served, explained []string, truncated, omitted bool) error {
	if truncated {
		if len(served) != len(explained) && !omitted {
			return fmt.Errorf("%d records are served, %d explained", len(served), len(explained))
		}
		return nil
	}
	slices.Sort(served)
	slices.Sort(explained)
	if omitted {
		for _, rr := range explained {
			if _, ok := slices.BinarySearch(served, rr); !ok {
				return fmt.Errorf("%q is explained and not served", rr)
			}
		}
		return nil
	}
	if !slices.Equal(served, explained) {
		return fmt.Errorf("served is\n%s\nexplained\n%s", strings.Join(served, "\n"), strings.Join(explained, "\n"))
	}
	return nil
}

// explainLeavesNoTrace compares the metrics.
func explainLeavesNoTrace(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	dnsMetrics := func() string {
		var all []string
		for name, family := range k.ScrapeMetrics(t) {
			if strings.HasPrefix(name, "skydns_") || strings.HasPrefix(name, "kubedns_") && !strings.Contains(name, "last_contact") {
				all = append(all, family.String())
			}
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	before := dnsMetrics()
	for _, s := range situations {
		explain(t, k, s.qname, s.qtype, s.search)
	}
	if after := dnsMetrics(); after != before {
		t.Errorf("the metrics were\n%s\nand are\n%s", before, after)
	}
}

// explainRefuses sends what is no question.
func explainRefuses(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	markup := url.QueryEscape(`<script>alert("x")</script>`)
	for _, query := range []string{
		"", "name=", "name=" + strings.Repeat("abcdefg.", 32), "name=" + strings.Repeat("a", 64), "name=a&type=QUUX", "name=%ff",
		"name=a%00", "name=a%0d%0aSet-Cookie:x", "name=" + markup, "name=a&type=" + markup, "name=a&search=" + markup, "name=a&format=" + markup,
		"name=a&format=xml", "name=a&name=b", "name=%zz", "name=a;b", "name=a..b", "name=a&search=a.b",
	} {
		for _, format := range []string{"", "&format=html"} {
			if query == "" && format != "" || strings.Contains(query, "format=") && format != "" {
				continue
			}
			status, body := k.Get(t, "/explain?"+query+format)
			if status != http.StatusBadRequest {
				t.Errorf("%q: status %d, want 400: %s", query+format, status, body)
			}
			if strings.Contains(body, "<script") || strings.Contains(body, "alert(") || strings.Contains(body, "goroutine") {
				t.Errorf("%q: %s", query+format, body)
			}
			var said struct{ Error string }
			if format == "" && (json.Unmarshal([]byte(body), &said) != nil || said.Error == "" || strings.Contains(said.Error, "\n")) {
				t.Errorf("%q: %s, want one line in error", query, body)
			}
		}
	}
}

// explainPages looks at the page of each situation.
func explainPages(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	for _, s := range situations {
		status, body := k.Get(t, explainPath(s.qname, s.qtype, s.search)+"&format=html")
		if status != http.StatusOK || !strings.Contains(body, "<code>"+s.reason) || !strings.Contains(body, "</html>") {
			t.Errorf("%s: status %d, want the reason %s in\n%s", s.name, status, s.reason, body)
		}
	}
	if status, body := k.Get(t, "/explain?format=html&name="); status != http.StatusBadRequest || !strings.Contains(body, `role="alert"`) {
		t.Errorf("without a name: %d\n%s", status, body)
	}
}

// explainCommand runs `kube-dns explain` as one does in a container.
func explainCommand(t *testing.T, k *harness.KubeDNS) {
	t.Helper()
	bin := kubeDNS(t)
	server := "--server=" + strings.TrimPrefix(k.Healthz, "http://")
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"resolves", []string{"web" + explainZone, server}, 0, "web.explain-shop.svc.cluster.local. A resolves (answered)", ""},
		{"does not", []string{"wbe" + explainZone, server}, 1, "web.explain-shop.svc.cluster.local.  (a Service with a name like it in the same namespace)", ""},
		{"search path", []string{"web", server, "--search=explain-shop"}, 0, "* 1. web.explain-shop.svc.cluster.local.", ""},
		{"JSON", []string{"web" + explainZone, server, "-o", "json"}, 0, `"reason": "answered"`, ""},
		{"nobody there", []string{"web" + explainZone, "--server=127.0.0.1:9"}, 2, "", "connection refused"},
		{"markup", []string{"<b>", server}, 2, "", "U+003C"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := runToEnd(t, nil, bin, append([]string{"explain"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || (tt.stderr == "") != (stderr == "") {
				t.Errorf("status %d, want %d\n%s\n%s", code, tt.code, stdout, stderr)
			}
			if tt.stderr != "" && strings.Count(stderr, "\n") != 1 {
				t.Errorf("it says %q, want one line", stderr)
			}
		})
	}
}

// TestExplainTrouble explains what only goes wrong with a kube-dns of its own:
// upstream nameservers that do not answer, and records that are not complete.
func TestExplainTrouble(t *testing.T) {
	c := cluster(t)
	ns := ownNamespace(t, c)
	external := clusterIPService("site", "")
	external.Spec.Type, external.Spec.ExternalName, external.Spec.Ports = corev1.ServiceTypeExternalName, "www.example.org", nil
	createService(t, c, ns, external)
	site := "site." + ns + ".svc.cluster.local"
	start := func(o harness.KubeDNSOptions) *harness.KubeDNS {
		o.Binary = kubeDNS(t)
		if o.Kubeconfig == "" {
			o.Kubeconfig = adminKubeconfig(t, c)
		}
		return harness.StartKubeDNS(t, o)
	}
	refusing := start(harness.KubeDNSOptions{})
	quiet := start(harness.KubeDNSOptions{Nameservers: silent(t)})
	away := start(harness.KubeDNSOptions{Kubeconfig: kubeconfig(t, c, "", "https://127.0.0.1:9"), NoWait: true})
	harness.Eventually(t, 30*time.Second, func() error {
		if status, body := away.Readiness(t); status != http.StatusServiceUnavailable || !strings.Contains(body, "refused") {
			return fmt.Errorf("/readiness is %d %s", status, body)
		}
		return nil
	})
	var wg sync.WaitGroup
	for _, tt := range []struct {
		k *harness.KubeDNS
		situation
	}{
		{refusing, situation{name: "nameserver refuses", qname: "www.example.org", reason: "upstream-does-not-answer", way: "forwarded", rcode: "SERVFAIL", says: []string{"127.0.0.1:9", "connection refused"}}},
		{refusing, situation{name: "external name, nameserver refuses", qname: site, reason: "upstream-does-not-answer", way: "external", rcode: "SERVFAIL", says: []string{`"target": "www.example.org."`, "connection refused"}}},
		{quiet, situation{name: "nameserver is silent", qname: "www.example.org", reason: "upstream-does-not-answer", way: "forwarded", rcode: "SERVFAIL", says: []string{"no reply in"}}},
		{quiet, situation{name: "external name, nameserver is silent", qname: site, reason: "upstream-does-not-answer", way: "external", rcode: "SERVFAIL", says: []string{"no reply in"}}},
		{away, situation{name: "not complete", qname: site, reason: "not-complete", way: "refused", rcode: "REFUSED", says: []string{"services not listed yet", "connection refused"}}},
		{away, situation{name: "reverse, not complete", qname: "10.96.0.1", reason: "not-complete", way: "refused", rcode: "REFUSED"}},
	} {
		// All at one time, since the silent ones take theirs.
		wg.Go(func() {
			t.Run(tt.name, func(t *testing.T) { tt.check(t, tt.k) })
		})
	}
	wg.Wait()
}
