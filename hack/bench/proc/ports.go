package proc

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
)

// FreePort returns a port that neither UDP nor TCP uses on 127.0.0.1, below
// the range that Linux takes ports of outgoing connections from, so that it is
// still free when a program binds it a moment later.
func FreePort() (uint16, error) {
	const first, last = 12000, 32000
	for range 100 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(first+rand.IntN(last-first)))
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			continue
		}
		_ = l.Close() // nothing was accepted
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		if err != nil {
			continue
		}
		_ = c.Close() // nothing was sent
		return addr.Port(), nil
	}
	return 0, errors.New("no free port found")
}
