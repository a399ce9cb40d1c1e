package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

const webA = "web.default.svc.cluster.local. A"

// withOPT gives a question an OPT record.
func withOPT(size uint16, version uint8, do bool, options ...dns.EDNS0) func(*dns.Msg) {
	return func(m *dns.Msg) { m.Extra = append(m.Extra, newOPT(size, version, do, options...)) }
}

func newOPT(size uint16, version uint8, do bool, options ...dns.EDNS0) *dns.OPT {
	o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: options}
	o.SetUDPSize(size)
	o.SetVersion(version)
	if do {
		o.SetDo()
	}
	return o
}

func newRR(tb testing.TB, s string) dns.RR {
	tb.Helper()
	rr, err := dns.NewRR(s)
	if err != nil {
		tb.Fatal(err)
	}
	return rr
}

// The reply has an OPT record if the question has one, with our size, version
// 0 and the question's DO bit, and without its options (RFC 6891 section 6.1.1,
// RFC 3225 section 3).
func TestEDNS(t *testing.T) {
	_, forwarder := newUpstream(t, map[string]string{"www.example.org. A": "NOERROR\nan www.example.org. 77 IN A 192.0.2.53"})
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = forwarder; o.UDPSize = 4000 })
	s.backend.records = map[string][]Record{"*.default.svc.cluster.local.": {{Host: "10.96.0.10", Ttl: 30, Key: "/skydns/local/cluster/svc/default/web"}}}
	questions := []struct{ name, question string }{
		{"direct", webA}, {"NXDOMAIN", "gone.default.svc.cluster.local. A"}, {"SRV", "web.default.svc.cluster.local. SRV"},
		{"wildcard", "*.default.svc.cluster.local. A"}, {"external", "inner.default.svc.cluster.local. A"},
		{"forwarded", "www.example.org. A"}, {"refused", "cluster.local. AXFR"}, {"CHAOS", "version.bind. TXT CH"},
	}
	for _, q := range questions {
		for _, size := range []uint16{0, 100, 512, 1232, 4096, 65535} {
			for _, do := range []bool{false, true} {
				m := s.ask(t, newQuestion(t, q.question, withOPT(size, 0, do,
					&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
					&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})), false)
				opt := m.IsEdns0()
				if opt == nil || opt.UDPSize() != 4000 || opt.Do() != do || opt.Version() != 0 || len(opt.Option) != 0 {
					t.Errorf("%s, size %d, DO %v: OPT %v", q.name, size, do, opt)
				}
			}
		}
		if m := s.ask(t, newQuestion(t, q.question, nil), false); m.IsEdns0() != nil {
			t.Errorf("%s: OPT in the reply to a question without", q.name)
		}
		for _, version := range []uint8{1, 255} {
			m := s.ask(t, newQuestion(t, q.question, withOPT(1232, version, true)), false)
			if opt := m.IsEdns0(); m.Rcode != dns.RcodeBadVers || len(m.Answer)+len(m.Ns) != 0 || opt == nil || opt.Version() != 0 || !opt.Do() {
				t.Errorf("%s, version %d: %v", q.name, version, m)
			}
		}
	}
}

// RD and CD are copied, AD and Z are not.
func TestFlagsCopied(t *testing.T) {
	_, forwarder := newUpstream(t, map[string]string{"www.example.org. A": "NOERROR\nan www.example.org. 77 IN A 192.0.2.53"})
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = forwarder })
	for _, tt := range []struct{ question, flags string }{
		{webA, "NOERROR aa rd ra cd"}, {"gone.default.svc.cluster.local. A", "NXDOMAIN aa rd ra cd"},
		{"www.example.org. A", "NOERROR rd ra cd"}, {"inner.default.svc.cluster.local. A", "NOERROR aa rd ra cd"},
		{"10.0.96.10.in-addr.arpa. PTR", "NOERROR aa rd ra cd"}, {"cluster.local. AXFR", "REFUSED rd cd"},
	} {
		m := s.ask(t, newQuestion(t, tt.question, func(m *dns.Msg) {
			m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData, m.Zero = true, true, true, true
			m.Authoritative, m.Truncated, m.RecursionAvailable = true, true, true
		}), false)
		if got, _, _ := strings.Cut(s.text(m), "\n"); got != tt.flags {
			t.Errorf("%s: flags %q, want %q", tt.question, got, tt.flags)
		}
	}
}

// edit changes a packed question.
func edit(wire []byte, change func(b []byte) []byte) []byte { return change(bytes.Clone(wire)) }

// packets are messages that are no questions, or odd ones, by name, with what
// is answered: "" for silence.
func packets(tb testing.TB) []struct {
	name string
	wire []byte
	want string
} {
	tb.Helper()
	question := pack(tb, newQuestion(tb, webA, nil))
	const answer = "NOERROR aa ra\nan web.default.svc.cluster.local. 30 IN A 10.96.0.10"
	count := func(section int, n uint16) []byte {
		return edit(question, func(b []byte) []byte { binary.BigEndian.PutUint16(b[4+2*section:], n); return b })
	}
	// raw is a question whose name is given in wire form.
	raw := func(name string) []byte {
		return append(append(bytes.Clone(question[:headerLen]), name...), 0, 1, 0, 1)
	}
	extra := func(rrs ...dns.RR) []byte {
		return pack(tb, newQuestion(tb, webA, func(m *dns.Msg) { m.Extra = rrs }))
	}
	opcode := func(n int, change func(*dns.Msg)) []byte {
		return pack(tb, newQuestion(tb, webA, func(m *dns.Msg) {
			m.Opcode = n
			if change != nil {
				change(m)
			}
		}))
	}
	opt := newOPT(1232, 0, false)
	badOPT := func(rdata string) []byte {
		b := extra(opt)
		binary.BigEndian.PutUint16(b[len(b)-2:], uint16(len(rdata)))
		return append(b, rdata...)
	}
	label63, label64 := strings.Repeat("a", 63), strings.Repeat("a", 64)
	long := strings.Repeat("\x3f"+label63, 3) // 192 octets
	a := newRR(tb, "x.example.org. 1 IN A 192.0.2.1")
	tsig := &dns.TSIG{Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256, MACSize: 4, MAC: "deadbeef"}
	return []struct {
		name string
		wire []byte
		want string
	}{
		{"question", question, answer},
		{"empty", nil, ""},
		{"one octet", question[:1], ""},
		{"eleven octets", question[:11], ""},
		{"header alone", question[:12], "FORMERR"},
		{"header, no question", count(0, 0), "FORMERR"},
		{"two questions", append(count(0, 2), question[headerLen:]...), "FORMERR"},
		{"two questions said, one there", count(0, 2), "FORMERR"},
		{"65535 questions", count(0, 65535), "FORMERR"},
		{"reply", edit(question, func(b []byte) []byte { b[2] |= 0x80; return b }), ""},
		{"reply of another opcode", edit(question, func(b []byte) []byte { b[2] |= 0xa8; return b }), ""},
		{"IQUERY", opcode(dns.OpcodeIQuery, nil), "NOTIMP"},
		{"STATUS", opcode(dns.OpcodeStatus, nil), "NOTIMP"},
		{"NOTIFY", opcode(dns.OpcodeNotify, nil), "NOTIMP"},
		{"UPDATE", opcode(dns.OpcodeUpdate, func(m *dns.Msg) { m.Ns = []dns.RR{a} }), "NOTIMP"},
		{"DSO, no question", edit(count(0, 0)[:headerLen], func(b []byte) []byte { b[2] |= 6 << 3; return b }), "NOTIMP"},
		{"opcode 15", opcode(15, withOPT(1232, 0, false)), "NOTIMP"},
		{"name without end", question[:headerLen+5], "FORMERR"},
		{"name ends with the packet", question[:len(question)-4], "FORMERR"},
		{"type without class", question[:len(question)-2], "FORMERR"},
		{"half a class", question[:len(question)-1], "FORMERR"},
		{"pointer to itself", raw("\xc0\x0c"), "FORMERR"},
		{"pointer to the header", raw("\xc0\x00"), "FORMERR"},
		{"label, then a pointer back", raw("\x01a\xc0\x0c"), "FORMERR"},
		{"pointer past the end", raw("\xff\xff"), "FORMERR"},
		{"pointer cut off", raw("\xc0")[:headerLen+1], "FORMERR"},
		{"label of 64", raw("\x40" + label64 + "\x00"), "FORMERR"},
		{"extended label type", raw("\x41\x08abcdefgh\x00"), "FORMERR"},
		{"label of type 10", raw("\x80\x00"), "FORMERR"},
		{"name of 255", raw(long + "\x3d" + label63[:61] + "\x00"), "SERVFAIL ra"}, // forwarded, and nobody answers
		{"name of 256", raw(long + "\x3e" + label63[:62] + "\x00"), "FORMERR"},
		{"name of 257", raw(long + "\x3f" + label63 + "\x00"), "FORMERR"},
		{"127 labels", raw(strings.Repeat("\x01a", 127) + "\x00"), "SERVFAIL ra"},
		{"128 labels", raw(strings.Repeat("\x01a", 128) + "\x00"), "FORMERR"},
		{"root", raw("\x00"), "SERVFAIL ra"},
		{"trailing garbage", append(bytes.Clone(question), 0xde, 0xad, 0xbe, 0xef), answer},
		{"a record said, none there", count(3, 1), "FORMERR"},
		{"records said, garbage there", append(count(1, 65535), bytes.Repeat([]byte{0}, 64)...), "FORMERR"},
		{"record cut off", extra(a)[:len(extra(a))-1], "FORMERR"},
		{"records before OPT", extra(a, a, opt), answer},
		{"records behind OPT", extra(opt, a), answer},
		{"TSIG behind OPT", extra(opt, tsig), answer},
		{"TSIG without OPT", extra(tsig), answer},
		{"two OPT", extra(opt, opt), "FORMERR"},
		{"two OPT with one between", extra(opt, a, opt), "FORMERR"},
		{"OPT in the answer section", pack(tb, newQuestion(tb, webA, func(m *dns.Msg) { m.Answer = []dns.RR{opt} })), "FORMERR"},
		{"OPT in the authority section", pack(tb, newQuestion(tb, webA, func(m *dns.Msg) { m.Ns = []dns.RR{opt} })), "FORMERR"},
		{"records in other sections", pack(tb, newQuestion(tb, webA, func(m *dns.Msg) { m.Answer, m.Ns, m.Extra = []dns.RR{a}, []dns.RR{a}, []dns.RR{opt} })), answer},
		{"OPT at another name", edit(extra(opt), func(b []byte) []byte {
			at := len(b) - 11
			return append(append(bytes.Clone(b[:at]), 1, 'a'), b[at:]...)
		}), "FORMERR"},
		{"OPT whose name is a pointer", edit(extra(opt), func(b []byte) []byte {
			at := len(b) - 11
			return append(append(bytes.Clone(b[:at]), 0xc0, byte(len(question)-5)), b[at+1:]...)
		}), "FORMERR"},
		{"OPT longer than the packet", edit(extra(opt), func(b []byte) []byte { b[len(b)-1] = 1; return b }), "FORMERR"},
		{"option", badOPT("\xfd\xe9\x00\x02xx"), answer},
		{"half an option's head", badOPT("\xfd\xe9\x00"), "FORMERR"},
		{"option longer than OPT", badOPT("\xfd\xe9\x00\x03xx"), "FORMERR"},
		{"record's name is a pointer loop", edit(extra(a), func(b []byte) []byte {
			return append(append(bytes.Clone(b[:len(question)]), 0xc0, byte(len(question))), b[len(b)-14:]...)
		}), answer}, // nothing follows it
		{"all ones", bytes.Repeat([]byte{0xff}, 64), ""},
		{"all zeros", bytes.Repeat([]byte{0}, 64), "FORMERR"},
	}
}

// What is no question is answered as RFC 1035 section 4.1.1 and RFC 9619 have
// it, or dropped where an answer could make a loop.
func TestPackets(t *testing.T) {
	s := newTestServer(t, fixture(), func(o *Options) { _, o.Forwarder = newUpstream(t, nil) })
	w := s.newWorker() // one for all: nothing of a packet must be left to the next
	for _, tt := range packets(t) {
		t.Run(tt.name, func(t *testing.T) {
			for _, tcp := range []bool{false, true} {
				reply := s.handleWith(t, w, tt.wire, tcp)
				if reply == nil || tt.want == "" {
					if len(reply) != 0 || tt.want != "" {
						t.Errorf("got %x, want %q", reply, tt.want)
					}
					continue
				}
				if got := s.text(checkReply(t, tt.wire, reply, tcp, s.udpSize)); got != tt.want {
					t.Errorf("got %s\nwant %s", got, tt.want)
				}
			}
		})
	}
}

// A name is answered for what it is however odd its octets.
func TestOddNames(t *testing.T) {
	_, forwarder := newUpstream(t, map[string]string{`\000\255\.\(a.example.org. A`: "NXDOMAIN"})
	s := newTestServer(t, fixture(), func(o *Options) { o.Forwarder = forwarder })
	for question, want := range map[string]string{
		`\000\255\.\(a.example.org. A`:            "NXDOMAIN ra",
		`\000.default.svc.cluster.local. A`:       "NXDOMAIN aa ra\n{soa}",
		`web\000.default.svc.cluster.local. A`:    "NXDOMAIN aa ra\n{soa}",
		`\119eb.default.svc.cluster.local. A`:     "NOERROR aa ra\nan web.default.svc.cluster.local. 30 IN A 10.96.0.10",
		`w\@b.default.svc.cluster.local. A`:       "NXDOMAIN aa ra\n{soa}",
		`*.a\.b.default.svc.cluster.local. A`:     "NXDOMAIN aa ra\n{soa}",
		`*\.default.svc.cluster.local. A`:         "NXDOMAIN aa ra\n{soa}",
		`*.\000\"\;.default.svc.cluster.local. A`: "NXDOMAIN aa ra\n{soa}",
	} {
		m := s.ask(t, newQuestion(t, question, nil), false)
		if got, want := s.text(m), wantText(want); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", question, got, want)
		}
	}
}

// addCorpus adds the packets in testdata and those of TestPackets to a fuzz
// target's corpus.
func addCorpus(f *testing.F) {
	f.Helper()
	for _, p := range packets(f) {
		f.Add(p.wire)
	}
	for _, name := range []string{"ext", "*", "gone", "head", "web-0.head", "_http._tcp.head", "_*._tcp.web", "*._tcp.head", "web.default.myfed"} {
		for _, qtype := range []string{"A", "SRV", "ANY"} {
			f.Add(pack(f, newQuestion(f, name+".default.svc.cluster.local. "+qtype, withOPT(600, 0, true))))
		}
	}
	for _, q := range []string{"cluster.local. NS", "cluster.local. SOA", "10.0.96.10.in-addr.arpa. PTR", "1-2-3-4.x.pod.cluster.local. A", "version.bind. TXT CH", "www.example.org. A"} {
		f.Add(pack(f, newQuestion(f, q, nil)))
	}
	files, err := filepath.Glob("testdata/packets/*.bin")
	if err != nil || len(files) == 0 {
		f.Fatalf("packets in testdata: %v, %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzParseQuery compares what is read from a packet with what miekg/dns reads.
func FuzzParseQuery(f *testing.F) {
	addCorpus(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var q query
		err := q.parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("parse wrote to the packet")
		}
		var m dns.Msg
		if merr := m.Unpack(b); merr != nil {
			return
		}
		switch {
		case m.Response:
			if !errors.Is(err, errDrop) {
				t.Fatalf("a reply: %v", err)
			}
			return
		case m.Opcode != dns.OpcodeQuery:
			if !errors.Is(err, errOpcode) {
				t.Fatalf("opcode %d: %v", m.Opcode, err)
			}
			return
		case len(m.Question) != 1 || binary.BigEndian.Uint16(b[4:]) != 1:
			if !errors.Is(err, errFormat) {
				t.Fatalf("%d questions: %v", len(m.Question), err)
			}
			return
		case !wholeQuestion(b):
			// miekg/dns follows a pointer into the header, and takes a question
			// without type or class; we do not.
			if !errors.Is(err, errFormat) {
				t.Fatalf("a pointer or half a question: %v", err)
			}
			return
		case err != nil && !errors.Is(err, errVersion):
			checkRefusal(t, &m, b, err)
			return
		}
		// b's own octets, with the upper case made lower.
		want := bytes.ToLower(asciiOnly(b[headerLen : headerLen+len(q.wire.Octets())]))
		if got := asciiOnly(q.wire.Octets()); !bytes.Equal(got, want) {
			t.Fatalf("name %q, want %q", got, want)
		}
		name, _, uerr := dns.UnpackDomainName(q.wire.Octets(), 0)
		if uerr != nil || !strings.EqualFold(name, m.Question[0].Name) {
			t.Fatalf("name %q (%v), miekg/dns has %q", name, uerr, m.Question[0].Name)
		}
		if q.qtype != m.Question[0].Qtype || q.qclass != m.Question[0].Qclass || q.id != m.Id {
			t.Fatalf("type %d class %d ID %d, miekg/dns has %v", q.qtype, q.qclass, q.id, m.Question[0])
		}
		if n := dns.CountLabel(m.Question[0].Name); q.wire.Labels() != n {
			t.Fatalf("%d labels, want %d", q.wire.Labels(), n)
		}
		var joined []byte
		for i := range q.wire.Labels() {
			joined = append(append(joined, byte(len(q.wire.Label(i)))), q.wire.Label(i)...)
		}
		if !bytes.Equal(append(joined, 0), q.wire.Octets()) {
			t.Fatalf("labels %q of %q", joined, q.wire.Octets())
		}
		opt := m.IsEdns0()
		if q.edns != (opt != nil) {
			t.Fatalf("EDNS %v, miekg/dns has %v", q.edns, opt)
		}
		if opt != nil && (q.udpSize != opt.UDPSize() || q.do != opt.Do() || q.version != opt.Version() || errors.Is(err, errVersion) != (opt.Version() != 0)) {
			t.Fatalf("OPT %d %v %d, miekg/dns has %v", q.udpSize, q.do, q.version, opt)
		}
	})
}

// wholeQuestion reports whether b begins with a header and a whole question
// without compression.
func wholeQuestion(b []byte) bool {
	at := headerLen
	for at < len(b) && b[at] != 0 {
		if b[at] > 63 {
			return false
		}
		at += 1 + int(b[at])
	}
	return at+5 <= len(b)
}

// checkRefusal fails unless a packet that miekg/dns takes has a reason to be
// malformed: OPT twice, or in the wrong place, or header counts that lie.
func checkRefusal(t *testing.T, m *dns.Msg, b []byte, err error) {
	t.Helper()
	opts := 0
	for _, rr := range m.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			opts++
			if rr.Header().Name != "." {
				return
			}
		}
	}
	isOPT := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }
	if opts > 1 || slices.ContainsFunc(m.Answer, isOPT) || slices.ContainsFunc(m.Ns, isOPT) {
		return
	}
	counts := fmt.Sprint(binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint16(b[10:]))
	if counts != fmt.Sprint(len(m.Answer), len(m.Ns), len(m.Extra)) {
		return
	}
	if opts == 1 && bytes.Contains(b[headerLen+4:], []byte{0xc0}) {
		return // OPT's owner is the root by way of a pointer
	}
	t.Fatalf("malformed (%v), but miekg/dns has %v", err, m)
}

// asciiOnly replaces octets above 127, which bytes.ToLower would take for
// letters.
func asciiOnly(b []byte) []byte {
	b = bytes.Clone(b)
	for i, c := range b {
		if c > 127 {
			b[i] = '.'
		}
	}
	return b
}
