package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/soak"
)

var (
	soakFor  = flag.Duration("soak", 25*time.Second, "how long TestSoak changes the cluster")
	soakSeed = flag.Uint64("seed", 0, "what TestSoak's choices are made from; one of the time where 0")
)

const (
	// longSoak is from when on a soak is a long one: memory is judged as well,
	// and kube-dns is the one that is shipped, without the race detector.
	longSoak = 2 * time.Minute
	// soakAskers ask over UDP, and one more over TCP, each soakRate questions
	// a second.
	soakAskers, soakRate = 4, 80
	// relistBound is how long client-go may wait after an outage before it
	// tries again: 30 s, and as much again by chance.
	relistBound = 90 * time.Second
)

// TestSoak changes a cluster at random, cuts kube-dns off from it now and then,
// asks all the while, and compares every answer with a model of the cluster in
// time: package soak has the rule. What kube-dns uses must not grow meanwhile.
//
// The flags -soak and -seed say for how long and from which seed. The seed
// decides what is written and asked, but not the moments.
func TestSoak(t *testing.T) {
	t.Parallel()
	s := newSoak(t)
	s.launch(t)
	s.start(t)
	defer s.finish(t) // what was found is said, whatever ends the churn
	s.churn(t)
}

// soaker is one run of TestSoak.
type soaker struct {
	seed    uint64
	binary  string // kube-dns
	token   string // its ServiceAccount's
	cluster *harness.ControlPlane
	proxy   *harness.Proxy
	kubeDNS *harness.KubeDNS
	history *soak.History
	model   *soak.Model
	audit   *soak.AuditLog
	stall   *soak.Stall
	rng     *rand.Rand // of what is written
	world   soakWorld

	busy      []soak.Key // see busyServices
	busySince time.Time

	configured time.Time // when the ConfigMap was last written without a mistake

	faults  map[string]int
	writes  map[string]int
	samples []soak.Sample

	// pause stops the asking: askers hold it for reading while they ask.
	pause   sync.RWMutex
	still   atomic.Bool // set where they are to end their connections
	asking  context.CancelFunc
	askers  sync.WaitGroup
	answers chan soakAnswer
	checked chan struct{} // closed once every answer was checked
	asked   atomic.Int64

	mu        sync.Mutex // of what the checker finds
	wrong     []string
	byRule    []int
	byKind    map[string]int
	undecided int
	unready   []string
	slowest   time.Duration
}

// soakAnswer is a question and what came of it.
type soakAnswer struct {
	question        soakQuestion
	tcp             bool
	asked, answered time.Time
	answer          soak.Answer
	err             error
}

func newSoak(t *testing.T) *soaker {
	t.Helper()
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	t.Logf("seed %d: go test -run TestSoak . -seed=%d -soak=%v", seed, seed, *soakFor)

	dir := t.TempDir()
	const user = "soak"
	auditLog, policy := filepath.Join(dir, "audit.log"), filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, soak.AuditPolicy("system:serviceaccount:"+metav1.NamespaceSystem+":"+user), 0o600); err != nil {
		t.Fatal(err)
	}
	c := ownCluster(t, "--audit-policy-file="+policy, "--audit-log-path="+auditLog)
	token, err := c.ServiceAccountToken(t.Context(), user,
		[]rbacv1.PolicyRule{right("", "services", "list", "watch"), right("discovery.k8s.io", "endpointslices", "list", "watch")},
		[]rbacv1.PolicyRule{right("", "configmaps", "list", "watch")})
	if err != nil {
		t.Fatal(err)
	}
	api, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := &soaker{
		seed: seed, cluster: c,
		proxy:   harness.StartProxy(t, api.Host, harness.ProxyForward),
		history: soak.NewHistory(),
		stall:   &soak.Stall{},
		rng:     rand.New(rand.NewPCG(seed, 0)),
		faults:  map[string]int{}, writes: map[string]int{}, byKind: map[string]int{},
		byRule:  make([]int, len(soak.Rules())),
		answers: make(chan soakAnswer, 100_000),
		checked: make(chan struct{}),
	}
	s.audit = &soak.AuditLog{Log: auditLog, History: s.history}
	s.history.Excuse = s.stall.Waited
	s.model = &soak.Model{
		History: s.history, Zone: zone, ConfigMap: soakConfigMap,
		Upstreams: soakUpstreams(t),
	}
	s.world = newSoakWorld(s.model)
	binary := kubeDNS
	if *soakFor >= longSoak {
		binary = fastKubeDNS
	}
	s.binary, s.token = binary(t), token
	return s
}

// launch makes the first objects and starts kube-dns.
func (s *soaker) launch(t *testing.T) {
	t.Helper()
	for _, ns := range soakNamespaces {
		if err := s.cluster.EnsureNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	s.adopt(t)
	for range 60 {
		s.write(t)
	}
	s.kubeDNS = harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary:     s.binary,
		Kubeconfig: kubeconfig(t, s.cluster, s.token, "https://"+s.proxy.Addr),
		Args:       []string{"--config-map=" + soakConfigMap.Name, "--v=0"},
	})
	s.stall.Watch(append(s.cluster.PIDs(), s.kubeDNS.PID())...)
}

// start begins to ask and to check.
func (s *soaker) start(t *testing.T) {
	t.Helper()
	// The answer to what is asked last is waited for.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.asking = cancel
	t.Cleanup(cancel)
	for i := range soakAskers + 1 {
		rng := rand.New(rand.NewPCG(s.seed, uint64(i+1)))
		s.askers.Go(func() { s.ask(ctx, rng, i == soakAskers) })
	}
	s.askers.Go(func() { s.watchReadiness(ctx, t) })
	s.askers.Go(func() { s.stall.Run(ctx) })
	go s.check(t)
}

// ask asks questions that chance chooses, until ctx is done.
func (s *soaker) ask(ctx context.Context, rng *rand.Rand, tcp bool) {
	network := "udp"
	if tcp {
		network = "tcp"
	}
	ticker := time.NewTicker(time.Second / soakRate)
	defer ticker.Stop()
	var conn *dns.Conn
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.pause.RLock()
		a := soakAnswer{question: s.world.question(rng), tcp: tcp, asked: time.Now()}
		if conn == nil {
			conn, a.err = dns.DialTimeout(network, s.kubeDNS.Addr, 2*time.Second)
		}
		if a.err == nil {
			a.answer, a.err = soakExchange(conn, a.question)
		}
		a.answered = time.Now()
		// A new connection now and then, and after an error.
		if conn != nil && (a.err != nil || s.still.Load() || rng.IntN(50) == 0) {
			conn.Close()
			conn = nil
		}
		s.pause.RUnlock()
		s.asked.Add(1)
		s.answers <- a
	}
}

// soakExchange asks on conn and reads the reply.
func soakExchange(conn *dns.Conn, q soakQuestion) (soak.Answer, error) {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.SetEdns0(4096, false)
	conn.UDPSize = 4096
	if err := conn.SetDeadline(time.Now().Add(4 * time.Second)); err != nil {
		return soak.Answer{}, err
	}
	if err := conn.WriteMsg(m); err != nil {
		return soak.Answer{}, err
	}
	for {
		reply, err := conn.ReadMsg()
		if err != nil {
			return soak.Answer{}, err
		}
		if reply.Id == m.Id {
			return soak.Read(zone, m.Question[0], reply)
		}
	}
}

// watchReadiness looks at /readiness: kube-dns is ready, whatever becomes of the
// API server.
func (s *soaker) watchReadiness(ctx context.Context, t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		status, body := s.kubeDNS.Readiness(t)
		if status != 200 && ctx.Err() == nil {
			s.mu.Lock()
			s.unready = append(s.unready, fmt.Sprintf("%d %q", status, body))
			s.mu.Unlock()
		}
	}
}

// check compares each answer with the model, once what was true then is known:
// the audit log tells a moment later when kube-dns was heard.
func (s *soaker) check(t *testing.T) {
	t.Helper()
	defer close(s.checked)
	const later = 1500 * time.Millisecond
	var read time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for a := range s.answers {
		timer.Reset(time.Until(a.answered.Add(later)))
		<-timer.C
		if time.Since(read) > 100*time.Millisecond {
			read = time.Now()
			if err := s.audit.Read(); err != nil {
				t.Error(err)
				return
			}
		}
		if err := s.history.Settle(context.Background(), a.answered); err != nil {
			t.Error(err)
			return
		}
		s.judge(a)
	}
}

func (s *soaker) judge(a soakAnswer) {
	q := dns.Question{Name: a.question.name, Qtype: a.question.qtype, Qclass: dns.ClassINET}
	var v soak.Verdict
	got := a.answer.String()
	if a.err == nil {
		v = s.model.Check(q, a.asked, a.answered, a.answer)
	} else {
		got = a.err.Error()
		// It is wrong, but what would have been right is to be known.
		v = s.model.Check(q, a.asked, a.answered, soak.Answer{Rcode: -1})
		v.Right = false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKind[a.question.kind]++
	s.slowest = max(s.slowest, a.answered.Sub(a.asked))
	if v.Undecided {
		s.undecided++
		return
	}
	if v.Right {
		s.byRule[v.Rule]++
		return
	}
	network := "UDP"
	if a.tcp {
		network = "TCP"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s %s over %s, asked %s, answered %v later\n  got %s\n", s.seed,
		a.question.name, dns.TypeToString[a.question.qtype], network,
		a.asked.Format("15:04:05.000"), a.answered.Sub(a.asked).Round(time.Microsecond), got)
	for _, want := range v.Wants {
		fmt.Fprintf(&b, "  want %s\n", want)
	}
	for _, k := range v.Objects {
		b.WriteString(s.history.Describe(k, a.asked, describe))
	}
	s.wrong = append(s.wrong, b.String())
}

// churn writes, and makes faults, for as long as the flag says. Now and then
// everything is still, to see what kube-dns uses.
func (s *soaker) churn(t *testing.T) {
	t.Helper()
	const (
		settle     = time.Second * 3 // before the first fault
		shortFault = 2500 * time.Millisecond
	)
	start := time.Now()
	end := start.Add(*soakFor)
	never := end.Add(time.Hour)
	long := *soakFor >= longSoak
	// The first quiet moment of a short run is after its first fault, of a
	// long one after a minute and a half.
	nextFault, nextOutage, nextQuiet := start.Add(settle), start.Add(*soakFor*2/5), start.Add(settle*2)
	if long {
		nextOutage, nextQuiet = start.Add(20*time.Second), start.Add(90*time.Second)
	}
	pace := time.NewTicker(soakPace)
	defer pace.Stop()
	outages := 0
	// After an outage no other fault is made until kube-dns has heard of
	// everything for a while: what it missed is to be seen.
	const calm = 6 * time.Second
	var recovering bool
	var unheard time.Time
	for (time.Now().Before(end) || recovering) && !t.Failed() {
		<-pace.C
		now := time.Now()
		if s.isCut() {
			unheard = now
		}
		recovering = recovering && now.Sub(unheard) < calm
		switch {
		case recovering:
			s.write(t)
		case now.After(nextQuiet):
			s.quiet(t)
			if nextQuiet = never; long {
				nextQuiet = time.Now().Add(30 * time.Second)
			}
		case now.After(nextOutage):
			s.outage(t, outages, long)
			outages++
			recovering, unheard = true, time.Now()
			if nextOutage = never; long {
				nextOutage = time.Now().Add(time.Duration(30+s.rng.IntN(20)) * time.Second)
			}
		case now.After(nextFault):
			s.fault(t, "every connection cut", func() error {
				s.proxy.SetMode(t, harness.ProxyForward)
				return nil
			})
			nextFault = time.Now().Add(shortFault)
			if long {
				nextFault = time.Now().Add(time.Duration(3+s.rng.IntN(6)) * time.Second)
			}
		default:
			s.write(t)
		}
		s.relisted(t)
	}
	s.quiet(t)
}

// fault makes one.
func (s *soaker) fault(t *testing.T, name string, inject func() error) {
	t.Helper()
	s.faults[name]++
	if err := s.audit.Fault(inject); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// outage cuts kube-dns off for a while, in one of the ways there are.
func (s *soaker) outage(t *testing.T, n int, long bool) {
	t.Helper()
	// The API server's end comes first: a short run has one outage.
	var mode harness.ProxyMode
	var name string
	switch n % 5 {
	case 0:
		s.restart(t, "API server killed", s.cluster.KillAPIServer)
		return
	case 1:
		mode, name = harness.ProxyRefuse, "connections refused"
	case 2:
		s.restart(t, "API server stopped", s.cluster.StopAPIServer)
		return
	case 3:
		mode, name = harness.ProxySilent, "connections silent"
	default:
		mode, name = harness.ProxyClose, "connections closed at once"
	}
	s.fault(t, name, func() error { s.proxy.SetMode(t, mode); return nil })
	lasts := time.Duration(500+s.rng.IntN(1500)) * time.Millisecond
	if long {
		lasts *= 3
	}
	s.writeUnheard(t, lasts)
	s.reconnect(t)
}

// restart ends the API server and starts it again, once things have been
// written that kube-dns did not hear of, and the next API server does not
// remember either: kube-dns has to list. Connections are refused meanwhile, or
// closed at once.
func (s *soaker) restart(t *testing.T, name string, stop func() error) {
	t.Helper()
	mode := pick(s.rng, harness.ProxyRefuse, harness.ProxyClose)
	s.fault(t, name, func() error { s.proxy.SetMode(t, mode); return nil })
	s.writeUnheard(t, time.Second)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.reconnect(t)
	s.stall.Watch(append(s.cluster.PIDs(), s.kubeDNS.PID())...)
}

// reconnect ends an outage: what kube-dns asks for from then on counts.
func (s *soaker) reconnect(t *testing.T) {
	t.Helper()
	if err := s.audit.Fault(func() error { s.proxy.SetMode(t, harness.ProxyForward); return nil }); err != nil {
		t.Fatal(err)
	}
}

// isCut reports whether kube-dns does not hear of something.
func (s *soaker) isCut() bool {
	return slices.ContainsFunc(soak.Resources, func(r soak.Resource) bool { return !s.history.CutSince(r).IsZero() })
}

// relisted looks whether kube-dns hears of everything again in time.
func (s *soaker) relisted(t *testing.T) {
	t.Helper()
	for _, r := range soak.Resources {
		if since := s.history.CutSince(r); !since.IsZero() && time.Since(since) > relistBound {
			t.Fatalf("kube-dns has neither listed nor watched %s for %v", r, time.Since(since).Round(time.Second))
		}
	}
}

// quiet stops the asking and the writing for a moment, once kube-dns hears of
// everything, and takes a sample of what it uses.
func (s *soaker) quiet(t *testing.T) {
	t.Helper()
	harness.Eventually(t, relistBound, func() error {
		for _, r := range soak.Resources {
			if since := s.history.CutSince(r); !since.IsZero() {
				return fmt.Errorf("kube-dns has not heard of %s since %v ago", r, time.Since(since))
			}
		}
		return nil
	})
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	s.still.Store(true)
	defer s.still.Store(false)
	<-pace.C // each asks about ten times meanwhile
	<-pace.C
	s.pause.Lock()
	defer s.pause.Unlock()
	var least soak.Sample
	const look = 20
	for i := range look {
		<-pace.C
		m := s.kubeDNS.ScrapeMetrics(t)
		value := func(name string) float64 {
			v, ok := m.Value(name)
			if !ok {
				t.Fatalf("there is no %s", name)
			}
			return v
		}
		next := soak.Sample{
			Goroutines: int(value("go_goroutines")), Descriptors: int(value("process_open_fds")),
			Memory: int64(value("process_resident_memory_bytes")),
		}
		if i == 0 {
			least = next
		}
		least.Goroutines = min(least.Goroutines, next.Goroutines)
		least.Descriptors = min(least.Descriptors, next.Descriptors)
		least.Memory = min(least.Memory, next.Memory)
	}
	s.samples = append(s.samples, least)
}

// finish ends the asking, waits for the checker, and says what came out.
func (s *soaker) finish(t *testing.T) {
	t.Helper()
	m := s.kubeDNS.ScrapeMetrics(t)
	s.asking()
	s.askers.Wait()
	close(s.answers)
	<-s.checked

	asked := int(s.asked.Load())
	lists, watches := s.audit.Requests()
	t.Logf("%d questions: %v", asked, s.byKind)
	for i, name := range soak.Rules() {
		t.Logf("%8d answers %s", s.byRule[i], name)
	}
	t.Logf("%8d undecided, %d wrong; the slowest took %v", s.undecided, len(s.wrong), s.slowest)
	t.Logf("writes %v", s.writes)
	t.Logf("faults %v, then %d lists and %d watches", s.faults, lists, watches)
	t.Logf("at quiet moments: %v", s.samples)

	const shown = 5
	for i, wrong := range s.wrong {
		if i == shown {
			t.Errorf("and %d more", len(s.wrong)-shown)
			break
		}
		t.Errorf("a wrong answer: %s", wrong)
	}
	if len(s.unready) > 0 {
		t.Errorf("/readiness said %d times that kube-dns was not ready, first %s", len(s.unready), s.unready[0])
	}
	if s.undecided*100 > asked {
		t.Errorf("%d of %d answers were not decided", s.undecided, asked)
	}
	if outside := s.byRule[len(s.byRule)-2]; outside*2 > asked {
		t.Errorf("%d of %d answers are right only because of an outage: that shows little", outside, asked)
	}
	if err := soak.Growth(s.samples); err != nil {
		t.Error(err)
	}
	if v, _ := m.Value("kubedns_panics_total"); v != 0 {
		t.Errorf("kubedns_panics_total is %v", v)
	}
}

// soakUpstreams starts two upstream nameservers, which differ in what they
// have, and returns that by their addresses.
func soakUpstreams(t *testing.T) map[string]soak.Upstream {
	t.Helper()
	all := map[string]soak.Upstream{}
	for i := range 2 {
		www := netip.AddrFrom4([4]byte{192, 0, 2, byte(80 + i)})
		www6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", 80+i))
		file := filepath.Join(t.TempDir(), "upstream.conf")
		conf := fmt.Sprintf("no-resolv\nno-hosts\nlocal=/example.org/\nlocal=/in-addr.arpa/\nlocal=/ip6.arpa/\n"+
			"host-record=www.example.org,%v,%v,7\ncname=docs.example.org,www.example.org,7\n", www, www6)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		// dnsmasq reads it as another user where this one is root.
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
		all[harness.StartUpstream(t, file)] = soak.Upstream{
			Addresses: map[string][]netip.Addr{"www.example.org.": {www, www6}},
			Aliases:   map[string]string{"docs.example.org.": "www.example.org."},
		}
	}
	return all
}
