package resolvconf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
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
			got, bad, err := Parse(strings.NewReader(tt.text))
			if err != nil || join(got) != tt.want {
				t.Errorf("got %s, want %s, error %v", join(got), tt.want, err)
			}
			if len(bad) != tt.bad {
				t.Errorf("%d bad lines, want %d: %v", len(bad), tt.bad, bad)
			}
		})
	}
}

func join(addrs []netip.AddrPort) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

// FuzzParse: what is read can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add("nameserver 192.0.2.1\n# x\nnameserver fe80::1%eth0 ; y\r\nsearch example.org\n")
	f.Add("nameserver\nnameserver ::ffff:192.0.2.1\n")
	f.Fuzz(func(t *testing.T, text string) {
		addrs, _, err := Parse(strings.NewReader(text))
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
		again, bad, err := Parse(strings.NewReader(b.String()))
		if err != nil || len(bad) > 0 || !slices.Equal(again, addrs) {
			t.Errorf("read %v, and again %v, error %v, bad %v", addrs, again, err, bad)
		}
	})
}
