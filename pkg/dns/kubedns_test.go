package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kubedns/pkg/dns/treecache"
)

// TestOrderOfEvents applies random histories, the events of Services and those
// of slices from a goroutine each as the watches do, and
// compares with the tree that the last state alone makes.
func TestOrderOfEvents(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 30 {
		g := generator{rand.New(rand.NewPCG(seed, uint64(round)))}
		final := newState()
		for range g.IntN(10) {
			g.change(final)
		}
		f := newFake(slices.Collect(maps.Values(final.services)), slices.Collect(maps.Values(final.slices)))
		kd := newTestKubeDNS(f)
		stop := start(t, kd)
		diff := ""
		for range 6 {
			// Each bout ends with its own last events, of which none may be
			// missed.
			var services, endpointSlices []change
			for range 1 + g.IntN(10) {
				if c := g.change(final); c.service != nil {
					services = append(services, c)
				} else {
					endpointSlices = append(endpointSlices, c)
				}
			}
			var wg sync.WaitGroup
			for _, history := range [][]change{services, endpointSlices} {
				wg.Go(func() {
					for _, c := range history {
						f.apply(kd, c)
					}
				})
			}
			wg.Wait()
			if diff = waitForTree(kd, final.tree()); diff != "" {
				break
			}
		}
		stop()
		if diff != "" {
			t.Fatalf("seed %d, round %d: %s", seed, round, diff)
		}
	}
}

// waitForTree waits until kd is synced and has the tree wanted. It returns how
// they differ if that does not come about.
func waitForTree(kd *KubeDNS, want *treecache.Tree) (diff string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		diff = sameTree(kd.Tree(), want)
		if diff == "" && kd.HasSynced() {
			return ""
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Sprintf("synced: %v, %s", kd.HasSynced(), diff)
		}
	}
}

// apply does a change to the source and tells kd of it.
func (f *fakeSource) apply(kd *KubeDNS, c change) {
	if c.service != nil {
		s := trimService(c.service)
		f.mu.Lock()
		if c.deleted {
			delete(f.services, s.key())
		} else {
			f.services[s.key()] = s
		}
		f.mu.Unlock()
		kd.touch(s.key())
		return
	}
	s := trimSlice(c.slice)
	key := s.key().String()
	f.mu.Lock()
	last := f.slices[key]
	if c.deleted {
		delete(f.slices, key)
	} else {
		f.slices[key] = s
	}
	f.mu.Unlock()
	if last != nil {
		kd.touch(last.owner())
	}
	kd.touch(s.owner())
}

// TestReplacedPTR: a Service that changes its addresses keeps none of the old
// reverse records, and another that shares one keeps its own.
func TestReplacedPTR(t *testing.T) {
	services, all := parseObjects(t, headlessDB+`
---
{kind: Service, metadata: {name: other}, spec: {clusterIP: 192.0.2.1}}`+
		slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}, {addresses: [192.0.2.2], hostname: b}]}`)
	f := newFake(services, all)
	kd := newTestKubeDNS(f)
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	want := func(addr string, names ...string) {
		t.Helper()
		if got := reverseNames(kd.Tree(), addrs(addr)[0]); !slices.Equal(got, names) {
			t.Errorf("PTR records of %s: %q, want %q", addr, got, names)
		}
	}
	want("192.0.2.1", "a.db.default.svc.cluster.local.", "other.default.svc.cluster.local.")
	want("192.0.2.2", "b.db.default.svc.cluster.local.")

	_, next := parseOne(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.3], hostname: a}]}`)
	f.mu.Lock()
	f.slices["default/db-4"] = next[0]
	f.mu.Unlock()
	kd.touch(next[0].owner())
	eventually(t, "the new address has its name", func() bool { return reverseNames(kd.Tree(), addrs("192.0.2.3")[0]) != nil })
	want("192.0.2.1", "other.default.svc.cluster.local.")
	want("192.0.2.2")
	want("192.0.2.3", "a.db.default.svc.cluster.local.")
}

// TestSynced: the records are complete once every object of the first list has
// its records, and not before.
func TestSynced(t *testing.T) {
	services, all := parseObjects(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	db := treecache.Key{Namespace: "default", Name: "db"}
	f := newFake(services, all)
	release, reading := make(chan struct{}), make(chan struct{}, 1)
	f.afterRead = func(treecache.Key) {
		select {
		case reading <- struct{}{}:
		default:
		}
		<-release
	}
	kd := newTestKubeDNS(f)
	if kd.HasSynced() || kd.Missing() != "building records: 0 services to go" {
		t.Errorf("before Run: %v, %q", kd.HasSynced(), kd.Missing())
	}
	f.why = "nothing listed yet"
	if got := kd.Missing(); got != "nothing listed yet" {
		t.Errorf("Missing() = %q", got)
	}
	f.why = ""
	start(t, kd)
	<-reading
	eventually(t, "the end of the list is queued", func() bool { return kd.queue.Len() == 1 })
	if got, want := kd.Missing(), "building records: 1 services to go"; got != want {
		t.Errorf("Missing() = %q, want %q", got, want)
	}
	if kd.HasSynced() {
		t.Error("synced while a Service has no records yet")
	}
	close(release)
	eventually(t, "the records are complete", kd.HasSynced)
	if r, _ := kd.Tree().Service([]byte(db.Namespace), []byte(db.Name)); r == nil {
		t.Error("synced without the Service's records")
	}
	if got := kd.Missing(); got != "" {
		t.Errorf("Missing() = %q once synced", got)
	}
}

// TestSyncedChangeWhileBuilding: a Service that is told of again while its
// records are being built, before the first list ends, has them built anew
// before the records count as complete.
func TestSyncedChangeWhileBuilding(t *testing.T) {
	services, all := parseObjects(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	f := newFake(services, nil)
	kd := newTestKubeDNS(f)
	db := treecache.Key{Namespace: "default", Name: "db"}
	f.begin = func(kd *KubeDNS) { kd.touch(db) }
	reads := 0
	f.afterRead = func(treecache.Key) {
		reads++ // by the one worker
		switch reads {
		case 1:
			// The slice arrives after the worker has looked for it, and it is
			// the last object of the list.
			s := trimSlice(all[0])
			f.mu.Lock()
			f.slices["default/db-4"] = s
			f.mu.Unlock()
			kd.touch(s.owner())
			kd.listed()
		case 2:
			if kd.HasSynced() {
				t.Error("synced before the slice has its records")
			}
		}
	}
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	if got := zoneText(kd.Tree()); !strings.Contains(got, "db.default.svc A 192.0.2.1") {
		t.Errorf("synced with the records\n%s", got)
	}
}

// failingSource ends at once.
type failingSource struct{ fakeSource }

var errSource = errors.New("no source")

func (*failingSource) run(context.Context, *KubeDNS) error { return errSource }

// TestRunFails: Run returns what the source returned, once its worker ended.
func TestRunFails(t *testing.T) {
	if err := newTestKubeDNS(&failingSource{}).Run(t.Context()); !errors.Is(err, errSource) {
		t.Errorf("Run() = %v, want %v", err, errSource)
	}
}

func TestFederated(t *testing.T) {
	services, all := parseObjects(t, `{kind: Service, metadata: {name: db}, spec: {clusterIP: 192.0.2.1}}
---
{kind: Service, metadata: {name: idle}, spec: {clusterIP: 192.0.2.2}}`+
		slice4+`endpoints: [{addresses: [192.0.2.9]}]}`)
	f := newFake(services, all)
	kd := newTestKubeDNS(f)
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	local, away := "db.default.svc.cluster.local.", "idle.default.fed.svc.z1.r1.example.org."
	for _, tt := range []struct {
		name         string
		federations  map[string]string
		zone, region string
		labels       string
		want         string
		ok           bool
	}{
		{"not configured", nil, "z1", "r1", "db.default.fed", "", false},
		{"another one", map[string]string{"fed": "example.org"}, "z1", "r1", "db.default.other", "", false},
		{"here and ready", map[string]string{"fed": "example.org"}, "z1", "r1", "db.default.fed", local, true},
		{"here and ready, topology unknown", map[string]string{"fed": "example.org"}, "", "", "db.default.fed", local, true},
		{"here without a ready endpoint", map[string]string{"fed": "example.org"}, "z1", "r1", "idle.default.fed", away, true},
		{"not here", map[string]string{"fed": "example.org"}, "z1", "r1", "gone.default.fed", strings.Replace(away, "idle", "gone", 1), true},
		{"zone unknown", map[string]string{"fed": "example.org"}, "", "r1", "gone.default.fed", "", true},
		{"region unknown", map[string]string{"fed": "example.org"}, "z1", "", "idle.default.fed", "", true},
		{"two labels", map[string]string{"fed": "example.org"}, "z1", "r1", "default.fed", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kd.SetFederations(tt.federations)
			f.topologyZone, f.region = tt.zone, tt.region
			if got, ok := kd.Federated(strings.Split(tt.labels, ".")); got != tt.want || ok != tt.ok {
				t.Errorf("Federated(%s) = %q, %v, want %q, %v", tt.labels, got, ok, tt.want, tt.ok)
			}
		})
	}
}
