package config

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The keys of the ConfigMap, which are the names of the directory's files.
const (
	keyFederations         = "federations"
	keyStubDomains         = "stubDomains"
	keyUpstreamNameservers = "upstreamNameservers"
)

// Keys returns the known keys, sorted.
func Keys() []string {
	return []string{keyFederations, keyStubDomains, keyUpstreamNameservers}
}

// Config is one complete configuration. It is never changed once made, so that
// any number of goroutines may read it. The zero Config is the default: no
// federations, no stub domains, upstream nameservers as /etc/resolv.conf has
// them.
type Config struct {
	// Federations has name to domain, both in lower case, the domain without a
	// trailing dot. Nil when there are none.
	Federations map[string]string
	// StubDomains has domain (lower case, without a trailing dot) to its
	// servers in the order written, at least one. Nil when there are none.
	StubDomains map[string][]Server
	// UpstreamNameservers are where other names are forwarded to, in the order
	// written, port 53 where none was given. Nil: as /etc/resolv.conf has it.
	UpstreamNameservers []netip.AddrPort
}

// Equal reports whether both say the same; the order of servers counts. A nil
// Config equals only another nil one.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return maps.Equal(c.Federations, other.Federations) &&
		maps.EqualFunc(c.StubDomains, other.StubDomains, slices.Equal) &&
		slices.Equal(c.UpstreamNameservers, other.UpstreamNameservers)
}

// Data is c as a ConfigMap's data in canonical form, from which Parse makes an
// equal Config. Keys that would have their default are absent.
func (c *Config) Data() map[string]string {
	data := map[string]string{}
	if len(c.Federations) > 0 {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(c.Federations)) {
			pairs = append(pairs, name+"="+c.Federations[name])
		}
		data[keyFederations] = strings.Join(pairs, ",")
	}
	if len(c.StubDomains) > 0 {
		data[keyStubDomains] = marshal(c.StubDomains)
	}
	if len(c.UpstreamNameservers) > 0 {
		data[keyUpstreamNameservers] = marshal(c.UpstreamNameservers)
	}
	return data
}

// marshal renders maps and lists of strings and of types that have a
// MarshalText which cannot fail, which is why there is no error to return.
func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

// Server is a stub domain's server: an address or a name. Exactly one of Addr
// and Host is set. Servers can be compared with ==.
type Server struct {
	Addr netip.Addr // never an IPv4 address mapped into IPv6
	Host string     // lower case, without a trailing dot
	Port uint16     // never 0
}

// String is "192.0.2.1:53", "[2001:db8::1]:53" or "ns.example.org:53".
func (s Server) String() string {
	if s.Addr.IsValid() {
		return netip.AddrPortFrom(s.Addr, s.Port).String()
	}
	return s.Host + ":" + strconv.Itoa(int(s.Port))
}

// MarshalText is String, so that JSON shows a server as it would be configured.
func (s Server) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
