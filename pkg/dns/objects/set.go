package objects

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubedns/pkg/dns/treecache"
)

// A Set is everything that a cluster has at one moment. Once it is complete it
// is not written to, so it may be shared between goroutines. Its zero value is
// an empty set.
type Set struct {
	services map[treecache.Key]*Service
	slices   map[treecache.Key][]*EndpointSlice // by the Service they belong to
	count    int                                // of slices
	nodes    []*Node
}

// NewSet trims the API's objects. No two of a kind may have the same namespace
// and name.
func NewSet(services []*corev1.Service, slices []*discoveryv1.EndpointSlice, nodes []*corev1.Node) *Set {
	s := &Set{
		services: make(map[treecache.Key]*Service, len(services)),
		slices:   map[treecache.Key][]*EndpointSlice{},
		count:    len(slices),
	}
	for _, o := range services {
		t := TrimService(o)
		s.services[t.Key()] = t
	}
	for _, o := range slices {
		t := TrimSlice(o)
		s.slices[t.Owner()] = append(s.slices[t.Owner()], t)
	}
	for _, own := range s.slices {
		SortSlices(own)
	}
	for _, o := range nodes {
		s.nodes = append(s.nodes, TrimNode(o))
	}
	return s
}

// Service returns the Service of that name, or nil.
func (s *Set) Service(key treecache.Key) *Service { return s.services[key] }

// Slices returns the slices of the Service of that name, sorted by name. The
// caller must not change them.
func (s *Set) Slices(key treecache.Key) []*EndpointSlice { return s.slices[key] }

// Services returns the keys of all Services, in no order.
func (s *Set) Services() []treecache.Key { return slices.Collect(maps.Keys(s.services)) }

// All returns all Services and slices, in no order.
func (s *Set) All() (services []*Service, all []*EndpointSlice) {
	for _, own := range s.slices {
		all = append(all, own...)
	}
	return slices.Collect(maps.Values(s.services)), all
}

// Len counts the Services and the slices.
func (s *Set) Len() (services, slices int) { return len(s.services), s.count }

// Topology is that of the Nodes, see Topology.
func (s *Set) Topology() (topologyZone, region string) { return Topology(s.nodes) }
