package treecache

import (
	"encoding/hex"
	"net/netip"
	"strconv"
)

// SystemLabel is the label of an address that has no name of its own. It is that
// of kube-dns 1.2x, because replicas of both must agree during a rollout: the
// hexadecimal digits of the text of a hexadecimal hash, FNV-1a of 32 bits over
// how Go prints a msg.Service with the address.
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

// fnv1a is the FNV-1a hash of what h is the hash of, followed by s.
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
