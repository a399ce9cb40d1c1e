package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"k8s.io/client-go/util/workqueue"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/treecache"
)

// KubeDNS turns a cluster's Services into records. Its methods are safe for
// concurrent use.
type KubeDNS struct {
	tree    *treecache.Tree
	ttl     uint32 // seconds
	source  source
	metrics *metrics

	queue   workqueue.TypedInterface[treecache.Key]
	synced  atomic.Bool
	started time.Time // when it was made

	snapshotFile string                    // empty for none
	restored     atomic.Pointer[time.Time] // when the snapshot that is served was taken
	complete     chan struct{}             // closed once the source has told all it knew at the start
	changed      chan struct{}             // wakes the writing of snapshots; one token

	federations atomic.Pointer[map[string]string]
	configured  chan struct{} // wakes the watching of Nodes; one token

	mu      sync.Mutex
	pending map[treecache.Key]time.Time // what a Service's records are measured from, see programmed
}

// source is where the objects come from: an API server or a directory.
type source interface {
	// run keeps the objects and tells kd of each change, until ctx is done.
	// It calls kd.listed once every object known at the start was told.
	run(ctx context.Context, kd *KubeDNS) error
	// service is the Service of that name, or nil.
	service(treecache.Key) *service
	// slicesOf has the Service's slices, in the order of their names.
	slicesOf(treecache.Key) []*slice
	// topology is the zone and region of the cluster's Nodes.
	topology() (topologyZone, region string)
	// all has everything that is kept, in no order.
	all() (services []*service, slices []*slice)
	// objects counts what is kept.
	objects() (services, slices int)
	// missing says in words what has not been listed yet and why.
	missing() string
}

// Options are what New needs besides the source.
type Options struct {
	// Zone is the cluster domain, "cluster.local.", in lower case.
	Zone string
	// TTL is the records' in seconds.
	TTL uint32
	// SnapshotFile keeps what is known over a restart; empty for none. A
	// directory of manifests needs none.
	SnapshotFile string
}

// syncKey stands in the queue behind all that the first list brought: once the
// worker has come to it twice, the records are complete.
var syncKey = treecache.Key{}

func newKubeDNS(o Options, s source, m *metrics) *KubeDNS {
	kd := &KubeDNS{
		tree:       treecache.New(o.Zone),
		ttl:        o.TTL,
		source:     s,
		metrics:    m,
		queue:      workqueue.NewTyped[treecache.Key](),
		started:    time.Now(),
		configured: make(chan struct{}, 1),
		pending:    map[treecache.Key]time.Time{},
		complete:   make(chan struct{}),
		changed:    make(chan struct{}, 1),

		snapshotFile: o.SnapshotFile,
	}
	kd.federations.Store(&map[string]string{})
	return kd
}

// Run watches the cluster until ctx is done; it returns nil then, and once
// every goroutine has ended. It must be called once.
func (kd *KubeDNS) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if kd.snapshotFile != "" {
		kd.loadSnapshot()
		wg.Go(func() { kd.keepSnapshots(ctx) })
	}
	wg.Go(func() { kd.work(ctx) })
	err := kd.source.run(ctx, kd)
	kd.queue.ShutDown()
	wg.Wait()
	return err
}

// Tree has the records; it is empty before Run.
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

// Incomplete says why the records are not yet those of the API server, and ""
// where they are; a snapshot may be served all the same.
func (kd *KubeDNS) Incomplete() string {
	if kd.synced.Load() && kd.restored.Load() == nil {
		return ""
	}
	if why := kd.source.missing(); why != "" {
		return why
	}
	return fmt.Sprintf("building records: %d services to go", kd.queue.Len())
}

// SetFederations replaces the configured federations, name to domain. The map
// must not be changed afterwards.
func (kd *KubeDNS) SetFederations(federations map[string]string) {
	kd.federations.Store(&federations)
	select {
	case kd.configured <- struct{}{}:
	default:
	}
}

// HasFederations tells whether any federation is configured.
func (kd *KubeDNS) HasFederations() bool { return len(*kd.federations.Load()) > 0 }

// Federated tells whether the labels left of "svc" and the zone, from the left
// and in lower case, ask for a Service of a configured federation, and the
// name that its CNAME has: the Service in this cluster where it has a ready
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
	return q.Target(kd.source.topology()), true
}

// touch queues a Service to be built anew.
func (kd *KubeDNS) touch(key treecache.Key) { kd.queue.Add(key) }

// measure has the time from t to the records' replacement measured for key;
// of several changes that one replacement brings, the oldest counts.
func (kd *KubeDNS) measure(key treecache.Key, t time.Time) {
	if t.Before(kd.started) {
		return
	}
	kd.mu.Lock()
	defer kd.mu.Unlock()
	if last, ok := kd.pending[key]; !ok || t.Before(last) {
		kd.pending[key] = t
	}
}

// listed is called by the source once all it knew at the start was touched.
func (kd *KubeDNS) listed() {
	kd.queue.Add(syncKey)
	close(kd.complete)
}

// work rebuilds one Service after another until the queue is shut down. While
// a snapshot is served it waits until the source has told everything: records
// made of half a list would be worse than the snapshot's.
func (kd *KubeDNS) work(ctx context.Context) {
	if kd.restored.Load() != nil {
		select {
		case <-kd.complete:
		case <-ctx.Done():
			return // what was touched stays the snapshot's
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
			// A Service that was touched while it was being built was queued
			// anew only then, which may have been behind the end of the list:
			// the records are complete after another turn.
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
	if kd.snapshotFile != "" {
		kd.snapshotDue()
	}
	if !kd.synced.Swap(true) || restored {
		glog.Infof("dns: synced in %v, %v", time.Since(kd.started).Round(time.Millisecond), kd.tree)
	}
}

// rebuild makes the Service's records from the objects as they are now.
func (kd *KubeDNS) rebuild(key treecache.Key) {
	kd.mu.Lock()
	since, measured := kd.pending[key]
	delete(kd.pending, key)
	kd.mu.Unlock()

	next := buildRecords(kd.source.service(key), kd.source.slicesOf(key))
	if !kd.tree.Replace(key, next, time.Now()) {
		return
	}
	if kd.snapshotFile != "" && kd.restored.Load() == nil && kd.synced.Load() {
		kd.snapshotDue()
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

// sortSlices brings slices into the order of their names.
func sortSlices(s []*slice) []*slice {
	slices.SortFunc(s, func(a, b *slice) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// APIServerFailed counts a list or watch that was not the KubeDNS's own.
func (kd *KubeDNS) APIServerFailed(resource string, err error) {
	if c, ok := kd.source.(*cluster); ok {
		c.failed(resource, err)
	}
}
