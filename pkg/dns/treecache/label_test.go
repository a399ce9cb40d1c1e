package treecache

import (
	"fmt"
	"hash/fnv"
	"testing"
)

// TestSystemLabel pins labels that deployed replicas give to addresses; they
// were calculated apart from this package.
func TestSystemLabel(t *testing.T) {
	for _, tt := range []struct{ name, host, want string }{
		{"IPv4", "10.96.0.1", "6266366134663036"},
		{"IPv6", "2001:db8::1", "3537393061303264"},
		{"hash of seven digits: no padding", "10.96.0.55", "33343738623035"},
		{"hash of six digits", "10.96.0.80", "316566333537"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := SystemLabel(tt.host); got != tt.want {
				t.Errorf("SystemLabel(%q) = %s, want %s", tt.host, got, tt.want)
			}
		})
	}
}

// FuzzSystemLabel compares with the standard library's hash.
func FuzzSystemLabel(f *testing.F) {
	f.Add("10.96.0.1")
	f.Fuzz(func(t *testing.T, host string) {
		h := fnv.New32a()
		fmt.Fprintf(h, "&{%s 0 10 10  false 30 0  }", host)
		want := fmt.Sprintf("%x", fmt.Appendf(nil, "%x", h.Sum32()))
		if got := SystemLabel(host); got != want {
			t.Errorf("SystemLabel(%q) = %s, want %s", host, got, want)
		}
	})
}
