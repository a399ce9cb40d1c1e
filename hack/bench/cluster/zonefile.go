package cluster

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
)

// WriteZone writes the cluster's records as a zone file (RFC 1035 section 5):
// those that kube-dns makes of the objects.
func (c *Cluster) WriteZone(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "$ORIGIN %s\n$TTL 30\n@ SOA ns.dns hostmaster 1 28800 7200 604800 30\n@ NS ns.dns\nns.dns A 10.96.0.10\n", Zone)
	for i := range c.Services {
		s := &c.Services[i]
		name := strings.TrimSuffix(s.DNSName(), "."+Zone)
		var targets []string
		if s.Headless() {
			for _, e := range s.Endpoints {
				target := e.Label() + "." + name
				targets = append(targets, target)
				fmt.Fprintf(b, "%s A %s\n%s A %s\n", name, e.Addr, target, e.Addr)
			}
		} else {
			targets = []string{name}
			fmt.Fprintf(b, "%s A %s\n", name, s.ClusterIP)
		}
		weight := max(1, 100/len(targets))
		for _, p := range Ports() {
			for _, target := range targets {
				fmt.Fprintf(b, "_%s._tcp.%s SRV 10 %d %d %s\n", p.Name, name, weight, p.Number, target)
			}
		}
	}
	return b.Flush()
}

// Label is the endpoint's own label below its Service: its hostname, or the
// one that kube-dns makes of the address.
func (e *Endpoint) Label() string {
	if e.Hostname != "" {
		return e.Hostname
	}
	// Kept from kube-dns: hex of the hex hash of how Go prints the record.
	h := fnv.New32a()
	fmt.Fprintf(h, "&{%s 0 10 10  false 30 0  }", e.Addr)
	return fmt.Sprintf("%x", strconv.FormatUint(uint64(h.Sum32()), 16))
}
