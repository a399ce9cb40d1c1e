package pods

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

const (
	// LoadRate is questions a second, loadPatience how long each waits.
	LoadRate     = 250
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

// A LoadAnswer is what became of one question.
type LoadAnswer struct {
	Kind  string
	Asked time.Time
	Took  time.Duration
	Lost  bool   // no answer within 2 s
	Wrong string // an answer that is not the one, as "SERVFAIL"
}

// A Load asks questions at an even rate until Stop is called.
type Load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	list   []LoadAnswer
}

// StartLoad asks server; one question in ten goes over TCP.
func StartLoad(t testing.TB, server string) *Load {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	l := &Load{cancel: cancel}
	t.Cleanup(func() { l.Stop() })
	l.wg.Go(func() {
		ticker := time.NewTicker(time.Second / LoadRate)
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

func (l *Load) ask(server string, kind loadKind, tcp bool) {
	m := new(dns.Msg)
	m.SetQuestion(strings.Replace(kind.qname, "*", fmt.Sprintf("x%016x", rand.Uint64()), 1), kind.qtype)
	a := LoadAnswer{Kind: kind.name, Asked: time.Now()}
	// Not the load's context: what was asked has its time to be answered.
	reply, err := harness.Exchange(context.Background(), server, tcp, loadPatience, m)
	a.Took = time.Since(a.Asked)
	switch {
	case err != nil:
		a.Lost = true
	case reply.Rcode != kind.rcode:
		a.Wrong = dns.RcodeToString[reply.Rcode]
	case kind.rcode == dns.RcodeSuccess && len(reply.Answer) == 0:
		a.Wrong = "no answer"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, a)
}

// End asks no more questions, without waiting for answers.
func (l *Load) End() { l.cancel() }

// Stop ends the load and returns once every question has its end.
func (l *Load) Stop() []LoadAnswer {
	l.cancel()
	l.wg.Wait()
	return l.list
}

// StartLoadUpstream starts a nameserver that knows every name of load.example.org.
func StartLoadUpstream(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "upstream.conf")
	text := "no-resolv\nno-hosts\nlocal=/example.org/\naddress=/load.example.org/192.0.2.81\nlocal-ttl=60\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return harness.StartUpstream(t, file)
}
