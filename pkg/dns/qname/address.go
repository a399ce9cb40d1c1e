package qname

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ParseReverse is the address that a reverse name in wire form and lower case
// stands for: four decimal labels without leading zeros below in-addr.arpa
// (RFC 1035 section 3.5), or 32 hexadecimal digits below ip6.arpa (RFC 3596
// section 2.5).
func ParseReverse(name []byte) (netip.Addr, error) {
	switch {
	case len(name) > len(inAddrArpa) && string(name[len(name)-len(inAddrArpa):]) == inAddrArpa:
		var a [4]byte
		rest := name[:len(name)-len(inAddrArpa)]
		for i := 3; i >= 0; i-- {
			if len(rest) == 0 {
				return netip.Addr{}, errNotReverse
			}
			n := int(rest[0])
			if n == 0 || n > 3 || n+1 > len(rest) || n > 1 && rest[1] == '0' {
				return netip.Addr{}, errNotReverse
			}
			v := 0
			for _, c := range rest[1 : n+1] {
				if c < '0' || c > '9' {
					return netip.Addr{}, errNotReverse
				}
				v = v*10 + int(c-'0')
			}
			if v > 255 {
				return netip.Addr{}, errNotReverse
			}
			a[i] = byte(v)
			rest = rest[n+1:]
		}
		if len(rest) != 0 {
			return netip.Addr{}, errNotReverse
		}
		return netip.AddrFrom4(a), nil
	case len(name) == 64+len(ip6Arpa) && string(name[64:]) == ip6Arpa:
		var a [16]byte
		for i := range 32 {
			digit, ok := hexDigit(name[2*i+1])
			if name[2*i] != 1 || !ok {
				return netip.Addr{}, errNotReverse
			}
			a[15-i/2] |= digit << (4 * (i % 2))
		}
		return netip.AddrFrom16(a), nil
	}
	return netip.Addr{}, errNotReverse
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

var errNotReverse = errors.New("no address's reverse name")

// ReverseName is an address's name below in-addr.arpa or ip6.arpa.
func ReverseName(addr netip.Addr) string {
	if addr.Is4() {
		a := addr.As4()
		return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", a[3], a[2], a[1], a[0])
	}
	a := addr.As16()
	var b strings.Builder
	for i := range 16 {
		fmt.Fprintf(&b, "%x.%x.", a[15-i]&0xf, a[15-i]>>4)
	}
	return b.String() + "ip6.arpa."
}

// ParsePodLabel is the address that a dashed label stands for: "10-244-0-7",
// four decimal numbers without leading zeros, or "2001-db8--7", an IPv6
// address with dashes for its colons.
func ParsePodLabel(label []byte) (netip.Addr, bool) {
	if addr, ok := parseDashedIPv4(label); ok {
		return addr, true
	}
	for _, c := range label {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(string(label), "-", ":"))
	return addr, err == nil && addr.Is6()
}

func parseDashedIPv4(label []byte) (netip.Addr, bool) {
	var a [4]byte
	part, digits, v := 0, 0, 0
	for _, c := range label {
		switch {
		case c == '-':
			if digits == 0 || part == 3 {
				return netip.Addr{}, false
			}
			a[part] = byte(v)
			part, digits, v = part+1, 0, 0
		case c < '0' || c > '9' || digits > 0 && v == 0:
			return netip.Addr{}, false
		default:
			if v = v*10 + int(c-'0'); v > 255 {
				return netip.Addr{}, false
			}
			digits++
		}
	}
	if digits == 0 || part != 3 {
		return netip.Addr{}, false
	}
	a[3] = byte(v)
	return netip.AddrFrom4(a), true
}
