package server

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/treecache"
)

// zone answers what the tree can answer directly, in wire format. It is not
// written to once made.
type zone struct {
	tree       *treecache.Tree
	name       []byte // wire form, lower case
	labels     int
	ttl        [4]byte
	negTTL     [4]byte
	negTTLSecs uint32
	dnsService treecache.Key // whose addresses ns.dns.<zone> has
	reverseNS  []byte        // the zone, spelled out for SOA records of reverse zones
}

func newZone(tree *treecache.Tree, ttl, negTTL uint32, dnsService treecache.Key) *zone {
	z := &zone{
		tree:       tree,
		name:       treecache.AppendName(nil, tree.Zone()),
		labels:     dns.CountLabel(tree.Zone()),
		negTTLSecs: negTTL,
		dnsService: dnsService,
	}
	binary.BigEndian.PutUint32(z.ttl[:], ttl)
	binary.BigEndian.PutUint32(z.negTTL[:], negTTL)
	z.reverseNS = z.name
	return z
}

// way is how a question is to be answered.
type way uint8

const (
	wayDirect     way = iota // it is, rcode says how
	wayWildcard              // by SkyDNS
	wayExternal              // by following a Service's external name
	wayFederation            // by following a federated Service's name
	wayForward               // by the upstream nameservers
)

// verdict is what resolve found.
type verdict struct {
	way     way
	rcode   int
	records *treecache.Records // for wayExternal
}

var (
	labelSvc     = []byte("svc")
	labelPod     = []byte("pod")
	labelDNS     = []byte("dns")
	labelNS      = []byte("ns")
	labelVersion = []byte("dns-version")
)

// schemaVersion is the DNS specification's, and its TTL is the specification's
// (section 2.2).
const schemaVersion = "1.1.0"

var schemaTTL = [4]byte{0, 0, 28800 >> 8, 28800 & 0xff}

// holds tells whether the question's name is the zone's own or below it.
func (z *zone) holds(q *query) bool {
	if q.nlabels < z.labels {
		return false
	}
	return bytes.Equal(q.name()[z.offset(q):], z.name)
}

// offset is where the zone's name begins in the question's.
func (z *zone) offset(q *query) int {
	if z.labels == 0 || q.nlabels < z.labels {
		return q.namelen - 1
	}
	return int(q.labels[q.nlabels-z.labels])
}

// resolve answers a question whose name the zone holds. rotate decides with
// which of equal records the answer begins. It is to be random: of a number
// that counts questions, a client that asks for A and AAAA in turn would see
// every other value alone.
func (z *zone) resolve(q *query, r *reply, rotate uint32) verdict {
	n := q.nlabels - z.labels // labels left of the zone
	if n == 0 {
		return z.apex(q, r)
	}
	switch top := q.label(n - 1); {
	case bytes.Equal(top, labelSvc):
		return z.services(q, r, n, rotate)
	case bytes.Equal(top, labelPod):
		return z.pods(q, r, n)
	case bytes.Equal(top, labelDNS):
		return z.dnsNames(q, r, n, rotate)
	case n == 1 && bytes.Equal(top, labelVersion):
		if q.qtype != dns.TypeTXT {
			return z.otherType(q, r)
		}
		r.head(nameAt, dns.TypeTXT, schemaTTL, 1+len(schemaVersion))
		r.buf = append(append(r.buf, byte(len(schemaVersion))), schemaVersion...)
		r.answers++
		return verdict{}
	}
	return z.nxdomain(q, r)
}

// services is everything below svc.<zone>; n labels stand left of the zone.
func (z *zone) services(q *query, r *reply, n int, rotate uint32) verdict {
	if n == 1 {
		return z.otherType(q, r)
	}
	if n <= 5 && hasWildcard(q, n-1) {
		return verdict{way: wayWildcard}
	}
	if n == 2 {
		if _, exists := z.tree.Service(q.label(0), nil); !exists {
			return z.nxdomain(q, r)
		}
		return z.otherType(q, r)
	}
	records, _ := z.tree.Service(q.label(n-2), q.label(n-3))
	if records == nil || records.Kind == treecache.ExternalName && n > 3 {
		if n == 4 {
			return z.noneOrFederation(q, r)
		}
		return z.nxdomain(q, r)
	}
	switch n {
	case 3:
		return z.service(q, r, records, rotate)
	case 4:
		label := q.label(0)
		if at := records.At(label); len(at) > 0 {
			return z.at(q, r, at, rotate)
		}
		if len(label) > 0 && label[0] == '_' {
			if records.HasProtocol(label) {
				return z.otherType(q, r)
			}
			return z.nxdomain(q, r)
		}
		return z.noneOrFederation(q, r)
	case 5:
		srvs := records.PortAt(q.label(0), q.label(1))
		if srvs == nil {
			return z.nxdomain(q, r)
		}
		return z.srvs(q, r, records, srvs, rotate)
	}
	return z.nxdomain(q, r)
}

// hasWildcard tells whether any of the first n labels is an asterisk in the
// place of a service, namespace, port, protocol or endpoint.
func hasWildcard(q *query, n int) bool {
	for i := range n {
		if l := q.label(i); len(l) > 0 && len(l) < 3 && l[len(l)-1] == '*' && (len(l) == 1 || l[0] == '_') {
			return true
		}
	}
	return false
}

// noneOrFederation is for a name of four labels that the tree does not have:
// it may be a federated Service's, which the front decides.
func (z *zone) noneOrFederation(q *query, r *reply) verdict {
	v := z.nxdomain(q, r)
	v.way = wayFederation
	return v
}

// service is a Service's own name.
func (z *zone) service(q *query, r *reply, records *treecache.Records, rotate uint32) verdict {
	if records.Target != "" {
		return verdict{way: wayExternal, records: records}
	}
	if q.qtype == dns.TypeSRV && len(records.SRVs) > 0 {
		return z.srvs(q, r, records, records.SRVs, rotate)
	}
	return z.own(q, r, records, rotate)
}

// own answers A and AAAA at the Service's own name, where an address that
// repeats is answered once.
func (z *zone) own(q *query, r *reply, records *treecache.Records, rotate uint32) verdict {
	v4, v6 := records.Family()
	if q.qtype == dns.TypeA {
		return z.addresses(q, r, records.Addresses, true, v4, rotate)
	}
	return z.addresses(q, r, records.Addresses, true, v6, rotate)
}

// at answers A and AAAA at an endpoint's label, which few addresses share.
func (z *zone) at(q *query, r *reply, all []treecache.Address, rotate uint32) verdict {
	n := 0
	for i := range all {
		if all[i].Addr.Is4() == (q.qtype == dns.TypeA) {
			n++
		}
	}
	return z.addresses(q, r, all, false, n, rotate)
}

// addresses answers A and AAAA with n addresses of all: those of the question's
// family, and at the Service's own name those that do not repeat.
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
		// Those that are not answered do not count, or what follows them
		// would be first more often than the others.
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

// srvs answers SRV with the targets' addresses in the additional section while
// they fit.
func (z *zone) srvs(q *query, r *reply, records *treecache.Records, srvs []treecache.SRV, rotate uint32) verdict {
	if q.qtype != dns.TypeSRV {
		return z.otherType(q, r)
	}
	// Weights share 100 among the records, kept from kube-dns, and a weight
	// of 0 would hardly ever be chosen (RFC 2782).
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
		// Records of one target stand together, but for those that the
		// rotation put to the end.
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

// glue appends the addresses at label, or the Service's own where label is
// empty, to the additional section. The name stands at the offset target.
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
		if target < 0x4000 { // what a pointer reaches (RFC 1035 section 4.1.4)
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

// apex is the zone's own name.
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
		if r.named(nameAt, dns.TypeNS, "ns", append([]byte("\x03dns"), z.name...)) {
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

// dnsNames is dns.<zone> and ns.dns.<zone>.
func (z *zone) dnsNames(q *query, r *reply, n int, rotate uint32) verdict {
	switch {
	case n == 1:
		return z.otherType(q, r)
	case n == 2 && bytes.Equal(q.label(0), labelNS):
		records := z.dnsRecords()
		if records == nil {
			return z.otherType(q, r)
		}
		return z.own(q, r, records, rotate)
	}
	return z.nxdomain(q, r)
}

// dnsRecords are those of the Service that this DNS is reached through; nil
// where it has no cluster IP.
func (z *zone) dnsRecords() *treecache.Records {
	records, _ := z.tree.Service([]byte(z.dnsService.Namespace), []byte(z.dnsService.Name))
	if records == nil || records.Kind != treecache.ClusterIP {
		return nil
	}
	return records
}

// pods is everything below pod.<zone>: names that are addresses, whether or
// not such a Pod exists (DNS specification 1.1.0 has dropped them, pods'
// resolvers have not).
func (z *zone) pods(q *query, r *reply, n int) verdict {
	switch {
	case n < 3: // names with names below them (RFC 8020)
		return z.otherType(q, r)
	case n > 3:
		return z.nxdomain(q, r)
	}
	addr, ok := treecache.ParsePodLabel(q.label(0))
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

// Reverse zones' names in wire form.
const (
	inAddrArpa = "\x07in-addr\x04arpa\x00"
	ip6Arpa    = "\x03ip6\x04arpa\x00"
)

// isReverse tells whether the question's name is in a reverse zone.
func isReverse(q *query) bool {
	return q.nlabels >= 2 && (string(tail(q, 2)) == inAddrArpa || string(tail(q, 2)) == ip6Arpa)
}

// tail is the name from the n-th label from the right on.
func tail(q *query, n int) []byte { return q.name()[q.labels[q.nlabels-n]:] }

// reverse answers a reverse name that the tree holds.
func (z *zone) reverse(q *query, r *reply) verdict {
	addr, err := treecache.ParseReverse(q.name())
	if err != nil {
		return verdict{way: wayForward}
	}
	first, more, ok := z.tree.Reverse(addr)
	if !ok {
		return verdict{way: wayForward}
	}
	switch q.qtype {
	case dns.TypePTR:
	case dns.TypeANY:
		return z.minimalAny(r)
	default:
		// The authority is the reverse zone as far as whoever asks us is
		// concerned; our zone's SOA would be out of place (RFC 2308 section 3).
		owner := 0xc000 | uint16(headerLen+int(q.labels[q.nlabels-2]))
		if r.soa(owner, z.negTTL, z.reverseNS, z.tree.Serial(), z.negTTLSecs) {
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
	if !r.named(nameAt, dns.TypePTR, o.Label, o.Service.Wire()) {
		r.truncated = true
		return false
	}
	r.answers++
	return true
}

// otherType answers a name that exists for a type it has no records of.
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

// nodata is the answer of a name without records of the type (RFC 2308
// section 2.2).
func (z *zone) nodata(q *query, r *reply) verdict {
	z.negative(q, r)
	return verdict{}
}

// nxdomain is the answer of a name that does not exist (RFC 2308 section 2.1).
func (z *zone) nxdomain(q *query, r *reply) verdict {
	z.negative(q, r)
	return verdict{rcode: dns.RcodeNameError}
}

// negative appends the zone's SOA to the authority section.
func (z *zone) negative(q *query, r *reply) {
	owner := 0xc000 | uint16(headerLen+z.offset(q))
	if r.soa(owner, z.negTTL, nil, z.tree.Serial(), z.negTTLSecs) {
		r.authority++
	}
}
