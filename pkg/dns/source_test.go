package dns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/treecache"
)

// fakeSource is a source whose objects a test sets. Its zero value is an empty
// cluster.
type fakeSource struct {
	mu                   sync.Mutex
	services             map[treecache.Key]*service
	slices               map[string]*slice // by namespace/name
	topologyZone, region string
	why                  string // missing

	// begin, where set, is what run does in place of listing everything.
	begin func(kd *KubeDNS)
	// afterRead, where set, is called when a Service's slices were read.
	afterRead func(treecache.Key)
}

// newFake makes a source of objects as the API has them.
func newFake(services []*corev1.Service, all []*discoveryv1.EndpointSlice) *fakeSource {
	f := &fakeSource{services: map[treecache.Key]*service{}, slices: map[string]*slice{}}
	for _, s := range services {
		f.services[treecache.Key{Namespace: s.Namespace, Name: s.Name}] = trimService(s)
	}
	for _, s := range all {
		f.slices[s.Namespace+"/"+s.Name] = trimSlice(s)
	}
	return f
}

func (f *fakeSource) run(ctx context.Context, kd *KubeDNS) error {
	if f.begin != nil {
		f.begin(kd)
	} else {
		f.mu.Lock()
		for key := range f.services {
			kd.touch(key)
		}
		f.mu.Unlock()
		kd.listed()
	}
	<-ctx.Done()
	return nil
}

func (f *fakeSource) service(key treecache.Key) *service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services[key]
}

func (f *fakeSource) slicesOf(key treecache.Key) []*slice {
	f.mu.Lock()
	var own []*slice
	for _, s := range f.slices {
		if s.Namespace == key.Namespace && s.service == key.Name {
			own = append(own, s)
		}
	}
	f.mu.Unlock()
	if f.afterRead != nil {
		f.afterRead(key)
	}
	return sortSlices(own)
}

func (f *fakeSource) topology() (topologyZone, region string) { return f.topologyZone, f.region }

func (f *fakeSource) objects() (services, slices int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.services), len(f.slices)
}

func (f *fakeSource) all() (services []*service, all []*slice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.services)), slices.Collect(maps.Values(f.slices))
}

func (f *fakeSource) missing() string { return f.why }

// newTestKubeDNS makes a KubeDNS that is not run yet.
func newTestKubeDNS(s source) *KubeDNS {
	return newKubeDNS(Options{Zone: testZone, TTL: 30}, s, newMetrics())
}

// start runs kd until the test ends, and sees it end.
func start(t *testing.T, kd *KubeDNS) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- kd.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits until what is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// state is the objects of a cluster as the API has them.
type state struct {
	services map[string]*corev1.Service            // by namespace/name
	slices   map[string]*discoveryv1.EndpointSlice // by namespace/name
}

func newState() *state {
	return &state{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}}
}

// tree is built from the state alone.
func (s *state) tree() *treecache.Tree {
	tree := treecache.New(testZone)
	own := map[treecache.Key][]*slice{}
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		l := trimSlice(s.slices[name])
		key := treecache.Key{Namespace: l.Namespace, Name: l.service}
		own[key] = append(own[key], l)
	}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		svc := s.services[name]
		key := treecache.Key{Namespace: svc.Namespace, Name: svc.Name}
		tree.Replace(key, buildRecords(trimService(svc), own[key]), time.Unix(0, 0))
	}
	return tree
}

// generator makes random objects out of few names and addresses, so that they
// meet.
type generator struct{ *rand.Rand }

// poolAddrs is how many addresses of each family a generator draws from.
const poolAddrs = 12

func poolAddr(ipv6 bool, i int) string {
	if ipv6 {
		return fmt.Sprintf("2001:db8::%x", 16+i)
	}
	return fmt.Sprintf("192.0.2.%d", 16+i)
}

func (g generator) addr(ipv6 bool) string { return poolAddr(ipv6, g.IntN(poolAddrs)) }

func (g generator) name() (namespace, name string) {
	return fmt.Sprintf("ns%d", g.IntN(2)), fmt.Sprintf("s%d", g.IntN(4))
}

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

func (g generator) ports() []corev1.ServicePort {
	var all []corev1.ServicePort
	for i := range g.IntN(4) {
		all = append(all, corev1.ServicePort{
			Name:     pick(g, "http", "dns", "Web", ""),
			Port:     int32(pick(g, 53, 80, 80+i)),
			Protocol: pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, ""),
		})
	}
	return all
}

func (g generator) service(namespace, name string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		CreationTimestamp: metav1.Unix(1_700_000_000+int64(g.IntN(3)), 0),
	}}
	s.Spec.Ports = g.ports()
	switch g.IntN(8) {
	case 0:
		s.Spec.Type = corev1.ServiceTypeExternalName
		s.Spec.ExternalName = pick(g, "www.example.org", "WWW.example.org.", "192.0.2.99", "nx.example.org", "nodata.example.org",
			"s0.ns0.svc.cluster.local", "s1.ns1.svc.cluster.local.", "gone.ns0.svc.cluster.local", "back.example.org", "fail.example.org", "alias.example.org")
	case 1:
		s.Spec.Type = corev1.ServiceTypeClusterIP // without an address yet
	case 2, 3:
		s.Spec.ClusterIP = g.addr(false)
		s.Spec.ClusterIPs = pick(g, nil, []string{s.Spec.ClusterIP, g.addr(true)})
	default:
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Spec.PublishNotReadyAddresses = g.IntN(5) == 0
	}
	return s
}

func (g generator) slice(namespace, name, of string) *discoveryv1.EndpointSlice {
	ipv6 := g.IntN(3) == 0
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if of != "" {
		s.Labels[discoveryv1.LabelServiceName] = of
	}
	if ipv6 {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range g.ports() {
		port := discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol}
		if g.IntN(8) == 0 {
			port.Port = nil
		}
		s.Ports = append(s.Ports, port)
	}
	for range g.IntN(5) {
		e := discoveryv1.Endpoint{Addresses: []string{g.addr(ipv6)}}
		if g.IntN(2) == 0 {
			host := fmt.Sprintf("pod-%d", g.IntN(3))
			e.Hostname = &host
		}
		if g.IntN(3) > 0 {
			ready := g.IntN(3) > 0
			e.Conditions.Ready = &ready
		}
		if g.IntN(2) == 0 {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod"}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// change is one step of a history: an object that is set, or one that goes.
type change struct {
	service *corev1.Service
	slice   *discoveryv1.EndpointSlice
	deleted bool
}

// change makes a random step and does it to s.
func (g generator) change(s *state) change {
	if g.IntN(3) == 0 {
		namespace, name := g.name()
		key := namespace + "/" + name
		if last := s.services[key]; last != nil && g.IntN(3) == 0 {
			delete(s.services, key)
			return change{service: last, deleted: true}
		}
		next := g.service(namespace, name)
		s.services[key] = next
		return change{service: next}
	}
	namespace, of := g.name()
	name := fmt.Sprintf("slice-%d", g.IntN(8))
	key := namespace + "/" + name
	if last := s.slices[key]; last != nil && g.IntN(3) == 0 {
		delete(s.slices, key)
		return change{slice: last, deleted: true}
	}
	if g.IntN(10) == 0 {
		of = "" // a slice of nobody
	}
	next := g.slice(namespace, name, of)
	s.slices[key] = next
	return change{slice: next}
}

// sameTree compares all that two trees hold, reverse records of every pool
// address included.
func sameTree(got, want *treecache.Tree) string {
	text := func(tree *treecache.Tree) string {
		services, counts := tree.Stats()
		s := zoneText(tree)
		for i := range poolAddrs {
			for _, ipv6 := range []bool{false, true} {
				addr := netip.MustParseAddr(poolAddr(ipv6, i))
				s += fmt.Sprintf("; %v is %q\n", addr, reverseNames(tree, addr))
			}
		}
		for i := range 2 {
			_, exists := tree.Service(fmt.Appendf(nil, "ns%d", i), nil)
			s += fmt.Sprintf("; namespace ns%d exists: %v\n", i, exists)
		}
		var ready []string
		tree.Match("*", "*", func(r *treecache.Records) {
			ready = append(ready, fmt.Sprintf("; %v: %v, ready %v\n", r.Key, r.Kind, r.HasReady))
		})
		slices.SortFunc(ready, cmp.Compare)
		for _, line := range ready {
			s += line
		}
		return s + fmt.Sprintf("; %d services, %+v\n", services, counts)
	}
	if g, w := text(got), text(want); g != w {
		return fmt.Sprintf("got\n%s\nwant\n%s", g, w)
	}
	return ""
}
