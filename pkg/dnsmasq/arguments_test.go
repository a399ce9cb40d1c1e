package dnsmasq

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// stock is dnsmasq's argument list in the stock manifest.
const stock = "-k --cache-size=1000 --no-negcache --dns-loop-detect --log-facility=- --server=/cluster.local/127.0.0.1#10053 --server=/in-addr.arpa/127.0.0.1#10053 --server=/ip6.arpa/127.0.0.1#10053"

func server(t *testing.T, text string) domainServer {
	t.Helper()
	list := parseServerArgument(text)
	if len(list) != 1 {
		t.Fatalf("%q is not one server", text)
	}
	return list[0]
}

// servers reads servers as dnsmasq writes them, separated by blanks.
func servers(t *testing.T, text string) []domainServer {
	t.Helper()
	var list []domainServer
	for _, field := range strings.Fields(text) {
		list = append(list, server(t, field))
	}
	return list
}

func compareArguments() cmp.Option {
	return cmp.AllowUnexported(arguments{}, domainServer{})
}

func addrComparers() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
}

func TestParseArguments(t *testing.T) {
	files := confFS(map[string]string{
		"/etc/conf":        "# comment\n\nport=5353 # behind\nno-resolv\nuser = root\nconf-file=/etc/conf2\nserver=/example.org/192.0.2.1\n",
		"/etc/conf2":       "listen-address=192.0.2.9\nconf-file=/etc/conf\n",
		"/etc/port":        "port=5353\n",
		"/etc/d/b.conf":    "\tserver\t=\t\"/b.example/192.0.2.2\" #\n",
		"/etc/d/a.conf":    "port=5353\nno-poll\r\n#no-resolv",
		"/etc/d/c.bak":     "no-resolv\n",
		"/etc/d/.hidden":   "no-resolv\n",
		"/etc/d/editor~":   "no-resolv\n",
		"/etc/d/#editor#":  "no-resolv\n",
		"/etc/d/sub/conf":  "no-resolv\n",
		"/etc/,d/conf":     "log-queries\n",
		"/etc/quoted":      "conf-dir=\"/etc/,d\"\nno-resolv#\n\"no-poll\"\n",
		"/etc/dirs":        "conf-dir=/etc/d,*.conf,*.bak,*,,.bak\n",
		"/etc/conf-script": "conf-script=/bin/x a\n",
	})
	tests := []struct {
		name string
		args string
		want arguments
	}{
		{name: "none", want: arguments{port: 53}},
		{
			name: "stock",
			args: stock,
			want: arguments{foreground: true, logFacility: true, port: 53, servers: servers(t,
				"/cluster.local/127.0.0.1#10053 /in-addr.arpa/127.0.0.1#10053 /ip6.arpa/127.0.0.1#10053")},
		},
		{
			name: "long options with and without =",
			args: "--no-daemon --no-poll --port 5353 --listen-address=192.0.2.1,2001:db8::1 --listen-address 192.0.2.2 --pid-file= --user=root --fast-dns-retry=5 --log-queries=extra",
			want: arguments{
				foreground: true, noPoll: true, port: 5353, pidFile: true, user: true, fastRetry: true, logQueries: true,
				listen: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2")},
			},
		},
		{
			name: "options of one letter, together",
			args: "-kRnq -p5353 -a 192.0.2.1 -u root -x /run/pid -8 - -S /a.example/b.example/192.0.2.1 -r /etc/other",
			want: arguments{
				foreground: true, noResolv: true, noPoll: true, logQueries: true, port: 5353, user: true, pidFile: true,
				logFacility: true, resolvFile: true, listen: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
				servers: servers(t, "/a.example/192.0.2.1#53 /b.example/192.0.2.1#53"),
			},
		},
		{
			name: "an option's argument looks like an option",
			args: "-c -k --server -R",
			want: arguments{port: 53},
		},
		{
			name: "domains that dnsmasq answers for itself", args: "--local=/A.example./b.example/ -A /c.example/192.0.2.1 --server=/d.example/# --address=/#/192.0.2.1",
			want: arguments{port: 53, local: []string{"a.example", "b.example", "c.example"}},
		},
		{name: "servers file", args: "--servers-file /run/servers", want: arguments{port: 53, serversFile: true}},
		{name: "behind --", args: "-- -k", want: arguments{port: 53}},
		{name: "no DNS", args: "--port=0", want: arguments{port: 0}},
		{
			name: "configuration files that include each other",
			args: "-C /etc/conf",
			want: arguments{port: 5353, noResolv: true, user: true, listen: []netip.Addr{netip.MustParseAddr("192.0.2.9")},
				servers: servers(t, "/example.org/192.0.2.1#53"), files: []string{"/etc/conf", "/etc/conf2"}},
		},
		{name: "configuration file that is not there", args: "--conf-file=/etc/nonesuch", want: arguments{port: 53}},
		{
			name: "a file overrides the list, wherever it stands",
			args: "-C /etc/port --port=53",
			want: arguments{port: 5353, files: []string{"/etc/port"}},
		},
		{
			name: "the first file is read last",
			args: "-C/etc/port -C /etc/conf2 --conf-dir=/etc/d,.bak -k",
			want: arguments{port: 5353, noPoll: true, noResolv: true, user: true, foreground: true, listen: []netip.Addr{netip.MustParseAddr("192.0.2.9")},
				servers: servers(t, "/example.org/192.0.2.1#53 /b.example/192.0.2.2#53"),
				files:   []string{"/etc/conf2", "/etc/conf", "/etc/d/a.conf", "/etc/d/b.conf", "/etc/port"}},
		},
		{
			name: "a directory, and the port in a file of it",
			args: "-7 /etc/d/,*.conf --port 5454",
			want: arguments{port: 5353, noPoll: true, servers: servers(t, "/b.example/192.0.2.2#53"), files: []string{"/etc/d/a.conf", "/etc/d/b.conf"}},
		},
		{
			name: "directory in a file, suffixes of both kinds",
			args: "-C /etc/dirs",
			want: arguments{port: 5353, noPoll: true, servers: servers(t, "/b.example/192.0.2.2#53"), files: []string{"/etc/dirs", "/etc/d/a.conf", "/etc/d/b.conf"}},
		},
		{
			name: "quotes hide commas, a comment is a word",
			args: "-C /etc/quoted",
			want: arguments{port: 53, logQueries: true, noPoll: true, files: []string{"/etc/quoted", "/etc/,d/conf"}},
		},
		{
			name: "what is not read",
			args: "-C /etc/conf-script --conf-script /bin/y --conf-dir /etc/nonesuch -C - -C /etc/d",
			want: arguments{port: 53, files: []string{"/etc/conf-script"}, unread: []string{
				"the output of --conf-script=/bin/y", "/etc/nonesuch: file does not exist", "/etc/d, which is not a regular file", "the output of --conf-script=/bin/x a",
			}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := parseArguments(strings.Fields(test.args), files)
			if diff := cmp.Diff(test.want, got, compareArguments(), addrComparers()); diff != "" {
				t.Errorf("parseArguments(%q) (-want +got):\n%s", test.args, diff)
			}
		})
	}
}

// confFS is a root directory with files by their absolute path.
func confFS(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for path, text := range files {
		root[strings.TrimPrefix(path, "/")] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

// TestKnownOptions holds the list that is logged to the options that are parsed.
func TestKnownOptions(t *testing.T) {
	root := confFS(map[string]string{"/etc/conf": "no-poll\n", "/etc/d/conf": "no-poll\n"})
	values := map[string]string{
		"address": "/a.example/", "conf-dir": "/etc/d", "conf-file": "/etc/conf", "listen-address": "192.0.2.1",
		"local": "/a.example/", "port": "5353", "server": "192.0.2.1",
	}
	before := parseArguments(nil, root)
	for _, name := range knownOptions {
		got := parseArguments([]string{"--" + name + "=" + values[name]}, root)
		if diff := cmp.Diff(before, got, compareArguments(), addrComparers()); diff == "" {
			t.Errorf("--%s changes nothing", name)
		}
	}
	for _, other := range []string{"cache-size", "interface", "conf"} {
		if diff := cmp.Diff(before, parseArguments([]string{"--" + other + "=1"}, root), compareArguments(), addrComparers()); diff != "" {
			t.Errorf("--%s: %s", other, diff)
		}
	}
}

func TestParseServerArgument(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"default", "192.0.2.1", "192.0.2.1#53"},
		{"IPv6 and port", "/Example.ORG./2001:db8::1#5353", "/example.org/2001:db8::1#5353"},
		{"two domains", "/a.example/b.example/192.0.2.1", "/a.example/192.0.2.1#53 /b.example/192.0.2.1#53"},
		{"source", "/a.example/192.0.2.1#53@eth0", "/a.example/192.0.2.1#53"},
		{"link-local", "fe80::1%eth0#53", "fe80::1%eth0#53"},
		{"no address", "/a.example/", ""},
		{"a name", "/a.example/ns.example.org", ""},
		{"standard servers", "/a.example/#", ""},
		{"port too large", "192.0.2.1#65536", ""},
		{"half", "/a.example", ""},
		{"nothing", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, s := range parseServerArgument(test.text) {
				got = append(got, s.String())
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("parseServerArgument(%q) = %q, want %q", test.text, got, test.want)
			}
		})
	}
}

func TestProbeAddrAndOwn(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
	tests := []struct {
		name, args, probe string
		own, others       string
	}{
		{"stock", stock, "127.0.0.1:53", "127.0.0.1:53 127.0.0.53:53 192.0.2.10:53 [2001:db8::10]:53 [::1]:53", "127.0.0.1:5353 192.0.2.11:53"},
		{"loopback alone", "--listen-address=127.0.0.1 --port=5353", "127.0.0.1:5353", "127.0.0.1:5353", "127.0.0.1:53 192.0.2.10:5353 127.0.0.2:5353"},
		{"one address", "--listen-address=192.0.2.10", "192.0.2.10:53", "192.0.2.10:53", "127.0.0.53:53"},
		{"unspecified", "--listen-address=0.0.0.0", "127.0.0.1:53", "192.0.2.10:53 127.0.0.9:53", "192.0.2.11:53"},
		{"unspecified IPv6", "--listen-address=::", "[::1]:53", "192.0.2.10:53", "192.0.2.11:53"},
		{"no DNS", "--port=0", "invalid AddrPort", "", "127.0.0.1:53"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := parseArguments(strings.Fields(test.args+" -C /dev/null"), os.DirFS("/"))
			if got := a.probeAddr().String(); got != test.probe {
				t.Errorf("probeAddr = %s, want %s", got, test.probe)
			}
			for want, list := range map[bool]string{true: test.own, false: test.others} {
				for _, text := range strings.Fields(list) {
					if got := a.isOwn(netip.MustParseAddrPort(text), local); got != want {
						t.Errorf("isOwn(%s) = %v, want %v", text, got, want)
					}
				}
			}
		})
	}
}

func TestClusterDomains(t *testing.T) {
	kubedns := netip.MustParseAddrPort("127.0.0.1:10053")
	tests := []struct{ name, args, want string }{
		{"stock", stock, "cluster.local"},
		{"another domain", "--server=/k8s.example/127.0.0.1#10053 --server=/in-addr.arpa/127.0.0.1#10053 --server=192.0.2.1", "k8s.example"},
		{"none", "--server=/k8s.example/127.0.0.1#1053", "cluster.local"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := parseArguments(strings.Fields(test.args), fstest.MapFS{})
			if got := strings.Join(a.clusterDomains(kubedns), " "); got != test.want {
				t.Errorf("clusterDomains = %q, want %q", got, test.want)
			}
		})
	}
}

func TestNannyArguments(t *testing.T) {
	list := servers(t, "192.0.2.1 /example.org/2001:db8::1#5353")
	file := capabilities{serversFile: "/run/servers", fastRetry: true}
	const fromFile = " --servers-file=/run/servers --address=/in-force.dnsmasq-nanny.invalid/127.0.0.1"
	tests := []struct {
		name      string
		args      string
		can       capabilities
		upstreams bool
		want      string
	}{
		{"nothing said", "", file, false, "--keep-in-foreground --log-facility=- --pid-file= --fast-dns-retry=500 --no-resolv" + fromFile},
		{"stock", stock, file, false, "--pid-file= --fast-dns-retry=500 --no-resolv" + fromFile},
		{"all said", "-kR -x /run/pid -8 - --fast-dns-retry", capabilities{serversFile: "/run/servers"}, true, strings.TrimSpace(fromFile)},
		{"resolv-file", "-k -8 - -x / -r /etc/other", file, false, "--fast-dns-retry=500" + fromFile},
		{"resolv-file and upstreams", "-k -8 - -x / -r /etc/other", file, true, "--fast-dns-retry=500 --no-resolv" + fromFile},
		{"servers as arguments", "-k -8 - -x /", capabilities{rootUser: true}, false, "--user=root --no-resolv --server=192.0.2.1#53 --server=/example.org/2001:db8::1#5353"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := parseArguments(strings.Fields(test.args), fstest.MapFS{})
			if got := strings.Join(nannyArguments(a, test.can, test.upstreams, list), " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// FuzzParseArguments: what is read of an argument list does not depend on what
// stands behind "--", and an address is written as it is read.
func FuzzParseArguments(f *testing.F) {
	f.Add(stock)
	f.Add("-kRp53 --server /a/1.2.3.4#5@eth0 -C /x")
	none := fstest.MapFS{}
	f.Fuzz(func(t *testing.T, in string) {
		list := strings.Split(in, " ")
		a := parseArguments(list, none)
		for _, s := range a.servers {
			if got := parseServerArgument(s.String()); validateServers([]domainServer{s}) == nil && (len(got) != 1 || got[0] != s) {
				t.Errorf("%v is read as %v", s, got)
			}
		}
		if last := list[len(list)-1]; !slices.Contains(list, "--") && !strings.HasPrefix(last, "-") {
			more := parseArguments(slices.Concat(list, []string{"--", "-k", "-R", "--port=1"}), none)
			if diff := cmp.Diff(a, more, compareArguments(), addrComparers()); diff != "" {
				t.Errorf("%q is read otherwise with more behind -- (-want +got):\n%s", in, diff)
			}
		}
	})
}
