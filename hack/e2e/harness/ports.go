package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// freePort returns a port that neither UDP nor TCP uses on 127.0.0.1 and ::1.
// It is below the range that Linux takes ports of outgoing connections from,
// so that it is still free when a program binds it a moment later, and again
// when that program is restarted.
func freePort() (int, error) {
	const first, last = 12000, 32000
	for range 100 {
		port := first + rand.IntN(last-first)
		if portIsFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found")
}

func portIsFree(port int) bool {
	for _, host := range []string{"127.0.0.1", "::1"} {
		addr := net.JoinHostPort(host, strconv.Itoa(port))
		l, err := net.Listen("tcp", addr) //nolint:noctx // a bind does not wait
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			continue // a machine without IPv6
		}
		if err != nil {
			return false
		}
		l.Close()
		c, err := net.ListenPacket("udp", addr) //nolint:noctx // a bind does not wait
		if err != nil {
			return false
		}
		c.Close()
	}
	return true
}

// FreePorts returns n free ports, all different.
func FreePorts(n int) ([]int, error) {
	seen := map[int]bool{}
	var ports []int
	for len(ports) < n {
		port, err := freePort()
		if err != nil {
			return nil, fmt.Errorf("port %d of %d: %w", len(ports)+1, n, err)
		}
		if !seen[port] {
			seen[port] = true
			ports = append(ports, port)
		}
	}
	return ports, nil
}
