package config

import (
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// sameConfig compares what is in netip's types, and takes nil for empty.
func sameConfig() cmp.Options {
	return cmp.Options{
		cmpopts.EquateEmpty(),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
}

func addrPorts(texts ...string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, text := range texts {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return list
}

func TestParse(t *testing.T) {
	addr := netip.MustParseAddr
	tests := []struct {
		name     string
		data     map[string]string
		want     Config
		warnings []string
	}{
		{"nil", nil, Config{}, nil},
		{"empty", map[string]string{}, Config{}, nil},
		{"empty values", map[string]string{"stubDomains": "", "upstreamNameservers": "", "federations": ""}, Config{}, nil},
		{"blank values", map[string]string{"stubDomains": " \n", "upstreamNameservers": "\t", "federations": "\n"}, Config{}, nil},
		{"null values", map[string]string{"stubDomains": "null", "upstreamNameservers": "null"}, Config{}, nil},
		{"empty JSON", map[string]string{"stubDomains": "{}", "upstreamNameservers": "[]"}, Config{}, nil},
		{
			"Kubernetes' documentation, as it was",
			map[string]string{
				"stubDomains":         "{\"acme.local\": [\"1.2.3.4\"]}\n",
				"upstreamNameservers": "[\"8.8.8.8\", \"8.8.4.4\"]\n",
			},
			Config{
				StubDomains:         map[string][]Server{"acme.local": {{Addr: addr("1.2.3.4"), Port: 53}}},
				UpstreamNameservers: addrPorts("8.8.8.8:53", "8.8.4.4:53"),
			},
			nil,
		},
		{
			"every form of a server, in the order written",
			map[string]string{"stubDomains": `{"example.org": ["192.0.2.2", "192.0.2.1:5353", "2001:db8::1", "[2001:db8::1]",
				"[2001:db8::1]:5353", "2001:db8::1:53", "[192.0.2.1]:53", "ns.example.org", "ns.example.org:5353", "localhost",
				"NS.Example.ORG.", "::ffff:192.0.2.9", "[::FFFF:192.0.2.9]:54", "fe80::1%eth0", "[fe80::1%eth0]:54", "192.0.2.2", "ns-1.3com.net"]}`},
			Config{StubDomains: map[string][]Server{"example.org": {
				{Addr: addr("192.0.2.2"), Port: 53},
				{Addr: addr("192.0.2.1"), Port: 5353},
				{Addr: addr("2001:db8::1"), Port: 53},
				{Addr: addr("2001:db8::1"), Port: 53},
				{Addr: addr("2001:db8::1"), Port: 5353},
				{Addr: addr("2001:db8::1:53"), Port: 53},
				{Addr: addr("192.0.2.1"), Port: 53},
				{Host: "ns.example.org", Port: 53},
				{Host: "ns.example.org", Port: 5353},
				{Host: "localhost", Port: 53},
				{Host: "ns.example.org", Port: 53},
				{Addr: addr("192.0.2.9"), Port: 53},
				{Addr: addr("192.0.2.9"), Port: 54},
				{Addr: addr("fe80::1%eth0"), Port: 53},
				{Addr: addr("fe80::1%eth0"), Port: 54},
				{Addr: addr("192.0.2.2"), Port: 53},
				{Host: "ns-1.3com.net", Port: 53},
			}}},
			nil,
		},
		{
			"domains",
			map[string]string{"stubDomains": `{"Example.ORG.": ["192.0.2.1"], "2.0.192.in-addr.arpa": ["192.0.2.1"], "corp": ["192.0.2.1"], "xn--bcher-kva.example": ["192.0.2.1"]}`},
			Config{StubDomains: map[string][]Server{
				"example.org":           {{Addr: addr("192.0.2.1"), Port: 53}},
				"2.0.192.in-addr.arpa":  {{Addr: addr("192.0.2.1"), Port: 53}},
				"corp":                  {{Addr: addr("192.0.2.1"), Port: 53}},
				"xn--bcher-kva.example": {{Addr: addr("192.0.2.1"), Port: 53}},
			}},
			nil,
		},
		{
			"more than three upstream nameservers",
			map[string]string{"upstreamNameservers": `["192.0.2.4", "192.0.2.3:54", "[2001:db8::1]:55", "2001:db8::2", "192.0.2.1"]`},
			Config{UpstreamNameservers: addrPorts("192.0.2.4:53", "192.0.2.3:54", "[2001:db8::1]:55", "[2001:db8::2]:53", "192.0.2.1:53")},
			nil,
		},
		{
			"federations",
			map[string]string{"federations": " MyFed = Fed.Example.ORG. ,2nd=example.net\n"},
			Config{Federations: map[string]string{"myfed": "fed.example.org", "2nd": "example.net"}},
			nil,
		},
		{
			"unknown keys",
			map[string]string{"stubdomains": "{", "README": "", "federations": "a=example.org", "new\nline": ""},
			Config{Federations: map[string]string{"a": "example.org"}},
			[]string{
				`unknown key "README"`,
				`unknown key "new\nline"`,
				`unknown key "stubdomains"; did you mean "stubDomains"?`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := maps.Clone(tt.data)
			got, warnings, err := Parse(tt.data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, sameConfig()); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			if !got.Equal(&tt.want) {
				t.Errorf("%+v does not equal %+v", got, tt.want)
			}
			if diff := cmp.Diff(tt.warnings, warnings, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if !maps.Equal(before, tt.data) {
				t.Errorf("Parse changed data to %q", tt.data)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const (
		stub     = "stubDomains"
		upstream = "upstreamNameservers"
	)
	long := strings.Repeat("a", 64)
	tests := []struct {
		name  string
		key   string
		value string
		want  string
	}{
		{"broken JSON", stub, `{"example.org": ["192.0.2.1"`, "stubDomains: `{\"example.org\": [\"192.0.2.1\"` is not JSON: unexpected end of JSON input"},
		{"broken JSON in a list", upstream, `["192.0.2.1",]`, "upstreamNameservers: `[\"192.0.2.1\",]` is not JSON: invalid character ']' looking for beginning of value"},
		{"no JSON", stub, "example.org=192.0.2.1", `stubDomains: "example.org=192.0.2.1" is not JSON: invalid character 'e' looking for beginning of value`},
		{"JSON of several lines", upstream, "[\n1", `upstreamNameservers: "[\n1" is not JSON: unexpected end of JSON input`},
		{"long value", upstream, strings.Repeat("[", 200), `upstreamNameservers: "` + strings.Repeat("[", 80) + `"… is not JSON: unexpected end of JSON input`},
		{"garbage behind an object", stub, `{} x`, `stubDomains: "{} x" is not JSON: invalid character 'x' after top-level value`},
		{"two objects", stub, `{}{}`, `stubDomains: "{}{}" is not JSON: invalid character '{' after top-level value`},
		{"garbage behind a list", upstream, `[],`, `upstreamNameservers: "[]," is not JSON: invalid character ',' after top-level value`},
		{"not UTF-8", stub, "{\"\xff\": []}", "stubDomains: \"{\\\"\\xff\\\": []}\" is not UTF-8"},
		{"unknown key that is not UTF-8", "other", "\xff", `"other": "\xff" is not UTF-8`},

		{"list for an object", stub, `["192.0.2.1"]`, "stubDomains: `[\"192.0.2.1\"]` is not a JSON object of domain to list of servers"},
		{"string for an object", stub, `"example.org"`, "stubDomains: `\"example.org\"` is not a JSON object of domain to list of servers"},
		{"object for a list", upstream, `{"a": "b"}`, "upstreamNameservers: `{\"a\": \"b\"}` is not a JSON list of strings"},
		{"string for a list", upstream, `"192.0.2.1"`, "upstreamNameservers: `\"192.0.2.1\"` is not a JSON list of strings"},
		{"number in a list", upstream, `["192.0.2.1", 53]`, "upstreamNameservers: `[\"192.0.2.1\", 53]` is not a JSON list of strings"},
		{"null in a list", upstream, `[null]`, `upstreamNameservers: "[null]" is not a JSON list of strings`},
		{"string for the servers", stub, `{"example.org": "192.0.2.1"}`, "stubDomains: domain \"example.org\": `\"192.0.2.1\"` is not a JSON list of strings"},
		{"object for the servers", stub, `{"example.org": {}}`, `stubDomains: domain "example.org": "{}" is not a JSON list of strings`},

		{"domain there twice", stub, `{"example.org": ["192.0.2.1"], "example.net": ["192.0.2.1"], "example.org": ["192.0.2.1"]}`, `stubDomains: domain "example.org" is given twice`},
		{"domain there twice in other case", stub, `{"example.org": ["192.0.2.1"], "Example.org": ["192.0.2.2"]}`, `stubDomains: domain "example.org" is given twice`},
		{"domain there twice but for the dot", stub, `{"example.org.": ["192.0.2.1"], "example.org": ["192.0.2.2"]}`, `stubDomains: domain "example.org" is given twice`},
		{"domain there twice but for the escape", stub, `{"example.org": ["192.0.2.1"], "\u0065xample.org": ["192.0.2.2"]}`, `stubDomains: domain "example.org" is given twice`},

		{"no domain", stub, `{"": ["192.0.2.1"]}`, `stubDomains: domain "" is not a DNS name`},
		{"root", stub, `{".": ["192.0.2.1"]}`, `stubDomains: domain "." is not a DNS name`},
		{"domain with an empty label", stub, `{"a..example.org": ["192.0.2.1"]}`, `stubDomains: domain "a..example.org" is not a DNS name`},
		{"domain with two dots last", stub, `{"example.org..": ["192.0.2.1"]}`, `stubDomains: domain "example.org.." is not a DNS name`},
		{"domain with a dot first", stub, `{".example.org": ["192.0.2.1"]}`, `stubDomains: domain ".example.org" is not a DNS name`},
		{"domain with an underscore", stub, `{"_msdcs.example.org": ["192.0.2.1"]}`, `stubDomains: domain "_msdcs.example.org" is not a DNS name`},
		{"domain with a wildcard", stub, `{"*.example.org": ["192.0.2.1"]}`, `stubDomains: domain "*.example.org" is not a DNS name`},
		{"domain with a dash last", stub, `{"example-.org": ["192.0.2.1"]}`, `stubDomains: domain "example-.org" is not a DNS name`},
		{"domain with a slash", stub, `{"example.org/x": ["192.0.2.1"]}`, `stubDomains: domain "example.org/x" is not a DNS name`},
		{"domain with a blank", stub, `{" example.org": ["192.0.2.1"]}`, `stubDomains: domain " example.org" is not a DNS name`},
		{"domain that lower case would make one", stub, `{"` + "\u212a" + `.example.org": ["192.0.2.1"]}`, "stubDomains: domain \"\u212a.example.org\" is not a DNS name"},
		{"domain with a long label", stub, `{"` + long + `.example.org": ["192.0.2.1"]}`, `stubDomains: domain "` + long + `.example.org" is not a DNS name`},
		{"long domain", stub, `{"` + strings.Repeat("a.", 127) + `a": ["192.0.2.1"]}`, `stubDomains: domain "` + strings.Repeat("a.", 40) + `"… is not a DNS name`},

		{"no servers", stub, `{"example.net": ["192.0.2.1"], "example.org": []}`, `stubDomains: domain "example.org": no servers`},
		{"null for the servers", stub, `{"example.org": null}`, `stubDomains: domain "example.org": no servers`},
		{"empty server", stub, `{"example.org": ["192.0.2.1", ""]}`, `stubDomains: domain "example.org": server "": empty`},
		{"URL", stub, `{"example.org": ["https://192.0.2.1"]}`, `stubDomains: domain "example.org": server "https://192.0.2.1": a URL, not an address or name`},
		{"URL with a path", stub, `{"example.org": ["tls://dns.example.org:853/dns-query"]}`, `stubDomains: domain "example.org": server "tls://dns.example.org:853/dns-query": a URL, not an address or name`},
		{"name with a blank", stub, `{"example.org": ["ns example.org"]}`, `stubDomains: domain "example.org": server "ns example.org": has a blank`},
		{"address with a blank first", stub, `{"example.org": [" 192.0.2.1"]}`, `stubDomains: domain "example.org": server " 192.0.2.1": has a blank`},
		{"two servers in one string", stub, `{"example.org": ["192.0.2.1,192.0.2.2"]}`, `stubDomains: domain "example.org": server "192.0.2.1,192.0.2.2": "192.0.2.1,192.0.2.2" is neither an IP address nor a DNS name`},
		{"port 0", stub, `{"example.org": ["192.0.2.1:0"]}`, `stubDomains: domain "example.org": server "192.0.2.1:0": port "0" is not a number from 1 to 65535`},
		{"port 99999", stub, `{"example.org": ["[2001:db8::1]:99999"]}`, `stubDomains: domain "example.org": server "[2001:db8::1]:99999": port "99999" is not a number from 1 to 65535`},
		{"port 65536", stub, `{"example.org": ["ns.example.org:65536"]}`, `stubDomains: domain "example.org": server "ns.example.org:65536": port "65536" is not a number from 1 to 65535`},
		{"no port behind the colon", stub, `{"example.org": ["192.0.2.1:"]}`, `stubDomains: domain "example.org": server "192.0.2.1:": port "" is not a number from 1 to 65535`},
		{"port with a sign", stub, `{"example.org": ["192.0.2.1:+53"]}`, `stubDomains: domain "example.org": server "192.0.2.1:+53": port "+53" is not a number from 1 to 65535`},
		{"port by name", stub, `{"example.org": ["192.0.2.1:domain"]}`, `stubDomains: domain "example.org": server "192.0.2.1:domain": port "domain" is not a number from 1 to 65535`},
		{"dnsmasq's way to write a port", stub, `{"example.org": ["192.0.2.1#53"]}`, `stubDomains: domain "example.org": server "192.0.2.1#53": "192.0.2.1#53" is neither an IP address nor a DNS name`},
		{"two ports", stub, `{"example.org": ["192.0.2.1:53:53"]}`, `stubDomains: domain "example.org": server "192.0.2.1:53:53": neither an IPv6 address nor one name and port`},
		{"bracket not closed", stub, `{"example.org": ["[::1"]}`, `stubDomains: domain "example.org": server "[::1": no ] after [`},
		{"bracket not opened", stub, `{"example.org": ["::1]:53"]}`, `stubDomains: domain "example.org": server "::1]:53": neither an IPv6 address nor one name and port`},
		{"text behind the bracket", stub, `{"example.org": ["[::1]53"]}`, `stubDomains: domain "example.org": server "[::1]53": "53" after ] is not a port`},
		{"nothing in brackets", stub, `{"example.org": ["[]:53"]}`, `stubDomains: domain "example.org": server "[]:53": "" is not an IP address`},
		{"name in brackets", stub, `{"example.org": ["[ns.example.org]:53"]}`, `stubDomains: domain "example.org": server "[ns.example.org]:53": "ns.example.org" is not an IP address`},
		{"port alone", stub, `{"example.org": [":53"]}`, `stubDomains: domain "example.org": server ":53": "" is neither an IP address nor a DNS name`},
		{"address with too few parts", stub, `{"example.org": ["192.0.2"]}`, `stubDomains: domain "example.org": server "192.0.2": "192.0.2" is not an IP address`},
		{"address with a part too large", stub, `{"example.org": ["192.0.2.256:53"]}`, `stubDomains: domain "example.org": server "192.0.2.256:53": "192.0.2.256" is not an IP address`},
		{"prefix", stub, `{"example.org": ["192.0.2.0/24"]}`, `stubDomains: domain "example.org": server "192.0.2.0/24": "192.0.2.0/24" is neither an IP address nor a DNS name`},
		{"root as a server", stub, `{"example.org": ["."]}`, `stubDomains: domain "example.org": server ".": "." is neither an IP address nor a DNS name`},
		{"unspecified IPv4", stub, `{"example.org": ["0.0.0.0"]}`, `stubDomains: domain "example.org": server "0.0.0.0": the unspecified address cannot be a server`},
		{"unspecified IPv6", stub, `{"example.org": ["[::]:53"]}`, `stubDomains: domain "example.org": server "[::]:53": the unspecified address cannot be a server`},
		{"unspecified, mapped", stub, `{"example.org": ["::ffff:0.0.0.0"]}`, `stubDomains: domain "example.org": server "::ffff:0.0.0.0": the unspecified address cannot be a server`},
		{"multicast IPv4", stub, `{"example.org": ["224.0.0.251:5353"]}`, `stubDomains: domain "example.org": server "224.0.0.251:5353": a multicast address cannot be a server`},
		{"multicast IPv6", stub, `{"example.org": ["ff02::fb"]}`, `stubDomains: domain "example.org": server "ff02::fb": a multicast address cannot be a server`},
		{"broadcast", stub, `{"example.org": ["255.255.255.255"]}`, `stubDomains: domain "example.org": server "255.255.255.255": the broadcast address cannot be a server`},
		{"link-local without a zone", stub, `{"example.org": ["fe80::1"]}`, `stubDomains: domain "example.org": server "fe80::1": a link-local address needs a zone, like %eth0`},
		{"zone with a global address", stub, `{"example.org": ["2001:db8::1%eth0"]}`, `stubDomains: domain "example.org": server "2001:db8::1%eth0": zone "eth0" with an address that is not link-local`},
		{"zone that is no interface", stub, `{"example.org": ["fe80::1%eth0/192.0.2.1#53"]}`, `stubDomains: domain "example.org": server "fe80::1%eth0/192.0.2.1#53": zone "eth0/192.0.2.1#53" is not the name of a network interface`},
		{"zone with a mapped address", stub, `{"example.org": ["::ffff:192.0.2.1%eth0"]}`, `stubDomains: domain "example.org": server "::ffff:192.0.2.1%eth0": zone "eth0" with an address that is not link-local`},

		{"empty upstream", upstream, `[""]`, `upstreamNameservers: nameserver "": empty`},
		{"name as an upstream", upstream, `["ns.example.org"]`, `upstreamNameservers: nameserver "ns.example.org": not an IP address`},
		{"upstream port 0", upstream, `["192.0.2.1", "192.0.2.2:0"]`, `upstreamNameservers: nameserver "192.0.2.2:0": port "0" is not a number from 1 to 65535`},
		{"upstream multicast", upstream, `["224.0.0.1"]`, `upstreamNameservers: nameserver "224.0.0.1": a multicast address cannot be a server`},
		{"upstream URL", upstream, `["udp://192.0.2.1"]`, `upstreamNameservers: nameserver "udp://192.0.2.1": a URL, not an address or name`},

		{"federation without a domain", "federations", "fed", `federations: "fed" is not name=domain`},
		{"federation with an empty domain", "federations", "fed=", `federations: "fed=": domain "" is not a DNS name`},
		{"federation without a name", "federations", "=example.org", `federations: "=example.org": name "" is not a DNS label`},
		{"federation's name with dots", "federations", "a.b=example.org", `federations: "a.b=example.org": name "a.b" is not a DNS label`},
		{"federation's name with an underscore", "federations", "a_b=example.org", `federations: "a_b=example.org": name "a_b" is not a DNS label`},
		{"federation's name too long", "federations", long + "=example.org", `federations: "` + long + `=example.org": name "` + long + `" is not a DNS label`},
		{"federation's domain that is none", "federations", "a=example.org,b=example_org", `federations: "b=example_org": domain "example_org" is not a DNS name`},
		{"federation with two equals signs", "federations", "a=b=c", `federations: "a=b=c": domain "b=c" is not a DNS name`},
		{"federation with a comma last", "federations", "a=example.org,", `federations: "" is not name=domain`},
		{"federation there twice", "federations", "a=example.org,A=example.net", `federations: "A=example.net": name "a" is given twice`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// A good key and an unknown one beside it change nothing.
			data := map[string]string{tt.key: tt.value, "zzz": ""}
			if tt.key != upstream {
				data[upstream] = `["192.0.2.1"]`
			}
			c, _, err := Parse(data)
			if err == nil {
				t.Fatalf("accepted as %+v", c)
			}
			if err.Error() != tt.want {
				t.Errorf("error\n got %s\nwant %s", err, tt.want)
			}
			if c != nil {
				t.Errorf("a configuration with an error: %+v", c)
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of several lines: %q", err)
			}
		})
	}
}

func TestParseNameservers(t *testing.T) {
	tests := []struct {
		name string
		list string
		want []netip.AddrPort
		err  string
	}{
		{"none", "", nil, ""},
		{"blanks", "  ", nil, ""},
		{"one", "192.0.2.1", addrPorts("192.0.2.1:53"), ""},
		{"several, blanks around", " 192.0.2.1 , 192.0.2.2:54,\t[2001:db8::1]:55,2001:db8::2 ", addrPorts("192.0.2.1:53", "192.0.2.2:54", "[2001:db8::1]:55", "[2001:db8::2]:53"), ""},
		{"nothing between commas", "192.0.2.1,,192.0.2.2", nil, `nameserver "": empty`},
		{"comma last", "192.0.2.1,", nil, `nameserver "": empty`},
		{"name", "192.0.2.1,ns.example.org:53", nil, `nameserver "ns.example.org:53": not an IP address`},
		{"blank for a comma", "192.0.2.1 192.0.2.2", nil, `nameserver "192.0.2.1 192.0.2.2": has a blank`},
		{"port 0", "192.0.2.1:0", nil, `nameserver "192.0.2.1:0": port "0" is not a number from 1 to 65535`},
		{"no address", "192.0.2.300", nil, `nameserver "192.0.2.300": "192.0.2.300" is not an IP address`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseNameservers(tt.list)
			if text := errorText(err); text != tt.err {
				t.Errorf("error\n got %s\nwant %s", text, tt.err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ParseNameservers(%q) = %v, want %v", tt.list, got, tt.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParseFederations(t *testing.T) {
	tests := []struct {
		name string
		list string
		want map[string]string
	}{
		{"none", "", nil},
		{"blanks", " ", nil},
		{"one", "fed=example.org", map[string]string{"fed": "example.org"}},
		{"several, blanks around", " A = example.org. , b=Example.NET", map[string]string{"a": "example.org", "b": "example.net"}},
		{"same domain", "a=example.org,b=example.org", map[string]string{"a": "example.org", "b": "example.org"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseFederations(tt.list)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ParseFederations(%q) = %v, want %v", tt.list, got, tt.want)
			}
		})
	}
}

func TestEqual(t *testing.T) {
	parse := func(data map[string]string) *Config {
		t.Helper()
		c, _, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	full := map[string]string{
		"federations":         "a=example.org",
		"stubDomains":         `{"example.org": ["192.0.2.1", "ns.example.org"]}`,
		"upstreamNameservers": `["192.0.2.1", "192.0.2.2"]`,
	}
	with := func(key, value string) map[string]string {
		data := maps.Clone(full)
		data[key] = value
		return data
	}
	tests := []struct {
		name string
		a, b *Config
		want bool
	}{
		{"both nil", nil, nil, true},
		{"one nil", &Config{}, nil, false},
		{"other nil", nil, &Config{}, false},
		{"default", &Config{}, parse(nil), true},
		{"empty for nil", &Config{StubDomains: map[string][]Server{}, Federations: map[string]string{}, UpstreamNameservers: []netip.AddrPort{}}, &Config{}, true},
		{"same", parse(full), parse(full), true},
		{"written otherwise", parse(full), parse(with("stubDomains", `{"EXAMPLE.org.": ["192.0.2.1:53", "NS.example.org"]}`)), true},
		{"other federation", parse(full), parse(with("federations", "a=example.net")), false},
		{"other port", parse(full), parse(with("stubDomains", `{"example.org": ["192.0.2.1", "ns.example.org:54"]}`)), false},
		{"other order", parse(full), parse(with("upstreamNameservers", `["192.0.2.2", "192.0.2.1"]`)), false},
		{"fewer", parse(full), parse(with("stubDomains", "")), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.a.Equal(tt.b); got != tt.want {
				t.Errorf("Equal = %v, want %v for\n%+v\n%+v", got, tt.want, tt.a, tt.b)
			}
		})
	}
}

func TestServerText(t *testing.T) {
	tests := []struct {
		server Server
		want   string
	}{
		{Server{Addr: netip.MustParseAddr("192.0.2.1"), Port: 53}, "192.0.2.1:53"},
		{Server{Addr: netip.MustParseAddr("2001:db8::1"), Port: 53}, "[2001:db8::1]:53"},
		{Server{Addr: netip.MustParseAddr("fe80::1%eth0"), Port: 53}, "[fe80::1%eth0]:53"},
		{Server{Host: "ns.example.org", Port: 53}, "ns.example.org:53"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			if got := tt.server.String(); got != tt.want {
				t.Errorf("String() = %q", got)
			}
			text, err := json.Marshal(tt.server)
			if want := `"` + tt.want + `"`; err != nil || string(text) != want {
				t.Errorf("JSON is %s, %v, want %s", text, err, want)
			}
		})
	}
}

// FuzzParse: whatever is accepted can be written down again, with the same
// meaning, and the canonical form is its own.
func FuzzParse(f *testing.F) {
	f.Add("a=example.org", `{"Example.org.": ["192.0.2.1", "[2001:db8::1]:53", "ns.example.org:54"]}`, `["192.0.2.1"]`)
	f.Add("", `{"a": ["fe80::1%eth0"], "a": ["::ffff:192.0.2.1"]}`, `[" 192.0.2.1"]`)
	f.Add("a=b,A=b", `{"a": ["192.0.2.256"]} x`, `["[::1"]`)
	f.Add("\u212a=a", `{"\u0041": [null]}`, `null`)
	f.Fuzz(func(t *testing.T, federations, stubDomains, upstreams string) {
		data := map[string]string{keyFederations: federations, keyStubDomains: stubDomains, keyUpstreamNameservers: upstreams}
		c, warnings, err := Parse(data)
		if len(warnings) > 0 {
			t.Errorf("warnings about known keys: %q", warnings)
		}
		if err != nil {
			if c != nil || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("%+v, error %q", c, err)
			}
			return
		}
		rendered := c.Data()
		again, _, err := Parse(rendered)
		if err != nil {
			t.Fatalf("rendered as %q: %v", rendered, err)
		}
		if !c.Equal(again) {
			t.Errorf("%q\n  is %+v\nrendered as %q\n  is %+v", data, c, rendered, again)
		}
		if twice := again.Data(); !maps.Equal(rendered, twice) {
			t.Errorf("rendered as %q, then as %q", rendered, twice)
		}
		for domain, servers := range c.StubDomains {
			if len(servers) == 0 || domain != strings.ToLower(domain) || strings.HasSuffix(domain, ".") {
				t.Errorf("domain %q has servers %v", domain, servers)
			}
			for _, s := range servers {
				if s.Addr.IsValid() == (s.Host != "") || s.Port == 0 || strings.ContainsAny(s.String(), "/#@, \n") {
					t.Errorf("domain %q has server %+v", domain, s)
				}
			}
		}
	})
}

// FuzzParseNameservers: what is accepted are as many addresses as were written,
// and their texts mean the same.
func FuzzParseNameservers(f *testing.F) {
	f.Add("192.0.2.1, 192.0.2.2:54,[2001:db8::1]:55,2001:db8::2")
	f.Add("")
	f.Add("[::1,192.0.2.1:99999,fe80::1%eth0")
	f.Fuzz(func(t *testing.T, list string) {
		got, err := ParseNameservers(list)
		if err != nil {
			return
		}
		if strings.TrimSpace(list) == "" {
			if got != nil {
				t.Errorf("ParseNameservers(%q) = %v", list, got)
			}
			return
		}
		if want := strings.Count(list, ",") + 1; len(got) != want {
			t.Errorf("ParseNameservers(%q) = %v, want %d of them", list, got, want)
		}
		var texts []string
		for _, nameserver := range got {
			texts = append(texts, nameserver.String())
		}
		again, err := ParseNameservers(strings.Join(texts, " , "))
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%q is %v, and its text is %v, %v", list, got, again, err)
		}
	})
}
