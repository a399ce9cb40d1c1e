package clustertest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is the objects of a cluster as the API has them.
type State struct {
	Services map[string]*corev1.Service            // by namespace/name
	Slices   map[string]*discoveryv1.EndpointSlice // by namespace/name
}

// NewState returns an empty State.
func NewState() *State {
	return &State{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}}
}

// Generator makes random objects out of few names and addresses, so that they
// meet.
type Generator struct{ *rand.Rand }

// PoolAddrs is how many addresses of each family a Generator draws from.
const PoolAddrs = 12

// PoolAddr is the i-th address that a Generator draws.
func PoolAddr(ipv6 bool, i int) string {
	if ipv6 {
		return fmt.Sprintf("2001:db8::%x", 16+i)
	}
	return fmt.Sprintf("192.0.2.%d", 16+i)
}

// Addr draws an address.
func (g Generator) Addr(ipv6 bool) string { return PoolAddr(ipv6, g.IntN(PoolAddrs)) }

// Name draws the name of a Service.
func (g Generator) Name() (namespace, name string) {
	return fmt.Sprintf("ns%d", g.IntN(2)), fmt.Sprintf("s%d", g.IntN(4))
}

// Pick draws one of all.
func Pick[T any](g Generator, all ...T) T { return all[g.IntN(len(all))] }

func (g Generator) ports() []corev1.ServicePort {
	var all []corev1.ServicePort
	for i := range g.IntN(4) {
		all = append(all, corev1.ServicePort{
			Name:     Pick(g, "http", "dns", "Web", ""),
			Port:     int32(Pick(g, 53, 80, 80+i)),
			Protocol: Pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP, ""),
		})
	}
	return all
}

func (g Generator) service(namespace, name string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		CreationTimestamp: metav1.Unix(1_700_000_000+int64(g.IntN(3)), 0),
	}}
	s.Spec.Ports = g.ports()
	switch g.IntN(8) {
	case 0:
		s.Spec.Type = corev1.ServiceTypeExternalName
		s.Spec.ExternalName = Pick(g, "www.example.org", "WWW.example.org.", "192.0.2.99", "nx.example.org", "nodata.example.org",
			"s0.ns0.svc.cluster.local", "s1.ns1.svc.cluster.local.", "gone.ns0.svc.cluster.local", "back.example.org", "fail.example.org", "alias.example.org")
	case 1:
		s.Spec.Type = corev1.ServiceTypeClusterIP // without an address yet
	case 2, 3:
		s.Spec.ClusterIP = g.Addr(false)
		s.Spec.ClusterIPs = Pick(g, nil, []string{s.Spec.ClusterIP, g.Addr(true)})
	default:
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Spec.PublishNotReadyAddresses = g.IntN(5) == 0
	}
	return s
}

func (g Generator) slice(namespace, name, of string) *discoveryv1.EndpointSlice {
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
		e := discoveryv1.Endpoint{Addresses: []string{g.Addr(ipv6)}}
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

// Change is one step of a history: an object that is set, or one that goes.
type Change struct {
	Service *corev1.Service
	Slice   *discoveryv1.EndpointSlice
	Deleted bool
}

// Change makes a random step and does it to s.
func (g Generator) Change(s *State) Change {
	if g.IntN(3) == 0 {
		namespace, name := g.Name()
		key := namespace + "/" + name
		if last := s.Services[key]; last != nil && g.IntN(3) == 0 {
			delete(s.Services, key)
			return Change{Service: last, Deleted: true}
		}
		next := g.service(namespace, name)
		s.Services[key] = next
		return Change{Service: next}
	}
	namespace, of := g.Name()
	name := fmt.Sprintf("slice-%d", g.IntN(8))
	key := namespace + "/" + name
	if last := s.Slices[key]; last != nil && g.IntN(3) == 0 {
		delete(s.Slices, key)
		return Change{Slice: last, Deleted: true}
	}
	if g.IntN(10) == 0 {
		of = "" // a slice of nobody
	}
	next := g.slice(namespace, name, of)
	s.Slices[key] = next
	return Change{Slice: next}
}
