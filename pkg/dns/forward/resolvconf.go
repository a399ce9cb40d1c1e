package forward

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/golang/glog"
)

// dnsPort is the port of a nameserver in resolv.conf(5), which has no ports.
const dnsPort = 53

// ResolvConf returns the nameservers that the file path names, as resolv.conf(5)
// has it, in the file's order. There may be more than three. A line whose
// address is none is left out with a warning, as the C library's resolver
// ignores it. The error is that of reading the file.
func ResolvConf(path string) ([]netip.AddrPort, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading nameservers: %w", err)
	}
	defer file.Close()
	addrs, bad, err := parseResolvConf(file)
	if err != nil {
		return nil, fmt.Errorf("reading nameservers: %s: %w", path, err)
	}
	for _, b := range bad {
		glog.Warningf("forward: %s: %v", path, b)
	}
	return addrs, nil
}

// parseResolvConf returns the nameservers, what is wrong with lines, and why r
// could not be read to its end.
func parseResolvConf(r io.Reader) (addrs []netip.AddrPort, bad []error, err error) {
	scanner := bufio.NewScanner(r)
	for number := 1; scanner.Scan(); number++ {
		line := scanner.Text()
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "nameserver" {
			continue
		}
		if len(fields) == 1 {
			bad = append(bad, fmt.Errorf("line %d: nameserver without address", number))
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", number, err))
			continue
		}
		addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), dnsPort))
	}
	return addrs, bad, scanner.Err()
}

// Without divides list into the nameservers that are not own and those that
// are, which must not be asked: the questions would come back. Both keep their
// order.
//
// An unspecified address in own (0.0.0.0 or ::) stands for this host on that
// port: the addresses in local (see LocalAddrs), all loopback addresses, and
// the unspecified ones, which as a destination mean the same. Both families
// are meant, as a socket on either may take both. Where only one of two
// addresses has a zone, the zone does not count.
func Without(list, own []netip.AddrPort, local []netip.Addr) (kept, left []netip.AddrPort) {
	for _, server := range list {
		if slices.ContainsFunc(own, func(o netip.AddrPort) bool { return reaches(server, o, local) }) {
			left = append(left, server)
		} else {
			kept = append(kept, server)
		}
	}
	return kept, left
}

// reaches says whether what is sent to server arrives at own.
func reaches(server, own netip.AddrPort, local []netip.Addr) bool {
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

// LocalAddrs returns the addresses of this host's interfaces, for Without. A
// link-local one is there twice, with the interface's name and with its number
// as zone.
func LocalAddrs() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var local []netip.Addr
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("listing the addresses of %s: %w", i.Name, err)
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
	return local, nil
}
