package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"kubedns/pkg/dns/federation"
)

// defaultPort is a server's port where none is written.
const defaultPort = 53

// Parse makes a Config of a ConfigMap's data or of a directory's files by name.
// Nil or empty data, and keys that are absent or blank, mean the default. An
// unknown key is no error: a warning names it, and warnings are in the keys'
// order. An error is one line that names the key and the value that is wrong;
// there is no Config then, as half a configuration is never used. With more
// than one mistake it names the first, keys being read in their order and
// values as they are written. A value that is not UTF-8 is an error under any
// key, as kube-dns has it. Parse does not change data.
func Parse(data map[string]string) (*Config, []string, error) {
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if !utf8.ValidString(data[key]) {
			return nil, warnings, fmt.Errorf("%s: %s is not UTF-8", quoteKey(key), quote(data[key]))
		}
		if !slices.Contains(Keys(), key) {
			warnings = append(warnings, unknownKey(key))
		}
	}
	var (
		c   Config
		err error
	)
	if c.Federations, err = ParseFederations(data[keyFederations]); err != nil {
		return nil, warnings, fmt.Errorf("%s: %w", keyFederations, err)
	}
	if c.StubDomains, err = parseStubDomains(data[keyStubDomains]); err != nil {
		return nil, warnings, fmt.Errorf("%s: %w", keyStubDomains, err)
	}
	if c.UpstreamNameservers, err = parseUpstreamNameservers(data[keyUpstreamNameservers]); err != nil {
		return nil, warnings, fmt.Errorf("%s: %w", keyUpstreamNameservers, err)
	}
	return &c, warnings, nil
}

// quoteKey returns key as an error begins with it: known keys stand as they are.
func quoteKey(key string) string {
	if slices.Contains(Keys(), key) {
		return key
	}
	return quote(key)
}

// unknownKey is the warning about key. It names the key that was probably
// meant, as a wrong case is easily written and silently without effect.
func unknownKey(key string) string {
	for _, known := range Keys() {
		if strings.EqualFold(key, known) {
			return fmt.Sprintf("unknown key %s; did you mean %q?", quote(key), known)
		}
	}
	return "unknown key " + quote(key)
}

// ParseFederations reads "name=domain,name=domain", which is the --federations
// flag and the ConfigMap's key alike. Blanks around names, domains and commas
// are fine. A blank list is nil. A name is an RFC 1123 label, a domain is made
// of such labels; the result has both in lower case, the domain without a
// trailing dot. A name that stands there twice is an error.
func ParseFederations(list string) (map[string]string, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil //nolint:nilnil // no federations is a valid result
	}
	federations := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		pair = strings.TrimSpace(pair)
		left, right, found := strings.Cut(pair, "=")
		if !found {
			return nil, fmt.Errorf("%s is not name=domain", quote(pair))
		}
		left, right = strings.TrimSpace(left), strings.TrimSpace(right)
		name := lower(left)
		if !federation.IsLabel(name) {
			return nil, fmt.Errorf("%s: name %s is not a DNS label", quote(pair), quote(left))
		}
		domain, ok := canonicalName(right)
		if !ok {
			return nil, fmt.Errorf("%s: domain %s is not a DNS name", quote(pair), quote(right))
		}
		if _, twice := federations[name]; twice {
			return nil, fmt.Errorf("%s: name %q is given twice", quote(pair), name)
		}
		federations[name] = domain
	}
	return federations, nil
}

// ParseNameservers reads the --nameservers flag: addresses with or without a
// port, separated by commas, blanks around the commas being fine. A blank list
// is nil. Port 53 is where none is given.
func ParseNameservers(list string) ([]netip.AddrPort, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var nameservers []netip.AddrPort
	for text := range strings.SplitSeq(list, ",") {
		nameserver, err := parseNameserver(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		nameservers = append(nameservers, nameserver)
	}
	return nameservers, nil
}

// parseUpstreamNameservers reads a JSON list of addresses with or without a
// port.
func parseUpstreamNameservers(value string) ([]netip.AddrPort, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	raw, err := parseJSON(value)
	if err != nil {
		return nil, err
	}
	texts, err := stringList(raw)
	if err != nil {
		return nil, err
	}
	var nameservers []netip.AddrPort
	for _, text := range texts {
		nameserver, err := parseNameserver(text)
		if err != nil {
			return nil, err
		}
		nameservers = append(nameservers, nameserver)
	}
	return nameservers, nil
}

// parseStubDomains reads a JSON object of domain to list of servers.
func parseStubDomains(value string) (map[string][]Server, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil //nolint:nilnil // no stub domains is a valid result
	}
	raw, err := parseJSON(value)
	if err != nil {
		return nil, err
	}
	members, err := objectMembers(raw)
	if err != nil {
		return nil, err
	}
	var stubDomains map[string][]Server
	for _, m := range members {
		domain, ok := canonicalName(m.name)
		if !ok {
			return nil, fmt.Errorf("domain %s is not a DNS name", quote(m.name))
		}
		if _, twice := stubDomains[domain]; twice {
			return nil, fmt.Errorf("domain %q is given twice", domain)
		}
		servers, err := parseServers(m.value)
		if err != nil {
			return nil, fmt.Errorf("domain %q: %w", domain, err)
		}
		if stubDomains == nil {
			stubDomains = map[string][]Server{}
		}
		stubDomains[domain] = servers
	}
	return stubDomains, nil
}

// parseServers reads a JSON list of a stub domain's servers, at least one.
func parseServers(raw json.RawMessage) ([]Server, error) {
	texts, err := stringList(raw)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, errors.New("no servers")
	}
	servers := make([]Server, 0, len(texts))
	for _, text := range texts {
		server, err := parseServer(text)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", quote(text), err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// parseNameserver reads an address with or without a port.
func parseNameserver(text string) (netip.AddrPort, error) {
	server, err := parseServer(text)
	if err == nil && server.Host != "" {
		err = errors.New("not an IP address")
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("nameserver %s: %w", quote(text), err)
	}
	return netip.AddrPortFrom(server.Addr, server.Port), nil
}

// parseServer reads "192.0.2.1", "2001:db8::1", "[2001:db8::1]" or
// "ns.example.org", the last three forms and the first with or without ":port".
// The error does not repeat text.
func parseServer(text string) (Server, error) {
	switch {
	case text == "":
		return Server{}, errors.New("empty")
	case strings.Contains(text, "://"):
		return Server{}, errors.New("a URL, not an address or name")
	case strings.ContainsAny(text, " \t\r\n"):
		return Server{}, errors.New("has a blank")
	}
	// A bare IPv6 address comes first: its colons do not announce a port.
	if addr, err := netip.ParseAddr(text); err == nil {
		return addrServer(addr, defaultPort)
	}
	host, port, err := splitPort(text)
	if err != nil {
		return Server{}, err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addrServer(addr, port)
	}
	if strings.HasPrefix(text, "[") {
		return Server{}, fmt.Errorf("%s is not an IP address", quote(host))
	}
	name, ok := canonicalName(host)
	if !ok {
		return Server{}, fmt.Errorf("%s is neither an IP address nor a DNS name", quote(host))
	}
	if endsInNumber(name) {
		return Server{}, fmt.Errorf("%s is not an IP address", quote(host))
	}
	return Server{Host: name, Port: port}, nil
}

// splitPort cuts "host:port", "[host]:port", "[host]" and "host" in two. The
// host is not looked at but for its brackets.
func splitPort(text string) (host string, port uint16, err error) {
	host, digits, found := strings.Cut(text, ":")
	if rest, bracket := strings.CutPrefix(text, "["); bracket {
		var after string
		if host, after, found = strings.Cut(rest, "]"); !found {
			return "", 0, errors.New("no ] after [")
		}
		if after == "" {
			return host, defaultPort, nil
		}
		if digits, found = strings.CutPrefix(after, ":"); !found {
			return "", 0, fmt.Errorf("%s after ] is not a port", quote(after))
		}
	}
	if !found {
		return host, defaultPort, nil
	}
	if strings.Contains(digits, ":") {
		return "", 0, errors.New("neither an IPv6 address nor one name and port")
	}
	number, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || number == 0 {
		return "", 0, fmt.Errorf("port %s is not a number from 1 to 65535", quote(digits))
	}
	return host, uint16(number), nil
}

// addrServer is the server at addr, if one can be there: a question cannot be
// sent to the unspecified or the broadcast address, and the answer to one sent
// to a multicast group comes from elsewhere.
//
// A zone ("fe80::1%eth0") has a meaning with link-local addresses alone, and
// those cannot be reached without it: the kernel and dnsmasq want to know the
// interface. So link-local addresses need a zone, and no others may have one.
func addrServer(addr netip.Addr, port uint16) (Server, error) {
	zone := addr.Zone()
	addr = addr.Unmap()
	switch {
	case addr.IsUnspecified():
		return Server{}, errors.New("the unspecified address cannot be a server")
	case addr.IsMulticast():
		return Server{}, errors.New("a multicast address cannot be a server")
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return Server{}, errors.New("the broadcast address cannot be a server")
	case zone != "" && (addr.Is4() || !addr.IsLinkLocalUnicast()):
		return Server{}, fmt.Errorf("zone %s with an address that is not link-local", quote(zone))
	case zone == "" && addr.Is6() && addr.IsLinkLocalUnicast():
		return Server{}, errors.New("a link-local address needs a zone, like %eth0")
	case zone != "" && !isInterface(zone):
		return Server{}, fmt.Errorf("zone %s is not the name of a network interface", quote(zone))
	}
	return Server{Addr: addr, Port: port}, nil
}

// isInterface reports whether s can be a network interface's name, as Linux
// limits its length (IFNAMSIZ). Of the characters only those are taken that
// mean nothing to dnsmasq, which gets them as part of an argument.
func isInterface(s string) bool {
	return len(s) > 0 && len(s) < 16 && strings.Trim(s,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// canonicalName returns a name in lower case and without its trailing dot, and
// whether it is one: up to 253 characters of RFC 1123 labels, which is what
// kube-dns has always asked for. The root and names with underscores are not.
func canonicalName(s string) (string, bool) {
	s = lower(strings.TrimSuffix(s, "."))
	if len(s) > 253 {
		return "", false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !federation.IsLabel(label) {
			return "", false
		}
	}
	return s, true
}

// lower returns s in lower case as DNS has it, which is ASCII's alone (RFC 4343
// section 3): strings.ToLower makes a plain k of the Kelvin sign.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	return string(b)
}

// endsInNumber reports whether a name's last label is all digits. There is no
// such top-level domain (RFC 3696 section 2): it is a mistyped address, like
// 192.0.2 or 192.0.2.256, that would be looked up in vain.
func endsInNumber(name string) bool {
	return strings.Trim(name[strings.LastIndexByte(name, '.')+1:], "0123456789") == ""
}

// parseJSON returns the one JSON value that value is, without blanks around it.
func parseJSON(value string) (json.RawMessage, error) {
	var raw json.RawMessage
	if err := json.Unmarshal([]byte(value), &raw); err != nil {
		return nil, fmt.Errorf("%s is not JSON: %w", quote(value), err)
	}
	return bytes.TrimSpace(raw), nil
}

// member is one member of a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// objectMembers returns the members of a valid JSON object in the order written, with
// those that stand there twice (package json keeps only the last). Null has
// none, as kube-dns has it.
func objectMembers(raw json.RawMessage) ([]member, error) {
	if string(raw) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("%s is not a JSON object of domain to list of servers", quote(string(raw)))
	}
	var members []member
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: fmt.Sprint(name)}
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// stringList returns the elements of a JSON list of strings. Null has none, as
// kube-dns has it.
func stringList(raw json.RawMessage) ([]string, error) {
	var list []*string // a pointer, as null would be taken for ""
	err := json.Unmarshal(raw, &list)
	if err != nil || slices.Contains(list, nil) {
		return nil, fmt.Errorf("%s is not a JSON list of strings", quote(string(raw)))
	}
	texts := make([]string, 0, len(list))
	for _, text := range list {
		texts = append(texts, *text)
	}
	return texts, nil
}

// quote returns s in quotes, on one line, and not more of it than a reader of
// the log has use for. JSON is in backquotes where it can be, so that it stands
// as it was written.
func quote(s string) string {
	const most = 80
	rest := ""
	if len(s) > most {
		s, rest = s[:most], "…"
	}
	if strings.Contains(s, `"`) && strconv.CanBackquote(s) {
		return "`" + s + "`" + rest
	}
	return strconv.Quote(s) + rest
}
