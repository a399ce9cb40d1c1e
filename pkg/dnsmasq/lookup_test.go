package dnsmasq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// startZone is a DNS server on 127.0.0.1 that has the records of a zone file;
// it has NXDOMAIN for other names.
func startZone(t *testing.T, zone string) string {
	t.Helper()
	records := map[string][]dns.RR{}
	names := map[string]bool{}
	parser := dns.NewZoneParser(strings.NewReader(zone), ".", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		key := rr.Header().Name + dns.TypeToString[rr.Header().Rrtype]
		records[key] = append(records[key], rr)
		names[rr.Header().Name] = true
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan struct{})
	server := &dns.Server{PacketConn: packets, NotifyStartedFunc: func() { close(up) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		name := strings.ToLower(q.Question[0].Name)
		m.Answer = records[name+dns.TypeToString[q.Question[0].Qtype]]
		if !names[name] {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	<-up
	t.Cleanup(func() {
		_ = server.Shutdown()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return packets.LocalAddr().String()
}

func TestResolver(t *testing.T) {
	kubedns := startZone(t, `
short.default.svc.cluster.local. 1 IN A 192.0.2.9
short.default.svc.cluster.local. 2 IN A 192.0.2.1
long.default.svc.cluster.local. 86400 IN A 192.0.2.2
both.default.svc.cluster.local. 60 IN A 192.0.2.3
both.default.svc.cluster.local. 30 IN AAAA 2001:db8::3
`)
	r := &resolver{kubedns: kubedns, clusterDomains: []string{"cluster.local"}}
	tests := []struct {
		host string
		want string
		ttl  time.Duration
		err  string
	}{
		{host: "short.default.svc.cluster.local", want: "[192.0.2.1 192.0.2.9]", ttl: minTTL},
		{host: "long.default.svc.cluster.local", want: "[192.0.2.2]", ttl: maxTTL},
		{host: "both.default.svc.cluster.local", want: "[192.0.2.3 2001:db8::3]", ttl: 30 * time.Second},
		{host: "gone.default.svc.cluster.local", want: "[]", err: "no such host"},
	}
	for _, test := range tests {
		t.Run(test.host, func(t *testing.T) {
			addrs, ttl, err := r.lookup(t.Context(), test.host)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if got := fmt.Sprint(addrs); got != test.want || ttl != test.ttl {
				t.Errorf("lookup = %s, %v, want %s, %v", got, ttl, test.want, test.ttl)
			}
		})
	}
	t.Run("the system's resolver", func(t *testing.T) {
		addrs, ttl, err := r.lookup(t.Context(), "localhost")
		if err != nil || len(addrs) == 0 || !addrs[0].IsLoopback() || ttl != unknownTTL {
			t.Errorf("lookup(localhost) = %v, %v, %v", addrs, ttl, err)
		}
	})
}

func TestInCluster(t *testing.T) {
	r := &resolver{clusterDomains: []string{"cluster.local"}}
	for host, want := range map[string]bool{
		"ns.default.svc.cluster.local": true, "cluster.local": true, "nscluster.local": false, "cluster.local.example.org": false, "": false,
	} {
		if got := r.inCluster(host); got != want {
			t.Errorf("inCluster(%q) = %v, want %v", host, got, want)
		}
	}
}

// fakeLookup answers lookups from a map and counts them.
type fakeLookup struct {
	mu    sync.Mutex
	addrs map[string]string // "" is an error
	ttl   time.Duration
	asked map[string]int
}

func (f *fakeLookup) lookup(_ context.Context, host string) ([]netip.Addr, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[host]++
	if f.addrs[host] == "" {
		return nil, 0, errors.New("no such host")
	}
	return []netip.Addr{netip.MustParseAddr(f.addrs[host])}, f.ttl, nil
}

func (f *fakeLookup) set(host, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs[host] = addr
}

func (f *fakeLookup) count(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[host]
}

// TestNames follows names through their TTLs, failures included.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLookup{addrs: map[string]string{"a.example": "192.0.2.1"}, ttl: time.Minute, asked: map[string]int{}}
		n := newNames(f.lookup)
		ctx, cancel := context.WithCancel(t.Context())
		defer n.wait()
		defer cancel()
		expect := func(step, want string, wantPending bool) {
			t.Helper()
			synctest.Wait()
			resolved, pending := n.addrs()
			if got := fmt.Sprint(resolved); got != want || pending != wantPending {
				t.Errorf("%s: %s, pending %v, want %s, pending %v", step, got, pending, want, wantPending)
			}
		}
		changed := func() bool {
			select {
			case <-n.changed:
				return true
			default:
				return false
			}
		}
		n.want(ctx, []string{"a.example", "b.example"})
		expect("at first", "map[a.example:[192.0.2.1] b.example:[]]", false)
		if !changed() {
			t.Error("the first addresses are not told")
		}

		time.Sleep(59 * time.Second)
		if got := f.count("a.example"); got != 1 {
			t.Errorf("a.example was looked up %d times within its TTL", got)
		}
		if got := f.count("b.example"); got != 12 {
			t.Errorf("b.example, which does not resolve, was looked up %d times in 59 s, want 12", got)
		}
		if changed() {
			t.Error("a change is told, and there was none")
		}

		f.set("a.example", "192.0.2.2")
		f.set("b.example", "192.0.2.3")
		time.Sleep(2 * time.Second)
		expect("after the TTL", "map[a.example:[192.0.2.2] b.example:[192.0.2.3]]", false)
		if !changed() {
			t.Error("the new addresses are not told")
		}

		f.set("a.example", "")
		time.Sleep(time.Minute)
		expect("failed", "map[a.example:[192.0.2.2] b.example:[192.0.2.3]]", false)

		n.want(ctx, []string{"b.example"})
		before := f.count("a.example")
		time.Sleep(time.Hour)
		expect("not wanted any longer", "map[b.example:[192.0.2.3]]", false)
		if got := f.count("a.example"); got != before {
			t.Errorf("a.example was looked up %d times more", got-before)
		}
	})
}

// TestServersByName gives dnsmasq servers by their names.
func TestServersByName(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	_, port, _ := net.SplitHostPort(a.addr)
	kubedns := startZone(t, "ns.default.svc.cluster.local. 30 IN A 127.0.0.1\n")
	nt := startNanny(t, nil, func(nt *nannyTest) { nt.opts.KubednsServer = kubedns })
	// One domain's server does not resolve; neither its other server nor other
	// domains suffer.
	nt.writeJSON(t, "stubDomains", map[string][]string{
		"name.example": {"gone.default.svc.cluster.local", "ns.default.svc.cluster.local:" + port},
		"stub.example": {b.addr},
	})
	nt.awaitLookup(t, "name.example", "192.0.2.1")
	nt.awaitLookup(t, "stub.example", "192.0.2.2")
	if got := valueOf(t, nt.metrics.reloads.WithLabelValues(resultRefused)); got != 0 {
		t.Errorf("%v configurations refused", got)
	}
}

// TestSlowLookupHoldsNothingUp has a name server that never answers: what needs
// no lookup is active all the same.
func TestSlowLookupHoldsNothingUp(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nt := startNanny(t, nil, func(nt *nannyTest) { nt.opts.KubednsServer = silent.LocalAddr().String() })
	began := time.Now()
	nt.writeJSON(t, "stubDomains", map[string][]string{"stub.example": {"ns.default.svc.cluster.local", a.addr}})
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	if took := time.Since(began); took > lookupTimeout/2 {
		t.Errorf("it took %v, a lookup's deadline is %v", took, lookupTimeout)
	}
}
