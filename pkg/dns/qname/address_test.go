package qname

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func TestAppend(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"name", "web.default.", "\x03web\x07default\x00"},
		{"without trailing dot", "web.default", "\x03web\x07default\x00"},
		{"root", ".", "\x00"},
		{"empty", "", "\x00"},
		{"one label", "local.", "\x05local\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(Append([]byte("before"), tt.in)); got != "before"+tt.want {
				t.Errorf("Append(%q) = %q, want %q", tt.in, got, "before"+tt.want)
			}
		})
	}
}

const (
	nibbles = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."
	mapped  = "1.0.2.0.0.0.0.c.f.f.f.f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa."
)

func TestParseReverse(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     string // "" where it is no reverse name
	}{
		{"IPv4", "7.2.0.192.in-addr.arpa.", "192.0.2.7"},
		{"IPv4, least", "0.0.0.0.in-addr.arpa.", "0.0.0.0"},
		{"IPv4, greatest", "255.255.255.255.in-addr.arpa.", "255.255.255.255"},
		{"IPv6", nibbles, "2001:db8::1"},
		{"IPv6 with an IPv4 address in it", mapped, "::ffff:c000:201"},
		{"leading zero", "07.2.0.192.in-addr.arpa.", ""},
		{"two zeros", "00.2.0.192.in-addr.arpa.", ""},
		{"over 255", "256.2.0.192.in-addr.arpa.", ""},
		{"four digits", "1000.2.0.192.in-addr.arpa.", ""},
		{"sign", "-1.2.0.192.in-addr.arpa.", ""},
		{"letter", "a.2.0.192.in-addr.arpa.", ""},
		{"three labels", "2.0.192.in-addr.arpa.", ""},
		{"five labels", "1.7.2.0.192.in-addr.arpa.", ""},
		{"RFC 2317 delegation", "7.0/25.2.0.192.in-addr.arpa.", ""},
		{"the zone itself", "in-addr.arpa.", ""},
		{"the zone itself, IPv6", "ip6.arpa.", ""},
		{"another zone", "7.2.0.192.in-addr.example.", ""},
		{"a zone that ends alike", "7.2.0.192.xin-addr.arpa.", ""},
		{"31 digits", nibbles[2:], ""},
		{"33 digits", "0." + nibbles, ""},
		{"no hexadecimal digit", "g" + nibbles[1:], ""},
		{"two digits in a label", "10" + nibbles[3:], ""},
		{"IPv6 digits below in-addr.arpa", strings.Replace(nibbles, "ip6", "in-addr", 1), ""},
		{"root", ".", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseReverse(Append(nil, tt.in))
			switch {
			case tt.want == "" && err == nil:
				t.Errorf("ParseReverse(%q) = %v, want an error", tt.in, got)
			case tt.want != "" && (err != nil || got != netip.MustParseAddr(tt.want)):
				t.Errorf("ParseReverse(%q) = %v, %v, want %s", tt.in, got, err, tt.want)
			case err == nil && ReverseName(got) != tt.in:
				t.Errorf("ReverseName(%v) = %q, want %q", got, ReverseName(got), tt.in)
			}
		})
	}
}

// TestParseReverseBoundaries has names whose octets end in a reverse zone's
// although their labels do not.
func TestParseReverseBoundaries(t *testing.T) {
	for _, tt := range []struct{ name, wire string }{
		{"empty", ""},
		{"the zone within a label", "\x01\x37\x01\x32\x01\x30\x0f192\x07in-addr\x04arpa\x00"},
		{"a label that reaches over the end", "\x01\x37\x01\x32\x01\x30\x03192\x09\x07in-addr\x04arpa\x00"[1:]},
		{"empty labels", "\x00\x00\x00\x00\x07in-addr\x04arpa\x00"},
		{"nothing before the zone", "\x07in-addr\x04arpa\x00"},
		{"64 octets that are no labels", strings.Repeat("\x02", 64) + "\x03ip6\x04arpa\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseReverse([]byte(tt.wire)); err == nil {
				t.Errorf("ParseReverse(%q) = %v, want an error", tt.wire, got)
			}
		})
	}
}

// FuzzParseReverse: a name that is taken for an address's is exactly the one
// name that the address has.
func FuzzParseReverse(f *testing.F) {
	for _, name := range []string{"7.2.0.192.in-addr.arpa.", "07.2.0.192.in-addr.arpa.", nibbles, mapped, nibbles[2:], "web.default."} {
		f.Add(Append(nil, name))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		addr, err := ParseReverse(wire)
		if err == nil {
			if back := Append(nil, ReverseName(addr)); !bytes.Equal(back, wire) {
				t.Errorf("ParseReverse(%q) = %v, whose reverse name is %q", wire, addr, back)
			}
		}
		// The other way round: the octets taken for an address.
		for _, size := range []int{4, 16} {
			if len(wire) < size {
				continue
			}
			addr, _ := netip.AddrFromSlice(wire[:size])
			if back, err := ParseReverse(Append(nil, ReverseName(addr))); err != nil || back != addr {
				t.Errorf("ParseReverse(%q) = %v, %v, want %v", ReverseName(addr), back, err, addr)
			}
		}
	})
}

func TestParsePodLabel(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"IPv4", "10-244-0-7", "10.244.0.7"},
		{"zeros", "0-0-0-0", "0.0.0.0"},
		{"greatest", "255-255-255-255", "255.255.255.255"},
		{"IPv6", "2001-db8--7", "2001:db8::7"},
		{"IPv6 in full", "2001-db8-0-0-0-0-0-7", "2001:db8::7"},
		{"IPv6 with leading zeros", "2001-0db8--0007", "2001:db8::7"},
		{"unspecified", "--", "::"},
		{"loopback", "--1", "::1"},
		{"ends in dashes", "2001-db8--", "2001:db8::"},
		{"mapped", "--ffff-c000-201", "::ffff:c000:201"},
		{"leading zero", "010-244-0-7", ""},
		{"two zeros", "10-244-00-7", ""},
		{"over 255", "256-244-0-7", ""},
		{"three numbers", "10-244-7", ""},
		{"five numbers", "10-244-0-7-1", ""},
		{"six numbers", "10-244-0-7-1-2", ""},
		{"missing number", "10-244--7", "10:244::7"}, // as an IPv6 address it is one
		{"dash first", "-10-244-0-7", ""},
		{"dash last", "10-244-0-7-", ""},
		{"blank", "10-244-0- 7", ""},
		{"letters", "web", ""},
		{"a word of hexadecimal digits", "bad-cafe", ""},
		{"colons", "2001:db8::7", ""},
		{"dots", "10.244.0.7", ""},
		{"zone", "fe80--1%eth0", ""},
		{"mapped with dots", "--ffff-192.0.2.1", ""},
		{"upper case", "2001-DB8--7", ""},
		{"empty", "", ""},
		{"overflow", "10-244-0-99999999999999999999", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ParsePodLabel([]byte(tt.in))
			switch {
			case ok != (tt.want != ""):
				t.Errorf("ParsePodLabel(%q) = %v, %v", tt.in, got, ok)
			case ok && got != netip.MustParseAddr(tt.want):
				t.Errorf("ParsePodLabel(%q) = %v, want %s", tt.in, got, tt.want)
			}
		})
	}
}

// FuzzParsePodLabel: a label that is taken for an address says that address
// when its dashes are put back, and every address has such a label.
func FuzzParsePodLabel(f *testing.F) {
	for _, label := range []string{"10-244-0-7", "2001-db8--7", "--1", "010-1-1-1", "10-244--7", "web", "--ffff-102-304"} {
		f.Add([]byte(label))
	}
	f.Fuzz(func(t *testing.T, label []byte) {
		if addr, ok := ParsePodLabel(label); ok {
			dashes := map[bool]string{true: ".", false: ":"}[addr.Is4()]
			back, err := netip.ParseAddr(strings.ReplaceAll(string(label), "-", dashes))
			if err != nil || back != addr || addr.Zone() != "" {
				t.Errorf("ParsePodLabel(%q) = %v, want %v, %v", label, addr, back, err)
			}
			if bytes.ContainsAny(label, ".:%") || string(bytes.ToLower(label)) != string(label) {
				t.Errorf("ParsePodLabel(%q) = %v", label, addr)
			}
		}
		for _, size := range []int{4, 16} {
			if len(label) < size {
				continue
			}
			addr, _ := netip.AddrFromSlice(label[:size])
			if addr.Is4In6() {
				continue // its text has dots
			}
			text := strings.NewReplacer(".", "-", ":", "-").Replace(addr.String())
			if back, ok := ParsePodLabel([]byte(text)); !ok || back != addr {
				t.Errorf("ParsePodLabel(%q) = %v, %v, want %v", text, back, ok, addr)
			}
		}
	})
}
