package dnsmasq

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubedns/pkg/dns/config"
)

func texts(list []domainServer) string {
	var all []string
	for _, s := range list {
		all = append(all, s.String())
	}
	return strings.Join(all, " ")
}

func TestDesiredServers(t *testing.T) {
	resolved := map[string][]netip.Addr{"blocked.example.org": {netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("ff02::1")}, "ns.example.org": {netip.MustParseAddr("192.0.2.20"), netip.MustParseAddr("2001:db8::20")}}
	nameservers := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("127.0.0.1:53")}
	tests := []struct {
		name      string
		data      map[string]string
		want      string
		hosts     string
		warnings  []string
		upstreams []netip.AddrPort
	}{
		{
			name:      "default",
			want:      "192.0.2.53#53",
			upstreams: nameservers,
			warnings:  []string{"ignoring nameserver 127.0.0.1:53: it is dnsmasq's own address"},
		},
		{
			name:      "upstreams in place of resolv.conf, in their order, each once",
			data:      map[string]string{"upstreamNameservers": `["192.0.2.9","192.0.2.1:5353","192.0.2.9:53","2001:db8::1","127.0.0.1"]`},
			want:      "192.0.2.9#53 192.0.2.1#5353 2001:db8::1#53",
			upstreams: nameservers,
			warnings:  []string{"ignoring upstream nameserver 127.0.0.1:53: it is dnsmasq's own address"},
		},
		{
			name: "stub domains sorted, their servers not",
			data: map[string]string{"stubDomains": `{"z.example":["192.0.2.1"],"a.example":["192.0.2.9","[2001:db8::1]:5353","192.0.2.1"]}`},
			want: "/a.example/192.0.2.9#53 /a.example/2001:db8::1#5353 /a.example/192.0.2.1#53 /z.example/192.0.2.1#53",
		},
		{
			name:  "names",
			data:  map[string]string{"stubDomains": `{"a.example":["ns.example.org:5353","unknown.example.org","192.0.2.1"],"b.example":["ns.example.org"]}`},
			want:  "/a.example/192.0.2.20#5353 /a.example/2001:db8::20#5353 /a.example/192.0.2.1#53 /b.example/192.0.2.20#53 /b.example/2001:db8::20#53",
			hosts: "ns.example.org unknown.example.org",
		},
		{
			name:  "a name with addresses where nobody can be asked",
			data:  map[string]string{"stubDomains": `{"a.example":["blocked.example.org","192.0.2.1"]}`},
			want:  "/a.example/192.0.2.1#53",
			hosts: "blocked.example.org",
			warnings: []string{
				`stub domain "a.example": server "blocked.example.org": ignoring its address 0.0.0.0, which cannot be queried`,
				`stub domain "a.example": server "blocked.example.org": ignoring its address ff02::1, which cannot be queried`,
			},
		},
		{
			name:     "no server is left",
			data:     map[string]string{"stubDomains": `{"a.example":["unknown.example.org"]}`},
			hosts:    "unknown.example.org",
			warnings: []string{`stub domain "a.example" has no usable server: its names go to the upstream nameservers`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, err := config.Parse(test.data)
			if err != nil {
				t.Fatal(err)
			}
			isOwn := func(addr netip.AddrPort) bool { return addr.String() == "127.0.0.1:53" }
			got, warnings := desiredServers(cfg, resolved, test.upstreams, isOwn)
			if texts(got) != test.want {
				t.Errorf("got  %s\nwant %s", texts(got), test.want)
			}
			if !slices.Equal(warnings, test.warnings) {
				t.Errorf("warnings %q, want %q", warnings, test.warnings)
			}
			if got := strings.Join(hosts(cfg), " "); got != test.hosts {
				t.Errorf("hosts %q, want %q", got, test.hosts)
			}
			if err := validateServers(got); err != nil {
				t.Errorf("validateServers: %v", err)
			}
		})
	}
}

func TestValidateServers(t *testing.T) {
	addr := netip.MustParseAddrPort("192.0.2.1:53")
	tests := []struct {
		name   string
		server domainServer
		want   string
	}{
		{"port 0", domainServer{"a.example", netip.MustParseAddrPort("192.0.2.1:0")}, "server /a.example/192.0.2.1#0: port 0"},
		{"no address", domainServer{"a.example", netip.AddrPort{}}, `server for "a.example" has no address`},
		{"unspecified", domainServer{"", netip.MustParseAddrPort("0.0.0.0:53")}, "0.0.0.0 cannot be queried"},
		{"multicast", domainServer{"", netip.MustParseAddrPort("[ff02::1]:53")}, "ff02::1 cannot be queried"},
		{"line break", domainServer{"a\nserver=192.0.2.9", addr}, "is not a domain"},
		{"slash", domainServer{"a/b", addr}, "is not a domain"},
		{"wildcard", domainServer{"*a.example", addr}, "is not a domain"},
		{"zone", domainServer{"", netip.MustParseAddrPort("[fe80::1%a\nb]:53")}, "zone"},
		{"too long", domainServer{strings.Repeat("a.", 127) + "aa", addr}, "is not a domain"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := validateServers([]domainServer{test.server}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("validateServers(%v) = %v, want %q", test.server, err, test.want)
			}
		})
	}
	if err := validateServers(make([]domainServer, maxServers+1)); err == nil || !strings.Contains(err.Error(), "10001 servers, more than 10000") {
		t.Errorf("too many servers: %v", err)
	}
	if err := validateServers([]domainServer{{"", addr}, {"_a-b.example", netip.MustParseAddrPort("[fe80::1%eth0]:53")}}); err != nil {
		t.Errorf("validateServers of good ones: %v", err)
	}
}

func TestServersText(t *testing.T) {
	text, name := serversText(servers(t, "192.0.2.1 /a.example/2001:db8::1#5353"))
	want := "# Written by dnsmasq-nanny, read by dnsmasq on SIGHUP.\nserver=192.0.2.1#53\nserver=/a.example/2001:db8::1#5353\nserver=/" + name + "/\n"
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if again, same := serversText(servers(t, "192.0.2.1 /a.example/2001:db8::1#5353")); again != text || same != name {
		t.Error("the same servers have another text")
	}
	if _, other := serversText(servers(t, "/a.example/192.0.2.1 2001:db8::1#5353")); other == name || !strings.HasSuffix(other, "."+markerDomain) {
		t.Errorf("other servers have the name %q", other)
	}
}

func TestKeepEntryCount(t *testing.T) {
	tests := []struct{ name, next, previous, fixed, local, want string }{
		{name: "nothing", want: ""},
		{name: "more than before", next: "192.0.2.1 192.0.2.2", previous: "192.0.2.1", want: "192.0.2.1#53 192.0.2.2#53"},
		{name: "fewer", next: "192.0.2.1", previous: "192.0.2.1 192.0.2.2 192.0.2.3", want: "192.0.2.1#53 192.0.2.1#53 192.0.2.1#53"},
		{name: "the last upstream goes", next: "/a.example/192.0.2.1", previous: "192.0.2.1 /a.example/192.0.2.1", want: "/a.example/192.0.2.1#53"},
		{
			name: "a domain goes, its names go upstream",
			next: "192.0.2.1 192.0.2.2", previous: "192.0.2.1 192.0.2.2 /a.example/192.0.2.7 /a.example/192.0.2.8 /a.example/192.0.2.9",
			want: "192.0.2.1#53 192.0.2.2#53 /a.example/192.0.2.1#53 /a.example/192.0.2.2#53 /a.example/192.0.2.1#53",
		},
		{
			name: "a domain goes, its names go to the one above",
			next: "192.0.2.1 /example/192.0.2.3", previous: "192.0.2.1 /example/192.0.2.3 /a.b.example/192.0.2.7",
			want: "192.0.2.1#53 /a.b.example/192.0.2.3#53 /example/192.0.2.3#53",
		},
		{
			name: "a domain goes, its names go to one of the arguments",
			next: "192.0.2.1", previous: "192.0.2.1 /sub.cluster.local/192.0.2.7", fixed: "/cluster.local/127.0.0.1#10053",
			want: "192.0.2.1#53 /sub.cluster.local/127.0.0.1#10053",
		},
		{
			name: "a domain goes that the arguments have too",
			next: "192.0.2.1", previous: "192.0.2.1 /cluster.local/192.0.2.7", fixed: "/cluster.local/127.0.0.1#10053",
			want: "192.0.2.1#53 /cluster.local/127.0.0.1#10053",
		},
		{
			name: "the upstreams go, the arguments have one", previous: "192.0.2.1", fixed: "192.0.2.9",
			want: "192.0.2.9#53",
		},
		{
			name: "a domain goes below one that dnsmasq answers for itself",
			next: "192.0.2.1", previous: "192.0.2.1 /a.b.corp.example/192.0.2.7", local: "corp.example",
			want: "192.0.2.1#53",
		},
		{name: "nobody is left to ask", previous: "/a.example/192.0.2.7", want: ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			next := servers(t, test.next)
			got := keepEntryCount(next, servers(t, test.previous), servers(t, test.fixed), strings.Fields(test.local))
			if texts(got) != test.want {
				t.Errorf("got  %s\nwant %s", texts(got), test.want)
			}
			if texts(next) != texts(servers(t, test.next)) {
				t.Error("pad has changed its argument")
			}
		})
	}
	t.Run("bounded", func(t *testing.T) {
		var previous []domainServer
		for i := range maxRepeated + 1 {
			previous = append(previous, server(t, fmt.Sprintf("/d%d.example/192.0.2.7", i)))
		}
		if got := keepEntryCount(servers(t, "192.0.2.1"), previous, nil, nil); texts(got) != "192.0.2.1#53" {
			t.Errorf("%d entries", len(got))
		}
	})
}

func TestMissingServers(t *testing.T) {
	want := servers(t, "192.0.2.1 /a.example/2001:db8::1 /b.example/192.0.2.9 /c.example/192.0.2.9")
	got := missingServers(want, []string{"192.0.2.1:53", "[2001:db8::1]:53"})
	if len(got) != 1 || got[0].String() != "192.0.2.9:53" {
		t.Errorf("missing %v, want 192.0.2.9:53", got)
	}
}

// FuzzDesiredServers: what passes the configuration's checks and ours is read
// by dnsmasq as one server a line, and is what was meant.
func FuzzDesiredServers(f *testing.F) {
	f.Add(`{"a.example":["192.0.2.1","[2001:db8::1]:5353","fe80::1%eth0"]}`, `["192.0.2.1"]`)
	f.Add(`{"a\nb":["192.0.2.1"]}`, `[]`)
	f.Fuzz(func(t *testing.T, stubDomains, upstreams string) {
		cfg, _, err := config.Parse(map[string]string{"stubDomains": stubDomains, "upstreamNameservers": upstreams})
		if err != nil {
			return
		}
		list, _ := desiredServers(cfg, nil, nil, func(netip.AddrPort) bool { return false })
		if validateServers(list) != nil {
			return
		}
		text, name := serversText(list)
		var read []domainServer
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "server="); ok && value != "/"+name+"/" {
				read = append(read, parseServerArgument(value)...)
			}
		}
		if !slices.Equal(read, list) {
			t.Errorf("%q\nis read as %v\nwant       %v", text, read, list)
		}
	})
}
