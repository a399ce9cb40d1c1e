package server

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/treecache"
)

// optLen is the length of a reply's OPT record in octets: owner, type, size,
// extended rcode, version, flags and no options.
const optLen = 11

// reply writes one message after another in wire form, each at the beginning of
// buf. The methods that append a record report whether it fitted in limit. One
// goroutine uses it.
type reply struct {
	buf   []byte
	limit int // maximum octets without OPT
	ttl   [4]byte

	answers, authority, additional uint16
	truncated                      bool

	targets []int // offset of each SRV record's target, for zone.srvs
}

// nameAt is a compression pointer to the question's name.
const nameAt = 0xc000 | headerLen

// start begins the reply to q in buf with header and question. limit is the
// maximum size in octets.
func (r *reply) start(q *query, buf []byte, limit int) {
	if q.edns {
		limit -= optLen
	}
	r.limit = limit
	r.buf = buf[:0]
	r.buf = append(r.buf, q.msg[:max(q.qend, headerLen)]...)
	r.answers, r.authority, r.additional, r.truncated = 0, 0, 0, false
}

// finish completes the header, adds OPT if the question had one, and returns the
// message. size is our own UDP payload size.
func (r *reply) finish(q *query, rcode int, flags, size uint16) []byte {
	// The opcode, RD and CD are copied (RFC 1035 section 4.1.1, RFC 4035
	// section 3.1.6); Z and AD are not.
	bits := bitQR | flags | q.flags&(maskOpcode|bitRD|bitCD) | uint16(rcode&0xf)
	if r.truncated {
		bits |= bitTC
	}
	questions := uint16(0)
	if q.qend > 0 {
		questions = 1
	}
	binary.BigEndian.PutUint16(r.buf[2:], bits)
	binary.BigEndian.PutUint16(r.buf[4:], questions)
	binary.BigEndian.PutUint16(r.buf[6:], r.answers)
	binary.BigEndian.PutUint16(r.buf[8:], r.authority)
	if q.edns {
		r.additional++
		do := byte(0)
		if q.do {
			do = 0x80 // RFC 3225 section 3
		}
		r.buf = append(r.buf, 0, 0, byte(dns.TypeOPT), byte(size>>8), byte(size), byte(rcode>>4), 0, do, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(r.buf[10:], r.additional)
	return r.buf
}

// fits reports whether n more octets fit.
func (r *reply) fits(n int) bool { return len(r.buf)+n <= r.limit }

// head appends a record up to its rdata. owner is a compression pointer.
func (r *reply) head(owner, rrtype uint16, ttl [4]byte, rdlength int) {
	r.buf = append(r.buf,
		byte(owner>>8), byte(owner), byte(rrtype>>8), byte(rrtype), 0, dns.ClassINET,
		ttl[0], ttl[1], ttl[2], ttl[3], byte(rdlength>>8), byte(rdlength))
}

// headLen is the number of octets that head appends.
const headLen = 12

// addresses returns how many of n A or AAAA records fit, and grows buf for them.
func (r *reply) addresses(qtype uint16, n int) int {
	size := headLen + 4
	if qtype == dns.TypeAAAA {
		size = headLen + 16
	}
	n = max(0, min(n, (r.limit-len(r.buf))/size))
	r.buf = slices.Grow(r.buf, n*size+optLen)
	return n
}

// address appends an A or AAAA record, by the address's family.
func (r *reply) address(owner uint16, addr netip.Addr) bool {
	if addr.Is4() {
		if !r.fits(headLen + 4) {
			return false
		}
		a := addr.As4()
		r.head(owner, dns.TypeA, r.ttl, len(a))
		r.buf = append(r.buf, a[:]...)
		return true
	}
	if !r.fits(headLen + 16) {
		return false
	}
	a := addr.As16()
	r.head(owner, dns.TypeAAAA, r.ttl, len(a))
	r.buf = append(r.buf, a[:]...)
	return true
}

// addressAt is address with an uncompressed owner, label.under.
func (r *reply) addressAt(label string, under []byte, addr netip.Addr) bool {
	n := len(under)
	if label != "" {
		n += 1 + len(label)
	}
	if !r.fits(n + headLen - 2 + addr.BitLen()/8) {
		return false
	}
	r.name(label, under)
	at := len(r.buf)
	r.limit += 2 // for the pointer, which is cut out below
	r.address(0, addr)
	r.limit -= 2
	r.buf = append(r.buf[:at], r.buf[at+2:]...)
	return true
}

// name appends label.under, uncompressed; only under if label is "".
func (r *reply) name(label string, under []byte) {
	if label != "" {
		r.buf = append(append(r.buf, byte(len(label))), label...)
	}
	r.buf = append(r.buf, under...)
}

// srv appends an SRV record with the target label.under, uncompressed (RFC 2782).
// It returns the target's offset in the message, or 0 if the record did not fit.
func (r *reply) srv(owner uint16, weight, port uint16, label string, under []byte) (target int) {
	n := 6 + len(under)
	if label != "" {
		n += 1 + len(label)
	}
	if !r.fits(headLen + n) {
		return 0
	}
	r.head(owner, dns.TypeSRV, r.ttl, n)
	r.buf = append(r.buf, 0, treecache.Priority, byte(weight>>8), byte(weight), byte(port>>8), byte(port))
	target = len(r.buf)
	r.name(label, under)
	return target
}

// appendNameRR appends a record whose rdata is the name label.under: PTR or NS.
func (r *reply) appendNameRR(owner, rrtype uint16, label string, under []byte) bool {
	n := len(under)
	if label != "" {
		n += 1 + len(label)
	}
	if !r.fits(headLen + n) {
		return false
	}
	r.head(owner, rrtype, r.ttl, n)
	r.name(label, under)
	return true
}

// soa appends an SOA record. owner is a compression pointer. mname and rname end
// in zone, in wire form; if that is nil, in the owner.
func (r *reply) soa(owner uint16, ttl [4]byte, zone []byte, serial uint32, minimum uint32) bool {
	const primary, mailbox = "\x02ns\x03dns", "\x0ahostmaster"
	tail := 2
	if zone != nil {
		tail = len(zone)
	}
	n := len(primary) + len(mailbox) + 2*tail + 20
	if !r.fits(headLen + n) {
		return false
	}
	r.head(owner, dns.TypeSOA, ttl, n)
	for _, prefix := range [...]string{primary, mailbox} {
		r.buf = append(r.buf, prefix...)
		if zone != nil {
			r.buf = append(r.buf, zone...)
		} else {
			r.buf = append(r.buf, byte(owner>>8), byte(owner))
		}
	}
	// Refresh, retry and expire are for secondaries, and there are none. The
	// values are SkyDNS's.
	for _, v := range [...]uint32{serial, 28800, 7200, 604800, minimum} {
		r.buf = binary.BigEndian.AppendUint32(r.buf, v)
	}
	return true
}
