package server

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
)

// headerLen is a DNS header's length in octets (RFC 1035 section 4.1.1).
const headerLen = 12

// Bits of the header's second 16 bits.
const (
	bitQR = 1 << 15
	bitAA = 1 << 10
	bitTC = 1 << 9
	bitRD = 1 << 8
	bitRA = 1 << 7
	bitAD = 1 << 5
	bitCD = 1 << 4

	maskOpcode = 0xf << 11
)

// query is a parsed message with a question. It refers to the message, and is
// used for one message after another by one goroutine.
type query struct {
	msg    []byte // the whole message
	id     uint16
	flags  uint16
	qtype  uint16
	qclass uint16

	qend int // where the question section ends in msg

	wire qname.Wire // the question's name
	name qname.Name // the same, with its form; set by worker.parse

	edns    bool
	udpSize uint16 // as offered in the OPT record
	version uint8  // of EDNS
	do      bool
}

// Errors of parse, with the answer that each gets.
var (
	errDrop    = errors.New("not a question to answer") // none
	errFormat  = errors.New("malformed")                // FORMERR
	errOpcode  = errors.New("opcode")                   // NOTIMP
	errVersion = errors.New("EDNS version")             // BADVERS
)

// parse parses msg. It returns one of the errors above. Unless that is errDrop, id
// and flags are set, and qend is set if the question could be read.
func (q *query) parse(msg []byte) error {
	q.msg, q.qend, q.edns, q.udpSize, q.version, q.do = msg, 0, false, 0, 0, false
	q.wire.Reset()
	q.qtype, q.qclass = 0, 0
	if len(msg) < headerLen {
		return errDrop // there is no header to answer with
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	if q.flags&bitQR != 0 {
		return errDrop // a reply: answering it could make a loop
	}
	if q.flags&maskOpcode != dns.OpcodeQuery<<11 {
		return errOpcode
	}
	// RFC 9619: a query has one question.
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		return errFormat
	}
	if err := q.parseQuestion(); err != nil {
		return err
	}
	if err := q.parseRest(); err != nil {
		return err
	}
	if q.edns && q.version != 0 {
		return errVersion
	}
	return nil
}

// parseQuestion reads the question. Its name cannot be compressed: no name
// precedes it.
func (q *query) parseQuestion() error {
	msg := q.msg
	at, ok := q.wire.Read(msg, headerLen)
	if !ok || at+4 > len(msg) {
		return errFormat
	}
	q.qtype = binary.BigEndian.Uint16(msg[at:])
	q.qclass = binary.BigEndian.Uint16(msg[at+2:])
	q.qend = at + 4
	return nil
}

// parseRest reads the records behind the question, of which only OPT matters.
// Octets behind the last record are ignored, as in kube-dns.
func (q *query) parseRest() error {
	msg, at := q.msg, q.qend
	answers := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	records := answers + int(binary.BigEndian.Uint16(msg[10:]))
	for i := range records {
		root := at < len(msg) && msg[at] == 0
		at = skipName(msg, at)
		if at < 0 || at+10 > len(msg) {
			return errFormat
		}
		rdata := at + 10
		end := rdata + int(binary.BigEndian.Uint16(msg[at+8:]))
		if end > len(msg) {
			return errFormat
		}
		if binary.BigEndian.Uint16(msg[at:]) == dns.TypeOPT {
			// RFC 6891 section 6.1.1: one OPT, its owner the root, in the
			// additional section.
			if q.edns || !root || i < answers {
				return errFormat
			}
			q.edns = true
			q.udpSize = binary.BigEndian.Uint16(msg[at+2:])
			q.version = msg[at+5]
			q.do = msg[at+6]&0x80 != 0
			if !validOptions(msg[rdata:end]) {
				return errFormat
			}
		}
		at = end
	}
	return nil
}

// validOptions reports whether OPT's rdata is a sequence of options (RFC 6891
// section 6.1.2).
func validOptions(rdata []byte) bool {
	for len(rdata) > 0 {
		if len(rdata) < 4 {
			return false
		}
		end := 4 + int(binary.BigEndian.Uint16(rdata[2:]))
		if end > len(rdata) {
			return false
		}
		rdata = rdata[end:]
	}
	return true
}

// skipName returns where the name at msg[at] ends, or -1 if it is malformed.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch length := int(msg[at]); {
		case length == 0:
			return at + 1
		case length >= 0xc0: // a pointer ends the name (RFC 1035 section 4.1.4)
			if at+2 > len(msg) {
				return -1
			}
			return at + 2
		case length > 63:
			return -1
		default:
			at += 1 + length
		}
	}
	return -1
}
