package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

const (
	// loadRate is questions a second, loadPatience how long each waits.
	loadRate     = 250
	loadPatience = 2 * time.Second
)

// A loadKind is a sort of question: name may have "*" for a label that no other
// question has, so that no cache has it.
type loadKind struct {
	name, qname string
	qtype       uint16
	rcode       int
}

// loadKinds are asked in turn: names that dnsmasq has in its cache and names
// that it has to ask kube-dns, a nameserver or a stub domain's server for.
var loadKinds = []loadKind{
	{"cluster name", "web.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess},
	{"search-path miss", "*.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError},
	{"cluster name", "db.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess},
	{"outside name", "*.load.example.org.", dns.TypeA, dns.RcodeSuccess},
	{"search-path miss", "*.load.example.org.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError},
	{"stub domain", "*.load.corp.example.net.", dns.TypeA, dns.RcodeSuccess},
}

// A loadAnswer is what became of one question.
type loadAnswer struct {
	kind  string
	asked time.Time
	took  time.Duration
	lost  bool   // no answer within loadPatience
	wrong string // an answer that is not the one, as "SERVFAIL"
}

// load asks questions at an even rate until stop is called.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	list   []loadAnswer
}

// startLoad asks server; one question in ten goes over TCP.
func startLoad(t testing.TB, server string) *load {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	l := &load{cancel: cancel}
	t.Cleanup(func() { l.stop() })
	l.wg.Go(func() {
		ticker := time.NewTicker(time.Second / loadRate)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			l.wg.Go(func() { l.ask(server, loadKinds[n%len(loadKinds)], n%10 == 9) })
		}
	})
	return l
}

func (l *load) ask(server string, kind loadKind, tcp bool) {
	m := new(dns.Msg)
	m.SetQuestion(strings.Replace(kind.qname, "*", fmt.Sprintf("x%016x", rand.Uint64()), 1), kind.qtype)
	a := loadAnswer{kind: kind.name, asked: time.Now()}
	// Not the load's context: what was asked has its time to be answered.
	reply, err := harness.Exchange(context.Background(), server, tcp, loadPatience, m)
	a.took = time.Since(a.asked)
	switch {
	case err != nil:
		a.lost = true
	case reply.Rcode != kind.rcode:
		a.wrong = dns.RcodeToString[reply.Rcode]
	case kind.rcode == dns.RcodeSuccess && len(reply.Answer) == 0:
		a.wrong = "no answer"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, a)
}

// stop ends the load and returns once every question has its end.
func (l *load) stop() []loadAnswer {
	l.cancel()
	l.wg.Wait()
	return l.list
}

// A phase is what happened to the questions of a part of the load.
type phase struct {
	name               string
	from, to           time.Time
	asked, lost, wrong int
	slowest            time.Duration
	notes              map[string]int
}

func summarize(phases []phase, list []loadAnswer) []phase {
	for i := range phases {
		p := &phases[i]
		p.notes = map[string]int{}
		for _, a := range list {
			if a.asked.Before(p.from) || !a.asked.Before(p.to) {
				continue
			}
			p.asked++
			switch {
			case a.lost:
				p.lost++
				p.notes[a.kind+" lost"]++
			case a.wrong != "":
				p.wrong++
				p.notes[a.kind+" "+a.wrong]++
			default:
				p.slowest = max(p.slowest, a.took)
			}
		}
	}
	return phases
}

// TestPodUnderFaults asks a pod questions without a pause while its
// configuration changes, its programs are killed and it is stopped.
func TestPodUnderFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, dir string }{
		{"base", deployDir},
		{"direct", filepath.Join(deployDir, "overlays", "direct")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !inOwnNetwork(t) {
				return
			}
			prepareNetwork(t, nil)
			testFaults(t, tt.dir)
		})
	}
}

func testFaults(t *testing.T, dir string) {
	t.Helper()
	c := ownCluster(t)
	makePodObjects(t, c)
	outside := []string{startLoadUpstream(t), startLoadUpstream(t)}
	stubs := []string{harness.StartUpstream(t, stubConfig(t)), harness.StartUpstream(t, stubConfig(t))}
	config := func(stub, upstream, more string) map[string]string {
		return map[string]string{
			"stubDomains":         fmt.Sprintf(`{"corp.example.net": [%q]%s}`, stub, more),
			"upstreamNameservers": fmt.Sprintf(`[%q]`, upstream),
		}
	}
	p := startPod(t, c, dir)
	p.awaitHealthy(t)
	p.setConfig(t, config(stubs[0], outside[0], ""))
	inForce := func(server string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, func() error {
			if _, body := p.get(t, "10056/metrics"); !strings.Contains(body, fmt.Sprintf("server=%q", server)) {
				return fmt.Errorf("%s is not in force", server)
			}
			return nil
		})
	}
	inForce(stubs[0])
	inForce(outside[0])

	load := startLoad(t, podServer)
	var phases []phase
	begin := func(name string) {
		now := time.Now()
		if len(phases) > 0 {
			phases[len(phases)-1].to = now
		}
		phases = append(phases, phase{name: name, from: now})
	}
	// The load has to go on for a while to show something.
	settle := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.Context().Done():
		}
	}
	begin("nothing happens")
	settle(4 * time.Second)

	begin("the stub domain's server changes")
	p.setConfig(t, config(stubs[1], outside[0], ""))
	inForce(stubs[1])
	settle(3 * time.Second)
	begin("the upstream nameserver changes")
	p.setConfig(t, config(stubs[1], outside[1], ""))
	inForce(outside[1])
	settle(3 * time.Second)
	begin("a stub domain is added")
	p.setConfig(t, config(stubs[1], outside[1], fmt.Sprintf(`, "more.example.net": [%q]`, stubs[0])))
	inForce(stubs[0])
	settle(3 * time.Second)

	begin("kill -9 of kube-dns")
	before := p.pid(t, "kubedns")
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, time.Minute, func() error {
		status, body := p.get(t, "8081/readiness")
		if status != http.StatusOK {
			return fmt.Errorf("/readiness answers %d %s", status, body)
		}
		if p.pid(t, "kubedns") == before {
			return fmt.Errorf("the old process is there")
		}
		return nil
	})
	settle(4 * time.Second)

	begin("kill -9 of dnsmasq")
	if err := syscall.Kill(p.dnsmasqPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	settle(4 * time.Second)

	begin("podman pod stop")
	stopped := make(chan error, 1)
	go func() {
		out, err := p.podman(t.Context(), "pod", "stop", "--time", "20", p.name)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		stopped <- err
	}()
	// A pod that ends is taken out of the Service, which takes a while to
	// reach every node.
	harness.Eventually(t, 20*time.Second, func() error {
		if status, _ := p.get(t, "8081/readiness"); status == http.StatusOK {
			return fmt.Errorf("it is still ready")
		}
		return nil
	})
	settle(4 * time.Second)
	load.cancel()
	phases[len(phases)-1].to = time.Now()
	if err := <-stopped; err != nil {
		t.Errorf("stopping the pod: %v", err)
	}
	took := time.Since(phases[len(phases)-1].from)
	phases = summarize(phases, load.stop())

	var table strings.Builder
	fmt.Fprintf(&table, "| | questions | lost | wrong answers | slowest answer | |\n|---|---|---|---|---|---|\n")
	for _, ph := range phases {
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %v | %s |\n", ph.name, ph.asked, ph.lost, ph.wrong, ph.slowest.Round(time.Millisecond), notes(ph.notes))
	}
	t.Logf("the pod ended %v after it was told to\n%s", took.Round(100*time.Millisecond), &table)
	if file := os.Getenv("POD_TABLES"); file != "" {
		if err := appendFile(file, t.Name()+"\n"+table.String()+"\n"); err != nil {
			t.Error(err)
		}
	}
	for _, ph := range phases {
		if ph.asked < loadRate {
			t.Errorf("%s: only %d questions were asked", ph.name, ph.asked)
		}
		if !strings.HasPrefix(ph.name, "kill") && ph.lost+ph.wrong > 0 {
			t.Errorf("%s: %d questions lost, %d answered wrongly: %v", ph.name, ph.lost, ph.wrong, ph.notes)
		}
	}
}

// notes says what went wrong how often.
func notes(m map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[key], key))
	}
	return strings.Join(parts, ", ")
}

// startLoadUpstream starts a nameserver that knows every name of load.example.org.
func startLoadUpstream(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "upstream.conf")
	text := "no-resolv\nno-hosts\nlocal=/example.org/\naddress=/load.example.org/192.0.2.81\nlocal-ttl=60\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return harness.StartUpstream(t, file)
}

func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
