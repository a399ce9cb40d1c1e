// Package records makes the records of a Service from the Service and its
// EndpointSlices. It is pure: no I/O, no log, no clock.
package records

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/treecache"
)

// Build makes all records of a Service from the Service and its slices, in any
// order. It returns nil where s is nil: slices without a Service have no name.
// It changes neither argument, and shares no memory with them but strings.
//
// DNS specification 1.1.0 sections 2.3 to 2.5; what differs for kube-dns is
// in docs/records.md and pinned by the tests beside this file.
func Build(s *objects.Service, own []*objects.EndpointSlice) *treecache.Records {
	if s == nil {
		return nil
	}
	r := &treecache.Records{
		Key:     s.Key(),
		Created: s.Created,
	}
	for _, l := range own {
		r.HasReady = r.HasReady || slices.ContainsFunc(l.Endpoints, s.Publishes)
	}
	switch {
	case s.Type == corev1.ServiceTypeExternalName:
		r.Kind = treecache.ExternalName
		buildExternal(r, s)
	case s.Headless:
		r.Kind = treecache.Headless
		buildHeadless(r, s, own)
	case len(s.ClusterIPs) > 0:
		buildClusterIP(r, s)
	default:
		r.Empty = true // the API server has yet to give it an address
	}
	return r
}

// buildExternal sets the external name. One that is an IPv4 address becomes
// an A record, kept from kube-dns: as a name it would be in the zone 1., 2., …
func buildExternal(r *treecache.Records, s *objects.Service) {
	name := strings.TrimSuffix(s.ExternalName, ".")
	if addr, err := netip.ParseAddr(name); err == nil {
		r.Addresses = []treecache.Address{{Addr: addr.WithZone("").Unmap()}}
		return
	}
	if name == "" {
		r.Empty = true
		return
	}
	r.Target = name + "."
}

func buildClusterIP(r *treecache.Records, s *objects.Service) {
	r.Addresses = make([]treecache.Address, len(s.ClusterIPs))
	for i, addr := range s.ClusterIPs {
		r.Addresses[i] = treecache.Address{Label: treecache.AddressLabel(addr), Addr: addr, Reverse: true}
	}
	b := portBuilder{named: make([]treecache.Port, 0, len(s.Ports))}
	for _, p := range s.Ports {
		b.add(p, []string{""})
	}
	b.into(r)
	r.Sort()
}

func buildHeadless(r *treecache.Records, s *objects.Service, own []*objects.EndpointSlice) {
	n := 0
	for _, l := range own {
		n += len(l.Endpoints)
	}
	r.Addresses = make([]treecache.Address, 0, n)
	var room [32]string // enough for most Services
	labels := room[:0]
	b := portBuilder{}
	for _, l := range own {
		labels = labels[:0]
		for _, e := range l.Endpoints {
			if !s.Publishes(e) {
				continue
			}
			label := e.Hostname
			if label == "" {
				label = treecache.AddressLabel(e.Addr)
			}
			labels = append(labels, label)
			r.Addresses = append(r.Addresses, treecache.Address{
				Label: label, Addr: e.Addr, Reverse: true, PodHostname: e.Hostname != "" && e.Pod,
			})
		}
		if len(labels) == 0 {
			continue
		}
		for _, p := range l.Ports {
			b.add(p, labels)
		}
	}
	if len(r.Addresses) == 0 {
		r.Addresses, r.Empty = nil, true
		return
	}
	b.into(r)
	r.Sort()
	r.Addresses = mergeAddresses(r.Addresses)
	if slices.ContainsFunc(r.Addresses, func(a treecache.Address) bool { return a.Repeated }) {
		reverseOfShared(r.Addresses, own, s)
	}
}

// mergeAddresses leaves each pair of label and address once, however many
// slices have it. The addresses are sorted as Records.Sort sorts them.
func mergeAddresses(all []treecache.Address) []treecache.Address {
	merged := all[:0]
	for _, a := range all {
		if n := len(merged); n > 0 && merged[n-1].Label == a.Label && merged[n-1].Addr == a.Addr {
			merged[n-1].PodHostname = merged[n-1].PodHostname || a.PodHostname
			continue
		}
		merged = append(merged, a)
	}
	return exact(merged)
}

// reverseOfShared leaves an address's system-assigned label without a PTR
// record where some endpoint gives the address a hostname.
func reverseOfShared(all []treecache.Address, own []*objects.EndpointSlice, s *objects.Service) {
	named := map[netip.Addr]bool{}
	for _, l := range own {
		for _, e := range l.Endpoints {
			if e.Hostname != "" && s.Publishes(e) {
				named[e.Addr] = true
			}
		}
	}
	for i := range all {
		a := &all[i]
		a.Reverse = !named[a.Addr] || a.Label != treecache.AddressLabel(a.Addr)
	}
}

// exact returns s in an array that is not much larger than it: records live for
// as long as their Service.
func exact[T any](s []T) []T {
	if cap(s)-len(s) > len(s)/16 {
		return append(make([]T, 0, len(s)), s...)
	}
	return s
}

// portBuilder collects the SRV records of a Service's ports.
type portBuilder struct {
	named   []treecache.Port
	unnamed []treecache.SRV
}

// add adds a port's records, whose targets have the labels given. A port without
// a number has none.
func (b *portBuilder) add(p objects.Port, labels []string) {
	if p.Number == 0 {
		return
	}
	if p.Name == "" {
		b.unnamed = appendSRVs(b.unnamed, p.Number, labels)
		return
	}
	name, protocol := "_"+strings.ToLower(p.Name), protocolLabel(p.Protocol)
	i := slices.IndexFunc(b.named, func(q treecache.Port) bool { return q.Name == name && q.Protocol == protocol })
	if i < 0 {
		i = len(b.named)
		b.named = append(b.named, treecache.Port{Protocol: protocol, Name: name})
	}
	b.named[i].SRVs = appendSRVs(b.named[i].SRVs, p.Number, labels)
}

func appendSRVs(all []treecache.SRV, number uint16, labels []string) []treecache.SRV {
	if all == nil { // usually the only call: exactly the room needed
		all = make([]treecache.SRV, 0, len(labels))
	}
	for _, label := range labels {
		all = append(all, treecache.SRV{Label: label, Port: number})
	}
	return all
}

// protocolLabel is "_tcp" for TCP. It allocates only for protocols that
// Kubernetes does not know.
func protocolLabel(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolTCP:
		return "_tcp"
	case corev1.ProtocolUDP:
		return "_udp"
	case corev1.ProtocolSCTP:
		return "_sctp"
	}
	return "_" + strings.ToLower(string(p))
}

// into sets the records of r, each pair of target and port once. With a single
// port, the usual case, both of its names share one list.
func (b *portBuilder) into(r *treecache.Records) {
	n := len(b.unnamed)
	for i := range b.named {
		b.named[i].SRVs = uniqueSRVs(b.named[i].SRVs)
		n += len(b.named[i].SRVs)
	}
	r.Ports = exact(b.named)
	switch {
	case len(b.named) == 1 && len(b.unnamed) == 0:
		r.SRVs = b.named[0].SRVs
	case n > 0:
		all := append(make([]treecache.SRV, 0, n), b.unnamed...)
		for i := range b.named {
			all = append(all, b.named[i].SRVs...)
		}
		r.SRVs = uniqueSRVs(all)
	}
}

// uniqueSRVs sorts the records as Records.Sort does, and leaves each once.
func uniqueSRVs(all []treecache.SRV) []treecache.SRV {
	slices.SortFunc(all, treecache.CompareSRVs)
	return exact(slices.Compact(all))
}
