package dns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	skydns "github.com/skynetservices/skydns/server"

	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/treecache"
)

// What the differential test asks: clusters, and questions of each.
const (
	diffClusters  = 60
	diffQuestions = 40
)

// outcome is what is compared of a reply. Records are text; their order does
// not count.
type outcome struct {
	rcode  int
	answer []string
	extra  []string // without OPT
	aa, ra bool
}

func outcomeOf(m *dns.Msg) outcome {
	o := outcome{rcode: m.Rcode, aa: m.Authoritative, ra: m.RecursionAvailable}
	for _, rr := range m.Answer {
		o.answer = append(o.answer, rr.String())
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			o.extra = append(o.extra, rr.String())
		}
	}
	return o.sorted()
}

func (o outcome) sorted() outcome {
	slices.Sort(o.answer)
	slices.Sort(o.extra)
	return o
}

func (o outcome) equal(p outcome) bool {
	o, p = o.sorted(), p.sorted()
	return o.rcode == p.rcode && o.aa == p.aa && o.ra == p.ra &&
		slices.Equal(o.answer, p.answer) && slices.Equal(o.extra, p.extra)
}

func (o outcome) String() string {
	list := func(rrs []string) string {
		s := ""
		for _, rr := range rrs[:min(len(rrs), 12)] {
			s += "\n\t" + rr
		}
		return s
	}
	return fmt.Sprintf("%s aa=%v ra=%v, %d answers%s\n\t%d additional%s", dns.RcodeToString[o.rcode], o.aa, o.ra,
		len(o.answer), list(o.answer), len(o.extra), list(o.extra))
}

// environment is one cluster, what serves it, and what a deviation may ask.
type environment struct {
	kd     *KubeDNS
	sky    dns.Handler
	addr   netip.AddrPort
	tcp    *dns.Conn
	client *dns.Client
}

// replyRecorder is the dns.ResponseWriter that SkyDNS writes to. It is a TCP
// connection's, so that nothing is cut.
type replyRecorder struct {
	dns.ResponseWriter
	msg *dns.Msg
}

func (r *replyRecorder) WriteMsg(m *dns.Msg) error { r.msg = m; return nil }
func (*replyRecorder) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (e *environment) askSkyDNS(q dns.Question) outcome {
	req := &dns.Msg{Question: []dns.Question{q}}
	req.Id, req.RecursionDesired = dns.Id(), true
	req.SetEdns0(4096, false)
	var w replyRecorder
	e.sky.ServeDNS(&w, req)
	if w.msg == nil {
		return outcome{rcode: -1}
	}
	return outcomeOf(w.msg)
}

// newEnvironment serves the cluster of f by both.
func newEnvironment(t *testing.T, f *sourcetest.Fake, federations map[string]string, upstream netip.AddrPort) *environment {
	t.Helper()
	kd := newTestKubeDNS(f)
	kd.SetFederations(federations)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	cfg := skydns.Config{Domain: clustertest.Zone, Ttl: 30, MinTtl: 30, RoundRobin: true, Nameservers: []string{upstream.String()}}
	if err := skydns.SetDefaults(&cfg); err != nil {
		t.Fatal(err)
	}
	forwarder := forward.New(forward.Options{})
	forwarder.SetNameservers([]netip.AddrPort{upstream})
	s, err := server.New(server.Options{
		Tree: kd.Tree(), Backend: kd, Forwarder: forwarder, TTL: 30, Sockets: 1,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"},
	})
	if err != nil {
		t.Fatal(err)
	}
	listeners, err := s.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listeners) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	e := &environment{kd: kd, sky: skydns.New(kd, &cfg), addr: listeners.Addr(), client: &dns.Client{Net: "tcp", Timeout: 10 * time.Second}}
	if e.tcp, err = e.client.Dial(e.addr.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.tcp.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// tally counts over all clusters.
type tally struct {
	questions, truncated int
	occurred             []int // by deviation
}

// TestDifferential asks the listeners and SkyDNS the same questions, about a
// known cluster and about generated ones.
func TestDifferential(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	upstream := startUpstream(t)
	n := tally{occurred: make([]int, len(deviations))}
	t.Run("known cluster", func(t *testing.T) {
		g := clustertest.Generator{Rand: rand.New(rand.NewPCG(seed, 0))}
		services, all := clustertest.Parse(t, knownCluster)
		big := bigService(120)
		f := sourcetest.New(append(services, big.Service), append(all, big.Slice))
		e := newEnvironment(t, f, map[string]string{"fed": "fed.example.org"}, upstream)
		for _, question := range parseQuestions(t) {
			e.compare(t, g, newAsked(question), &n)
		}
	})
	for cluster := range diffClusters {
		t.Run(fmt.Sprintf("seed %d cluster %d", seed, cluster), func(t *testing.T) {
			g := clustertest.Generator{Rand: rand.New(rand.NewPCG(seed, uint64(cluster)))}
			federations := clustertest.Pick(g, nil, map[string]string{"fed": "fed.example.org", "ns1": "ns1.example.org"})
			e := newEnvironment(t, randomCluster(g), federations, upstream)
			for range diffQuestions {
				e.compare(t, g, newAsked(randomQuestion(g, e.kd.Tree())), &n)
			}
			if t.Failed() {
				t.Logf("records\n%s", clustertest.ZoneText(e.kd.Tree()))
			}
		})
	}
	for i, d := range deviations {
		t.Logf("%5d × %s", n.occurred[i], d.name)
		if n.occurred[i] == 0 {
			t.Errorf("the deviation %q (%s) never occurred", d.name, d.why)
		}
	}
	t.Logf("%5d questions, %d replies were truncated", n.questions, n.truncated)
	if n.truncated == 0 {
		t.Error("no reply was truncated")
	}
	if n.questions < 1000 {
		t.Errorf("%d questions are too few", n.questions)
	}
}

// compare asks one question over UDP and TCP, and SkyDNS.
func (e *environment) compare(t *testing.T, g clustertest.Generator, q asked, n *tally) {
	t.Helper()
	n.questions++
	sky := e.askSkyDNS(q.Question)
	want := sky
	var because []string
	for i, d := range deviations {
		next := d.want(e, q, want)
		if !next.equal(want) {
			n.occurred[i]++
			because = append(because, d.name)
		}
		want = next
	}
	req := &dns.Msg{Question: []dns.Question{q.Question}}
	req.Id, req.RecursionDesired = dns.Id(), true
	reply, _, err := e.client.ExchangeWithConn(req, e.tcp)
	if err != nil {
		t.Fatalf("%s over TCP: %v", q.String(), err)
	}
	if got := outcomeOf(reply); !got.equal(want) {
		t.Errorf("question %s\ngot %v\nwant %v\nSkyDNS, before %q: %v", q.String(), got, want, because, sky)
		return
	}
	if reply.Truncated || !reply.RecursionDesired || reply.Question[0] != q.Question {
		t.Errorf("question %s, reply %v", q.String(), reply)
	}
	if e.overUDP(t, g, q, want) {
		n.truncated++
	}
}

// overUDP asks over UDP and wants the same answer as far as it fits. It
// reports whether it did not.
func (e *environment) overUDP(t *testing.T, g clustertest.Generator, q asked, want outcome) (truncated bool) {
	t.Helper()
	req := &dns.Msg{Question: []dns.Question{q.Question}}
	req.Id, req.RecursionDesired = dns.Id(), true
	limit := 512
	if g.IntN(2) == 0 {
		limit = 1232
		req.SetEdns0(uint16(limit), false)
	}
	client := &dns.Client{Timeout: 10 * time.Second, UDPSize: dns.MaxMsgSize}
	reply, _, err := client.Exchange(req, e.addr.String())
	if err != nil {
		t.Fatalf("%s over UDP: %v", q.String(), err)
	}
	got := outcomeOf(reply)
	reply.Compress = true
	if reply.Len() > limit {
		t.Errorf("%s over UDP: %d octets, want at most %d", q.String(), reply.Len(), limit)
	}
	subset := func(some, all []string) bool {
		return !slices.ContainsFunc(some, func(rr string) bool { return !slices.Contains(all, rr) })
	}
	if !subset(got.extra, want.extra) {
		t.Errorf("%s over UDP: additional section %q, want of %q", q.String(), got.extra, want.extra)
	}
	got.extra, want.extra = nil, nil // it may not fit
	if !reply.Truncated {
		if !got.equal(want) {
			t.Errorf("question %s over UDP\ngot %v\nwant %v", q.String(), got, want)
		}
		return false
	}
	if len(got.answer) == 0 || len(got.answer) >= len(want.answer) || !subset(got.answer, want.answer) {
		t.Errorf("question %s over UDP, truncated\ngot %v\nwant some of %v", q.String(), got, want)
	}
	return true
}
