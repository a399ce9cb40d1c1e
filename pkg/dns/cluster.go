package dns

import (
	"context"
	"errors"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/treecache"
)

// cluster is the source that an API server is.
type cluster struct {
	services        *kept[*service]
	slices          *kept[*slice]
	core, discovery rest.Interface
	metrics         *metrics

	both    chan struct{} // closed by ended once both lists have come to their end
	ended   func()
	listed  chan struct{} // wakes giveBack; one token
	contact atomic.Int64  // when the API server was last heard, in Unix nanoseconds; 0 before

	mu         sync.Mutex
	lastErrors map[string]watchError // by resource; gone once it was heard again
	warned     map[string]time.Time
	nodes      *kept[*node] // nil while no federation is configured
	thrifty    int          // lists under way for which the collector keeps the heap small
	percent    int          // the collector's without them
}

// Resources, as the API's paths, errors and metrics name them.
const (
	resourceServices = "services"
	resourceSlices   = "endpointslices"
	resourceNodes    = "nodes"
)

// NewCluster makes a KubeDNS of an API server's Services and EndpointSlices,
// given clients for core/v1 and discovery.k8s.io/v1.
func NewCluster(o Options, core, discovery rest.Interface) *KubeDNS {
	c := &cluster{
		core: core, discovery: discovery, metrics: newMetrics(),
		both: make(chan struct{}), listed: make(chan struct{}, 1),
		lastErrors: map[string]watchError{}, warned: map[string]time.Time{},
	}
	c.ended = sync.OnceFunc(func() { close(c.both) })
	kd := newKubeDNS(o, c, c.metrics)
	c.services = newKept(func(last, now *service, first bool) {
		if now == nil {
			kd.touch(last.key())
			return
		}
		if last == nil && !first {
			kd.measure(now.key(), now.created)
		}
		kd.touch(now.key())
	}, nil)
	c.slices = newKept(func(last, now *slice, first bool) {
		if now != nil && !first {
			c.measureSlice(kd, now)
		}
		for _, s := range []*slice{last, now} { // the last may have belonged to another Service
			if s != nil && s.service != "" {
				kd.touch(s.owner())
			}
		}
	}, (*slice).owner)
	return kd
}

// follow keeps a resource's objects as the API server's are, until ctx is
// done. Requests and events count as contact.
func follow[T keptObject](ctx context.Context, c *cluster, client rest.Interface, r resource[T], k *kept[T]) {
	l := &lister{
		cluster: c, resource: r.name, client: client,
		once:   func(ctx context.Context) (string, error) { return listPages(ctx, c, client, r, k) },
		events: func(ctx context.Context, body io.ReadCloser) watch.Interface { return watchEvents(ctx, c, r, body) },
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return l.list(ctx)
		},
		WatchFuncWithContext: l.watch,
	}
	reflector := cache.NewReflectorWithOptions(pagedListWatch{lw}, &received[T]{}, reflected[T]{k}, cache.ReflectorOptions{Name: r.name, TypeDescription: r.name})
	apiclient.Reflect(ctx, reflector, apiclient.ReflectorBackoff(), l.watchFailed)
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

// listPages lists in pages, so that no more than one is ever there as it came,
// and returns the list's version. The list is the newest there is: to be
// content with an older one (ResourceVersion 0) would have the API server
// ignore the limit.
func listPages[T keptObject](ctx context.Context, c *cluster, client rest.Interface, r resource[T], k *kept[T]) (version string, err error) {
	first := k.begin()
	defer c.thrift(!first)()
	o := metav1.ListOptions{Limit: firstPage}
	for {
		result := client.Get().Resource(r.name).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx)
		page, err := result.Raw()
		if err != nil {
			return "", result.Error()
		}
		weight := 0
		meta, err := r.decodeList(page, func(t T) {
			weight += t.weight()
			k.put(t)
		})
		if err != nil {
			return "", err
		}
		c.heard(r.name)
		if o.Continue = meta.Continue; o.Continue != "" {
			o.Limit = int64(nextPage(int(o.Limit), weight))
			continue
		}
		k.end()
		if c.services.listed() && c.slices.listed() {
			c.ended()
		}
		select {
		case c.listed <- struct{}{}:
		default:
		}
		return meta.ResourceVersion, nil
	}
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
	var wg sync.WaitGroup
	wg.Go(func() { follow(ctx, c, c.core, servicesResource(), c.services) })
	wg.Go(func() { follow(ctx, c, c.discovery, slicesResource(), c.slices) })
	wg.Go(func() { c.watchNodes(ctx, kd) })
	wg.Go(func() { c.giveBack(ctx) })
	select {
	case <-c.both:
		kd.listed()
	case <-ctx.Done():
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
func (c *cluster) measureSlice(kd *KubeDNS, s *slice) {
	if s.triggered.IsZero() {
		return
	}
	if svc := c.service(s.owner()); svc != nil && svc.headless {
		kd.measure(s.owner(), s.triggered)
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
			nodes := newKept(func(_, _ *node, _ bool) {}, nil)
			var nodesCtx context.Context
			nodesCtx, stop = context.WithCancel(ctx)
			c.setNodes(nodes)
			wg.Go(func() { follow(nodesCtx, c, c.core, nodesResource(), nodes) })
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

func (c *cluster) setNodes(k *kept[*node]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = k
}

// node is what is kept of a Node.
type node struct {
	meta
	topologyZone, region string
}

func (n *node) same(other any) bool {
	o, ok := other.(*node)
	return ok && n.meta == o.meta && n.topologyZone == o.topologyZone && n.region == o.region
}

func (n *node) weight() int { return 1 }

func trimNode(n *corev1.Node) *node {
	t := &node{meta: trimMeta(&n.ObjectMeta)}
	t.topologyZone, t.region = federation.Topology(n.Labels)
	return t
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
	for _, n := range nodes.all() {
		if n.topologyZone != "" && n.region != "" && (first == nil || n.Name < first.Name) {
			first = n
		}
	}
	if first == nil {
		return "", ""
	}
	return first.topologyZone, first.region
}

func (c *cluster) service(key treecache.Key) *service { return c.services.get(key) }

func (c *cluster) slicesOf(key treecache.Key) []*slice { return sortSlices(c.slices.of(key)) }

func (c *cluster) objects() (services, slices int) { return c.services.len(), c.slices.len() }

func (c *cluster) all() ([]*service, []*slice) { return c.services.all(), c.slices.all() }

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
	for _, r := range []struct {
		resource string
		listed   bool
	}{{resourceServices, c.services.listed()}, {resourceSlices, c.slices.listed()}} {
		if r.listed {
			continue
		}
		text := r.resource + " not listed yet"
		if last, ok := c.lastErrors[r.resource]; ok {
			text += ": " + last.text
		}
		why = append(why, text)
	}
	return strings.Join(why, "; ")
}
