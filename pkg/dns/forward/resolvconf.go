package forward

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/golang/glog"

	"kubedns/pkg/resolvconf"
)

// ResolvConf returns the nameservers of the file path in their order (see
// resolvconf.Parse). A line without a valid address is left out with a warning.
// The error is that of reading the file.
func ResolvConf(path string) ([]netip.AddrPort, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading nameservers: %w", err)
	}
	defer file.Close()
	nameservers, bad, err := resolvconf.Parse(file)
	if err != nil {
		return nil, fmt.Errorf("reading nameservers: %s: %w", path, err)
	}
	for _, b := range bad {
		glog.Warningf("forward: %s: %v", path, b)
	}
	return nameservers, nil
}

// ExcludeSelf divides list into the nameservers that are not own and those that
// are, which must not be asked: the questions would come back. Both keep their
// order.
//
// An unspecified address in own (0.0.0.0 or ::) stands for this host on that
// port: the addresses in local (see localaddr.All), all loopback addresses, and
// the unspecified ones, which as a destination mean the same. Both families
// are meant, as a socket on either may take both. Where only one of two
// addresses has a zone, the zone does not count.
func ExcludeSelf(list, own []netip.AddrPort, local []netip.Addr) (kept, left []netip.AddrPort) {
	for _, server := range list {
		if slices.ContainsFunc(own, func(o netip.AddrPort) bool { return pointsAt(server, o, local) }) {
			left = append(left, server)
		} else {
			kept = append(kept, server)
		}
	}
	return kept, left
}

// pointsAt reports whether a query to server arrives at own.
func pointsAt(server, own netip.AddrPort, local []netip.Addr) bool {
	if server.Port() != own.Port() {
		return false
	}
	to, at := server.Addr().Unmap(), own.Addr().Unmap()
	switch {
	case to.IsUnspecified():
		// The kernel delivers it to the loopback address.
		return at.IsUnspecified() || at.IsLoopback()
	case at.IsUnspecified():
		return to.IsLoopback() || slices.ContainsFunc(local, func(l netip.Addr) bool { return sameAddr(to, l.Unmap()) })
	}
	return sameAddr(to, at)
}

func sameAddr(a, b netip.Addr) bool {
	if a.Zone() == "" || b.Zone() == "" {
		return a.WithZone("") == b.WithZone("")
	}
	return a == b
}
