package forward

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

const (
	headerSize = 12
	optSize    = 11
	// maxQuery is a header, the longest name, type and class, and an OPT.
	maxQuery = headerSize + 255 + 4 + optSize
	// payloadSize is what we say fits into a datagram: what crosses all
	// networks unfragmented (DNS flag day 2020).
	payloadSize = 1232
	// maxDatagram is more than payloadSize, for nameservers that do not care.
	maxDatagram = 4096
)

// query is a question as it goes to a nameserver, with an ID of 0.
type query struct {
	wire      [maxQuery]byte
	plainSize int // without the OPT, which is the last optSize bytes
}

// newQuery takes from req what goes upstream. Errors are ErrNotForwardable.
func newQuery(req *dns.Msg) (query, error) {
	var q query
	switch {
	case req.Opcode != dns.OpcodeQuery || req.Response:
		return q, fmt.Errorf("%w: not a query", ErrNotForwardable)
	case len(req.Question) != 1:
		return q, fmt.Errorf("%w: %d questions", ErrNotForwardable, len(req.Question))
	}
	question := req.Question[0]
	switch question.Qtype {
	case dns.TypeAXFR, dns.TypeIXFR:
		return q, fmt.Errorf("%w: a zone transfer", ErrNotForwardable)
	}
	if question.Name == "" {
		return q, fmt.Errorf("%w: no name", ErrNotForwardable)
	}
	end, err := dns.PackDomainName(question.Name, q.wire[:headerSize+255], headerSize, nil, false)
	if err != nil {
		return q, fmt.Errorf("%w: name %q: %w", ErrNotForwardable, question.Name, err)
	}
	binary.BigEndian.PutUint16(q.wire[end:], question.Qtype)
	binary.BigEndian.PutUint16(q.wire[end+2:], question.Qclass)
	q.plainSize = end + 4

	if req.RecursionDesired {
		q.wire[2] |= 0x01
	}
	if req.AuthenticatedData {
		q.wire[3] |= 0x20
	}
	if req.CheckingDisabled {
		q.wire[3] |= 0x10
	}
	q.wire[5] = 1 // QDCOUNT

	opt := q.wire[q.plainSize:] // root as name: 0
	binary.BigEndian.PutUint16(opt[1:], dns.TypeOPT)
	binary.BigEndian.PutUint16(opt[3:], payloadSize)
	if o := req.IsEdns0(); o != nil && o.Do() {
		opt[7] = 0x80
	}
	return q, nil
}

// prepare gives q a new random ID and returns it in wire format, with or
// without EDNS. The bytes are q's.
func (q *query) prepare(edns bool) []byte {
	rand.Read(q.wire[:2]) // never returns an error
	if edns {
		q.wire[11] = 1 // ARCOUNT
		return q.wire[:q.plainSize+optSize]
	}
	q.wire[11] = 0
	return q.wire[:q.plainSize]
}

// mismatch says why packet is no reply to q as last prepared, "" where it is
// one. The names are compared without regard to case (RFC 4343), and as they
// stand: nothing in front of a question could be the target of compression.
//
// An error without a question counts too: nameservers that do not understand
// the question send the header alone.
func (q *query) mismatch(packet []byte) string {
	switch {
	case len(packet) < headerSize:
		return "shorter than a header"
	case packet[0] != q.wire[0] || packet[1] != q.wire[1]:
		return "another ID"
	case packet[2]&0x80 == 0:
		return "not a response"
	case packet[2]&0x78 != 0:
		return "another opcode"
	}
	count := func(i int) uint16 { return binary.BigEndian.Uint16(packet[4+2*i:]) }
	if count(0) == 0 && count(1) == 0 {
		switch int(packet[3] & 0x0f) {
		case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeRefused, dns.RcodeServerFailure:
			return ""
		}
	}
	if count(0) != 1 || len(packet) < q.plainSize {
		return "another question"
	}
	typeAt := q.plainSize - 4
	for i := headerSize; i < typeAt; i++ {
		if lower(packet[i]) != lower(q.wire[i]) {
			return "another question"
		}
	}
	if string(packet[typeAt:q.plainSize]) != string(q.wire[typeAt:q.plainSize]) {
		return "another question"
	}
	return ""
}

// lower is for the bytes of a name; the length of a label is below 'A'.
func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

func isOPT(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }

// unpack parses a packet that matches q. A packet with fewer records than its
// header promises is an error, unless it is marked as truncated: then what
// cannot be parsed is left out. An OPT outside the additional section (RFC 6891
// section 6.1.1) is an error too: no client would take the reply.
func unpack(packet []byte) (*dns.Msg, error) {
	msg := new(dns.Msg)
	err := msg.Unpack(packet)
	if err == nil {
		for i, got := range []int{len(msg.Question), len(msg.Answer), len(msg.Ns), len(msg.Extra)} {
			if want := int(binary.BigEndian.Uint16(packet[4+2*i:])); got != want {
				err = fmt.Errorf("%d records in place of %d", got, want)
				break
			}
		}
	}
	if err != nil && !msg.Truncated {
		return nil, fmt.Errorf("malformed reply: %w", err)
	}
	if slices.ContainsFunc(msg.Answer, isOPT) || slices.ContainsFunc(msg.Ns, isOPT) {
		return nil, errors.New("malformed reply: OPT out of place")
	}
	return msg, nil
}
