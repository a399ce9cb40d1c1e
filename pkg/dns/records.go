package dns

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubedns/pkg/dns/treecache"
)

// buildRecords makes all that a Service owns from the Service and its slices,
// in any order. It is nil where s is: slices without a Service have no name.
//
// DNS specification 1.1.0 sections 2.3 to 2.5; what differs for kube-dns is
// in docs/records.md and pinned by the tests beside this file.
func buildRecords(s *service, own []*slice) *treecache.Records {
	if s == nil {
		return nil
	}
	r := &treecache.Records{
		Key:     s.key(),
		Created: s.created,
	}
	for _, l := range own {
		r.HasReady = r.HasReady || slices.ContainsFunc(l.endpoints, s.publishes)
	}
	switch {
	case s.kind == corev1.ServiceTypeExternalName:
		r.Kind = treecache.ExternalName
		buildExternal(r, s)
	case s.headless:
		r.Kind = treecache.Headless
		buildHeadless(r, s, own)
	case len(s.clusterIPs) > 0:
		buildClusterIP(r, s)
	default:
		r.Empty = true // the API server has yet to give it an address
	}
	return r
}

// publishes tells whether an endpoint has records.
func (s *service) publishes(e endpoint) bool { return e.ready || s.publishNotReady }

// buildExternal enters the external name. One that is an IPv4 address becomes
// an A record, kept from kube-dns: as a name it would be in the zone 1., 2., …
func buildExternal(r *treecache.Records, s *service) {
	name := strings.TrimSuffix(s.externalName, ".")
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

func buildClusterIP(r *treecache.Records, s *service) {
	r.Addresses = make([]treecache.Address, len(s.clusterIPs))
	for i, addr := range s.clusterIPs {
		r.Addresses[i] = treecache.Address{Label: treecache.AddressLabel(addr), Addr: addr, Reverse: true}
	}
	b := portBuilder{named: make([]treecache.Port, 0, len(s.ports))}
	for _, p := range s.ports {
		b.add(p, []string{""})
	}
	b.into(r)
	r.Sort()
}

func buildHeadless(r *treecache.Records, s *service, own []*slice) {
	n := 0
	for _, l := range own {
		n += len(l.endpoints)
	}
	r.Addresses = make([]treecache.Address, 0, n)
	var room [32]string // enough for most Services
	labels := room[:0]
	b := portBuilder{}
	for _, l := range own {
		labels = labels[:0]
		for _, e := range l.endpoints {
			if !s.publishes(e) {
				continue
			}
			label := e.hostname
			if label == "" {
				label = treecache.AddressLabel(e.addr)
			}
			labels = append(labels, label)
			r.Addresses = append(r.Addresses, treecache.Address{
				Label: label, Addr: e.addr, Reverse: true, PodHostname: e.hostname != "" && e.pod,
			})
		}
		if len(labels) == 0 {
			continue
		}
		for _, p := range l.ports {
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

// mergeAddresses enters a pair of label and address, sorted as Records has
// them, once, however many slices have it.
func mergeAddresses(all []treecache.Address) []treecache.Address {
	kept := all[:0]
	for _, a := range all {
		if n := len(kept); n > 0 && kept[n-1].Label == a.Label && kept[n-1].Addr == a.Addr {
			kept[n-1].PodHostname = kept[n-1].PodHostname || a.PodHostname
			continue
		}
		kept = append(kept, a)
	}
	return exact(kept)
}

// reverseOfShared leaves an address's system-assigned label without a PTR
// record where some endpoint gives the address a hostname.
func reverseOfShared(all []treecache.Address, own []*slice, s *service) {
	named := map[netip.Addr]bool{}
	for _, l := range own {
		for _, e := range l.endpoints {
			if e.hostname != "" && s.publishes(e) {
				named[e.addr] = true
			}
		}
	}
	for i := range all {
		a := &all[i]
		a.Reverse = !named[a.Addr] || a.Label != treecache.AddressLabel(a.Addr)
	}
}

// exact is s in an array that is not much larger: what it is made for stays.
func exact[T any](s []T) []T {
	if cap(s)-len(s) > len(s)/16 {
		return append(make([]T, 0, len(s)), s...)
	}
	return s
}

// portBuilder gathers the SRV records of a Service's ports.
type portBuilder struct {
	named   []treecache.Port
	unnamed []treecache.SRV
}

// add enters a port at targets. A port without a number has no record.
func (b *portBuilder) add(p port, labels []string) {
	if p.number == 0 {
		return
	}
	if p.name == "" {
		b.unnamed = appendSRVs(b.unnamed, p.number, labels)
		return
	}
	name, protocol := "_"+strings.ToLower(p.name), protocolLabel(p.protocol)
	i := slices.IndexFunc(b.named, func(q treecache.Port) bool { return q.Name == name && q.Protocol == protocol })
	if i < 0 {
		i = len(b.named)
		b.named = append(b.named, treecache.Port{Protocol: protocol, Name: name})
	}
	b.named[i].SRVs = appendSRVs(b.named[i].SRVs, p.number, labels)
}

func appendSRVs(all []treecache.SRV, number uint16, labels []string) []treecache.SRV {
	if all == nil { // the usual case is the only one: exactly as much as it takes
		all = make([]treecache.SRV, 0, len(labels))
	}
	for _, label := range labels {
		all = append(all, treecache.SRV{Label: label, Port: number})
	}
	return all
}

// protocolLabel is "_tcp"; the usual ones are not made anew for every Service.
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

// into enters what was gathered into r, each pair of target and port once. A
// Service with a single port, the usual case, has one list for both names.
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

// uniqueSRVs sorts the records as Records has them.
func uniqueSRVs(all []treecache.SRV) []treecache.SRV {
	slices.SortFunc(all, treecache.CompareSRVs)
	return exact(slices.Compact(all))
}
