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
// in records.md and pinned by the tests beside this file.
func buildRecords(s *service, own []*slice) *treecache.Records {
	if s == nil {
		return nil
	}
	r := &treecache.Records{
		Key:     treecache.Key{Namespace: s.Namespace, Name: s.Name},
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
	for _, addr := range s.clusterIPs {
		r.Addresses = append(r.Addresses, treecache.Address{
			Label: treecache.SystemLabel(addr.String()), Addr: addr, Reverse: true,
		})
	}
	b := portBuilder{}
	for _, p := range s.ports {
		b.add(p, "")
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
	b := portBuilder{}
	for _, l := range own {
		for _, e := range l.endpoints {
			if !s.publishes(e) {
				continue
			}
			label := e.hostname
			if label == "" {
				label = treecache.SystemLabel(e.addr.String())
			}
			r.Addresses = append(r.Addresses, treecache.Address{
				Label: label, Addr: e.addr, Reverse: true, PodHostname: e.hostname != "" && e.pod,
			})
			for _, p := range l.ports {
				b.add(p, label)
			}
		}
	}
	if len(r.Addresses) == 0 {
		r.Addresses, r.Empty = nil, true
		return
	}
	r.Addresses = mergeAddresses(r.Addresses, own, s)
	b.into(r)
	r.Sort()
}

// mergeAddresses enters a pair of label and address once, however many slices
// have it, and leaves an address's system-assigned label without a PTR record
// where some endpoint gives the address a hostname.
func mergeAddresses(all []treecache.Address, own []*slice, s *service) []treecache.Address {
	type pair struct {
		label string
		addr  netip.Addr
	}
	at := make(map[pair]int, len(all))
	kept := all[:0]
	for _, a := range all {
		p := pair{a.Label, a.Addr}
		if i, ok := at[p]; ok {
			kept[i].PodHostname = kept[i].PodHostname || a.PodHostname
			continue
		}
		at[p] = len(kept)
		kept = append(kept, a)
	}
	if len(at) == len(all) && !sharesAddress(kept) {
		return kept
	}
	named := map[netip.Addr]bool{}
	for _, l := range own {
		for _, e := range l.endpoints {
			if e.hostname != "" && s.publishes(e) {
				named[e.addr] = true
			}
		}
	}
	for i := range kept {
		a := &kept[i]
		a.Reverse = !named[a.Addr] || a.Label != treecache.SystemLabel(a.Addr.String())
	}
	return kept
}

func sharesAddress(all []treecache.Address) bool {
	seen := make(map[netip.Addr]struct{}, len(all))
	for _, a := range all {
		seen[a.Addr] = struct{}{}
	}
	return len(seen) != len(all)
}

// portBuilder gathers the SRV records of a Service's ports.
type portBuilder struct {
	named   []treecache.Port
	all     []treecache.SRV
	unnamed bool
}

// add enters a port at a target. A port without a number has no record.
func (b *portBuilder) add(p port, label string) {
	if p.number == 0 {
		return
	}
	srv := treecache.SRV{Label: label, Port: p.number}
	b.all = append(b.all, srv)
	if p.name == "" {
		b.unnamed = true
		return
	}
	name, protocol := "_"+strings.ToLower(p.name), "_"+strings.ToLower(string(p.protocol))
	i := slices.IndexFunc(b.named, func(q treecache.Port) bool { return q.Name == name && q.Protocol == protocol })
	if i < 0 {
		i = len(b.named)
		b.named = append(b.named, treecache.Port{Protocol: protocol, Name: name})
	}
	b.named[i].SRVs = append(b.named[i].SRVs, srv)
}

// into enters what was gathered into r, each pair of target and port once. A
// Service with a single port, the usual case, has one list for both names.
func (b *portBuilder) into(r *treecache.Records) {
	for i := range b.named {
		b.named[i].SRVs = uniqueSRVs(b.named[i].SRVs)
	}
	r.Ports = b.named
	if len(b.named) == 1 && !b.unnamed {
		r.SRVs = b.named[0].SRVs
		return
	}
	r.SRVs = uniqueSRVs(b.all)
}

func uniqueSRVs(all []treecache.SRV) []treecache.SRV {
	seen := make(map[treecache.SRV]struct{}, len(all))
	kept := all[:0]
	for _, srv := range all {
		if _, ok := seen[srv]; !ok {
			seen[srv] = struct{}{}
			kept = append(kept, srv)
		}
	}
	return slices.Clip(kept)
}
