// Package resolvconf reads the nameservers of resolv.conf(5). It leaves to its
// callers which of them can be asked, and when to read the file again.
package resolvconf

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// Path is the file that the system's resolver reads.
const Path = "/etc/resolv.conf"

// port is that of every nameserver: resolv.conf(5) has no ports.
const port = 53

// Parse returns the nameservers in the order of the lines, port 53 each. There
// may be more than three. A line whose address is missing or invalid is left
// out, as the C library's resolver ignores it; bad has one error for each such
// line, with its number. err is that of reading r; the nameservers before it are
// returned.
func Parse(r io.Reader) (nameservers []netip.AddrPort, bad []error, err error) {
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
		nameservers = append(nameservers, netip.AddrPortFrom(addr.Unmap(), port))
	}
	return nameservers, bad, scanner.Err()
}
