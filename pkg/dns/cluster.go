package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/treecache"
)

// cluster is the source that an API server is.
type cluster struct {
	services, slices cache.SharedIndexInformer
	core             rest.Interface
	metrics          *metrics

	first *firstList
	// Set by run: touch has a Service's records built anew, and built is closed
	// once those of the first lists stand.
	touch func(treecache.Key)
	built <-chan struct{}

	listed  chan struct{} // wakes giveBack; one token
	contact atomic.Int64  // when the API server was last heard, in Unix nanoseconds; 0 before

	mu         sync.Mutex
	lastErrors map[string]watchError // by resource; gone once it was heard again
	warned     map[string]time.Time
	nodes      cache.SharedIndexInformer
	thrifty    int // lists under way for which the collector keeps the heap small
	percent    int // the collector's without them
}

// Resources, as the API's paths, errors and metrics name them.
const (
	resourceServices = "services"
	resourceSlices   = "endpointslices"
)

// byService indexes slices by the Service that they belong to.
const byService = "service"

// NewCluster makes a KubeDNS of an API server's Services and EndpointSlices,
// given clients for core/v1 and discovery.k8s.io/v1.
func NewCluster(o Options, core, discovery rest.Interface) *KubeDNS {
	c := &cluster{core: core, metrics: newMetrics(), first: newFirstList(), listed: make(chan struct{}, 1), lastErrors: map[string]watchError{}, warned: map[string]time.Time{}}
	c.services = c.informer(core, resourceServices, &corev1.Service{}, nil, func(obj any) (any, error) {
		if s, ok := obj.(*corev1.Service); ok {
			return trimService(s), nil
		}
		return obj, nil
	})
	c.slices = c.informer(discovery, resourceSlices, &discoveryv1.EndpointSlice{}, cache.Indexers{
		byService: func(obj any) ([]string, error) {
			s, ok := obj.(*slice)
			if !ok || s.service == "" {
				return nil, nil
			}
			return []string{s.Namespace + "/" + s.service}, nil
		},
	}, func(obj any) (any, error) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			return trimSlice(s), nil
		}
		return obj, nil
	})
	return newKubeDNS(o, c, c.metrics)
}

// informer makes one whose requests and events count as contact.
func (c *cluster) informer(client rest.Interface, resource string, example runtime.Object, by cache.Indexers, trim cache.TransformFunc) cache.SharedIndexInformer {
	var i cache.SharedIndexInformer
	l := &lister{cluster: c, resource: resource, client: client, once: func(ctx context.Context) (runtime.Object, error) {
		return c.list(ctx, client, resource, trim, i.GetStore())
	}}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return l.list(ctx)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := l.watch(ctx, o)
			if err != nil {
				return nil, err
			}
			// That a watch begins is no contact: client-go makes an empty one
			// of a connection that was closed or timed out.
			return tap(w, func(e watch.Event) {
				if e.Type == watch.Error {
					c.failed(resource, apierrors.FromObject(e.Object))
				} else {
					c.heard(resource)
				}
			}, func() { c.failed(resource, errEmptyWatch) }), nil
		},
	}
	i = cache.NewSharedIndexInformerWithOptions(pagedListWatch{lw}, example, cache.SharedIndexInformerOptions{
		Indexers: by, ObjectDescription: resource,
	})
	// Neither fails before the informer has started.
	if err := errors.Join(
		i.SetTransform(trim),
		i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) { l.watchFailed(ctx, err) }),
	); err != nil {
		glog.Errorf("dns: %s informer: %v", resource, err)
	}
	return i
}

// pagedListWatch has client-go list in pages. A streaming list takes as little
// memory, but its end is a bookmark, which the API server may send a second
// after the last object: a second without DNS at every start.
type pagedListWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how client-go is told.
func (pagedListWatch) IsWatchListSemanticsUnSupported() bool { return true }

// A page of a list has objects enough to be worth a request, and few enough
// that what is not kept of them is little: whole EndpointSlices of a hundred
// endpoints each are megabytes.
const (
	firstPage   = 100    // objects
	largestPage = 500    // objects
	pageWeight  = 10_000 // objects and endpoints
)

// nextPage is how many objects the next page should have, given how many the
// last one was asked to have and what it weighed.
func nextPage(last, weight int) int {
	return min(max(last*pageWeight/max(weight, 1), 10), largestPage)
}

// keptObject is what is kept of an object.
type keptObject interface {
	runtime.Object
	metav1.Object
	// same tells whether the other, which may be nil, is equal to it.
	same(other any) bool
	weight() int
}

// list lists in pages and trims each as it comes, so that no more than one is
// ever whole. What has not changed since the last list is the same object
// again, in place of a second one. The list is the newest there is: to be
// content with an older one (ResourceVersion 0) would have the API server
// ignore the limit.
func (c *cluster) list(ctx context.Context, client rest.Interface, resource string, trim cache.TransformFunc, store cache.Store) (runtime.Object, error) {
	first := c.first.begin(resource)
	defer c.thrift(!first)()
	all := &internalversion.List{}
	o := metav1.ListOptions{Limit: firstPage}
	for {
		page, err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Get()
		if err != nil {
			return nil, err
		}
		c.heard(resource)
		weight := 0
		err = apimeta.EachListItem(page, func(obj runtime.Object) error {
			trimmed, err := trim(obj)
			if err != nil {
				return err
			}
			kept, ok := trimmed.(keptObject)
			if !ok {
				return fmt.Errorf("a %T among the %s", trimmed, resource)
			}
			weight += kept.weight()
			all.Items = append(all.Items, known(store, kept))
			if first {
				if key, ok := c.first.add(kept); ok {
					c.touch(key)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		list, err := apimeta.ListAccessor(page)
		if err != nil {
			return nil, err
		}
		all.ResourceVersion = list.GetResourceVersion()
		if o.Continue = list.GetContinue(); o.Continue == "" {
			if first {
				if stale, both := c.first.end(resource); both {
					for _, key := range stale {
						c.touch(key)
					}
					close(c.first.all)
					// What the informer does with the list is not to take the
					// processor away from the last records.
					select {
					case <-c.built:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
			}
			select {
			case c.listed <- struct{}{}:
			default:
			}
			return all, nil
		}
		o.Limit = int64(nextPage(int(o.Limit), weight))
	}
}

// known is the object that the store already has where it is the same.
func known(store cache.Store, listed keptObject) runtime.Object {
	obj, exists, err := store.GetByKey(cache.MetaObjectToName(listed).String())
	if err == nil && exists && listed.same(obj) {
		if last, ok := obj.(runtime.Object); ok {
			return last
		}
	}
	return listed
}

// thriftyPercent is GOGC while everything is listed again: there is as much
// garbage as there is to keep, and a heap twice as large would stay for it.
const thriftyPercent = 25

// thrift has the collector keep the heap small, where again is set, until the
// function that it returns is called.
func (c *cluster) thrift(again bool) (end func()) {
	if !again {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.thrifty++; c.thrifty == 1 {
		c.percent = debug.SetGCPercent(thriftyPercent)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.thrifty--; c.thrifty == 0 {
			debug.SetGCPercent(c.percent)
		}
	}
}

// tapped is a watch that tells of each event before it passes it on.
// watch.Filter does so as well, but its goroutine waits for ever where the
// watch is stopped with an event on its way.
type tapped struct {
	watch.Interface
	events chan watch.Event
	stop   func()
}

// tap has tell called with each event, and empty where w ends by itself before
// the first.
func tap(w watch.Interface, tell func(watch.Event), empty func()) watch.Interface {
	done := make(chan struct{})
	t := &tapped{w, make(chan watch.Event), sync.OnceFunc(func() {
		close(done)
		w.Stop()
	})}
	go func() {
		defer close(t.events)
		told := false
		for e := range w.ResultChan() {
			told = true
			tell(e)
			select {
			case t.events <- e:
			case <-done:
				return
			}
		}
		select {
		case <-done:
		default:
			if !told {
				empty()
			}
		}
	}()
	return t
}

// Stop implements watch.Interface.
func (t *tapped) Stop() { t.stop() }

// ResultChan implements watch.Interface.
func (t *tapped) ResultChan() <-chan watch.Event { return t.events }

func (c *cluster) heard(resource string) {
	c.contact.Store(time.Now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastErrors, resource)
}

// failed counts and logs a list or watch that ended; client-go tries again
// after a pause. That a watch ends after its time is no failure.
func (c *cluster) failed(resource string, err error) {
	var request *url.Error
	if err == nil || errors.Is(err, io.EOF) && !errors.As(err, &request) {
		return
	}
	reason := errorReason(err)
	c.metrics.apiserverErrors.WithLabelValues(resource, reason).Inc()
	if c.note(resource, err, time.Now()) {
		glog.Warningf("dns: watching %s: %v", resource, err)
	} else {
		glog.V(2).Infof("dns: watching %s: %v", resource, err)
	}
}

// watchError is why a list or watch failed, and when.
type watchError struct {
	text string
	time time.Time
}

// warnInterval is how often a failure that lasts is warned of.
const warnInterval = time.Minute

// note keeps the error and tells whether to warn of it: where it is the first
// since the resource was heard, and again after a while. (Nobody tells that a
// ConfigMap was heard.)
func (c *cluster) note(resource string, err error, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, lasts := c.lastErrors[resource]
	c.lastErrors[resource] = watchError{err.Error(), now}
	if lasts && now.Sub(c.warned[resource]) < warnInterval {
		return false
	}
	c.warned[resource] = now
	return true
}

// errEmptyWatch is a watch that ended before the API server said anything.
var errEmptyWatch = errors.New("the connection ended before the first event")

// errorReason puts an error into one of a few words for a metric's label.
func errorReason(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return strings.ToLower(string(reason))
	}
	var netErr net.Error
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, errEmptyWatch):
		return "unexpectedeof"
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout"
	case errors.As(err, &netErr):
		return "network"
	}
	return "other"
}

func (c *cluster) run(ctx context.Context, kd *KubeDNS) error {
	c.touch, c.built = kd.touch, kd.built
	services, err := c.services.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if initial && c.first.has(obj) {
				return
			}
			if !initial {
				c.first.handOver(resourceServices)
				if s, ok := obj.(*service); ok {
					kd.measure(treecache.Key{Namespace: s.Namespace, Name: s.Name}, s.created)
				}
			}
			kd.touchService(obj)
		},
		UpdateFunc: func(old, obj any) {
			c.first.handOver(resourceServices)
			if old != obj { // else it was listed again, see known
				kd.touchService(obj)
			}
		},
		DeleteFunc: func(obj any) {
			c.first.handOver(resourceServices)
			kd.touchService(obj)
		},
	})
	if err != nil {
		return fmt.Errorf("watching services: %w", err)
	}
	slices, err := c.slices.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if initial && c.first.has(obj) {
				return
			}
			if !initial {
				c.first.handOver(resourceSlices)
				c.measureSlice(kd, obj)
			}
			kd.touchSlice(obj)
		},
		UpdateFunc: func(old, obj any) {
			c.first.handOver(resourceSlices)
			if old == obj {
				return
			}
			c.measureSlice(kd, obj)
			kd.touchSlice(old) // it may have belonged to another Service
			kd.touchSlice(obj)
		},
		DeleteFunc: func(obj any) {
			c.first.handOver(resourceSlices)
			kd.touchSlice(obj)
		},
	})
	if err != nil {
		return fmt.Errorf("watching endpointslices: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.services.RunWithContext(ctx) })
	wg.Go(func() { c.slices.RunWithContext(ctx) })
	wg.Go(func() { c.watchNodes(ctx, kd) })
	wg.Go(func() { c.giveBack(ctx) })
	select {
	case <-c.first.all:
		kd.listed()
	case <-ctx.Done():
	}
	for _, h := range []cache.ResourceEventHandlerRegistration{services, slices} {
		select {
		case <-h.HasSyncedChecker().Done():
		case <-ctx.Done():
		}
	}
	c.first.drop()
	<-ctx.Done()
	wg.Wait()
	return nil
}

// giveBack returns to the system what a list has taken and its objects no
// longer need, which is as much again as is kept; the collector alone would
// keep it for the next list.
func (c *cluster) giveBack(ctx context.Context) {
	const after = 2 * time.Second // other lists, and the records, are done by then
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.listed:
		}
		pause := time.NewTimer(after)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
			debug.FreeOSMemory()
		}
	}
}

// measureSlice starts the measurement of a headless Service's change.
func (c *cluster) measureSlice(kd *KubeDNS, obj any) {
	s, ok := obj.(*slice)
	if !ok || s.triggered.IsZero() {
		return
	}
	key := treecache.Key{Namespace: s.Namespace, Name: s.service}
	if svc := c.service(key); svc != nil && svc.headless {
		kd.measure(key, s.triggered)
	}
}

// watchNodes watches the Nodes while a federation is configured.
func (c *cluster) watchNodes(ctx context.Context, kd *KubeDNS) {
	var (
		wg   sync.WaitGroup
		stop context.CancelFunc
	)
	defer wg.Wait()
	for {
		configured := len(*kd.federations.Load()) > 0
		switch {
		case configured && stop == nil:
			nodes := c.informer(c.core, "nodes", &corev1.Node{}, nil, trimNode)
			var nodesCtx context.Context
			nodesCtx, stop = context.WithCancel(ctx)
			c.setNodes(nodes)
			wg.Go(func() { nodes.RunWithContext(nodesCtx) })
		case !configured && stop != nil:
			c.setNodes(nil)
			stop()
			stop = nil
		}
		select {
		case <-kd.configured:
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return
		}
	}
}

func (c *cluster) setNodes(i cache.SharedIndexInformer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = i
}

// node is what is kept of a Node.
type node struct {
	meta
	topologyZone, region string
}

// DeepCopyObject implements runtime.Object.
func (n *node) DeepCopyObject() runtime.Object { t := *n; return &t }

func (n *node) same(other any) bool {
	o, ok := other.(*node)
	return ok && n.meta.same(&o.meta) && n.topologyZone == o.topologyZone && n.region == o.region
}

func (n *node) weight() int { return 1 }

func trimNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	t := &node{meta: trimMeta(&n.ObjectMeta)}
	t.topologyZone, t.region = federation.Topology(n.Labels)
	return t, nil
}

// topology is that of the first Node by name that has both labels, so that
// every replica answers the same.
func (c *cluster) topology() (topologyZone, region string) {
	c.mu.Lock()
	nodes := c.nodes
	c.mu.Unlock()
	if nodes == nil {
		return "", ""
	}
	var first *node
	for _, obj := range nodes.GetStore().List() {
		n, ok := obj.(*node)
		if ok && n.topologyZone != "" && n.region != "" && (first == nil || n.Name < first.Name) {
			first = n
		}
	}
	if first == nil {
		return "", ""
	}
	return first.topologyZone, first.region
}

func (c *cluster) service(key treecache.Key) *service {
	if s, ok := c.first.service(key); ok && !c.services.HasSynced() {
		return s
	}
	obj, _, err := c.services.GetStore().GetByKey(key.String())
	if err != nil || obj == nil {
		return nil
	}
	s, _ := obj.(*service)
	return s
}

func (c *cluster) slicesOf(key treecache.Key) []*slice {
	if s, ok := c.first.slicesOf(key); ok && !c.slices.HasSynced() {
		return sortSlices(s)
	}
	objs, err := c.slices.GetIndexer().ByIndex(byService, key.String())
	if err != nil {
		glog.Errorf("dns: the slices of %v: %v", key, err)
		return nil
	}
	own := make([]*slice, 0, len(objs))
	for _, obj := range objs {
		if s, ok := obj.(*slice); ok {
			own = append(own, s)
		}
	}
	return sortSlices(own)
}

func (c *cluster) objects() (services, slices int) {
	services, slices, ok := c.first.counts()
	if !ok || c.services.HasSynced() {
		services = len(c.services.GetStore().ListKeys())
	}
	if !ok || c.slices.HasSynced() {
		slices = len(c.slices.GetStore().ListKeys())
	}
	return services, slices
}

func (c *cluster) all() ([]*service, []*slice) {
	services, ok := c.first.allServices()
	if !ok || c.services.HasSynced() {
		services = stored[*service](c.services)
	}
	slices, ok := c.first.allSlices()
	if !ok || c.slices.HasSynced() {
		slices = stored[*slice](c.slices)
	}
	return services, slices
}

// stored has an informer's objects.
func stored[T any](i cache.SharedIndexInformer) (all []T) {
	for _, obj := range i.GetStore().List() {
		if o, ok := obj.(T); ok {
			all = append(all, o)
		}
	}
	return all
}

func (c *cluster) lastContact() time.Time {
	if t := c.contact.Load(); t != 0 {
		return time.Unix(0, t)
	}
	return time.Time{}
}

func (c *cluster) missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var why []string
	for _, resource := range []string{resourceServices, resourceSlices} {
		if c.first.listed(resource) {
			continue
		}
		text := resource + " not listed yet"
		if last, ok := c.lastErrors[resource]; ok {
			text += ": " + last.text
		}
		why = append(why, text)
	}
	return strings.Join(why, "; ")
}
