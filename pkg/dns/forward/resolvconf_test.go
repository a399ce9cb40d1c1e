package forward

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestResolvConf(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       string
		bad        int
	}{
		{"one", "nameserver 192.0.2.1\n", "192.0.2.1:53", 0},
		{"no newline at the end", "nameserver 192.0.2.1", "192.0.2.1:53", 0},
		{"five, in order", "nameserver 192.0.2.5\nnameserver 192.0.2.4\nnameserver 192.0.2.3\nnameserver 192.0.2.2\nnameserver 192.0.2.1\n", "192.0.2.5:53 192.0.2.4:53 192.0.2.3:53 192.0.2.2:53 192.0.2.1:53", 0},
		{"IPv6", "nameserver 2001:db8::1\nnameserver ::1\n", "[2001:db8::1]:53 [::1]:53", 0},
		{"zone", "nameserver fe80::1%eth0\n", "[fe80::1%eth0]:53", 0},
		{"IPv4 in IPv6", "nameserver ::ffff:192.0.2.1\n", "192.0.2.1:53", 0},
		{"tabs and blanks", "\tnameserver \t 192.0.2.1 \t\n", "192.0.2.1:53", 0},
		{"CRLF", "nameserver 192.0.2.1\r\nnameserver 192.0.2.2\r\n", "192.0.2.1:53 192.0.2.2:53", 0},
		{"comments", "# nameserver 192.0.2.8\n;nameserver 192.0.2.9\nnameserver 192.0.2.1 # first\nnameserver 192.0.2.2;second\n", "192.0.2.1:53 192.0.2.2:53", 0},
		{"other lines", "search example.org\noptions ndots:5\nnameservers 192.0.2.7\nsortlist 192.0.2.0\n\nnameserver 192.0.2.1 192.0.2.6\n", "192.0.2.1:53", 0},
		{"bad lines", "nameserver\nnameserver ns.example.org\nnameserver 192.0.2.256\nnameserver 192.0.2.1:53\nnameserver 192.0.2.1\n", "192.0.2.1:53", 4},
		{"empty", "", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "resolv.conf")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ResolvConf(path)
			if err != nil || join(got) != tt.want {
				t.Errorf("got %s, want %s, error %v", join(got), tt.want, err)
			}
			if _, bad, _ := parseResolvConf(strings.NewReader(tt.text)); len(bad) != tt.bad {
				t.Errorf("%d bad lines, want %d: %v", len(bad), tt.bad, bad)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		if got, err := ResolvConf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, error %v", got, err)
		}
	})
	t.Run("a line of a megabyte", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte("#"+strings.Repeat("x", 1<<20)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ResolvConf(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, error %v", got, err)
		}
	})
}

func join(addrs []netip.AddrPort) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

func TestWithout(t *testing.T) {
	local := "127.0.0.1 ::1 192.0.2.10 2001:db8::10 fe80::10%eth0 fe80::10%2"
	for _, tt := range []struct{ name, list, own, kept, left string }{
		{"nothing of ours", "192.0.2.1:53 [2001:db8::1]:53", "0.0.0.0:53", "192.0.2.1:53 [2001:db8::1]:53", ""},
		{"own address", "192.0.2.1:53 192.0.2.10:53 192.0.2.2:53", "192.0.2.10:53", "192.0.2.1:53 192.0.2.2:53", "192.0.2.10:53"},
		{"own Service's address is nowhere on an interface", "10.96.0.10:53 192.0.2.1:53", "0.0.0.0:53 10.96.0.10:53", "192.0.2.1:53", "10.96.0.10:53"},
		{"another port", "192.0.2.10:53 127.0.0.1:53", "0.0.0.0:10053 192.0.2.10:10053", "192.0.2.10:53 127.0.0.1:53", ""},
		{"specific own address, other local one", "127.0.0.1:53", "192.0.2.10:53", "127.0.0.1:53", ""},
		{"0.0.0.0 is every local address", "192.0.2.10:53 127.0.0.1:53 [2001:db8::10]:53 [::1]:53 192.0.2.1:53", "0.0.0.0:53", "192.0.2.1:53", "192.0.2.10:53 127.0.0.1:53 [2001:db8::10]:53 [::1]:53"},
		{":: is every local address", "192.0.2.10:53 [2001:db8::10]:53 192.0.2.1:53", "[::]:53", "192.0.2.1:53", "192.0.2.10:53 [2001:db8::10]:53"},
		{"all of 127/8 is local", "127.0.0.53:53", "0.0.0.0:53", "", "127.0.0.53:53"},
		{"but not for a specific one", "127.0.0.53:53", "127.0.0.1:53", "127.0.0.53:53", ""},
		{"0.0.0.0 as nameserver", "0.0.0.0:53 [::]:53", "0.0.0.0:53", "", "0.0.0.0:53 [::]:53"},
		{"0.0.0.0 as nameserver, own loopback", "0.0.0.0:53", "127.0.0.1:53", "", "0.0.0.0:53"},
		{"0.0.0.0 as nameserver, own other address", "0.0.0.0:53", "192.0.2.10:53", "0.0.0.0:53", ""},
		{"IPv4 in IPv6", "[::ffff:192.0.2.10]:53", "192.0.2.10:53", "", "[::ffff:192.0.2.10]:53"},
		{"link-local with our zone", "[fe80::10%eth0]:53 [fe80::10%2]:53", "[::]:53", "", "[fe80::10%eth0]:53 [fe80::10%2]:53"},
		{"link-local on another link", "[fe80::10%eth1]:53", "[::]:53", "[fe80::10%eth1]:53", ""},
		{"no own", "192.0.2.10:53", "", "192.0.2.10:53", ""},
		{"no list", "", "0.0.0.0:53", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list, own []netip.AddrPort
			var addrs []netip.Addr
			for _, s := range strings.Fields(tt.list) {
				list = append(list, netip.MustParseAddrPort(s))
			}
			for _, s := range strings.Fields(tt.own) {
				own = append(own, netip.MustParseAddrPort(s))
			}
			for _, s := range strings.Fields(local) {
				addrs = append(addrs, netip.MustParseAddr(s))
			}
			kept, left := Without(list, own, addrs)
			if join(kept) != tt.kept || join(left) != tt.left {
				t.Errorf("kept %q, want %q; left %q, want %q", join(kept), tt.kept, join(left), tt.left)
			}
		})
	}
}

func TestLocalAddrs(t *testing.T) {
	local, err := LocalAddrs()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(local, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("no loopback address among %v", local)
	}
	for _, a := range local {
		if a.Is4In6() || (a.Is6() && a.IsLinkLocalUnicast()) != (a.Zone() != "") {
			t.Errorf("address %v", a)
		}
	}
}

// FuzzResolvConf: what is read can be written and read again.
func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\n# x\nnameserver fe80::1%eth0 ; y\r\nsearch example.org\n")
	f.Add("nameserver\nnameserver ::ffff:192.0.2.1\n")
	f.Fuzz(func(t *testing.T, text string) {
		addrs, _, err := parseResolvConf(strings.NewReader(text))
		if err != nil {
			return
		}
		var b strings.Builder
		for _, a := range addrs {
			if !a.Addr().IsValid() || a.Addr().Is4In6() || a.Port() != 53 {
				t.Errorf("address %v", a)
			}
			fmt.Fprintf(&b, "nameserver %s\n", a.Addr())
		}
		again, bad, err := parseResolvConf(strings.NewReader(b.String()))
		if err != nil || len(bad) > 0 || !slices.Equal(again, addrs) {
			t.Errorf("read %v, and again %v, error %v, bad %v", addrs, again, err, bad)
		}
	})
}
