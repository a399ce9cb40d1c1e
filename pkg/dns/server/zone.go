package server

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// zone answers from the tree, in wire form. It is immutable.
type zone struct {
	tree       *treecache.Tree
	names      *qname.Zone // tells the forms of names
	ttl        [4]byte
	negTTL     [4]byte
	negTTLSecs uint32
	dnsService treecache.Key // its cluster IPs are the addresses of ns.dns.<zone>
}

func newZone(tree *treecache.Tree, ttl, negTTL uint32, dnsService treecache.Key) *zone {
	z := &zone{
		tree:       tree,
		names:      tree.Names(),
		negTTLSecs: negTTL,
		dnsService: dnsService,
	}
	binary.BigEndian.PutUint32(z.ttl[:], ttl)
	binary.BigEndian.PutUint32(z.negTTL[:], negTTL)
	return z
}

// route is who answers a question, and how.
type route uint8

const (
	routeDirect     route = iota // resolve has answered it
	routeWildcard                // SkyDNS
	routeExternal                // a Service's external name is followed
	routeFederation              // a federated Service's name is followed
	routeForward                 // the upstream nameservers
)

// verdict is what resolve found.
type verdict struct {
	route   route
	rcode   int                // for routeDirect
	records *treecache.Records // for routeExternal
}

// schemaVersion and schemaTTL are those of the DNS specification (section 2.2).
const schemaVersion = "1.1.0"

var schemaTTL = [4]byte{0, 0, 28800 >> 8, 28800 & 0xff}

// resolve answers a question whose name is in the zone or in a reverse zone.
// rotate chooses the first of several records of the same rank. It must be
// random: with a counter of questions, a client that asks for A and AAAA in
// turn would see every other value only.
func (z *zone) resolve(q *query, r *reply, rotate uint32) verdict {
	n := q.name
	if n.Wildcard {
		return verdict{route: routeWildcard}
	}
	switch n.Form {
	case qname.Apex:
		return z.apex(q, r)
	case qname.Services, qname.Pods, qname.PodNamespace, qname.DNS:
		return z.otherType(q, r) // names with names below them (RFC 8020)
	case qname.Namespace:
		if _, exists := z.tree.Service(n.Namespace(), nil); exists {
			return z.otherType(q, r)
		}
	case qname.Service, qname.Endpoint, qname.Protocol, qname.Port:
		return z.service(q, r, rotate)
	case qname.Pod:
		return z.pod(q, r)
	case qname.Nameserver:
		return z.nameserver(q, r, rotate)
	case qname.Version:
		return z.version(q, r)
	case qname.Reverse:
		return z.reverse(q, r)
	}
	return z.nxdomain(q, r)
}

// service answers a Service's name, and the names below it.
func (z *zone) service(q *query, r *reply, rotate uint32) verdict {
	n := q.name
	records, _ := z.tree.Service(n.Namespace(), n.Service())
	if records == nil || records.Kind == treecache.ExternalName && n.Form != qname.Service {
		return z.nxdomainOrFederation(q, r)
	}
	switch n.Form {
	case qname.Service:
		return z.serviceName(q, r, records, rotate)
	case qname.Endpoint:
		if at := records.At(n.Hostname()); len(at) > 0 {
			return z.endpointAnswer(q, r, at, rotate)
		}
	case qname.Protocol:
		if records.HasProtocol(n.Protocol()) {
			return z.otherType(q, r) // a name with names below it (RFC 8020)
		}
	case qname.Port:
		if srvs := records.PortAt(n.Port(), n.Protocol()); srvs != nil {
			return z.srvs(q, r, records, srvs, rotate)
		}
	}
	return z.nxdomainOrFederation(q, r)
}

// nxdomainOrFederation answers a name that the tree does not have. It may be
// the name of a federated Service, which the server asks the backend.
func (z *zone) nxdomainOrFederation(q *query, r *reply) verdict {
	v := z.nxdomain(q, r)
	if q.name.Form == qname.Endpoint {
		v.route = routeFederation
	}
	return v
}

// serviceName answers a Service's own name.
func (z *zone) serviceName(q *query, r *reply, records *treecache.Records, rotate uint32) verdict {
	if records.Target != "" {
		return verdict{route: routeExternal, records: records}
	}
	if q.qtype == dns.TypeSRV && len(records.SRVs) > 0 {
		return z.srvs(q, r, records, records.SRVs, rotate)
	}
	return z.serviceAnswer(q, r, records, rotate)
}

// serviceAnswer answers A and AAAA at the Service's own name, each address
// once.
func (z *zone) serviceAnswer(q *query, r *reply, records *treecache.Records, rotate uint32) verdict {
	v4, v6 := records.Family()
	if q.qtype == dns.TypeA {
		return z.addresses(q, r, records.Addresses, true, v4, rotate)
	}
	return z.addresses(q, r, records.Addresses, true, v6, rotate)
}

// endpointAnswer answers A and AAAA at an endpoint's label, which has few
// addresses.
func (z *zone) endpointAnswer(q *query, r *reply, all []treecache.Address, rotate uint32) verdict {
	n := 0
	for i := range all {
		if all[i].Addr.Is4() == (q.qtype == dns.TypeA) {
			n++
		}
	}
	return z.addresses(q, r, all, false, n, rotate)
}

// addresses answers A and AAAA with n addresses of all: those of the question's
// family and, at the Service's own name (own), those that are not Repeated.
func (z *zone) addresses(q *query, r *reply, all []treecache.Address, own bool, n int, rotate uint32) verdict {
	if q.qtype != dns.TypeA && q.qtype != dns.TypeAAAA {
		return z.otherType(q, r)
	}
	if n == 0 {
		return z.nodata(q, r)
	}
	answered := func(a *treecache.Address) bool {
		return a.Addr.Is4() == (q.qtype == dns.TypeA) && (!a.Repeated || !own)
	}
	at := int(rotate % uint32(n))
	if n != len(all) {
		// Count only those that are answered, or the ones behind the others
		// would be first too often.
		skip := at
		for at = 0; ; at++ {
			if answered(&all[at]) {
				if skip == 0 {
					break
				}
				skip--
			}
		}
	}
	room := r.addresses(q.qtype, n)
	r.truncated = room < n
	for room > 0 {
		a := &all[at]
		if at++; at == len(all) {
			at = 0
		}
		if answered(a) {
			r.address(nameAt, a.Addr)
			r.answers++
			room--
		}
	}
	return verdict{}
}

// srvs answers SRV, with as many of the targets' addresses in the additional
// section as fit.
func (z *zone) srvs(q *query, r *reply, records *treecache.Records, srvs []treecache.SRV, rotate uint32) verdict {
	if q.qtype != dns.TypeSRV {
		return z.otherType(q, r)
	}
	// The weights share 100, as in kube-dns. 0 would hardly ever be chosen (RFC
	// 2782).
	weight := uint16(max(1, 100/len(srvs)))
	start := int(rotate % uint32(len(srvs)))
	r.targets = r.targets[:0]
	for i := range srvs {
		srv := &srvs[(start+i)%len(srvs)]
		target := r.srv(nameAt, weight, srv.Port, srv.Label, records.Wire())
		if target == 0 {
			r.truncated = true
			return verdict{}
		}
		r.targets = append(r.targets, target)
		r.answers++
	}
	first, last := srvs[start].Label, ""
	for i := range srvs {
		label := srvs[(start+i)%len(srvs)].Label
		// Records of one target are next to each other, but the rotation may
		// have moved some of the first target's to the end.
		if i > 0 && (label == last || label == first) {
			continue
		}
		last = label
		if !z.glue(r, r.targets[i], label, records) {
			break
		}
	}
	return verdict{}
}

// glue appends the addresses at label, or the Service's own if label is "", to the
// additional section. target is the name's offset in the message. It reports
// whether all fitted.
func (z *zone) glue(r *reply, target int, label string, records *treecache.Records) bool {
	all := records.Addresses
	if label != "" {
		all = records.AtString(label)
	}
	for i := range all {
		a := &all[i]
		if label == "" && a.Repeated {
			continue
		}
		ok := false
		if target < 0x4000 { // the reach of a pointer (RFC 1035 section 4.1.4)
			ok = r.address(0xc000|uint16(target), a.Addr)
		} else {
			ok = r.addressAt(label, records.Wire(), a.Addr)
		}
		if !ok {
			return false
		}
		r.additional++
	}
	return true
}

// apex answers the zone's own name.
func (z *zone) apex(q *query, r *reply) verdict {
	switch q.qtype {
	case dns.TypeSOA:
		// The question's name is the zone, so it serves as the owner.
		if r.soa(nameAt, z.ttl, nil, z.tree.Serial(), z.negTTLSecs) {
			r.answers++
		}
		return verdict{}
	case dns.TypeNS:
		at := len(r.buf) + headLen
		if r.appendNameRR(nameAt, dns.TypeNS, "ns", append([]byte("\x03dns"), z.names.Wire()...)) {
			r.answers++
		}
		if records := z.dnsRecords(); records != nil {
			for _, a := range records.Addresses {
				if r.address(0xc000|uint16(at), a.Addr) {
					r.additional++
				}
			}
		}
		return verdict{}
	}
	return z.otherType(q, r)
}

// nameserver answers ns.dns.<zone>, which has the addresses of the DNS service.
func (z *zone) nameserver(q *query, r *reply, rotate uint32) verdict {
	records := z.dnsRecords()
	if records == nil {
		return z.otherType(q, r)
	}
	return z.serviceAnswer(q, r, records, rotate)
}

// version answers dns-version.<zone>.
func (z *zone) version(q *query, r *reply) verdict {
	if q.qtype != dns.TypeTXT {
		return z.otherType(q, r)
	}
	r.head(nameAt, dns.TypeTXT, schemaTTL, 1+len(schemaVersion))
	r.buf = append(append(r.buf, byte(len(schemaVersion))), schemaVersion...)
	r.answers++
	return verdict{}
}

// dnsRecords are the records of the DNS service, nil if it has no cluster IP.
func (z *zone) dnsRecords() *treecache.Records {
	records, _ := z.tree.Service([]byte(z.dnsService.Namespace), []byte(z.dnsService.Name))
	if records == nil || records.Kind != treecache.ClusterIP {
		return nil
	}
	return records
}

// pod answers a name that has an address in it, whether or not such a Pod
// exists. DNS specification 1.1.0 has dropped these names, Pods' resolvers have
// not.
func (z *zone) pod(q *query, r *reply) verdict {
	addr, ok := q.name.Addr()
	if !ok {
		return z.nxdomain(q, r)
	}
	if want := uint16(dns.TypeA); addr.Is4() && q.qtype == want || !addr.Is4() && q.qtype == dns.TypeAAAA {
		r.address(nameAt, addr)
		r.answers++
		return verdict{}
	}
	return z.otherType(q, r)
}

// reverse answers a reverse name that the tree holds.
func (z *zone) reverse(q *query, r *reply) verdict {
	addr, ok := q.name.Addr()
	if !ok {
		return verdict{route: routeForward}
	}
	first, more, ok := z.tree.Reverse(addr)
	if !ok {
		return verdict{route: routeForward}
	}
	switch q.qtype {
	case dns.TypePTR:
	case dns.TypeANY:
		return z.minimalAny(r)
	default:
		// The SOA is the reverse zone's. A client would not accept our zone's for
		// this name (RFC 2308 section 3).
		if r.soa(zonePointer(q), z.negTTL, z.names.Wire(), z.tree.Serial(), z.negTTLSecs) {
			r.authority++
		}
		return verdict{}
	}
	if !z.ptr(r, first) {
		return verdict{}
	}
	for _, o := range more {
		if !z.ptr(r, o) {
			return verdict{}
		}
	}
	return verdict{}
}

func (z *zone) ptr(r *reply, o treecache.Owner) bool {
	if !r.appendNameRR(nameAt, dns.TypePTR, o.Label, o.Service.Wire()) {
		r.truncated = true
		return false
	}
	r.answers++
	return true
}

// otherType answers a type that a name, which exists, has no records of.
func (z *zone) otherType(q *query, r *reply) verdict {
	if q.qtype == dns.TypeANY {
		return z.minimalAny(r)
	}
	return z.nodata(q, r)
}

// minimalAny answers ANY with one HINFO record (RFC 8482 section 4.2).
func (z *zone) minimalAny(r *reply) verdict {
	const hinfo = "\x07RFC8482\x00"
	r.head(nameAt, dns.TypeHINFO, r.ttl, len(hinfo))
	r.buf = append(r.buf, hinfo...)
	r.answers++
	return verdict{}
}

// nodata answers that the name has no records of the type (RFC 2308 section 2.2).
func (z *zone) nodata(q *query, r *reply) verdict {
	z.negative(q, r)
	return verdict{}
}

// nxdomain answers that the name does not exist (RFC 2308 section 2.1).
func (z *zone) nxdomain(q *query, r *reply) verdict {
	z.negative(q, r)
	return verdict{rcode: dns.RcodeNameError}
}

// zonePointer is a compression pointer to the zone's name in the question's, or
// to the reverse zone's (RFC 1035 section 4.1.4).
func zonePointer(q *query) uint16 { return 0xc000 | uint16(headerLen+q.name.ZoneOffset()) }

// negative appends the zone's SOA to the authority section.
func (z *zone) negative(q *query, r *reply) {
	if r.soa(zonePointer(q), z.negTTL, nil, z.tree.Serial(), z.negTTLSecs) {
		r.authority++
	}
}
