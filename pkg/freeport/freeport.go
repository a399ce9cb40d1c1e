// Package freeport finds ports for the programs and servers that tests start.
package freeport

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// Addr is an address of 127.0.0.1 whose port neither UDP nor TCP uses,
// "127.0.0.1:23456". The port is below the range that Linux takes ports of
// outgoing connections from, so that it is still free when it is bound a moment
// later, and again when what had it is restarted.
func Addr(t testing.TB) string {
	t.Helper()
	const first, last = 12000, 32000
	var config net.ListenConfig
	for range 100 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(first+rand.IntN(last-first))).String()
		stream, err := config.Listen(t.Context(), "tcp", addr)
		if err != nil {
			continue
		}
		packets, err := config.ListenPacket(t.Context(), "udp", addr)
		_ = stream.Close()
		if err != nil {
			continue
		}
		_ = packets.Close()
		return addr
	}
	t.Fatal("no free port")
	return ""
}
