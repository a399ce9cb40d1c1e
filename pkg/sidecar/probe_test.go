package sidecar

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func TestParseProbe(t *testing.T) {
	const name = "kubernetes.default.svc.cluster.local."
	probe := func(change func(*Probe)) Probe {
		p := Probe{Label: "dns", Server: "127.0.0.1:10053", Name: name, Interval: 5 * time.Second, Qtype: dns.TypeANY}
		change(&p)
		return p
	}
	const stock = "kubedns,127.0.0.1:10053,kubernetes.default.svc.cluster.local,5,SRV"
	tests := []struct {
		name string
		text string
		want Probe
		err  string
	}{
		{name: "stock", text: stock, want: probe(func(p *Probe) { p.Label, p.Qtype = "kubedns", dns.TypeSRV })},
		{name: "three fields", text: "dns,127.0.0.1:10053," + name, want: probe(func(*Probe) {})},
		{name: "interval", text: "dns,127.0.0.1:10053," + name + ",60", want: probe(func(p *Probe) { p.Interval = time.Minute })},
		{name: "fraction", text: "dns,127.0.0.1:10053," + name + ",0.25", want: probe(func(p *Probe) { p.Interval = 250 * time.Millisecond })},
		{name: "lower case type", text: "dns,127.0.0.1:10053," + name + ",5,aaaa", want: probe(func(p *Probe) { p.Qtype = dns.TypeAAAA })},
		{name: "uncached", text: stock + ",uncached", want: probe(func(p *Probe) { p.Label, p.Qtype, p.Uncached = "kubedns", dns.TypeSRV, true })},
		{name: "IPv4 without port", text: "dns,192.0.2.1," + name, want: probe(func(p *Probe) { p.Server = "192.0.2.1:53" })},
		{name: "IPv6 without port", text: "dns,::1," + name, want: probe(func(p *Probe) { p.Server = "[::1]:53" })},
		{name: "IPv6 in brackets without port", text: "dns,[::1]," + name, want: probe(func(p *Probe) { p.Server = "[::1]:53" })},
		{name: "IPv6 with port", text: "dns,[2001:db8::1]:10053," + name, want: probe(func(p *Probe) { p.Server = "[2001:db8::1]:10053" })},
		{name: "link-local", text: "dns,fe80::1%eth0," + name, want: probe(func(p *Probe) { p.Server = "[fe80::1%eth0]:53" })},
		{name: "host name", text: "dns,localhost," + name, want: probe(func(p *Probe) { p.Server = "localhost:53" })},
		{name: "host name with port", text: "dns,ns.example.org:10053," + name, want: probe(func(p *Probe) { p.Server = "ns.example.org:10053" })},
		{name: "root", text: "dns,127.0.0.1:10053,.", want: probe(func(p *Probe) { p.Name = "." })},

		{name: "empty", text: "", err: "1 fields, must be label,server,name[,interval[,type[,uncached]]]"},
		{name: "two fields", text: "dns,127.0.0.1", err: "2 fields"},
		{name: "seven fields", text: stock + ",uncached,", err: "7 fields"},
		{name: "no label", text: ",127.0.0.1," + name, err: `label "" must be letters, digits and underscores`},
		{name: "label with a blank", text: "kube dns,127.0.0.1," + name, err: `label "kube dns" must be`},
		{name: "label with a dash", text: "kube-dns,127.0.0.1," + name, err: `label "kube-dns" must be`},
		{name: "label beyond ASCII", text: "dnš,127.0.0.1," + name, err: `label "dnš" must be`},
		{name: "no server", text: "dns,," + name, err: `server "": must be an IP address or a host name`},
		{name: "port alone", text: "dns,:53," + name, err: `server ":53": must be an IP address`},
		{name: "port empty", text: "dns,127.0.0.1:," + name, err: `server "127.0.0.1:": port "" must be 1 to 65535`},
		{name: "port 0", text: "dns,127.0.0.1:0," + name, err: `port "0" must be 1 to 65535`},
		{name: "port too large", text: "dns,127.0.0.1:65536," + name, err: `port "65536" must be`},
		{name: "port negative", text: "dns,127.0.0.1:-1," + name, err: `port "-1" must be`},
		{name: "port a name", text: "dns,127.0.0.1:domain," + name, err: `port "domain" must be`},
		{name: "host name that begins with a digit", text: "dns,0.debian.pool.example.org," + name, want: probe(func(p *Probe) { p.Server = "0.debian.pool.example.org:53" })},
		{name: "host with a dash at the end", text: "dns,a-.org," + name, err: "must be an IP address"},
		{name: "host with an empty label", text: "dns,a..org," + name, err: "must be an IP address"},
		{name: "IPv4 mistyped", text: "dns,127.0.0.256," + name, err: `server "127.0.0.256": must be an IP address`},
		{name: "IPv4 in brackets", text: "dns,[127.0.0.1]:53," + name, err: "must be an IP address"},
		{name: "host with a blank", text: "dns, 127.0.0.1," + name, err: "must be an IP address"},
		{name: "bracket open", text: "dns,[::1:53," + name, err: "must be host or host:port"},
		{name: "no name", text: "dns,127.0.0.1,", err: `name "": must not be empty`},
		{name: "name with a blank", text: "dns,127.0.0.1,a b", err: `name "a b": must be printable ASCII`},
		{name: "name with an empty label", text: "dns,127.0.0.1,a..b", err: `name "a..b": not a domain name`},
		{name: "name too long", text: "dns,127.0.0.1," + strings.Repeat("a", 64), err: "not a domain name"},
		{name: "interval empty", text: "dns,127.0.0.1," + name + ",", err: `interval "": must be a number of seconds`},
		{name: "interval 0", text: "dns,127.0.0.1," + name + ",0", err: `interval "0": must be 0.01 to 86400 seconds`},
		{name: "interval negative", text: "dns,127.0.0.1," + name + ",-5", err: `interval "-5": must be a number of seconds`},
		{name: "interval a word", text: "dns,127.0.0.1," + name + ",five", err: `interval "five": must be a number`},
		{name: "interval a duration", text: "dns,127.0.0.1," + name + ",5s", err: `interval "5s": must be a number`},
		{name: "interval two numbers", text: "dns,127.0.0.1," + name + ",1.2.3", err: `interval "1.2.3": must be a number`},
		{name: "interval not finite", text: "dns,127.0.0.1," + name + ",NaN", err: `interval "NaN": must be a number`},
		{name: "interval too long", text: "dns,127.0.0.1," + name + ",86401", err: "must be 0.01 to 86400"},
		{name: "interval beyond 64 bits", text: "dns,127.0.0.1," + name + ",99999999999999999999", err: "must be a number"},
		{name: "type unknown", text: "dns,127.0.0.1," + name + ",5,B", err: `type "B" must be A, AAAA, SRV or ANY`},
		{name: "type not probed", text: "dns,127.0.0.1," + name + ",5,TXT", err: `type "TXT" must be`},
		{name: "type empty", text: "dns,127.0.0.1," + name + ",5,", err: `type "" must be`},
		{name: "option unknown", text: stock + ",cached", err: `option "cached" must be uncached`},
		{name: "option empty", text: stock + ",", err: `option "" must be uncached`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseProbe(test.text)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("ParseProbe(%q): error %v, want %q", test.text, err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("ParseProbe(%q) (-want +got):\n%s", test.text, diff)
			}
		})
	}
}

// What is read is in order, and can be written and read again.
func FuzzParseProbe(f *testing.F) {
	for _, seed := range []string{
		"kubedns,127.0.0.1:10053,kubernetes.default.svc.cluster.local,5,SRV",
		"a,::1,example.org,0.5,aaaa,uncached", "_,[fe80::1%eth0]:53,.,1", "b,localhost,example.org", "c,[::ffff:192.0.2.1]:1,a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProbe(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("ParseProbe(%q): an error of several lines: %v", text, err)
			}
			return
		}
		again, err := ParseProbe(p.String())
		if err != nil || again != p {
			t.Errorf("ParseProbe(%q) = %+v, and of its String %+v, %v", text, p, again, err)
		}
		if _, err := p.question().Pack(); err != nil {
			t.Errorf("ParseProbe(%q): question: %v", text, err)
		}
		if p.Interval < minInterval || p.Interval > maxInterval || p.timeout() > p.Interval || p.timeout() > 2*time.Second {
			t.Errorf("ParseProbe(%q): interval %v, timeout %v", text, p.Interval, p.timeout())
		}
	})
}
