package sidecar

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	defaultInterval = 5 * time.Second
	minInterval     = 10 * time.Millisecond
	maxInterval     = 24 * time.Hour
	defaultQtype    = dns.TypeANY
	uncachedOption  = "uncached"
)

// Probe is a query that is sent to a server periodically. ParseProbe makes one from
// its text.
type Probe struct {
	// Label is the last part of the probe's health path and part of the names
	// of its metrics: letters, digits and underscores, at least one.
	Label string
	// Server is the host:port to ask, the host an IP address or a host name.
	Server string
	// Name is what to ask for, with the final dot.
	Name string
	// Interval is the time from one query to the next; positive.
	Interval time.Duration
	// Qtype is dns.TypeA, TypeAAAA, TypeSRV or TypeANY.
	Qtype uint16
	// Uncached makes dnsmasq forward the query to the server behind it in place
	// of answering from its cache.
	Uncached bool
}

// ParseProbe reads `label,server,name[,interval[,type[,uncached]]]`, the value
// of the flag --probe. A server without a port gets 53; the interval is in
// seconds, fractions allowed, 5 where not given; the type is A, AAAA, SRV or
// ANY, ANY where not given.
func ParseProbe(text string) (Probe, error) {
	fields := strings.Split(text, ",")
	if len(fields) < 3 || len(fields) > 6 {
		return Probe{}, fmt.Errorf("%d fields, must be label,server,name[,interval[,type[,%s]]]", len(fields), uncachedOption)
	}
	p := Probe{Label: fields[0], Interval: defaultInterval, Qtype: defaultQtype}
	if p.Label == "" || !only(p.Label, "_") {
		return Probe{}, fmt.Errorf("label %q must be letters, digits and underscores", p.Label)
	}
	var err error
	if p.Server, err = parseServer(fields[1]); err != nil {
		return Probe{}, fmt.Errorf("server %q: %w", fields[1], err)
	}
	if p.Name, err = parseName(fields[2]); err != nil {
		return Probe{}, fmt.Errorf("name %q: %w", fields[2], err)
	}
	if len(fields) > 3 {
		if p.Interval, err = parseInterval(fields[3]); err != nil {
			return Probe{}, fmt.Errorf("interval %q: %w", fields[3], err)
		}
	}
	if len(fields) > 4 {
		if p.Qtype, err = parseQtype(fields[4]); err != nil {
			return Probe{}, err
		}
	}
	if len(fields) > 5 {
		if fields[5] != uncachedOption {
			return Probe{}, fmt.Errorf("option %q must be %s", fields[5], uncachedOption)
		}
		p.Uncached = true
	}
	return p, nil
}

// String returns p in the form that ParseProbe reads.
func (p Probe) String() string {
	seconds := strconv.FormatFloat(p.Interval.Seconds(), 'f', -1, 64)
	s := strings.Join([]string{p.Label, p.Server, p.Name, seconds, dns.TypeToString[p.Qtype]}, ",")
	if p.Uncached {
		s += "," + uncachedOption
	}
	return s
}

// timeout is how long to wait for an answer: 2 s, or the interval if shorter.
func (p Probe) timeout() time.Duration { return min(p.Interval, 2*time.Second) }

// question returns a new message with p's question.
//
// For an uncached probe it has the DO bit set (RFC 4035 section 3.2.1). A dnsmasq
// that does not validate keeps no signatures, so it cannot answer such a query
// from its cache, whatever its type and --cache-rr, and forwards it. A random
// name below a wildcard would avoid the cache too, but be another name.
func (p Probe) question() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(p.Name, p.Qtype)
	if p.Uncached {
		m.SetEdns0(ednsSize, true)
	}
	return m
}

// ednsSize is the UDP payload size of uncached probes, which avoids fragments.
const ednsSize = 1232

// only reports whether s has ASCII letters, digits and the others only.
func only(s, others string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return true
}

// parseServer reads host, host:port, [v6] or [v6]:port and returns host:port.
func parseServer(s string) (string, error) {
	host, port := s, "53"
	_, err := netip.ParseAddr(s)
	switch {
	case err == nil: // an address without port, IPv6 without brackets
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"):
	case strings.Contains(s, ":"):
		if host, port, err = net.SplitHostPort(s); err != nil {
			return "", errors.New("must be host or host:port")
		}
		if strings.HasPrefix(s, "[") {
			host = "[" + host + "]"
		}
	}
	if host, err = ParseHost(host); err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("port %q must be 1 to 65535", port)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// ParseHost returns the IP address, without brackets, or host name in s.
func ParseHost(s string) (string, error) {
	inner, bracketed := s, false
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		inner, bracketed = s[1:len(s)-1], true
	}
	addr, err := netip.ParseAddr(inner)
	switch {
	case err == nil && only(addr.Zone(), "._-") && (addr.Is6() || !bracketed):
		return addr.String(), nil
	case err != nil && !bracketed && isHostName(s):
		return s, nil
	}
	return "", errors.New("must be an IP address or a host name")
}

// isHostName reports whether s is the name of a host (RFC 1123 section 2.1),
// underscores allowed. Its last label must not be a number, so that a mistyped
// IPv4 address is not taken for a name.
func isHostName(s string) bool {
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || !only(label, "_-") || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return len(s) <= 253 && strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// parseName returns s with the final dot.
func parseName(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty")
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return "", errors.New("must be printable ASCII without blanks")
		}
	}
	if _, ok := dns.IsDomainName(s); !ok {
		return "", errors.New("not a domain name")
	}
	return dns.Fqdn(s), nil
}

// parseInterval reads a decimal number of seconds: "5", "0.5".
func parseInterval(s string) (time.Duration, error) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, errors.New("must be a number of seconds")
	}
	d, err := time.ParseDuration(s + "s")
	if err != nil {
		return 0, errors.New("must be a number of seconds")
	}
	if d < minInterval || d > maxInterval {
		return 0, fmt.Errorf("must be %v to %.0f seconds", minInterval.Seconds(), maxInterval.Seconds())
	}
	return d, nil
}

func parseQtype(s string) (uint16, error) {
	qtype := dns.StringToType[strings.ToUpper(s)]
	if !slices.Contains([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeANY}, qtype) {
		return 0, fmt.Errorf("type %q must be A, AAAA, SRV or ANY", s)
	}
	return qtype, nil
}
