package dnsmasq

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestParseNameservers(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "[]"},
		{"usual", "# nameserver 192.0.2.9\nsearch example.org\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 \noptions ndots:5\n", "[192.0.2.1:53 [2001:db8::1]:53]"},
		{"link-local", "nameserver fe80::1%eth0\n", "[[fe80::1%eth0]:53]"},
		{"no line break at the end", "nameserver 192.0.2.1", "[192.0.2.1:53]"},
		{"what is none", "nameserver\nnameserver ns.example.org\nnameserver 0.0.0.0\nnameservers 192.0.2.1\n;nameserver 192.0.2.1\n", "[]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseNameservers([]byte(test.text))
			if fmt.Sprint(got) != test.want || err != nil {
				t.Errorf("parseNameservers = %v, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestResolvConfRead(t *testing.T) {
	r := resolvConf{path: filepath.Join(t.TempDir(), "resolv.conf")}
	steps := []struct {
		name   string
		change func()
		want   string
	}{
		{"no file", func() {}, "[]"},
		{"a file", func() { writeFile(t, r.path, "nameserver 192.0.2.1\n") }, "[192.0.2.1:53]"},
		{"emptied", func() { writeFile(t, r.path, "") }, "[192.0.2.1:53]"},
		{"another", func() { writeFile(t, r.path, "nameserver 192.0.2.2\n") }, "[192.0.2.2:53]"},
		{"nobody to ask", func() { writeFile(t, r.path, "nameserver 224.0.0.251\nnameserver ff02::fb\n") }, "[192.0.2.2:53]"},
		{"an interface that is not there", func() { writeFile(t, r.path, "nameserver fe80::1%nonesuch0\nnameserver 192.0.2.3\n") }, "[192.0.2.3:53]"},
		{"one that is", func() { writeFile(t, r.path, "nameserver fe80::1%lo\n") }, "[[fe80::1%lo]:53]"},
		{"a third", func() { writeFile(t, r.path, "nameserver 192.0.2.2\n") }, "[192.0.2.2:53]"},
		{"removed", func() { _ = os.Remove(r.path) }, "[192.0.2.2:53]"},
	}
	for _, step := range steps {
		step.change()
		if got := fmt.Sprint(r.read()); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
}
