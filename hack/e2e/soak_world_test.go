package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/soak"
)

// What TestSoak writes and asks: few names and addresses, so that each is
// written and asked often, and comes back after it was gone.

var (
	soakNamespaces = []string{"soak-a", "soak-b"}
	soakConfigMap  = soak.Key{Resource: soak.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: "soak-config"}
	soakHostnames  = []string{"", "", "h0", "h1", "H2"}
	soakPorts      = []corev1.ServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80},
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
		{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9100},
	}
)

// soakPace is the time between two writes.
const soakPace = 80 * time.Millisecond

const (
	soakServices    = 8  // of a Namespace
	soakSlices      = 3  // of a Service, the last with IPv6 addresses
	soakClusterIPs  = 20 // of each family, in all
	soakEndpointIPs = 8  // of each family and Namespace, which all of its Services share
)

// soakWorld has the names.
type soakWorld struct {
	upstreams []string // addresses
	services  []soak.Key
}

func newSoakWorld(m *soak.Model) soakWorld {
	w := soakWorld{upstreams: slices.Sorted(maps.Keys(m.Upstreams))}
	for _, ns := range soakNamespaces {
		for i := range soakServices {
			w.services = append(w.services, soak.Key{Resource: soak.Services, Namespace: ns, Name: fmt.Sprintf("s%d", i)})
		}
	}
	return w
}

func soakClusterIP(v6 bool, i int) string {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::a:%x", i+1)).String()
	}
	return fmt.Sprintf("10.96.77.%d", i+1)
}

func soakEndpointIP(ns string, v6 bool, i int) string {
	n := slices.Index(soakNamespaces, ns)
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd77::%x:%x", n, i+1)).String()
	}
	return fmt.Sprintf("10.77.%d.%d", n, i+1)
}

// pick is one of all.
func pick[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }

// A soakQuestion is one of a kind, which the log counts.
type soakQuestion struct {
	kind, name string
	qtype      uint16
}

// question is one that chance chooses. It is safe for concurrent use.
func (w soakWorld) question(rng *rand.Rand) soakQuestion {
	k := pick(rng, w.services...)
	name := fmt.Sprintf("%s.%s.svc.%s", k.Name, k.Namespace, zone)
	under := func(labels string) string { return labels + "." + name }
	v6 := rng.IntN(4) == 0
	address := uint16(dns.TypeA)
	if v6 {
		address = dns.TypeAAAA
	}
	endpoint := soakEndpointIP(k.Namespace, v6, rng.IntN(soakEndpointIPs))
	p := pick(rng, soakPorts...)
	port := strings.ToLower(fmt.Sprintf("_%s._%s", p.Name, p.Protocol))
	switch n := rng.IntN(100); {
	case n < 30:
		return soakQuestion{"service address", name, address}
	case n < 38:
		return soakQuestion{"service SRV", name, dns.TypeSRV}
	case n < 50:
		return soakQuestion{"port SRV", under(port), dns.TypeSRV}
	case n < 60:
		return soakQuestion{"hostname address", under(pick(rng, "h0", "h1", "h2")), address}
	case n < 64:
		return soakQuestion{"label address", under(soak.SystemLabel(netip.MustParseAddr(endpoint))), address}
	case n < 72:
		return soakQuestion{"endpoint PTR", reverseName(endpoint), dns.TypePTR}
	case n < 78:
		return soakQuestion{"cluster IP PTR", reverseName(soakClusterIP(v6, rng.IntN(soakClusterIPs))), dns.TypePTR}
	case n < 80:
		return soakQuestion{"other type", name, dns.TypeTXT}
	case n < 82:
		return soakQuestion{"port's parent", under("_tcp"), dns.TypeA}
	case n < 84:
		return soakQuestion{"namespace", k.Namespace + ".svc." + zone, dns.TypeA}
	case n < 86:
		return soakQuestion{"no such name", pick(rng, under("nosuch"), "nosuch."+k.Namespace+".svc."+zone, "nosuch."+zone), address}
	case n < 89:
		return soakQuestion{"any service's address", "*." + k.Namespace + ".svc." + zone, address}
	case n < 91:
		return soakQuestion{"any service's port SRV", port + ".*." + k.Namespace + ".svc." + zone, dns.TypeSRV}
	case n < 93:
		return soakQuestion{"any endpoint's address", under("*"), address}
	case n < 95:
		return soakQuestion{"kubernetes", "kubernetes.default.svc." + zone, dns.TypeA}
	}
	return soakQuestion{"outside", pick(rng, "www.example.org.", "docs.example.org.", "nosuch.example.org."), address}
}

func reverseName(addr string) string {
	name, err := dns.ReverseAddr(addr)
	if err != nil {
		return ""
	}
	return name
}

// describe puts an object into a line.
func describe(v any) string {
	switch o := v.(type) {
	case *corev1.Service:
		var ports []string
		for _, p := range o.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%s/%s %d", p.Name, p.Protocol, p.Port))
		}
		notReady := ""
		if o.Spec.PublishNotReadyAddresses {
			notReady = ", not ready too"
		}
		return fmt.Sprintf("%s %v %s, ports %q%s, version %s", o.Spec.Type, o.Spec.ClusterIPs, o.Spec.ExternalName, ports, notReady, o.ResourceVersion)
	case *discoveryv1.EndpointSlice:
		var all []string
		for _, e := range o.Endpoints {
			text := strings.Join(e.Addresses, "+")
			if e.Hostname != nil {
				text += "=" + *e.Hostname
			}
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				text += " unready"
			}
			all = append(all, text)
		}
		for _, p := range o.Ports {
			all = append(all, fmt.Sprintf(":%s/%s %d", *p.Name, *p.Protocol, *p.Port))
		}
		return fmt.Sprintf("of %s: %s, version %s", o.Labels[discoveryv1.LabelServiceName], strings.Join(all, ", "), o.ResourceVersion)
	}
	return fmt.Sprint(v)
}

// adopt enters what the API server made by itself.
func (s *soaker) adopt(t *testing.T) {
	t.Helper()
	k := soak.Key{Resource: soak.Services, Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	err := s.history.Write(k, func() (any, error) {
		return s.cluster.Client.CoreV1().Services(k.Namespace).Get(t.Context(), k.Name, metav1.GetOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
	s.configure(t, s.world.upstreams[0])
}

// write changes one object, or two, as chance has it.
func (s *soaker) write(t *testing.T) {
	t.Helper()
	k := pick(s.rng, s.busyServices()...)
	old, _ := s.history.Now(k).(*corev1.Service)
	switch n := s.rng.IntN(100); {
	case old == nil && n < 60:
		s.putService(t, "make a Service", k, s.service(k))
	case n < 6:
		s.deleteService(t, k)
	case n < 12 && old != nil:
		// Another one of the same name, at once.
		s.deleteService(t, k)
		s.putService(t, "make a Service again", k, s.service(k))
	case n < 24 && old != nil:
		s.changeService(t, k, old)
	case n < 96:
		s.writeSlice(t, k)
	case time.Since(s.configured) < 5*time.Second:
		// What was written first is to be seen for a while.
	case n < 99:
		i := slices.Index(s.world.upstreams, s.history.Now(soakConfigMap).(string))
		s.configure(t, s.world.upstreams[1-i])
	default:
		s.misconfigure(t)
	}
}

// busyServices are those that are written to for now: one half, and another one
// every 8 s. The others rest, so that what was missed of them stays to be seen
// and is not made good by the next event. While kube-dns is cut off, and for as
// long after, they stay the same.
func (s *soaker) busyServices() []soak.Key {
	const lasts = 8 * time.Second
	now := time.Now()
	if s.isCut() {
		s.busySince = now
	}
	if len(s.busy) == 0 || now.Sub(s.busySince) > lasts {
		s.busySince = now
		s.busy = slices.Clone(s.world.services)
		s.rng.Shuffle(len(s.busy), func(i, j int) { s.busy[i], s.busy[j] = s.busy[j], s.busy[i] })
		s.busy = s.busy[:len(s.busy)/2]
	}
	return s.busy
}

// writeUnheard writes for a while, as it is when kube-dns is cut off. At the end
// a Service that has rested goes, and all of its slices: nothing that is left
// has kube-dns look at it again, but that it is gone.
func (s *soaker) writeUnheard(t *testing.T, lasts time.Duration) {
	t.Helper()
	pace := time.NewTicker(soakPace)
	defer pace.Stop()
	for end := time.Now().Add(lasts); time.Now().Before(end); <-pace.C {
		s.write(t)
	}
	busy := s.busyServices()
	for _, i := range s.rng.Perm(len(s.world.services)) {
		k := s.world.services[i]
		// A headless one may have no records that could stay.
		o, ok := s.history.Now(k).(*corev1.Service)
		if !ok || o.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(busy, k) {
			continue
		}
		s.deleteService(t, k)
		for _, other := range s.world.services {
			for n := range soakSlices {
				sliceKey := soakSliceKey(other, n)
				o, ok := s.history.Now(sliceKey).(*discoveryv1.EndpointSlice)
				if ok && other.Namespace == k.Namespace && o.Labels[discoveryv1.LabelServiceName] == k.Name {
					s.deleteSlice(t, sliceKey)
				}
			}
		}
		return
	}
}

// service is a new Service of any kind.
func (s *soaker) service(k soak.Key) *corev1.Service {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	switch n := s.rng.IntN(100); {
	case n < 40:
		o.Spec.ClusterIP = corev1.ClusterIPNone
		o.Spec.PublishNotReadyAddresses = s.rng.IntN(5) == 0
		o.Spec.Ports = s.ports()
	case n < 80:
		s.giveClusterIP(o)
	default:
		s.giveExternalName(o)
	}
	return o
}

// ports are some of soakPorts, or one without a name; at least one.
func (s *soaker) ports() []corev1.ServicePort {
	if s.rng.IntN(6) == 0 {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 8080}}
	}
	ports := slices.Clone(soakPorts)
	s.rng.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	ports = ports[:1+s.rng.IntN(len(ports))]
	for i := range ports {
		ports[i].Port += int32(s.rng.IntN(2))
	}
	return ports
}

// giveClusterIP has o have a cluster IP that is free, or one of each family.
func (s *soaker) giveClusterIP(o *corev1.Service) {
	used := map[string]bool{}
	for _, k := range s.world.services {
		if other, ok := s.history.Now(k).(*corev1.Service); ok {
			for _, ip := range other.Spec.ClusterIPs {
				used[ip] = true
			}
		}
	}
	free := func(v6 bool) string {
		for {
			if ip := soakClusterIP(v6, s.rng.IntN(soakClusterIPs)); !used[ip] {
				return ip
			}
		}
	}
	o.Spec.Type, o.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	o.Spec.ClusterIPs = []string{free(false)}
	policy := corev1.IPFamilyPolicySingleStack
	if s.rng.IntN(3) == 0 {
		o.Spec.ClusterIPs = append(o.Spec.ClusterIPs, free(true))
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	o.Spec.IPFamilyPolicy = &policy
	o.Spec.ClusterIP = o.Spec.ClusterIPs[0]
	o.Spec.Ports = s.ports()
}

// giveExternalName has o stand for a name outside, for another Service or for
// an address.
func (s *soaker) giveExternalName(o *corev1.Service) {
	o.Spec.Type = corev1.ServiceTypeExternalName
	o.Spec.ClusterIP, o.Spec.ClusterIPs, o.Spec.IPFamilies, o.Spec.IPFamilyPolicy = "", nil, nil, nil
	o.Spec.Ports = nil
	other := pick(s.rng, s.world.services...)
	o.Spec.ExternalName = pick(s.rng, "www.example.org", "docs.example.org", "nosuch.example.org",
		fmt.Sprintf("%s.%s.svc.%s", other.Name, other.Namespace, strings.TrimSuffix(zone, ".")), "192.0.2.200")
}

func (s *soaker) changeService(t *testing.T, k soak.Key, old *corev1.Service) {
	t.Helper()
	o := old.DeepCopy()
	what := "change a Service's ports"
	headless := o.Spec.ClusterIP == corev1.ClusterIPNone
	switch external := o.Spec.Type == corev1.ServiceTypeExternalName; {
	case external && s.rng.IntN(2) == 0:
		what = "change an external name"
		s.giveExternalName(o)
	case external:
		what = "change a Service's type"
		s.giveClusterIP(o)
	case !headless && s.rng.IntN(3) == 0:
		what = "change a Service's type"
		s.giveExternalName(o)
	case headless && s.rng.IntN(2) == 0:
		what = "change publishNotReadyAddresses"
		o.Spec.PublishNotReadyAddresses = !o.Spec.PublishNotReadyAddresses
	default:
		o.Spec.Ports = s.ports()
	}
	s.putService(t, what, k, o)
}

// put calls write and then, where the API server did not say what became of it,
// asks until it does.
func (s *soaker) put(t *testing.T, what string, k soak.Key, write, get func(context.Context) (any, error)) {
	t.Helper()
	s.writes[what]++
	err := s.history.Write(k, func() (any, error) {
		v, err := write(t.Context())
		if err == nil || apierrors.IsInvalid(err) {
			return v, err
		}
		t.Logf("to %s %v: %v", what, k, err)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for range 100 {
			v, err = get(t.Context())
			if err == nil || apierrors.IsNotFound(err) {
				break
			}
			<-ticker.C
		}
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // it is gone
		}
		return v, err
	})
	if err != nil {
		t.Fatalf("to %s %v: %v", what, k, err)
	}
}

func (s *soaker) putService(t *testing.T, what string, k soak.Key, o *corev1.Service) {
	t.Helper()
	services := s.cluster.Client.CoreV1().Services(k.Namespace)
	s.put(t, what, k, func(ctx context.Context) (any, error) {
		if o.ResourceVersion == "" {
			return services.Create(ctx, o, metav1.CreateOptions{})
		}
		return services.Update(ctx, o, metav1.UpdateOptions{})
	}, func(ctx context.Context) (any, error) { return services.Get(ctx, k.Name, metav1.GetOptions{}) })
}

func (s *soaker) deleteService(t *testing.T, k soak.Key) {
	t.Helper()
	if s.history.Now(k) == nil {
		return
	}
	services := s.cluster.Client.CoreV1().Services(k.Namespace)
	s.put(t, "delete a Service", k, func(ctx context.Context) (any, error) {
		return nil, services.Delete(ctx, k.Name, metav1.DeleteOptions{})
	}, func(ctx context.Context) (any, error) { return services.Get(ctx, k.Name, metav1.GetOptions{}) })
}

// soakSliceKey is the n-th slice that is made for a Service.
func soakSliceKey(service soak.Key, n int) soak.Key {
	return soak.Key{Resource: soak.Slices, Namespace: service.Namespace, Name: fmt.Sprintf("%s-%d", service.Name, n)}
}

// writeSlice changes one of a Service's three slices, of which the last has
// IPv6 addresses.
func (s *soaker) writeSlice(t *testing.T, service soak.Key) {
	t.Helper()
	n := s.rng.IntN(soakSlices)
	k := soakSliceKey(service, n)
	old, _ := s.history.Now(k).(*discoveryv1.EndpointSlice)
	v6 := n == soakSlices-1
	if old == nil {
		s.putSlice(t, "make a slice", k, s.slice(k, service, v6))
		return
	}
	o := old.DeepCopy()
	endpoints := len(o.Endpoints)
	switch c := s.rng.IntN(100); {
	case c < 8:
		s.deleteSlice(t, k)
	case c < 20:
		fresh := s.slice(k, service, v6)
		o.Labels, o.Endpoints, o.Ports = fresh.Labels, fresh.Endpoints, fresh.Ports
		s.putSlice(t, "replace a slice", k, o)
	case c < 28:
		other := service
		for _, k := range s.busyServices() {
			if k.Namespace == service.Namespace && (other == service || s.rng.IntN(3) == 0) {
				other = k
			}
		}
		o.Labels = map[string]string{discoveryv1.LabelServiceName: other.Name}
		// Nothing else has kube-dns look at the one that it leaves.
		s.busy = slices.DeleteFunc(s.busy, func(k soak.Key) bool { return k == service })
		s.putSlice(t, "give a slice to another Service", k, o)
	case c < 38:
		o.Ports = s.slicePorts()
		s.putSlice(t, "change a slice's ports", k, o)
	case endpoints == 0:
		o.Endpoints = s.endpoints(k.Namespace, v6)
		s.putSlice(t, "change a slice's endpoints", k, o)
	case c < 75:
		i := s.rng.IntN(endpoints)
		ready := o.Endpoints[i].Conditions.Ready == nil || *o.Endpoints[i].Conditions.Ready
		o.Endpoints[i].Conditions.Ready = ptr(!ready)
		s.putSlice(t, "flip ready", k, o)
	case c < 85:
		o.Endpoints[s.rng.IntN(endpoints)].Hostname = s.hostname()
		s.putSlice(t, "change a hostname", k, o)
	default:
		s.moveEndpoint(t, service, o, n)
	}
}

// moveEndpoint moves one from a slice to the other of the same family.
func (s *soaker) moveEndpoint(t *testing.T, service soak.Key, from *discoveryv1.EndpointSlice, n int) {
	t.Helper()
	if n == soakSlices-1 {
		return
	}
	k, toKey := soakSliceKey(service, n), soakSliceKey(service, 1-n)
	old, ok := s.history.Now(toKey).(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	to := old.DeepCopy()
	moved := from.Endpoints[0]
	from.Endpoints = from.Endpoints[1:]
	if !slices.ContainsFunc(to.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Addresses[0] == moved.Addresses[0] }) {
		to.Endpoints = append(to.Endpoints, moved)
	}
	// As the controller does: in any order.
	if s.rng.IntN(2) == 0 {
		s.putSlice(t, "move an endpoint to a slice", toKey, to)
		s.putSlice(t, "move an endpoint from a slice", k, from)
	} else {
		s.putSlice(t, "move an endpoint from a slice", k, from)
		s.putSlice(t, "move an endpoint to a slice", toKey, to)
	}
}

func (s *soaker) slice(k, service soak.Key, v6 bool) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   s.endpoints(k.Namespace, v6),
		Ports:       s.slicePorts(),
	}
	if v6 {
		o.AddressType = discoveryv1.AddressTypeIPv6
	}
	return o
}

// endpoints are up to three, with different addresses.
func (s *soaker) endpoints(ns string, v6 bool) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	for _, i := range s.rng.Perm(soakEndpointIPs)[:s.rng.IntN(4)] {
		e := discoveryv1.Endpoint{Addresses: []string{soakEndpointIP(ns, v6, i)}, Hostname: s.hostname()}
		if s.rng.IntN(4) > 0 {
			e.Conditions.Ready = ptr(s.rng.IntN(4) > 0)
		}
		all = append(all, e)
	}
	return all
}

func (s *soaker) hostname() *string {
	if h := strings.ToLower(pick(s.rng, soakHostnames...)); h != "" {
		return &h
	}
	return nil
}

func (s *soaker) slicePorts() []discoveryv1.EndpointPort {
	var all []discoveryv1.EndpointPort
	for _, p := range s.ports() {
		all = append(all, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: ptr(p.Port + 8000)})
	}
	return all
}

func (s *soaker) putSlice(t *testing.T, what string, k soak.Key, o *discoveryv1.EndpointSlice) {
	t.Helper()
	all := s.cluster.Client.DiscoveryV1().EndpointSlices(k.Namespace)
	s.put(t, what, k, func(ctx context.Context) (any, error) {
		if o.ResourceVersion == "" {
			return all.Create(ctx, o, metav1.CreateOptions{})
		}
		return all.Update(ctx, o, metav1.UpdateOptions{})
	}, func(ctx context.Context) (any, error) { return all.Get(ctx, k.Name, metav1.GetOptions{}) })
}

func (s *soaker) deleteSlice(t *testing.T, k soak.Key) {
	t.Helper()
	all := s.cluster.Client.DiscoveryV1().EndpointSlices(k.Namespace)
	s.put(t, "delete a slice", k, func(ctx context.Context) (any, error) {
		return nil, all.Delete(ctx, k.Name, metav1.DeleteOptions{})
	}, func(ctx context.Context) (any, error) { return all.Get(ctx, k.Name, metav1.GetOptions{}) })
}

// configure writes the ConfigMap that names the upstream nameserver.
func (s *soaker) configure(t *testing.T, upstream string) {
	t.Helper()
	s.put(t, "configure", soakConfigMap, func(ctx context.Context) (any, error) {
		return upstream, s.writeConfigMap(ctx, fmt.Sprintf("[%q]", upstream))
	}, func(context.Context) (any, error) { return upstream, nil })
	s.configured = time.Now()
}

// misconfigure writes one that is refused: what was in force stays. That holds
// for what kube-dns has read, so it must have read the one before.
func (s *soaker) misconfigure(t *testing.T) {
	t.Helper()
	if !s.history.CutSince(soak.ConfigMaps).IsZero() {
		return
	}
	s.writes["misconfigure"]++
	if err := s.writeConfigMap(t.Context(), `["not an address"]`); err != nil {
		t.Fatal(err)
	}
}

func (s *soaker) writeConfigMap(ctx context.Context, nameservers string) error {
	configMaps := s.cluster.Client.CoreV1().ConfigMaps(soakConfigMap.Namespace)
	o := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: soakConfigMap.Name},
		Data:       map[string]string{"upstreamNameservers": nameservers},
	}
	_, err := configMaps.Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = configMaps.Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}
