package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const zone = "cluster.local."

func ptr[T any](v T) *T { return &v }

// at is the moment so many milliseconds after a fixed one.
func at(ms int) time.Time { return time.UnixMilli(1_000_000_000_000 + int64(ms)) }

// set notes a version that took 10 ms to write.
func set(h *History, k Key, ms int, value any) { h.note(k, value, at(ms), at(ms+10)) }

func clusterIP(ip string) *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip},
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
}

func headless() *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}
}

func externalName(name string) *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: name}}
}

// slice is one of service; an endpoint is "10.0.0.1", "10.0.0.1=hostname" or
// "!10.0.0.1" where it is not ready.
func slice(service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(8080))}},
	}
	for _, text := range endpoints {
		addr, unready := strings.CutPrefix(text, "!")
		addr, hostname, _ := strings.Cut(addr, "=")
		e := discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(!unready)}}
		if hostname != "" {
			e.Hostname = &hostname
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

var (
	web    = Key{Resource: Services, Namespace: "shop", Name: "web"}
	db     = Key{Resource: Services, Namespace: "shop", Name: "db"}
	alias  = Key{Resource: Services, Namespace: "shop", Name: "alias"}
	dbX    = Key{Resource: Slices, Namespace: "shop", Name: "db-x"}
	dbY    = Key{Resource: Slices, Namespace: "shop", Name: "db-y"}
	config = Key{Resource: ConfigMaps, Namespace: "kube-system", Name: "kube-dns"}
)

func newModel() *Model {
	return &Model{
		History: NewHistory(), Zone: zone, ConfigMap: config,
		Upstreams: map[string]Upstream{"192.0.2.1:53": {
			Addresses: map[string][]netip.Addr{"www.example.org.": {netip.MustParseAddr("192.0.2.80")}},
			Aliases:   map[string]string{"docs.example.org.": "www.example.org."},
		}},
	}
}

// parse reads an answer as Answer.String writes it.
func parse(t *testing.T, text string) Answer {
	t.Helper()
	head, records, ok := strings.Cut(text, " [")
	if !ok {
		t.Fatalf("no answer: %q", text)
	}
	rcode, flag, _ := strings.Cut(head, " ")
	a := Answer{Rcode: dns.StringToRcode[rcode], Authoritative: flag == "aa"}
	if records = strings.TrimSuffix(records, "]"); records != "" {
		a.Records = strings.Split(records, ", ")
		slices.Sort(a.Records)
	}
	return a
}

// TestAnswers has one state of a cluster and its right answers.
func TestAnswers(t *testing.T) {
	m := newModel()
	h := m.History
	set(h, web, 0, clusterIP("10.96.0.7"))
	set(h, db, 0, headless())
	set(h, dbX, 0, slice("db", "10.0.0.1=db-0", "!10.0.0.2"))
	set(h, dbY, 0, slice("db", "10.0.0.3", "10.0.0.1=db-0"))
	set(h, alias, 0, externalName("docs.example.org"))
	set(h, Key{Resource: Services, Namespace: "shop", Name: "inner"}, 0, externalName("web.shop.svc.cluster.local"))
	set(h, Key{Resource: Services, Namespace: "shop", Name: "self"}, 0, externalName("self.shop.svc.cluster.local"))
	set(h, Key{Resource: Services, Namespace: "shop", Name: "lost"}, 0, externalName("nosuch.shop.svc.cluster.local"))
	set(h, Key{Resource: Services, Namespace: "shop", Name: "literal"}, 0, externalName("192.0.2.9"))
	set(h, Key{Resource: Services, Namespace: "shop", Name: "empty"}, 0, headless())
	set(h, config, 0, "192.0.2.1:53")
	label := SystemLabel(netip.MustParseAddr("10.0.0.3"))
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [web.shop.svc.cluster.local. A 10.96.0.7]"},
		{"WEB.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [web.shop.svc.cluster.local. A 10.96.0.7]"},
		{"web.shop.svc.cluster.local.", dns.TypeAAAA, "NOERROR aa []"},
		{"web.shop.svc.cluster.local.", dns.TypeSRV, "NOERROR aa [web.shop.svc.cluster.local. SRV 80 web.shop.svc.cluster.local., + web.shop.svc.cluster.local. A 10.96.0.7]"},
		{"_tcp.web.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa []"},
		{"_udp.web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa []"},
		{"x.web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa []"},
		{"db.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [db.shop.svc.cluster.local. A 10.0.0.1, db.shop.svc.cluster.local. A 10.0.0.3]"},
		{"db-0.db.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [db-0.db.shop.svc.cluster.local. A 10.0.0.1]"},
		{label + ".db.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [" + label + ".db.shop.svc.cluster.local. A 10.0.0.3]"},
		{"empty.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa []"},
		{"alias.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [alias.shop.svc.cluster.local. CNAME docs.example.org., docs.example.org. CNAME www.example.org., www.example.org. A 192.0.2.80]"},
		{"alias.shop.svc.cluster.local.", dns.TypeTXT, "NOERROR aa [alias.shop.svc.cluster.local. CNAME docs.example.org.]"},
		{"x.alias.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa []"},
		{"inner.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [inner.shop.svc.cluster.local. CNAME web.shop.svc.cluster.local., web.shop.svc.cluster.local. A 10.96.0.7]"},
		{"lost.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa [lost.shop.svc.cluster.local. CNAME nosuch.shop.svc.cluster.local.]"},
		{"self.shop.svc.cluster.local.", dns.TypeA, "SERVFAIL aa []"},
		{"literal.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [literal.shop.svc.cluster.local. A 192.0.2.9]"},
		{"shop.svc.cluster.local.", dns.TypeA, "NOERROR aa []"},
		{"nosuch.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa []"},
		{"*.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [*.shop.svc.cluster.local. A 10.0.0.1, *.shop.svc.cluster.local. A 10.0.0.3, *.shop.svc.cluster.local. A 10.96.0.7, *.shop.svc.cluster.local. A 192.0.2.9]"},
		{"*.db.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa [*.db.shop.svc.cluster.local. A 10.0.0.1, *.db.shop.svc.cluster.local. A 10.0.0.3]"},
		{"7.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa [7.0.96.10.in-addr.arpa. PTR web.shop.svc.cluster.local.]"},
		{"1.0.0.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa [1.0.0.10.in-addr.arpa. PTR db-0.db.shop.svc.cluster.local.]"},
		{"2.0.0.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN []"},
		{"www.example.org.", dns.TypeA, "NOERROR [www.example.org. A 192.0.2.80]"},
		{"nosuch.example.org.", dns.TypeA, "NXDOMAIN []"},
	} {
		q := dns.Question{Name: tt.name, Qtype: tt.qtype}
		if v := m.Check(q, at(5000), at(5001), parse(t, tt.want)); !v.Right || v.Rule != 0 || v.Undecided {
			t.Errorf("%s %s: %s is not right: %+v", tt.name, dns.TypeToString[tt.qtype], tt.want, v)
		}
		for _, not := range []string{"NOERROR aa [" + strings.ToLower(tt.name) + " A 10.255.255.255]", "REFUSED []"} {
			if v := m.Check(q, at(5000), at(5001), parse(t, not)); v.Right {
				t.Errorf("%s %s: %s is right", tt.name, dns.TypeToString[tt.qtype], not)
			}
		}
	}
}

// TestTime has a Service that changes, and asks for it at several moments.
func TestTime(t *testing.T) {
	const (
		first, second, none = "10.96.0.1", "10.96.0.2", ""
		never               = -1
	)
	q := dns.Question{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeA}
	// first from 1000 to 5000, second to 9000; each write takes 10 ms.
	for _, tt := range []struct {
		name string
		// what happens besides
		with  func(h *History)
		asked int // ms; each question takes 2 ms
		got   string
		rule  int // of Rules, or never
	}{
		{"as it is", nil, 2000, first, 0},
		{"absent long after it was made", nil, 2011, none, never},
		{"absent just after it was made", nil, 1040, none, 2},
		{"of while it was being written", nil, 5005, second, 0},
		{"from before it was written", nil, 4990, second, never},
		{"a second old", nil, 6005, first, 5},
		{"more than a second old", nil, 6020, first, never},
		{"gone", nil, 10_020, none, 0},
		{"not gone", nil, 10_020, second, never},
		{"in an outage", func(h *History) { h.Cut(Services, at(4000)) }, 60_000, first, 6},
		{"in an outage, the newest", func(h *History) { h.Cut(Services, at(4000)) }, 60_000, none, 0},
		{"in an outage of another resource", func(h *History) { h.Cut(Slices, at(4000)) }, 60_000, first, never},
		{"in an outage, older than that", func(h *History) { h.Cut(Services, at(6020)) }, 60_000, first, never},
		{"in an outage, on its way at the cut", func(h *History) { h.Cut(Services, at(6000)) }, 60_000, first, 6},
		{"after an outage, within the bound", func(h *History) {
			h.Cut(Services, at(4000))
			h.Heard(Services, at(20_000))
		}, 21_990, first, 6},
		{"after an outage, past the bound", func(h *History) {
			h.Cut(Services, at(4000))
			h.Heard(Services, at(20_000))
		}, 22_010, first, never},
		{"in the second of two outages, the first not over yet", func(h *History) {
			h.Cut(Services, at(4000))
			h.Heard(Services, at(20_000))
			h.Cut(Services, at(21_000))
		}, 60_000, first, 6},
		{"in the second of two outages, the first over", func(h *History) {
			h.Cut(Services, at(4000))
			h.Heard(Services, at(20_000))
			h.Cut(Services, at(23_000))
		}, 60_000, first, never},
		{"excused", func(h *History) {
			h.Excuse = func(time.Time, time.Time) time.Duration { return time.Second }
		}, 7000, first, 7},
		{"not excused for so long", func(h *History) {
			h.Excuse = func(time.Time, time.Time) time.Duration { return time.Hour }
		}, 5010 + 1000 + int(MaxExcuse.Milliseconds()) + 10, first, never},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newModel()
			set(m.History, web, 1000, clusterIP(first))
			set(m.History, web, 5000, clusterIP(second))
			set(m.History, web, 9000, nil)
			if tt.with != nil {
				tt.with(m.History)
			}
			got := "NXDOMAIN aa []"
			if tt.got != none {
				got = "NOERROR aa [web.shop.svc.cluster.local. A " + tt.got + "]"
			}
			v := m.Check(q, at(tt.asked), at(tt.asked+2), parse(t, got))
			if v.Right != (tt.rule != never) || v.Right && v.Rule != tt.rule {
				t.Errorf("right is %v by %q, want rule %d; wants %q", v.Right, Rules()[v.Rule], tt.rule, v.Wants)
			}
		})
	}
}

// TestMixtures changes a Service and its slices at the same time: any mixture
// may stand for a moment, and no other answer.
func TestMixtures(t *testing.T) {
	m := newModel()
	set(m.History, db, 0, headless())
	set(m.History, dbX, 0, slice("db", "10.0.0.1"))
	set(m.History, dbY, 0, slice("db", "10.0.0.2"))
	set(m.History, dbX, 5000, slice("db", "10.0.0.3"))
	set(m.History, dbY, 5100, slice("db", "10.0.0.4"))
	for _, name := range []string{"db", "*"} {
		q := dns.Question{Name: name + ".shop.svc.cluster.local.", Qtype: dns.TypeA}
		for _, tt := range []struct {
			addresses []string
			right     bool
		}{
			{[]string{"10.0.0.1", "10.0.0.2"}, true},
			{[]string{"10.0.0.1", "10.0.0.4"}, true},
			{[]string{"10.0.0.2", "10.0.0.3"}, true},
			{[]string{"10.0.0.3", "10.0.0.4"}, true},
			{[]string{"10.0.0.1", "10.0.0.3"}, false},
			{[]string{"10.0.0.1"}, false},
			{[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, false},
		} {
			got := Answer{Authoritative: true}
			for _, a := range tt.addresses {
				got.Records = append(got.Records, record(q.Name, dns.TypeA, a))
			}
			if v := m.Check(q, at(5500), at(5501), got); v.Right != tt.right {
				t.Errorf("%s: %v is right: %v, want %v; wants %q", name, tt.addresses, v.Right, tt.right, v.Wants)
			}
		}
	}
}

// TestAdditional has an SRV answer and additional records from two states: for a
// name with an asterisk that is right, for another it is not.
func TestAdditional(t *testing.T) {
	m := newModel()
	set(m.History, db, 0, headless())
	set(m.History, dbX, 0, slice("db", "10.0.0.1=h"))
	set(m.History, dbX, 5000, slice("db", "10.0.0.2=h", "10.0.0.3=i"))
	for name, right := range map[string]bool{"_http._tcp.*.shop.svc.cluster.local.": true, "_http._tcp.db.shop.svc.cluster.local.": false} {
		got := Answer{Authoritative: true, Records: []string{
			"+ " + record("h.db.shop.svc."+zone, dns.TypeA, "10.0.0.2"),
			record(name, dns.TypeSRV, "8080 h.db.shop.svc."+zone),
		}}
		if v := m.Check(dns.Question{Name: name, Qtype: dns.TypeSRV}, at(4999), at(5020), got); v.Right != right {
			t.Errorf("%s: right is %v, want %v", name, v.Right, right)
		}
	}
}

// TestManyStates has a Service whose four slices change so often in an outage
// that there are more states than could be tried one after the other.
func TestManyStates(t *testing.T) {
	m := newModel()
	set(m.History, db, 0, headless())
	m.History.Cut(Services, at(1000))
	m.History.Cut(Slices, at(1000))
	for i := range 4 {
		k := Key{Resource: Slices, Namespace: "shop", Name: fmt.Sprintf("db-%d", i)}
		for j := range 20 {
			set(m.History, k, 1000+100*j+i, slice("db", fmt.Sprintf("10.%d.0.%d=h", i, j+1)))
		}
	}
	for _, q := range []dns.Question{
		{Name: "db.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "h.db.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "*.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "_http._tcp.db.shop.svc.cluster.local.", Qtype: dns.TypeSRV},
	} {
		for _, c := range []struct {
			addresses []string
			right     bool
		}{
			{[]string{"10.0.0.20", "10.1.0.1", "10.2.0.7", "10.3.0.20"}, true},
			{[]string{"10.0.0.20", "10.1.0.1", "10.1.0.2", "10.3.0.20"}, false},
			{[]string{"10.0.0.20", "10.1.0.1", "10.2.0.21", "10.3.0.20"}, false},
		} {
			got := Answer{Authoritative: true}
			for _, a := range c.addresses {
				if q.Qtype == dns.TypeSRV {
					got.Records = append(got.Records, "+ "+record("h.db.shop.svc."+zone, dns.TypeA, a))
				} else {
					got.Records = append(got.Records, record(q.Name, dns.TypeA, a))
				}
			}
			if q.Qtype == dns.TypeSRV {
				got.Records = append(got.Records, record(q.Name, dns.TypeSRV, "8080 h.db.shop.svc."+zone))
			}
			slices.Sort(got.Records)
			v := m.Check(q, at(5000), at(5001), got)
			if v.Right != c.right || v.Undecided {
				t.Errorf("%s %v: right is %v, undecided %v, want right %v", q.Name, c.addresses, v.Right, v.Undecided, c.right)
			}
		}
	}
}

// TestSystemLabel has the label that is written down.
func TestSystemLabel(t *testing.T) {
	if got := SystemLabel(netip.MustParseAddr("10.96.0.1")); got != "6266366134663036" {
		t.Errorf("got %s, want 6266366134663036", got)
	}
}

func TestGrowth(t *testing.T) {
	flat := []Sample{{50, 20, 30 << 20}, {51, 21, 33 << 20}, {50, 20, 31 << 20}, {52, 22, 32 << 20}, {50, 20, 33 << 20}, {51, 20, 32 << 20}, {50, 20, 31 << 20}}
	with := func(change func(i int, s *Sample)) []Sample {
		all := slices.Clone(flat)
		for i := range all {
			change(i, &all[i])
		}
		return all
	}
	for _, tt := range []struct {
		name    string
		samples []Sample
		want    string // part of the error; "" for none
	}{
		{"flat", flat, ""},
		{"one", flat[:1], "too few"},
		{"two, the same", []Sample{{50, 20, 1}, {52, 22, 1 << 40}}, ""},
		{"two, grown", []Sample{{50, 20, 1}, {53, 20, 1}}, "goroutines"},
		{"a goroutine each time", with(func(i int, s *Sample) { s.Goroutines += i }), "goroutines"},
		{"a descriptor each time", with(func(i int, s *Sample) { s.Descriptors += i }), "descriptors"},
		{"a goroutine once in a while", with(func(i int, s *Sample) { s.Goroutines += i / 2 }), ""},
		{"one peak", with(func(i int, s *Sample) {
			if i == 6 {
				s.Goroutines += 40
			}
		}), ""},
		{"memory", with(func(i int, s *Sample) { s.Memory += int64(i) << 21 }), "memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Growth(tt.samples)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
