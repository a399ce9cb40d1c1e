package dns

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/treecache"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// newTestKubeDNS makes a KubeDNS that is not run yet.
func newTestKubeDNS(s source.Source) *KubeDNS {
	return New(Options{Zone: clustertest.Zone, TTL: 30}, s)
}

// TestOrderOfEvents applies random histories, the events of Services and those
// of slices from a goroutine each as the watches do, and
// compares with the tree that the last state alone makes.
func TestOrderOfEvents(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 30 {
		g := clustertest.Generator{Rand: rand.New(rand.NewPCG(seed, uint64(round)))}
		final := clustertest.NewState()
		for range g.IntN(10) {
			g.Change(final)
		}
		f := sourcetest.New(slices.Collect(maps.Values(final.Services)), slices.Collect(maps.Values(final.Slices)))
		kd := newTestKubeDNS(f)
		stop := clustertest.Start(t, kd.Run)
		diff := ""
		for range 6 {
			// Each bout ends with its own last events, of which none may be
			// missed.
			var services, endpointSlices []clustertest.Change
			for range 1 + g.IntN(10) {
				if c := g.Change(final); c.Service != nil {
					services = append(services, c)
				} else {
					endpointSlices = append(endpointSlices, c)
				}
			}
			var wg sync.WaitGroup
			for _, history := range [][]clustertest.Change{services, endpointSlices} {
				wg.Go(func() {
					for _, c := range history {
						f.Apply(c)
					}
				})
			}
			wg.Wait()
			if diff = clustertest.WaitForTree(kd, sourcetest.Tree(final)); diff != "" {
				break
			}
		}
		stop()
		if diff != "" {
			t.Fatalf("seed %d, round %d: %s", seed, round, diff)
		}
	}
}

// TestReplacedPTR: a Service that changes its addresses keeps none of the old
// reverse records, and another that shares one keeps its own.
func TestReplacedPTR(t *testing.T) {
	services, all := clustertest.Parse(t, clustertest.HeadlessDB+`
---
{kind: Service, metadata: {name: other}, spec: {clusterIP: 192.0.2.1}}`+
		clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}, {addresses: [192.0.2.2], hostname: b}]}`)
	f := sourcetest.New(services, all)
	kd := newTestKubeDNS(f)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	want := func(addr string, names ...string) {
		t.Helper()
		if got := clustertest.ReverseNames(kd.Tree(), clustertest.Addrs(addr)[0]); !slices.Equal(got, names) {
			t.Errorf("PTR records of %s: %q, want %q", addr, got, names)
		}
	}
	want("192.0.2.1", "a.db.default.svc.cluster.local.", "other.default.svc.cluster.local.")
	want("192.0.2.2", "b.db.default.svc.cluster.local.")

	_, next := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.3], hostname: a}]}`)
	f.Apply(clustertest.Change{Slice: next[0]})
	clustertest.Eventually(t, "the new address has its name", func() bool { return clustertest.ReverseNames(kd.Tree(), clustertest.Addrs("192.0.2.3")[0]) != nil })
	want("192.0.2.1", "other.default.svc.cluster.local.")
	want("192.0.2.2")
	want("192.0.2.3", "a.db.default.svc.cluster.local.")
}

// TestSynced: the records are complete once every object of the first list has
// its records, and not before.
func TestSynced(t *testing.T) {
	services, all := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	db := treecache.Key{Namespace: "default", Name: "db"}
	f := sourcetest.New(services, all)
	release, reading := make(chan struct{}), make(chan struct{}, 1)
	f.AfterRead = func(treecache.Key) {
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
	f.SetMissing("nothing listed yet")
	if got := kd.Missing(); got != "nothing listed yet" {
		t.Errorf("Missing() = %q", got)
	}
	f.SetMissing("")
	clustertest.Start(t, kd.Run)
	<-reading
	clustertest.Eventually(t, "the end of the list is queued", func() bool { return kd.queue.Len() == 1 })
	if got, want := kd.Missing(), "building records: 1 services to go"; got != want {
		t.Errorf("Missing() = %q, want %q", got, want)
	}
	if kd.HasSynced() {
		t.Error("synced while a Service has no records yet")
	}
	close(release)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	if r, _ := kd.Tree().Service([]byte(db.Namespace), []byte(db.Name)); r == nil {
		t.Error("synced without the Service's records")
	}
	if got := kd.Missing(); got != "" {
		t.Errorf("Missing() = %q once synced", got)
	}
}

// TestSyncedChangeWhileBuilding: a Service that changes again while its
// records are being built, before the first list ends, has them built anew
// before the records count as complete.
func TestSyncedChangeWhileBuilding(t *testing.T) {
	services, all := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	f := sourcetest.New(services, nil)
	kd := newTestKubeDNS(f)
	db := treecache.Key{Namespace: "default", Name: "db"}
	var events source.Events
	f.Begin = func(e source.Events) {
		events = e
		e.Changed(db, time.Time{})
	}
	reads := 0
	f.AfterRead = func(treecache.Key) {
		reads++ // by the one worker
		switch reads {
		case 1:
			// The slice arrives after the worker has looked for it, and it is
			// the last object of the list.
			f.Put(clustertest.Change{Slice: all[0]})
			events.Changed(db, time.Time{})
			events.Listed()
		case 2:
			if kd.HasSynced() {
				t.Error("synced before the slice has its records")
			}
		}
	}
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	if got := clustertest.ZoneText(kd.Tree()); !strings.Contains(got, "db.default.svc A 192.0.2.1") {
		t.Errorf("synced with the records\n%s", got)
	}
}

// failingSource ends at once.
type failingSource struct{ *sourcetest.Fake }

var errSource = errors.New("no source")

func (failingSource) Run(context.Context, source.Events) error { return errSource }

// TestRunFails: Run returns what the source returned, once its worker ended.
func TestRunFails(t *testing.T) {
	if err := newTestKubeDNS(failingSource{}).Run(t.Context()); !errors.Is(err, errSource) {
		t.Errorf("Run() = %v, want %v", err, errSource)
	}
}

// TestFederationsNeedTopology: the source learns whether the Nodes' topology is
// needed.
func TestFederationsNeedTopology(t *testing.T) {
	f := sourcetest.New(nil, nil)
	kd := newTestKubeDNS(f)
	kd.SetFederations(map[string]string{"fed": "example.org"})
	kd.SetFederations(map[string]string{})
	if got, want := f.NeededTopology(), []bool{true, false}; !slices.Equal(got, want) {
		t.Errorf("NeedTopology was called with %v, want %v", got, want)
	}
}

func TestFederated(t *testing.T) {
	services, all := clustertest.Parse(t, `{kind: Service, metadata: {name: db}, spec: {clusterIP: 192.0.2.1}}
---
{kind: Service, metadata: {name: idle}, spec: {clusterIP: 192.0.2.2}}`+
		clustertest.Slice4+`endpoints: [{addresses: [192.0.2.9]}]}`)
	f := sourcetest.New(services, all)
	kd := newTestKubeDNS(f)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
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
			f.TopologyZone, f.Region = tt.zone, tt.region
			if got, ok := kd.Federated(strings.Split(tt.labels, ".")); got != tt.want || ok != tt.ok {
				t.Errorf("Federated(%s) = %q, %v, want %q, %v", tt.labels, got, ok, tt.want, tt.ok)
			}
		})
	}
}
