package treecache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ParseReverse is the address that a reverse name in wire form and lower case
// stands for: four decimal labels without leading zeros below in-addr.arpa
// (RFC 1035 section 3.5), or 32 hexadecimal digits below ip6.arpa (RFC 3596
// section 2.5).
func ParseReverse(name []byte) (netip.Addr, error) {
	const inAddr, ip6 = "\x07in-addr\x04arpa\x00", "\x03ip6\x04arpa\x00"
	switch {
	case len(name) > len(inAddr) && string(name[len(name)-len(inAddr):]) == inAddr:
		var a [4]byte
		rest := name[:len(name)-len(inAddr)]
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
	case len(name) == 64+len(ip6) && string(name[64:]) == ip6:
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

// SystemLabel is the label of an address that has no name of its own. It is
// kept from kube-dns, of which replicas of both makes must agree while a
// rollout goes on: the hexadecimal digits of the text of a hexadecimal hash,
// FNV-1a of 32 bits over how Go prints a msg.Service with the address.
//
// host is an address in its canonical text, or an external name.
func SystemLabel[T ~string | ~[]byte](host T) string {
	h := uint32(2166136261)
	h = fnv1a(h, "&{")
	h = fnv1a(h, host)
	h = fnv1a(h, " 0 10 10  false 30 0  }")
	var digits [8]byte
	var label [16]byte
	return string(hex.AppendEncode(label[:0], strconv.AppendUint(digits[:0], uint64(h), 16)))
}

// fnv1a goes on with the hash h.
func fnv1a[T ~string | ~[]byte](h uint32, s T) uint32 {
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// AddressLabel is SystemLabel of an address.
func AddressLabel(addr netip.Addr) string {
	var text [64]byte
	return SystemLabel(addr.AppendTo(text[:0]))
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
