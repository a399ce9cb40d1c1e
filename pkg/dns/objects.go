package dns

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/treecache"
)

// The API's objects as they are kept: what no record needs is dropped when
// they arrive. They are not written to once made.

// service is a Service.
type service struct {
	meta
	kind         corev1.ServiceType
	headless     bool
	clusterIPs   []netip.Addr
	ports        []port
	externalName string
	// publishNotReady is publishNotReadyAddresses or the older annotation
	// service.alpha.kubernetes.io/tolerate-unready-endpoints.
	publishNotReady bool
	created         time.Time
}

// slice is an EndpointSlice.
type slice struct {
	meta
	service   string // the Service it belongs to, in its own namespace
	ports     []port
	endpoints []endpoint
	// triggered is the annotation endpoints.kubernetes.io/last-change-trigger-time;
	// zero where there is none.
	triggered time.Time
	family    discoveryv1.AddressType
}

type port struct {
	name     string // "" where unnamed
	protocol corev1.Protocol
	number   uint16 // 0 where the slice has null
}

type endpoint struct {
	addr     netip.Addr
	hostname string
	ready    bool // the condition is true or absent
	pod      bool // targetRef is a Pod
}

// meta is what is kept of an object's metadata.
type meta struct{ Namespace, Name, ResourceVersion string }

func (m *meta) key() treecache.Key { return treecache.Key{Namespace: m.Namespace, Name: m.Name} }

func (m *meta) version() string { return m.ResourceVersion }

// owner is the Service that the slice belongs to; its name is empty where
// there is none.
func (s *slice) owner() treecache.Key {
	return treecache.Key{Namespace: s.Namespace, Name: s.service}
}

func (s *service) same(other any) bool {
	o, ok := other.(*service)
	return ok && s.meta == o.meta && s.kind == o.kind && s.headless == o.headless &&
		slices.Equal(s.clusterIPs, o.clusterIPs) && slices.Equal(s.ports, o.ports) &&
		s.externalName == o.externalName && s.publishNotReady == o.publishNotReady && s.created.Equal(o.created)
}

func (s *slice) same(other any) bool {
	o, ok := other.(*slice)
	return ok && s.meta == o.meta && s.service == o.service && slices.Equal(s.ports, o.ports) &&
		slices.Equal(s.endpoints, o.endpoints) && s.triggered.Equal(o.triggered) && s.family == o.family
}

// weight is how much there is of the object in a list.
func (s *service) weight() int { return 1 }

func (s *slice) weight() int { return 1 + len(s.endpoints) }

func trimMeta(m *metav1.ObjectMeta) meta {
	return meta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion}
}

// tolerateUnready is the annotation that stood before the field
// publishNotReadyAddresses.
const tolerateUnready = "service.alpha.kubernetes.io/tolerate-unready-endpoints"

// trimService makes a service of the API's object.
func trimService(s *corev1.Service) *service {
	t := &service{
		meta:            trimMeta(&s.ObjectMeta),
		kind:            s.Spec.Type,
		headless:        s.Spec.ClusterIP == corev1.ClusterIPNone,
		publishNotReady: s.Spec.PublishNotReadyAddresses || s.Annotations[tolerateUnready] == "true",
		created:         s.CreationTimestamp.Time,
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		t.externalName = s.Spec.ExternalName
		return t
	}
	if !t.headless {
		ips := s.Spec.ClusterIPs
		if len(ips) == 0 {
			ips = []string{s.Spec.ClusterIP} // an object from before dual stack
		}
		for _, ip := range ips {
			addr, err := netip.ParseAddr(ip)
			if err != nil || slices.Contains(t.clusterIPs, addr.Unmap()) {
				continue
			}
			t.clusterIPs = append(t.clusterIPs, addr.Unmap())
		}
	}
	if len(s.Spec.Ports) > 0 {
		t.ports = make([]port, len(s.Spec.Ports))
		for i, p := range s.Spec.Ports {
			t.ports[i] = port{p.Name, protocolOf(p.Protocol), uint16(p.Port)}
		}
	}
	return t
}

// trimSlice makes a slice of the API's object.
func trimSlice(s *discoveryv1.EndpointSlice) *slice {
	t := &slice{
		meta:    trimMeta(&s.ObjectMeta),
		service: s.Labels[discoveryv1.LabelServiceName],
		family:  s.AddressType,
	}
	t.trigger(s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if !t.hasAddresses() {
		return t
	}
	for _, p := range s.Ports {
		q := port{protocol: corev1.ProtocolTCP}
		if p.Name != nil {
			q.name = *p.Name
		}
		if p.Protocol != nil {
			q.protocol = protocolOf(*p.Protocol)
		}
		if p.Port != nil {
			q.number = uint16(*p.Port)
		}
		t.ports = append(t.ports, q)
	}
	n := 0
	for i := range s.Endpoints {
		n += len(s.Endpoints[i].Addresses)
	}
	t.endpoints = make([]endpoint, 0, n)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		q := endpoint{ready: e.Conditions.Ready == nil || *e.Conditions.Ready}
		if e.Hostname != nil {
			q.hostname = strings.ToLower(*e.Hostname)
		}
		q.pod = e.TargetRef != nil && e.TargetRef.Kind == kindPod
		for _, a := range e.Addresses {
			if addr, err := netip.ParseAddr(a); err == nil {
				t.addEndpoint(q, addr)
			}
		}
	}
	return t
}

const kindPod = "Pod"

// trigger enters the annotation for the time of the last change.
func (s *slice) trigger(annotation string) {
	if v, err := time.Parse(time.RFC3339Nano, annotation); err == nil {
		s.triggered = v
	}
}

// hasAddresses tells whether records come from the slice; none do from one of
// type FQDN.
func (s *slice) hasAddresses() bool {
	return s.family == discoveryv1.AddressTypeIPv4 || s.family == discoveryv1.AddressTypeIPv6
}

// addEndpoint enters q at an address.
func (s *slice) addEndpoint(q endpoint, addr netip.Addr) {
	q.addr = addr.WithZone("").Unmap()
	s.endpoints = append(s.endpoints, q)
}

func protocolOf[T ~string | ~[]byte](p T) corev1.Protocol {
	switch string(p) {
	case string(corev1.ProtocolUDP):
		return corev1.ProtocolUDP
	case string(corev1.ProtocolSCTP):
		return corev1.ProtocolSCTP
	case string(corev1.ProtocolTCP), "":
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(p)
}
