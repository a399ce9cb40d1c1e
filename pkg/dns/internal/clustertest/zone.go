package clustertest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// Zone is the cluster domain of the tests.
const Zone = "cluster.local."

// ZoneText is a tree's records as lines of a zone file with the origin
// cluster.local., sorted but for PTR records of one name, which are in the
// order of their answers. A Service that has no records is a comment.
func ZoneText(tree *treecache.Tree) string {
	var lines []string
	seen := map[netip.Addr]bool{}
	relative := func(name string) string { return strings.TrimSuffix(name, "."+Zone) }
	rrtype := func(addr netip.Addr) string {
		if addr.Is4() {
			return "A"
		}
		return "AAAA"
	}
	tree.Match("*", "*", func(r *treecache.Records) {
		own := relative(r.Name(Zone))
		target := func(label string) string {
			if label == "" {
				return own
			}
			return label + "." + own
		}
		if r.Target != "" {
			lines = append(lines, own+" CNAME "+r.Target)
		}
		for _, a := range r.Addresses {
			seen[a.Addr] = true
			if !a.Repeated {
				lines = append(lines, fmt.Sprintf("%s %s %v", own, rrtype(a.Addr), a.Addr))
			}
			if a.Label != "" {
				lines = append(lines, fmt.Sprintf("%s %s %v", target(a.Label), rrtype(a.Addr), a.Addr))
			}
		}
		for _, srv := range r.SRVs {
			lines = append(lines, fmt.Sprintf("%s SRV %d %s", own, srv.Port, target(srv.Label)))
		}
		for _, p := range r.Ports {
			for _, srv := range p.SRVs {
				lines = append(lines, fmt.Sprintf("%s.%s.%s SRV %d %s", p.Name, p.Protocol, own, srv.Port, target(srv.Label)))
			}
		}
	})
	slices.Sort(lines)
	all := make([]netip.Addr, 0, len(seen))
	for addr := range seen {
		all = append(all, addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	for _, addr := range all {
		for _, name := range ReverseNames(tree, addr) {
			lines = append(lines, qname.ReverseName(addr)+" PTR "+relative(name))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// ReverseNames has the targets of an address's PTR records.
func ReverseNames(tree *treecache.Tree, addr netip.Addr) []string {
	first, more, ok := tree.Reverse(addr)
	if !ok {
		return nil
	}
	var names []string
	for _, o := range append([]treecache.Owner{first}, more...) {
		name := o.Name(Zone)
		names = append(names, name)
	}
	return names
}

// Lines brings expected records into ZoneText's form.
func Lines(text string) string {
	var all []string
	for l := range strings.SplitSeq(text, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

// SameTree compares all that two trees hold, reverse records of every pool
// address included.
func SameTree(got, want *treecache.Tree) string {
	text := func(tree *treecache.Tree) string {
		services, counts := tree.Stats()
		s := ZoneText(tree)
		for i := range PoolAddrs {
			for _, ipv6 := range []bool{false, true} {
				addr := netip.MustParseAddr(PoolAddr(ipv6, i))
				s += fmt.Sprintf("; %v is %q\n", addr, ReverseNames(tree, addr))
			}
		}
		for i := range 2 {
			_, exists := tree.Service(fmt.Appendf(nil, "ns%d", i), nil)
			s += fmt.Sprintf("; namespace ns%d exists: %v\n", i, exists)
		}
		var ready []string
		tree.Match("*", "*", func(r *treecache.Records) {
			ready = append(ready, fmt.Sprintf("; %v: %v, ready %v\n", r.Key, r.Kind, r.HasReady))
		})
		slices.SortFunc(ready, cmp.Compare)
		for _, line := range ready {
			s += line
		}
		return s + fmt.Sprintf("; %d services, %+v\n", services, counts)
	}
	if g, w := text(got), text(want); g != w {
		return fmt.Sprintf("got\n%s\nwant\n%s", g, w)
	}
	return ""
}
