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

// inForceDomain is a domain that only dnsmasq answers for, by which it can be
// seen what its servers are. The domain "invalid" is nobody's, RFC 6761 section
// 6.4.
const inForceDomain = "in-force.dnsmasq-nanny.invalid"

// maxPadding bounds what pad adds.
const maxPadding = 256

// maxServers bounds the servers. dnsmasq compares each with all others for
// servers.bind, which the sidecar also asks for, and answers nobody meanwhile:
// 0.3 s with 10,000, 2.5 s with 30,000.
const maxServers = 10000

// domainServer is one server for one domain, as dnsmasq knows it.
type domainServer struct {
	domain string // lower case, without dots around it; "" is all other names
	addr   netip.AddrPort
}

// String is the argument of dnsmasq's --server: "/example.org/192.0.2.1#53" or
// "192.0.2.1#53". dnsmasq(8) wants # in place of :, and no brackets.
func (s domainServer) String() string {
	text := s.addr.Addr().String() + "#" + strconv.Itoa(int(s.addr.Port()))
	if s.domain != "" {
		text = "/" + s.domain + "/" + text
	}
	return text
}

// desiredServers makes dnsmasq's servers of a configuration, sorted by domain,
// each domain's in the order written and each server once. The addresses of
// names come from resolved. The nameservers are used where the configuration
// has none; all upstream servers come first as their domain is "". What cannot
// be used is left out, with a warning for each.
func desiredServers(cfg *config.Config, resolved map[string][]netip.Addr, nameservers []netip.AddrPort,
	isOwn func(netip.AddrPort) bool) (servers []domainServer, warnings []string) {
	add := func(domain, what string, addr netip.AddrPort) {
		s := domainServer{domain, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}
		switch {
		case isOwn(s.addr):
			warnings = append(warnings, fmt.Sprintf("%s %s is dnsmasq's own address, it is left out", what, addr))
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
					// Somebody else's records must not refuse a configuration.
					warnings = append(warnings, fmt.Sprintf("%s %q has the address %v, where nobody can be asked, it is left out", what, s.Host, addr))
					continue
				}
				add(domain, what, netip.AddrPortFrom(addr, s.Port))
			}
		}
		if len(servers) == before {
			warnings = append(warnings, fmt.Sprintf("stub domain %q has no server that can be used, its names are asked upstream", domain))
		}
	}
	return servers, warnings
}

// hosts are the names among cfg's servers, sorted, each once.
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

// validateServers refuses what dnsmasq would refuse or misunderstand, whatever
// the configuration's own checks have let through.
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
			return fmt.Errorf("server %v: nobody can be asked at %v", s, addr)
		case strings.ContainsFunc(addr.Zone(), isUnsafe):
			return fmt.Errorf("server %v: zone %q", s, addr.Zone())
		case len(s.domain) > 253 || strings.ContainsFunc(s.domain, isUnsafe):
			return fmt.Errorf("server %v: domain %q is no domain", s, s.domain)
		}
	}
	return nil
}

// isUnsafe tells whether r means something to dnsmasq or is not of a domain.
func isUnsafe(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// serversText is the content of a servers file, and the name that dnsmasq
// answers with NXDOMAIN once it has read all of it.
func serversText(servers []domainServer) (text, name string) {
	var b strings.Builder
	b.WriteString("# Written by dnsmasq-nanny, read by dnsmasq on SIGHUP.\n")
	for _, s := range servers {
		fmt.Fprintf(&b, "server=%v\n", s)
	}
	name = inForceName(b.String())
	fmt.Fprintf(&b, "server=/%s/\n", name)
	return b.String(), name
}

// inForceName is a name below inForceDomain that is different for each text.
// dnsmasq(8): a --server that has a domain and no address answers for it
// locally, with NXDOMAIN as there is no record. Other names of inForceDomain
// have an address (see nannyArguments), so an answer tells which text dnsmasq
// has read.
func inForceName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8]) + "." + inForceDomain
}

// pad adds entries to next so that no domain has fewer than it had in previous,
// what dnsmasq has now. dnsmasq keeps an entry, and the questions on their way
// to it, as long as there is one for the same domain, whatever its address; an
// entry without a successor is freed with its questions, whose clients then
// hear nothing.
//
// A domain that still has servers gets them once more. One that has none any
// longer gets those that its names now go to: of the domain itself in fixed,
// the servers of dnsmasq's own arguments, else of the closest domain above, in
// next or, where that has none, in fixed. Where there is nobody to ask, as below
// a domain of local, nothing is added, nor when it would be more than maxPadding
// entries, as after many changes. The result is sorted by domain, each domain's
// own servers first.
func pad(next, previous, fixed []domainServer, local []string) []domainServer {
	before, now := byDomain(previous), byDomain(next)
	own := byDomain(fixed)
	padded := slices.Clone(next)
	for _, domain := range slices.Sorted(maps.Keys(before)) {
		missing := len(before[domain]) - len(now[domain])
		addrs := askedFor(domain, now, own, local)
		if len(addrs) == 0 {
			continue
		}
		for i := range missing {
			padded = append(padded, domainServer{domain, addrs[i%len(addrs)]})
		}
	}
	if len(padded)-len(next) > maxPadding {
		return next
	}
	slices.SortStableFunc(padded, func(a, b domainServer) int { return cmp.Compare(a.domain, b.domain) })
	return padded
}

// askedFor are the servers that dnsmasq asks for a domain's names; none where
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

// missingServers are those of want whose address dnsmasq does not have, each
// address once. have is as package counters has it: "192.0.2.1:53".
func missingServers(want []domainServer, have []string) []netip.AddrPort {
	var missing []netip.AddrPort
	for _, s := range want {
		if !slices.Contains(have, s.addr.String()) && !slices.Contains(missing, s.addr) {
			missing = append(missing, s.addr)
		}
	}
	return missing
}
