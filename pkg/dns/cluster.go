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

	listed  chan struct{} // wakes giveBack; one token
	contact atomic.Int64  // when the API server was last heard, in Unix nanoseconds; 0 before

	mu         sync.Mutex
	lastErrors map[string]watchError // by resource; gone once it was heard again
	warned     map[string]time.Time
	nodes      cache.SharedIndexInformer
}

// byService indexes slices by the Service that they belong to.
const byService = "service"

// NewCluster makes a KubeDNS of an API server's Services and EndpointSlices,
// given clients for core/v1 and discovery.k8s.io/v1.
func NewCluster(o Options, core, discovery rest.Interface) *KubeDNS {
	c := &cluster{core: core, metrics: newMetrics(), lastErrors: map[string]watchError{}, warned: map[string]time.Time{}}
	c.services = c.informer(core, "services", &corev1.Service{}, nil, func(obj any) (any, error) {
		if s, ok := obj.(*corev1.Service); ok {
			return trimService(s), nil
		}
		return obj, nil
	})
	c.slices = c.informer(discovery, "endpointslices", &discoveryv1.EndpointSlice{}, cache.Indexers{
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
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return c.list(ctx, client, resource, trim)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
			if err != nil {
				// The informer keeps these to itself.
				if ctx.Err() == nil {
					c.failed(resource, err)
				}
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
	i := cache.NewSharedIndexInformerWithOptions(pagedListWatch{lw}, example, cache.SharedIndexInformerOptions{
		Indexers: by, ObjectDescription: resource,
	})
	// Neither fails before the informer has started.
	if err := errors.Join(
		i.SetTransform(trim),
		i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { c.failed(resource, err) }),
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

// pageSize is how many objects are listed at a time.
const pageSize = 500

// list lists in pages and trims each as it comes, so that no more than one is
// ever whole. The list is the newest there is: to be content with an older one
// (ResourceVersion 0) would have the API server ignore the limit.
func (c *cluster) list(ctx context.Context, client rest.Interface, resource string, trim cache.TransformFunc) (runtime.Object, error) {
	all := &internalversion.List{}
	o := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Get()
		if err != nil {
			return nil, err
		}
		c.heard(resource)
		err = apimeta.EachListItem(page, func(obj runtime.Object) error {
			trimmed, err := trim(obj)
			if err != nil {
				return err
			}
			kept, ok := trimmed.(runtime.Object)
			if !ok {
				return fmt.Errorf("a %T among the %s", trimmed, resource)
			}
			all.Items = append(all.Items, kept)
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
			select {
			case c.listed <- struct{}{}:
			default:
			}
			return all, nil
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
	services, err := c.services.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if s, ok := obj.(*service); ok && !initial {
				kd.measure(treecache.Key{Namespace: s.Namespace, Name: s.Name}, s.created)
			}
			kd.touchService(obj)
		},
		UpdateFunc: func(_, obj any) { kd.touchService(obj) },
		DeleteFunc: kd.touchService,
	})
	if err != nil {
		return fmt.Errorf("watching services: %w", err)
	}
	slices, err := c.slices.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial {
				c.measureSlice(kd, obj)
			}
			kd.touchSlice(obj)
		},
		UpdateFunc: func(old, obj any) {
			c.measureSlice(kd, obj)
			kd.touchSlice(old) // it may have belonged to another Service
			kd.touchSlice(obj)
		},
		DeleteFunc: kd.touchSlice,
	})
	if err != nil {
		return fmt.Errorf("watching endpointslices: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.services.RunWithContext(ctx) })
	wg.Go(func() { c.slices.RunWithContext(ctx) })
	wg.Go(func() { c.watchNodes(ctx, kd) })
	wg.Go(func() { c.giveBack(ctx) })
	for _, h := range []cache.ResourceEventHandlerRegistration{services, slices} {
		select {
		case <-h.HasSyncedChecker().Done():
		case <-ctx.Done():
		}
	}
	if ctx.Err() == nil {
		kd.listed()
	}
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
	obj, _, err := c.services.GetStore().GetByKey(key.String())
	if err != nil || obj == nil {
		return nil
	}
	s, _ := obj.(*service)
	return s
}

func (c *cluster) slicesOf(key treecache.Key) []*slice {
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
	return len(c.services.GetStore().ListKeys()), len(c.slices.GetStore().ListKeys())
}

func (c *cluster) all() (services []*service, slices []*slice) {
	for _, obj := range c.services.GetStore().List() {
		if s, ok := obj.(*service); ok {
			services = append(services, s)
		}
	}
	for _, obj := range c.slices.GetStore().List() {
		if s, ok := obj.(*slice); ok {
			slices = append(slices, s)
		}
	}
	return services, slices
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
	for _, i := range []struct {
		resource string
		informer cache.SharedIndexInformer
	}{{"services", c.services}, {"endpointslices", c.slices}} {
		if i.informer.HasSynced() {
			continue
		}
		text := i.resource + " not listed yet"
		if last, ok := c.lastErrors[i.resource]; ok {
			text += ": " + last.text
		}
		why = append(why, text)
	}
	return strings.Join(why, "; ")
}
