package forward

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResolvConf: what a file's lines mean is tested in package resolvconf.
func TestResolvConf(t *testing.T) {
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte("nameserver 192.0.2.1\nnameserver none\nnameserver 2001:db8::1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ResolvConf(path); err != nil || join(got) != "192.0.2.1:53 [2001:db8::1]:53" {
			t.Errorf("got %v, error %v", got, err)
		}
	})
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

func TestExcludeSelf(t *testing.T) {
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
			kept, left := ExcludeSelf(list, own, addrs)
			if join(kept) != tt.kept || join(left) != tt.left {
				t.Errorf("kept %q, want %q; left %q, want %q", join(kept), tt.kept, join(left), tt.left)
			}
		})
	}
}
