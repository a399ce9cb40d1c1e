package dnsmasq

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubedns/pkg/dns/config"
)

// markerDomain has the names by which the nanny sees which servers dnsmasq has
// loaded. dnsmasq answers for it itself; no such domain exists elsewhere, RFC
// 6761 section 6.4.
const markerDomain = "in-force.dnsmasq-nanny.invalid"

// maxRepeated bounds what keepEntryCount adds.
const maxRepeated = 256

// maxServers bounds the servers. For servers.bind, which the sidecar also asks
// for, dnsmasq compares each server with all others and answers no other query
// meanwhile: 0.3 s with 10,000, 2.5 s with 30,000.
const maxServers = 10000

// domainServer is one server for one domain, as dnsmasq knows it.
type domainServer struct {
	domain string // lower case, no leading or trailing dot; "" is all other names
	addr   netip.AddrPort
}

// String is the argument of dnsmasq's --server: "/example.org/192.0.2.1#53" or
// "192.0.2.1#53". dnsmasq(8) takes # in place of :, and no brackets.
func (s domainServer) String() string {
	text := s.addr.Addr().String() + "#" + strconv.Itoa(int(s.addr.Port()))
	if s.domain != "" {
		text = "/" + s.domain + "/" + text
	}
	return text
}

// desiredServers returns dnsmasq's servers for a configuration, sorted by domain,
// each domain's in the order written and each server once. resolved has the
// addresses of servers' names. nameservers are the upstreams where the
// configuration has none. Upstreams come first, as their domain is "". What
// cannot be used is left out, with a warning each.
func desiredServers(cfg *config.Config, resolved map[string][]netip.Addr, nameservers []netip.AddrPort,
	isOwn func(netip.AddrPort) bool) (servers []domainServer, warnings []string) {
	add := func(domain, what string, addr netip.AddrPort) {
		s := domainServer{domain, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}
		switch {
		case isOwn(s.addr):
			warnings = append(warnings, fmt.Sprintf("ignoring %s %s: it is dnsmasq's own address", what, addr))
		case !slices.Contains(servers, s):
			servers = append(servers, s)
		}
	}
	if len(cfg.UpstreamNameservers) > 0 {
		for _, addr := range cfg.UpstreamNameservers {
			add("", "upstream nameserver", addr)
		}
	} else {
		for _, addr := range nameservers {
			add("", "nameserver", addr)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(cfg.StubDomains)) {
		what := fmt.Sprintf("stub domain %q: server", domain)
		before := len(servers)
		for _, s := range cfg.StubDomains[domain] {
			if s.Addr.IsValid() {
				add(domain, what, netip.AddrPortFrom(s.Addr, s.Port))
				continue
			}
			for _, addr := range resolved[s.Host] {
				if addr.IsUnspecified() || addr.IsMulticast() {
					// A foreign record must not make the configuration invalid.
					warnings = append(warnings, fmt.Sprintf("%s %q: ignoring its address %v, which cannot be queried", what, s.Host, addr))
					continue
				}
				add(domain, what, netip.AddrPortFrom(addr, s.Port))
			}
		}
		if len(servers) == before {
			warnings = append(warnings, fmt.Sprintf("stub domain %q has no usable server: its names go to the upstream nameservers", domain))
		}
	}
	return servers, warnings
}

// hosts returns the servers of cfg that are names, sorted, each once.
func hosts(cfg *config.Config) []string {
	names := map[string]struct{}{}
	for _, servers := range cfg.StubDomains {
		for _, s := range servers {
			if s.Host != "" {
				names[s.Host] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// validateServers returns an error for what dnsmasq would refuse or misread. It
// does not rely on the configuration's own checks.
func validateServers(servers []domainServer) error {
	if len(servers) > maxServers {
		return fmt.Errorf("%d servers, more than %d", len(servers), maxServers)
	}
	for _, s := range servers {
		addr := s.addr.Addr()
		switch {
		case !addr.IsValid():
			return fmt.Errorf("server for %q has no address", s.domain)
		case s.addr.Port() == 0:
			return fmt.Errorf("server %v: port 0", s)
		case addr.IsUnspecified() || addr.IsMulticast():
			return fmt.Errorf("server %v: %v cannot be queried", s, addr)
		case strings.ContainsFunc(addr.Zone(), isUnsafe):
			return fmt.Errorf("server %v: zone %q", s, addr.Zone())
		case len(s.domain) > 253 || strings.ContainsFunc(s.domain, isUnsafe):
			return fmt.Errorf("server %v: %q is not a domain", s, s.domain)
		}
	}
	return nil
}

// isUnsafe reports whether r is special to dnsmasq or not allowed in a domain.
func isUnsafe(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// serversText returns the content of a servers file and its marker, the name that
// dnsmasq answers with NXDOMAIN once it has read all of the file.
func serversText(servers []domainServer) (text, marker string) {
	var b strings.Builder
	b.WriteString("# Written by dnsmasq-nanny, read by dnsmasq on SIGHUP.\n")
	for _, s := range servers {
		fmt.Fprintf(&b, "server=%v\n", s)
	}
	marker = markerName(b.String())
	fmt.Fprintf(&b, "server=/%s/\n", marker)
	return b.String(), marker
}

// markerName is a name below markerDomain that is different for each text.
// dnsmasq(8): a --server that has a domain and no address is answered locally,
// here with NXDOMAIN as there is no record. All other names of markerDomain have
// an address (see nannyArguments), so NXDOMAIN shows that dnsmasq has read text.
func markerName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8]) + "." + markerDomain
}

// keepEntryCount adds entries to next so that no domain has fewer than in
// previous, what dnsmasq has now. dnsmasq keeps an entry and its queries in flight
// as long as the new list has an entry for the same domain, whatever its address.
// It frees an entry without a successor, and the clients of its queries get no
// answer.
//
// A domain that still has servers gets them once more. One that has none gets
// those that its names now go to: its own in fixed, the servers of dnsmasq's own
// arguments, else those of the closest parent domain, in next or, where that has
// none, in fixed. Nothing is added where no server is asked, as below a domain of
// local, nor if it would be more than maxRepeated entries, as after many changes.
// The result is sorted by domain, each domain's own servers first.
func keepEntryCount(next, previous, fixed []domainServer, local []string) []domainServer {
	before, now := byDomain(previous), byDomain(next)
	own := byDomain(fixed)
	longer := slices.Clone(next)
	for _, domain := range slices.Sorted(maps.Keys(before)) {
		missing := len(before[domain]) - len(now[domain])
		addrs := askedFor(domain, now, own, local)
		if len(addrs) == 0 {
			continue
		}
		for i := range missing {
			longer = append(longer, domainServer{domain, addrs[i%len(addrs)]})
		}
	}
	if len(longer)-len(next) > maxRepeated {
		return next
	}
	slices.SortStableFunc(longer, func(a, b domainServer) int { return cmp.Compare(a.domain, b.domain) })
	return longer
}

// askedFor returns the servers that dnsmasq asks for a domain's names; none where
// it answers itself.
func askedFor(domain string, now, own map[string][]netip.AddrPort, local []string) []netip.AddrPort {
	for {
		if addrs := now[domain]; len(addrs) > 0 {
			return addrs
		}
		if addrs := own[domain]; len(addrs) > 0 || domain == "" || slices.Contains(local, domain) {
			return addrs
		}
		_, domain, _ = strings.Cut(domain, ".")
	}
}

func byDomain(servers []domainServer) map[string][]netip.AddrPort {
	m := map[string][]netip.AddrPort{}
	for _, s := range servers {
		m[s.domain] = append(m[s.domain], s.addr)
	}
	return m
}

// missingServers returns the addresses of want that dnsmasq does not have, each
// once. have is in the form of package counters: "192.0.2.1:53".
func missingServers(want []domainServer, have []string) []netip.AddrPort {
	var missing []netip.AddrPort
	for _, s := range want {
		if !slices.Contains(have, s.addr.String()) && !slices.Contains(missing, s.addr) {
			missing = append(missing, s.addr)
		}
	}
	return missing
}
