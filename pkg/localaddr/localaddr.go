// Package localaddr lists the addresses of this host, by which a server
// recognizes itself among nameservers.
package localaddr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// All returns the addresses of this host's interfaces, IPv4 ones never as IPv6.
// A link-local IPv6 address is there twice, with the interface's name and with
// its number as zone. With an error, as of an interface that has just gone, it
// returns those that it has found.
func All() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var (
		local []netip.Addr
		errs  []error
	)
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the addresses of %s: %w", i.Name, err))
			continue
		}
		for _, a := range addrs {
			prefix, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, ok := netip.AddrFromSlice(prefix.IP)
			if !ok {
				continue
			}
			addr = addr.Unmap()
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				local = append(local, addr.WithZone(i.Name), addr.WithZone(strconv.Itoa(i.Index)))
			} else {
				local = append(local, addr)
			}
		}
	}
	return local, errors.Join(errs...)
}
