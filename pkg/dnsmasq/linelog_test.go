package dnsmasq

import (
	"strings"
	"testing"
)

func TestSeverityOf(t *testing.T) {
	tests := []struct {
		line string
		want severity
	}{
		{"dnsmasq[7]: started, version 2.90 cachesize 1000", info},
		{"dnsmasq[7]: using nameserver 127.0.0.1#10053 for domain cluster.local ", info},
		{"dnsmasq[7]: read /etc/hosts - 3 names", info},
		{"dnsmasq[7]: exiting on receipt of SIGTERM", info},
		{"dnsmasq[7]: using only locally-known addresses for 0123456789abcdef.in-force.dnsmasq-nanny.invalid", detail},
		{"dnsmasq[7]: ignoring nameserver 127.0.0.1 - local interface", warning},
		{"dnsmasq[7]: NOT using nameserver 192.0.2.1#53 - query loop detected", warning},
		{"dnsmasq[7]: Maximum number of concurrent DNS queries reached (max: 150)", warning},
		{"dnsmasq[7]: possible DNS-rebind attack detected: a.example", warning},
		{"dnsmasq[7]: reducing DNS packet size for nameserver 192.0.2.1 to 1232", warning},
		{"dnsmasq[7]: warning: no upstream servers configured", warning},
		{"dnsmasq[7]: nameserver 192.0.2.1 refused to do a recursive query", warning},
		{"dnsmasq: failed to create listening socket for port 53: Address already in use", failure},
		{"dnsmasq[7]: setting capabilities failed: Operation not permitted", failure},
		{"dnsmasq[7]: FAILED to start up", failure},
		{"dnsmasq[7]: cannot read /run/servers: No such file or directory", failure},
		{"dnsmasq: bad command line options: try --help", failure},
		{"dnsmasq: unknown user or group: dns", failure},
		{"dnsmasq[7]: query[A] failed to.example from 127.0.0.1", info},
		{"dnsmasq[7]: reply error.example is NXDOMAIN", info},
		{"dnsmasq[7]: 17 127.0.0.1/40000 query[A] cannot be.example from 127.0.0.1", info},
		{"a line of another form", info},
		{"", info},
	}
	for _, test := range tests {
		t.Run(test.line, func(t *testing.T) {
			if got := severityOf(test.line); got != test.want {
				t.Errorf("severityOf(%q) = %v, want %v", test.line, got, test.want)
			}
		})
	}
}

func TestLineLog(t *testing.T) {
	var l lineLog
	var in strings.Builder
	for i := range keptLines + 3 {
		in.WriteString("dnsmasq[7]: line " + string(rune('a'+i)) + "\n")
	}
	in.WriteString("dnsmasq[7]: \xff not UTF-8\n" + strings.Repeat("x", maxLine+5) + "\nno end")
	l.copyFrom(strings.NewReader(in.String()))
	lines := strings.Split(l.lastLines(), "\n")
	if len(lines) != keptLines {
		t.Fatalf("%d lines kept, want %d", len(lines), keptLines)
	}
	want := []string{"dnsmasq[7]: ? not UTF-8", strings.Repeat("x", maxLine), "xxxxx", "no end"}
	for i, got := range lines[len(lines)-4:] {
		if got != want[i] {
			t.Errorf("line %d is %.40q, want %.40q", i, got, want[i])
		}
	}
}
