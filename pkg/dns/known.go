package dns

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"kubedns/pkg/dns/treecache"
)

// A Description is what is known of one Service and its EndpointSlices, for
// people to look at. It says nothing that the API server did not.
type Description struct {
	Key treecache.Key
	// Type is the Service's: "ClusterIP", "NodePort", "LoadBalancer",
	// "ExternalName".
	Type       string
	Headless   bool
	ClusterIPs []netip.Addr
	Ports      []DescribedPort
	// ExternalName is that of a Service of this type, as the manifest has it.
	ExternalName string
	// PublishNotReady is set where endpoints count whether or not they are
	// ready.
	PublishNotReady bool
	Created         time.Time
	ResourceVersion string
	// Slices are sorted by name.
	Slices []DescribedSlice
}

// A DescribedPort is a Service's or a slice's.
type DescribedPort struct {
	Name     string // "" where unnamed
	Protocol string // "TCP"
	Number   uint16 // 0 where a slice has null
}

// A DescribedSlice is an EndpointSlice.
type DescribedSlice struct {
	Name, ResourceVersion string
	AddressType           string // "IPv4", "IPv6", "FQDN"
	Ports                 []DescribedPort
	// Endpoints are the slice's addresses, in its order; none are kept of a
	// slice of type FQDN.
	Endpoints iter.Seq[DescribedEndpoint]
}

// A DescribedEndpoint is one address of an endpoint.
type DescribedEndpoint struct {
	Addr     netip.Addr
	Hostname string // in lower case; "" where it has none
	Ready    bool
	Pod      bool // its targetRef is a Pod
}

// Known tells what is known of a Service. ok is false where none of that
// name is, which a snapshot's Services are not until the API server was
// listed.
func (kd *KubeDNS) Known(key treecache.Key) (d Description, ok bool) {
	s := kd.source.service(key)
	if s == nil {
		return Description{}, false
	}
	d = Description{
		Key: key, Type: string(s.kind), Headless: s.headless, ClusterIPs: slices.Clone(s.clusterIPs), Ports: describePorts(s.ports),
		ExternalName: s.externalName, PublishNotReady: s.publishNotReady, Created: s.created, ResourceVersion: s.ResourceVersion,
	}
	for _, l := range kd.source.slicesOf(key) {
		d.Slices = append(d.Slices, DescribedSlice{
			Name: l.Name, ResourceVersion: l.ResourceVersion, AddressType: string(l.family), Ports: describePorts(l.ports),
			Endpoints: func(yield func(DescribedEndpoint) bool) {
				for _, e := range l.endpoints {
					if !yield(DescribedEndpoint{Addr: e.addr, Hostname: e.hostname, Ready: e.ready, Pod: e.pod}) {
						return
					}
				}
			},
		})
	}
	return d, true
}

func describePorts(ports []port) []DescribedPort {
	described := make([]DescribedPort, len(ports))
	for i, p := range ports {
		described[i] = DescribedPort{Name: p.name, Protocol: string(p.protocol), Number: p.number}
	}
	return described
}

// Restored is when the snapshot was taken that is served until the API server
// has been listed; ok is false where none is.
func (kd *KubeDNS) Restored() (taken time.Time, ok bool) {
	if t := kd.restored.Load(); t != nil {
		return *t, true
	}
	return time.Time{}, false
}
