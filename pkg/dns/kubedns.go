package dns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"k8s.io/client-go/util/workqueue"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/records"
	"kubedns/pkg/dns/skydns"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/source/snapshot"
	"kubedns/pkg/dns/treecache"
)

// KubeDNS keeps the records of a cluster's Services in a tree, and is the
// server's backend. Its methods are safe for concurrent use.
type KubeDNS struct {
	*skydns.Backend
	tree    *treecache.Tree
	source  source.Source
	metrics *metrics

	queue   workqueue.TypedInterface[treecache.Key]
	synced  atomic.Bool
	started time.Time // when New was called

	snapshot *snapshot.File            // nil for none
	restored atomic.Pointer[time.Time] // when the snapshot that is served was taken
	complete chan struct{}             // closed once the source is complete

	federations atomic.Pointer[map[string]string]

	mu      sync.Mutex
	pending map[treecache.Key]time.Time // when the oldest change happened that the records do not have
}

// Options are what New needs besides the source.
type Options struct {
	// Zone is the cluster domain, "cluster.local.", in lower case.
	Zone string
	// TTL is the records' in seconds.
	TTL uint32
	// SnapshotFile is the path of the file that keeps the objects over a
	// restart; empty for none. A directory of manifests needs none.
	SnapshotFile string
}

// syncKey is queued after all Services of the first list: once the worker has
// come to it twice, the records are complete.
var syncKey = treecache.Key{}

// New makes a KubeDNS of the objects of s.
func New(o Options, s source.Source) *KubeDNS {
	kd := &KubeDNS{
		tree:     treecache.New(o.Zone),
		source:   s,
		metrics:  newMetrics(),
		queue:    workqueue.NewTyped[treecache.Key](),
		started:  time.Now(),
		pending:  map[treecache.Key]time.Time{},
		complete: make(chan struct{}),
	}
	kd.Backend = skydns.New(kd.tree, o.TTL, kd.Federated)
	if o.SnapshotFile != "" {
		kd.snapshot = snapshot.New(o.SnapshotFile)
	}
	kd.federations.Store(&map[string]string{})
	return kd
}

// Run keeps the records current until ctx is done; then it returns nil. It
// returns once every goroutine has ended. Any other error is the source's. It
// must be called once.
func (kd *KubeDNS) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if kd.snapshot != nil {
		kd.restore()
		wg.Go(func() { kd.snapshot.Run(ctx, kd.source.All) })
	}
	wg.Go(func() { kd.work(ctx) })
	err := kd.source.Run(ctx, events{kd})
	kd.queue.ShutDown()
	wg.Wait()
	return err
}

// Tree returns the records. It is empty before Run.
func (kd *KubeDNS) Tree() *treecache.Tree { return kd.tree }

// HasSynced reports whether the records are complete: every object of the
// first list has its records.
func (kd *KubeDNS) HasSynced() bool { return kd.synced.Load() }

// Missing says why HasSynced is false, in words for an operator.
func (kd *KubeDNS) Missing() string {
	if kd.synced.Load() {
		return ""
	}
	return kd.Incomplete()
}

// Incomplete says why the records are not yet those of the source; "" where they
// are. A snapshot may be served meanwhile.
func (kd *KubeDNS) Incomplete() string {
	if kd.synced.Load() && kd.restored.Load() == nil {
		return ""
	}
	if why := kd.source.Status().Missing; why != "" {
		return why
	}
	return fmt.Sprintf("building records: %d services to go", kd.queue.Len())
}

// SetFederations replaces the configured federations, name to domain. The map
// must not be changed afterwards.
func (kd *KubeDNS) SetFederations(federations map[string]string) {
	kd.federations.Store(&federations)
	kd.source.NeedTopology(len(federations) > 0)
}

// HasFederations reports whether any federation is configured.
func (kd *KubeDNS) HasFederations() bool { return len(*kd.federations.Load()) > 0 }

// Federated reports whether the labels left of "svc" and the zone, from the
// left and in lower case, name a Service of a configured federation. target is
// that of its CNAME record: the Service in this cluster where it has a ready
// endpoint, else the federation's, which is "" while the topology zone or the
// region is unknown.
func (kd *KubeDNS) Federated(labels []string) (target string, ok bool) {
	f := *kd.federations.Load()
	if len(f) == 0 {
		return "", false
	}
	q, ok := federation.Match(labels, f)
	if !ok {
		return "", false
	}
	if r, _ := kd.tree.Service([]byte(q.Namespace), []byte(q.Service)); r != nil && r.HasReady {
		return r.Name(kd.tree.Zone()), true
	}
	return q.Target(kd.source.Topology()), true
}

// events is what a KubeDNS is to its source.
type events struct{ kd *KubeDNS }

// Changed implements source.Events.
func (e events) Changed(key treecache.Key, since time.Time) {
	e.kd.startLatency(key, since)
	e.kd.enqueue(key)
}

// Listed implements source.Events.
func (e events) Listed() {
	e.kd.queue.Add(syncKey)
	close(e.kd.complete)
}

// enqueue has the worker build the Service's records.
func (kd *KubeDNS) enqueue(key treecache.Key) { kd.queue.Add(key) }

// startLatency has the time from t to the records' replacement measured. The
// oldest of several changes counts, and none from before the start.
func (kd *KubeDNS) startLatency(key treecache.Key, t time.Time) {
	if t.Before(kd.started) {
		return
	}
	kd.mu.Lock()
	defer kd.mu.Unlock()
	if last, ok := kd.pending[key]; !ok || t.Before(last) {
		kd.pending[key] = t
	}
}

// restore serves the objects of the snapshot file until the source is complete.
// Without a file, or with one that cannot be used, nothing is served before
// that.
func (kd *KubeDNS) restore() {
	set, taken, err := kd.snapshot.Load()
	if errors.Is(err, snapshot.ErrNone) {
		return
	}
	if err != nil {
		glog.Warningf("dns: ignored: %v", err)
		return
	}
	now := time.Now()
	for _, key := range set.Services() {
		kd.tree.Replace(key, records.Build(set.Service(key), set.Slices(key)), now)
		kd.enqueue(key) // to be built again, or deleted, once the source is complete
	}
	kd.restored.Store(&taken)
	kd.synced.Store(true)
	glog.Infof("dns: serving the snapshot of %v until the API server has been listed: %v",
		taken.UTC().Format(time.RFC3339), kd.tree)
}

// Restored returns when the snapshot was taken that is served until the source
// is complete; ok is false where none is served.
func (kd *KubeDNS) Restored() (taken time.Time, ok bool) {
	if t := kd.restored.Load(); t != nil {
		return *t, true
	}
	return time.Time{}, false
}

// work builds the records of one Service after another until the queue is shut
// down. While a snapshot is served it waits until the source is complete:
// records made of half a list would be worse than the snapshot's.
func (kd *KubeDNS) work(ctx context.Context) {
	if kd.restored.Load() != nil {
		select {
		case <-kd.complete:
		case <-ctx.Done():
			return // the snapshot is served to the end
		}
	}
	again := true
	for {
		key, stop := kd.queue.Get()
		switch {
		case stop:
			return
		case key != syncKey:
			kd.rebuild(key)
		case again:
			// A Service that changed while it was being built was queued again
			// only afterwards, maybe after the end of the list. The records are
			// complete after another turn.
			again = false
			kd.queue.Add(syncKey)
		default:
			kd.becomeSynced()
		}
		kd.queue.Done(key)
	}
}

func (kd *KubeDNS) becomeSynced() {
	restored := kd.restored.Swap(nil) != nil
	if kd.snapshot != nil {
		kd.snapshot.Due()
	}
	if !kd.synced.Swap(true) || restored {
		glog.Infof("dns: synced in %v, %v", time.Since(kd.started).Round(time.Millisecond), kd.tree)
	}
}

// rebuild makes the Service's records of the objects as they are now.
func (kd *KubeDNS) rebuild(key treecache.Key) {
	kd.mu.Lock()
	since, measured := kd.pending[key]
	delete(kd.pending, key)
	kd.mu.Unlock()

	next := records.Build(kd.source.Service(key), kd.source.Slices(key))
	if !kd.tree.Replace(key, next, time.Now()) {
		return
	}
	if kd.snapshot != nil && kd.restored.Load() == nil && kd.synced.Load() {
		kd.snapshot.Due()
	}
	if next == nil {
		glog.V(2).Infof("dns: %v is gone", key)
		return
	}
	if measured {
		kd.metrics.programmed(next.Kind, time.Since(since))
	}
	if kd.synced.Load() && bool(glog.V(2)) { // the first list would be a line for each Service
		v4, v6 := next.Family()
		glog.V(2).Infof("dns: %v has %d IPv4 and %d IPv6 addresses, %d ports, target %q", key, v4, v6, len(next.Ports), next.Target)
	}
}
