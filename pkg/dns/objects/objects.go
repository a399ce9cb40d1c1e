// Package objects has the Services, EndpointSlices and Nodes as kube-dns keeps
// them: what records are made of, and nothing else of the API's objects. It
// trims them from the API's types and decodes them from what an API server
// sends, protobuf or JSON.
//
// How objects are delivered is left to package source, what records they make
// to package records. The package is pure: no I/O, no log, no clock.
package objects

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/treecache"
)

// An Object is a *Service, an *EndpointSlice or a *Node. It is not written to
// once made, so it may be shared between goroutines.
type Object interface {
	comparable
	// Key is the object's namespace and name.
	Key() treecache.Key
	// Version is the object's resource version.
	Version() string
	// Equal reports whether other is of the same type and has the same content,
	// resource version included. Neither may be nil.
	Equal(other any) bool
	// Weight is the object's size in a list, in objects and endpoints.
	Weight() int
}

// Meta is an object's metadata.
type Meta struct{ Namespace, Name, ResourceVersion string }

// Key implements Object.
func (m *Meta) Key() treecache.Key { return treecache.Key{Namespace: m.Namespace, Name: m.Name} }

// Version implements Object.
func (m *Meta) Version() string { return m.ResourceVersion }

// Service is a Service.
type Service struct {
	Meta
	Type     corev1.ServiceType // as the API has it; "" counts as ClusterIP
	Headless bool
	// ClusterIPs are distinct, in the Service's order; IPv4 addresses are never
	// mapped to IPv6. None while the API server has assigned none.
	ClusterIPs   []netip.Addr
	Ports        []Port
	ExternalName string // as the Service spells it; "" for other types
	// PublishNotReady is publishNotReadyAddresses or the older annotation
	// service.alpha.kubernetes.io/tolerate-unready-endpoints.
	PublishNotReady bool
	Created         time.Time // in whole seconds
}

// Equal implements Object.
func (s *Service) Equal(other any) bool {
	o, ok := other.(*Service)
	return ok && s.Meta == o.Meta && s.Type == o.Type && s.Headless == o.Headless &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.Ports, o.Ports) &&
		s.ExternalName == o.ExternalName && s.PublishNotReady == o.PublishNotReady && s.Created.Equal(o.Created)
}

// Weight implements Object.
func (s *Service) Weight() int { return 1 }

// Publishes reports whether an endpoint of the Service has records.
func (s *Service) Publishes(e Endpoint) bool { return e.Ready || s.PublishNotReady }

// EndpointSlice is an EndpointSlice.
type EndpointSlice struct {
	Meta
	Service     string // the name of the Service it belongs to, in its own namespace; "" for none
	AddressType discoveryv1.AddressType
	// Ports and Endpoints are empty for other address types than IPv4 and IPv6.
	Ports     []Port
	Endpoints []Endpoint
	// Triggered is the annotation endpoints.kubernetes.io/last-change-trigger-time;
	// zero where there is none.
	Triggered time.Time
}

// Owner is the Service that the slice belongs to. Its name is empty where
// there is none.
func (s *EndpointSlice) Owner() treecache.Key {
	return treecache.Key{Namespace: s.Namespace, Name: s.Service}
}

// Equal implements Object.
func (s *EndpointSlice) Equal(other any) bool {
	o, ok := other.(*EndpointSlice)
	return ok && s.Meta == o.Meta && s.Service == o.Service && slices.Equal(s.Ports, o.Ports) &&
		slices.Equal(s.Endpoints, o.Endpoints) && s.Triggered.Equal(o.Triggered) && s.AddressType == o.AddressType
}

// Weight implements Object.
func (s *EndpointSlice) Weight() int { return 1 + len(s.Endpoints) }

// SortSlices sorts slices by name, in place, and returns them.
func SortSlices(s []*EndpointSlice) []*EndpointSlice {
	slices.SortFunc(s, func(a, b *EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// Port is a port of a Service or an EndpointSlice.
type Port struct {
	Name     string // as the object spells it; "" where unnamed
	Protocol corev1.Protocol
	Number   uint16 // 0 where a slice has null
}

// Endpoint is one address of an endpoint.
type Endpoint struct {
	Addr     netip.Addr // without a zone; IPv4 addresses are never mapped to IPv6
	Hostname string     // in lower case; "" where it has none
	Ready    bool       // the condition is true or absent
	Pod      bool       // targetRef is a Pod
}

// Node is a Node.
type Node struct {
	Meta
	TopologyZone, Region string // "" where the Node has no such label
}

// Equal implements Object.
func (n *Node) Equal(other any) bool {
	o, ok := other.(*Node)
	return ok && n.Meta == o.Meta && n.TopologyZone == o.TopologyZone && n.Region == o.Region
}

// Weight implements Object.
func (n *Node) Weight() int { return 1 }

// Topology is the topology zone and region of the first Node by name that has
// both, so that every replica gives the same answer; "" and "" where no Node
// has both.
func Topology(nodes []*Node) (topologyZone, region string) {
	var first *Node
	for _, n := range nodes {
		if n.TopologyZone != "" && n.Region != "" && (first == nil || n.Name < first.Name) {
			first = n
		}
	}
	if first == nil {
		return "", ""
	}
	return first.TopologyZone, first.Region
}

func trimMeta(m *metav1.ObjectMeta) Meta {
	return Meta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion}
}

// tolerateUnready is the annotation that stood before the field
// publishNotReadyAddresses.
const tolerateUnready = "service.alpha.kubernetes.io/tolerate-unready-endpoints"

// TrimService keeps what records need of a Service. It does not change s, nor
// keep it.
func TrimService(s *corev1.Service) *Service {
	t := &Service{
		Meta:            trimMeta(&s.ObjectMeta),
		Type:            s.Spec.Type,
		Headless:        s.Spec.ClusterIP == corev1.ClusterIPNone,
		PublishNotReady: s.Spec.PublishNotReadyAddresses || s.Annotations[tolerateUnready] == "true",
		Created:         s.CreationTimestamp.Time,
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		t.ExternalName = s.Spec.ExternalName
		return t
	}
	if !t.Headless {
		ips := s.Spec.ClusterIPs
		if len(ips) == 0 {
			ips = []string{s.Spec.ClusterIP} // an object from before dual stack
		}
		for _, ip := range ips {
			addr, err := netip.ParseAddr(ip)
			if err != nil || slices.Contains(t.ClusterIPs, addr.Unmap()) {
				continue
			}
			t.ClusterIPs = append(t.ClusterIPs, addr.Unmap())
		}
	}
	if len(s.Spec.Ports) > 0 {
		t.Ports = make([]Port, len(s.Spec.Ports))
		for i, p := range s.Spec.Ports {
			t.Ports[i] = Port{p.Name, protocolOf(p.Protocol), uint16(p.Port)}
		}
	}
	return t
}

// TrimSlice keeps what records need of an EndpointSlice. It does not change s,
// nor keep it.
func TrimSlice(s *discoveryv1.EndpointSlice) *EndpointSlice {
	t := &EndpointSlice{
		Meta:        trimMeta(&s.ObjectMeta),
		Service:     s.Labels[discoveryv1.LabelServiceName],
		AddressType: s.AddressType,
	}
	t.trigger(s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if !t.hasAddresses() {
		return t
	}
	for _, p := range s.Ports {
		q := Port{Protocol: corev1.ProtocolTCP}
		if p.Name != nil {
			q.Name = *p.Name
		}
		if p.Protocol != nil {
			q.Protocol = protocolOf(*p.Protocol)
		}
		if p.Port != nil {
			q.Number = uint16(*p.Port)
		}
		t.Ports = append(t.Ports, q)
	}
	n := 0
	for i := range s.Endpoints {
		n += len(s.Endpoints[i].Addresses)
	}
	t.Endpoints = make([]Endpoint, 0, n)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		q := Endpoint{Ready: e.Conditions.Ready == nil || *e.Conditions.Ready}
		if e.Hostname != nil {
			q.Hostname = strings.ToLower(*e.Hostname)
		}
		q.Pod = e.TargetRef != nil && e.TargetRef.Kind == kindPod
		for _, a := range e.Addresses {
			if addr, err := netip.ParseAddr(a); err == nil {
				t.addEndpoint(q, addr)
			}
		}
	}
	return t
}

const kindPod = "Pod"

// trigger sets the time of the last change from its annotation.
func (s *EndpointSlice) trigger(annotation string) {
	if v, err := time.Parse(time.RFC3339Nano, annotation); err == nil {
		s.Triggered = v
	}
}

// hasAddresses reports whether the slice makes records. One of type FQDN does
// not.
func (s *EndpointSlice) hasAddresses() bool {
	return s.AddressType == discoveryv1.AddressTypeIPv4 || s.AddressType == discoveryv1.AddressTypeIPv6
}

// addEndpoint appends q with the address addr.
func (s *EndpointSlice) addEndpoint(q Endpoint, addr netip.Addr) {
	q.Addr = addr.WithZone("").Unmap()
	s.Endpoints = append(s.Endpoints, q)
}

// TrimNode keeps what federations need of a Node. It does not change n, nor
// keep it.
func TrimNode(n *corev1.Node) *Node {
	t := &Node{Meta: trimMeta(&n.ObjectMeta)}
	t.TopologyZone, t.Region = federation.Topology(n.Labels)
	return t
}

// protocolOf is TCP for "". What it returns shares no memory with p where
// Kubernetes knows the protocol: a decoded one would be kept with every port.
func protocolOf(p corev1.Protocol) corev1.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return corev1.ProtocolUDP
	case corev1.ProtocolSCTP:
		return corev1.ProtocolSCTP
	case corev1.ProtocolTCP, "":
		return corev1.ProtocolTCP
	}
	return p
}
