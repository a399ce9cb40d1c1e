package dns

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/treecache"
)

// A Description is one Service and its EndpointSlices for people to look at. It
// has only the source's data.
type Description struct {
	Key treecache.Key
	// Type is the Service's: "ClusterIP", "NodePort", "LoadBalancer",
	// "ExternalName".
	Type       string
	Headless   bool
	ClusterIPs []netip.Addr
	Ports      []DescribedPort
	// ExternalName is set for a Service of this type, as the manifest spells it.
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
	// Endpoints are the slice's addresses, in its order. A slice of type FQDN
	// has none here.
	Endpoints iter.Seq[DescribedEndpoint]
}

// A DescribedEndpoint is one address of an endpoint.
type DescribedEndpoint struct {
	Addr     netip.Addr
	Hostname string // in lower case; "" where it has none
	Ready    bool
	Pod      bool // its targetRef is a Pod
}

// DescribeService returns the Service of that name as the source has it. ok is
// false where there is none. A snapshot's Services are not described.
func (kd *KubeDNS) DescribeService(key treecache.Key) (d Description, ok bool) {
	s := kd.source.Service(key)
	if s == nil {
		return Description{}, false
	}
	d = Description{
		Key: key, Type: string(s.Type), Headless: s.Headless, ClusterIPs: slices.Clone(s.ClusterIPs), Ports: describePorts(s.Ports),
		ExternalName: s.ExternalName, PublishNotReady: s.PublishNotReady, Created: s.Created, ResourceVersion: s.ResourceVersion,
	}
	for _, l := range kd.source.Slices(key) {
		d.Slices = append(d.Slices, DescribedSlice{
			Name: l.Name, ResourceVersion: l.ResourceVersion, AddressType: string(l.AddressType), Ports: describePorts(l.Ports),
			Endpoints: func(yield func(DescribedEndpoint) bool) {
				for _, e := range l.Endpoints {
					if !yield(DescribedEndpoint{Addr: e.Addr, Hostname: e.Hostname, Ready: e.Ready, Pod: e.Pod}) {
						return
					}
				}
			},
		})
	}
	return d, true
}

func describePorts(ports []objects.Port) []DescribedPort {
	described := make([]DescribedPort, len(ports))
	for i, p := range ports {
		described[i] = DescribedPort{Name: p.Name, Protocol: string(p.Protocol), Number: p.Number}
	}
	return described
}
