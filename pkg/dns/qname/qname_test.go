package qname

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

const testZone = "cluster.local."

// wireOf packs a name, or fails.
func wireOf(t testing.TB, name string) *Wire {
	t.Helper()
	b := make([]byte, 300)
	n, err := dns.PackDomainName(name, b, 0, nil, false)
	if err != nil {
		t.Fatalf("packing %q: %v", name, err)
	}
	w := new(Wire)
	if end, ok := w.Read(b[:n], 0); !ok || end != n {
		t.Fatalf("Read(%q) = %d, %v, want %d", b[:n], end, ok, n)
	}
	return w
}

// parts are a name's labels as its form has them, "namespace=default".
func parts(n Name) string {
	var all []string
	add := func(what string, label []byte) { all = append(all, fmt.Sprintf("%s=%s", what, label)) }
	switch n.Form {
	case PodNamespace, Pod, BelowPod:
		add("namespace", n.Namespace())
	case Namespace, Service, Endpoint, Protocol, Port, BelowService:
		add("namespace", n.Namespace())
		if n.Form >= Service {
			add("service", n.Service())
		}
		switch n.Form {
		case Endpoint, BelowService:
			add("hostname", n.Hostname())
		case Protocol:
			add("protocol", n.Protocol())
		case Port:
			add("protocol", n.Protocol())
			add("port", n.Port())
		}
	}
	if addr, ok := n.Addr(); ok {
		all = append(all, "addr="+addr.String())
	}
	if n.Wildcard {
		all = append(all, "wildcard")
	}
	return strings.Join(all, " ")
}

func TestParse(t *testing.T) {
	const svc, pod = ".svc." + testZone, ".pod." + testZone
	for _, tt := range []struct {
		name  string
		form  Form
		parts string
	}{
		{testZone, Apex, ""},
		{"CLUSTER.Local.", Apex, ""},
		{"svc." + testZone, Services, ""},
		{"default" + svc, Namespace, "namespace=default"},
		{"pod" + svc, Namespace, "namespace=pod"},
		{"Web.Default" + svc, Service, "namespace=default service=web"},
		{"svc.svc" + svc, Service, "namespace=svc service=svc"},
		{"web-0.web.default" + svc, Endpoint, "namespace=default service=web hostname=web-0"},
		{"web.default.fed" + svc, Endpoint, "namespace=fed service=default hostname=web"},
		{"_tcp.web.default" + svc, Protocol, "namespace=default service=web protocol=_tcp"},
		{"_http._tcp.web.default" + svc, Port, "namespace=default service=web protocol=_tcp port=_http"},
		{"http._tcp.web.default" + svc, Port, "namespace=default service=web protocol=_tcp port=http"},
		{"_http.tcp.web.default" + svc, BelowService, "namespace=default service=web hostname=tcp"},
		{"a.web-0.web.default" + svc, BelowService, "namespace=default service=web hostname=web-0"},
		{"x._http._tcp.web.default" + svc, BelowService, "namespace=default service=web hostname=_tcp"},

		{"*" + svc, Namespace, "namespace=* wildcard"},
		{"*.default" + svc, Service, "namespace=default service=* wildcard"},
		{"web.*" + svc, Service, "namespace=* service=web wildcard"},
		{"*.web.default" + svc, Endpoint, "namespace=default service=web hostname=* wildcard"},
		{"_*.web.default" + svc, Protocol, "namespace=default service=web protocol=_* wildcard"},
		{"_tcp.*.default" + svc, Protocol, "namespace=default service=* protocol=_tcp wildcard"},
		{"*._tcp.web.default" + svc, Port, "namespace=default service=web protocol=_tcp port=* wildcard"},
		{"_http.*.web.default" + svc, Port, "namespace=default service=web protocol=* port=_http wildcard"},
		{"_*._*.*.*" + svc, Port, "namespace=* service=* protocol=_* port=_* wildcard"},
		{"*.x.web.default" + svc, BelowService, "namespace=default service=web hostname=x wildcard"},
		{"*.a.b.web.default" + svc, BelowService, "namespace=default service=web hostname=b"},
		{"x*.default" + svc, Service, "namespace=default service=x*"},
		{"**.default" + svc, Service, "namespace=default service=**"},
		{"_x*.web.default" + svc, Protocol, "namespace=default service=web protocol=_x*"},
		{"*.default" + pod, Pod, "namespace=default"},
		{"*.dns." + testZone, BelowDNS, ""},
		{"*." + testZone, Unknown, ""},

		{"pod." + testZone, Pods, ""},
		{"default" + pod, PodNamespace, "namespace=default"},
		{"10-1-2-3.default" + pod, Pod, "namespace=default addr=10.1.2.3"},
		{"2001-DB8--7.default" + pod, Pod, "namespace=default addr=2001:db8::7"},
		{"web.default" + pod, Pod, "namespace=default"},
		{"x.10-1-2-3.default" + pod, BelowPod, "namespace=default"},

		{"dns." + testZone, DNS, ""},
		{"ns.dns." + testZone, Nameserver, ""},
		{"x.dns." + testZone, BelowDNS, ""},
		{"x.ns.dns." + testZone, BelowDNS, ""},
		{"dns-version." + testZone, Version, ""},
		{"x.dns-version." + testZone, Unknown, ""},
		{"web." + testZone, Unknown, ""},
		{"web.default.sv." + testZone, Unknown, ""},
		{`web\.default` + svc, Namespace, "namespace=web.default"},
		{`w\101b.default` + svc, Service, "namespace=default service=web"},
		{`\000\255.default` + svc, Service, "namespace=default service=\x00\xff"},

		{".", Outside, ""},
		{"local.", Outside, ""},
		{"xcluster.local.", Outside, ""},
		{`x\.cluster.local.`, Outside, ""},
		{"cluster.local.example.org.", Outside, ""},
		{"arpa.", Outside, ""},
		{"in-addr.arpa.", Reverse, ""},
		{"ip6.arpa.", Reverse, ""},
		{"0.192.in-addr.arpa.", Reverse, ""},
		{"7.2.0.192.IN-ADDR.arpa.", Reverse, "addr=192.0.2.7"},
		{"07.2.0.192.in-addr.arpa.", Reverse, ""},
		{nibbles, Reverse, "addr=2001:db8::1"},
		{"xin-addr.arpa.", Outside, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			zone := NewZone(testZone)
			n := zone.Parse(wireOf(t, tt.name))
			if n.Form != tt.form || parts(n) != tt.parts {
				t.Errorf("form %d, %q, want %d, %q", n.Form, parts(n), tt.form, tt.parts)
			}
			if n.InZone() != zone.Contains(tt.name) || n.InZone() != dns.IsSubDomain(testZone, tt.name) {
				t.Errorf("in the zone: %v, Contains has %v", n.InZone(), zone.Contains(tt.name))
			}
			if text := zone.ParseText(tt.name); text.Form != n.Form || text.Wildcard != n.Wildcard || parts(text) != parts(n) {
				t.Errorf("ParseText has form %d, %q, want %d, %q", text.Form, parts(text), n.Form, parts(n))
			}
			if labels, ok := n.Federated(); ok != (tt.form == Endpoint) || ok && !slices.Equal(labels, n.Labels()[:3]) {
				t.Errorf("Federated() = %q, %v", labels, ok)
			}
		})
	}
}

// Zones of one label, of many, of a name that looks like a form, and the root.
func TestOtherZones(t *testing.T) {
	for _, name := range []string{"local.", "a.b.c.d.example.org.", "svc.local.", "pod.", "10.in-addr.arpa.", "."} {
		t.Run(name, func(t *testing.T) {
			zone := NewZone(name)
			below := strings.TrimPrefix(name, ".")
			for name, want := range map[string]Form{
				name: Apex, "svc." + below: Services, "web.default.svc." + below: Service,
				"10-1-2-3.default.pod." + below: Pod, "gone." + below: Unknown,
			} {
				if n := zone.ParseText(name); n.Form != want || !zone.Contains(name) {
					t.Errorf("%s has form %d, want %d; contained: %v", name, n.Form, want, zone.Contains(name))
				}
			}
			if zone.String() != name || string(zone.Wire()) != string(Append(nil, name)) {
				t.Errorf("the zone is %s, %q", zone, zone.Wire())
			}
		})
	}
}

// ZoneOffset is where the zone, or the reverse zone, begins.
func TestZoneOffset(t *testing.T) {
	for name, want := range map[string]string{
		testZone: testZone, "web.default.svc." + testZone: testZone, "7.2.0.192.in-addr.arpa.": "in-addr.arpa.",
		nibbles: "ip6.arpa.", "www.example.org.": ".",
	} {
		n := NewZone(testZone).ParseText(name)
		if got := n.wire.Octets()[n.ZoneOffset():]; string(got) != string(Append(nil, want)) {
			t.Errorf("%s: the zone is %q, want %q", name, got, Append(nil, want))
		}
	}
}

// What is no name has no form.
func TestNoName(t *testing.T) {
	zone := NewZone(testZone)
	long := strings.Repeat("x", 63) + "."
	for _, tt := range []struct{ name, text string }{
		{"empty", ""}, {"no dot at the end", "web.default"}, {"empty label", "web..default."}, {"dot in front", ".web."}, {"two dots", ".."},
		{"label of 64", "x" + long}, {"256 octets", strings.Repeat(long, 3) + strings.Repeat("x", 62) + "."},
		{"backslash at the end", `web\`}, {"backslash before the last dot", `web\.`}, {"two digits", `\01.`}, {"no digits", `\1a1.`}, {"over 255", `\256.`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n := zone.ParseText(tt.text); n.Form != None || n.InZone() || n.Wildcard || len(n.Labels()) != 0 {
				t.Errorf("ParseText(%q) = %+v", tt.text, n)
			}
		})
	}
	longest := strings.Repeat(long, 3) + strings.Repeat("x", 61) + "."
	if n := zone.ParseText(longest); n.Form != Outside || len(n.wire.Octets()) != maxOctets {
		t.Errorf("the longest name has form %d, %d octets", n.Form, len(n.wire.Octets()))
	}
	most := strings.Repeat("x.", 127)
	if n := zone.ParseText(most); n.Form != Outside || n.wire.Labels() != 127 {
		t.Errorf("a name of 127 labels has form %d, %d labels", n.Form, n.wire.Labels())
	}
	for _, tt := range []struct{ name, wire string }{
		{"empty", ""}, {"no root", "\x03web"}, {"cut", "\x03we"}, {"pointer", "\xc0\x0c"}, {"label of 64", "\x40" + strings.Repeat("x", 64) + "\x00"},
		{"256 octets", strings.Repeat("\x03xxx", 63) + "\x02xx\x00"},
	} {
		t.Run("wire, "+tt.name, func(t *testing.T) {
			w := wireOf(t, "old.example.")
			if _, ok := w.Read([]byte(tt.wire), 0); ok || len(w.Octets()) != 0 || w.Labels() != 0 || zone.Parse(w).Form != None {
				t.Errorf("Read(%q) = %v, and has %q", tt.wire, ok, w.Octets())
			}
		})
	}
}

// Contains is true of names below the zone that no message can carry.
func TestContainsLongNames(t *testing.T) {
	zone := NewZone(testZone)
	if name := strings.Repeat("x", 64) + ".svc." + testZone; !zone.Contains(name) || zone.ParseText(name).Form != None {
		t.Errorf("%s: contained %v", name, zone.Contains(name))
	}
	for name, want := range map[string]bool{`x\\.cluster.local.`: true, `x\\\.cluster.local.`: false, "local.": false, "": false} {
		if zone.Contains(name) != want {
			t.Errorf("Contains(%q) = %v", name, !want)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	zone := NewZone(testZone)
	w := new(Wire)
	for _, name := range []string{"web.default.svc." + testZone, "_http._tcp.web.default.svc." + testZone, "10-1-2-3.default.pod." + testZone, "7.2.0.192.in-addr.arpa.", nibbles, "www.example.org."} {
		msg := wireOf(t, name).Octets()
		if got := testing.AllocsPerRun(100, func() {
			w.Read(msg, 0)
			n := zone.Parse(w)
			n.Addr()
			if n.Form == Port {
				n.Service()
				n.Port()
			}
		}); got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	zone := NewZone(testZone)
	w := wireOf(b, "_http._tcp.web.default.svc."+testZone)
	b.ReportAllocs()
	for b.Loop() {
		if zone.Parse(w).Form != Port {
			b.Fatal("no port's name")
		}
	}
}

// FuzzParse has any name in wire form: its presentation form, as miekg/dns
// writes it, has the same form and parts; lower case changes nothing; and the
// parts put together are the name.
func FuzzParse(f *testing.F) {
	for _, name := range []string{
		testZone, "svc." + testZone, "web.default.svc." + testZone, "a.b.c.d.e.svc." + testZone, "_http._tcp.web.default.svc." + testZone, "*.default.svc." + testZone,
		"10-1-2-3.default.pod." + testZone, "ns.dns." + testZone, "dns-version." + testZone, "www.example.org.", nibbles, ".", `a\.b.svc.` + testZone, "_*._*.*.*.svc." + testZone,
	} {
		f.Add(wireOf(f, name).Octets())
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		zone, w := NewZone(testZone), new(Wire)
		end, ok := w.Read(msg, 0)
		text, miekgEnd, err := dns.UnpackDomainName(msg, 0)
		if !ok {
			if isName(msg) {
				t.Errorf("Read(%q) finds no name, miekg/dns %q, %v", msg, text, err)
			}
			return
		}
		if err != nil || end != miekgEnd {
			t.Fatalf("Read(%q) ends at %d, miekg/dns %d, %v", msg, end, miekgEnd, err)
		}
		if lowered, want := w.Octets(), lowerASCII(msg[:end]); !bytes.Equal(lowered, want) {
			t.Fatalf("Octets() = %q, want %q", lowered, want)
		}
		n, m := zone.Parse(w), zone.ParseText(text)
		if n.Form == None || n.Form != m.Form || n.Wildcard != m.Wildcard || n.Left() != m.Left() || parts(n) != parts(m) || !bytes.Equal(n.wire.Octets(), m.wire.Octets()) {
			t.Fatalf("%q has form %d, %q; its text %q form %d, %q", msg[:end], n.Form, parts(n), text, m.Form, parts(m))
		}
		if inZone := dns.IsSubDomain(testZone, text); n.InZone() != inZone || zone.Contains(text) != inZone {
			t.Errorf("%q: in the zone %v, Contains has %v, want %v", text, n.InZone(), zone.Contains(text), inZone)
		}
		again := n.wire.Octets()[n.ZoneOffset():]
		for _, label := range slices.Backward(n.Labels()) {
			again = append(append([]byte{byte(len(label))}, label...), again...)
		}
		if !bytes.Equal(again, n.wire.Octets()) {
			t.Errorf("the labels put together are %q, want %q", again, n.wire.Octets())
		}
		if addr, ok := n.Addr(); ok && n.Form == Reverse && ReverseName(addr) != strings.ToLower(text) {
			t.Errorf("%q is %v, whose reverse name is %s", text, addr, ReverseName(addr))
		} else if ok && !addr.IsValid() || !ok && addr != (netip.Addr{}) {
			t.Errorf("%q: %v, %v", text, addr, ok)
		}
	})
}

// isName reports whether b begins with a name that is not compressed.
func isName(b []byte) bool {
	at := 0
	for at < len(b) && b[at] != 0 {
		if b[at] > 63 {
			return false
		}
		at += 1 + int(b[at])
	}
	return at < min(len(b), 255)
}

// lowerASCII is a name in wire form with its letters in lower case.
func lowerASCII(wire []byte) []byte {
	all := bytes.Clone(wire)
	for at := 0; all[at] != 0; {
		length := int(all[at])
		for i := at + 1; i <= at+length; i++ {
			if c := all[i]; c >= 'A' && c <= 'Z' {
				all[i] = c + 'a' - 'A'
			}
		}
		at += 1 + length
	}
	return all
}
