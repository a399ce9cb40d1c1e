package manifests

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRefusedServices(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tc := range []struct {
		name, meta, spec string
		want             string // the problem, without "a.yaml: "
	}{
		{"no name", "{namespace: shop}", "{clusterIP: None}", "Service shop/(no name): skipped: no metadata.name"},
		{"generated name", "{generateName: web-}", "{clusterIP: None}", "Service default/(no name): skipped: no metadata.name"},
		{"underscore in the name", "{name: a_b}", "{clusterIP: None}", `Service default/a_b: skipped: metadata.name: "a_b" is not a DNS label (RFC 1123: a-z, 0-9 and - within, at most 63 octets)`},
		{"dot in the name", "{name: a.b}", "{clusterIP: None}", `metadata.name: "a.b" is not a DNS label`},
		{"upper case in the name", "{name: Web}", "{clusterIP: None}", `metadata.name: "Web" is not a DNS label`},
		{"asterisk", "{name: '*'}", "{clusterIP: None}", `metadata.name: "*" is not a DNS label`},
		{"long name", "{name: " + long + "}", "{clusterIP: None}", `is not a DNS label`},
		{"line feed in the name", `{name: "a\nb"}`, "{clusterIP: None}", `"Service default/a\nb": skipped: metadata.name: "a\nb" is not a DNS label`},
		{"namespace", "{name: web, namespace: a.b}", "{clusterIP: None}", `metadata.namespace: "a.b" is not a DNS label`},
		{"year", "{name: web, creationTimestamp: '9999-12-31T23:59:59-01:00'}", "{clusterIP: None}", `metadata.creationTimestamp: year 10000`},
		{"type", "{name: web}", "{type: Headless, clusterIP: None}", "spec.type: Headless is not a type of Service"},
		{"no cluster IP", "{name: web}", "{ports: [{port: 80}]}", "Service default/web: skipped: no spec.clusterIP, and no API server here to allocate one (None makes it headless)"},
		{"no cluster IP, load balancer", "{name: web}", "{type: LoadBalancer}", "no spec.clusterIP"},
		{"not an address", "{name: web}", "{clusterIP: 192.0.2.256}", "spec.clusterIPs: 192.0.2.256 is not an IP address"},
		{"leading zero", "{name: web}", "{clusterIP: 192.0.02.25}", "192.0.02.25 is not an IP address"},
		{"none in lower case", "{name: web}", "{clusterIP: none}", "none is not an IP address"},
		{"zone of an address", "{name: web}", "{clusterIP: 'fd00::1%eth0'}", "fd00::1%eth0 is not an IP address"},
		{"mapped address", "{name: web}", "{clusterIP: '::ffff:192.0.2.7'}", "::ffff:192.0.2.7 is not an IP address"},
		{"unspecified", "{name: web}", "{clusterIP: 0.0.0.0}", "0.0.0.0 cannot be a cluster IP"},
		{"multicast", "{name: web}", "{clusterIP: 'ff02::1'}", "ff02::1 cannot be a cluster IP"},
		{"loopback", "{name: web}", "{clusterIP: 127.0.0.1}", "127.0.0.1 cannot be a cluster IP"},
		{"second cluster IP bad", "{name: web}", "{clusterIPs: [192.0.2.7, x]}", "x is not an IP address"},
		{"two of one family", "{name: web}", "{clusterIPs: [192.0.2.7, 192.0.2.8]}", "spec.clusterIPs: two of family IPv4"},
		{"three", "{name: web}", "{clusterIPs: [192.0.2.7, '2001:db8::7', 192.0.2.8]}", "spec.clusterIPs: more than two"},
		{"disagreement", "{name: web}", "{clusterIP: 192.0.2.8, clusterIPs: [192.0.2.7]}", "spec.clusterIP: not the first of spec.clusterIPs"},
		{"None and others", "{name: web}", "{clusterIPs: [None, 192.0.2.7]}", "spec.clusterIPs: None and others"},
		{"others and None", "{name: web}", "{clusterIPs: [192.0.2.7, None]}", "None is not an IP address"},
		{"families", "{name: web}", "{clusterIP: 192.0.2.7, ipFamilies: [IPv6]}", "spec.ipFamilies: not those of spec.clusterIPs"},
		{"too many families", "{name: web}", "{clusterIP: 192.0.2.7, ipFamilies: [IPv4, IPv6]}", "spec.ipFamilies: not those of spec.clusterIPs"},
		{"ExternalName, no name", "{name: web}", "{type: ExternalName}", `spec.externalName: "" is not a domain name`},
		{"ExternalName, cluster IP", "{name: web}", "{type: ExternalName, externalName: www.example.org, clusterIP: None}", "spec.clusterIP: not for type ExternalName"},
		{"ExternalName, two dots", "{name: web}", "{type: ExternalName, externalName: www.example.org..}", `is not a domain name`},
		{"ExternalName, underscore", "{name: web}", "{type: ExternalName, externalName: _x.example.org}", `is not a domain name`},
		{"ExternalName, IPv6", "{name: web}", "{type: ExternalName, externalName: '2001:db8::7'}", `is not a domain name`},
		{"ExternalName, long label", "{name: web}", "{type: ExternalName, externalName: " + long + ".example.org}", `is not a domain name`},
		{"ExternalName, long", "{name: web}", "{type: ExternalName, externalName: " + strings.Repeat("a.", 126) + "aa}", `is not a domain name`},
		{"port's name", "{name: web}", "{clusterIP: None, ports: [{name: _http, port: 80}]}", `spec.ports[0].name: "_http" is not a DNS label`},
		{"unnamed port of several", "{name: web}", "{clusterIP: None, ports: [{name: http, port: 80}, {port: 81}]}", "spec.ports[1].name: required where there are several ports"},
		{"port's name twice", "{name: web}", "{clusterIP: None, ports: [{name: http, port: 80}, {name: http, port: 81}]}", "spec.ports[1].name: http comes twice"},
		{"protocol", "{name: web}", "{clusterIP: None, ports: [{port: 80, protocol: tcp}]}", "spec.ports[0].protocol: tcp is none of TCP, UDP, SCTP"},
		{"no port", "{name: web}", "{clusterIP: None, ports: [{name: http}]}", "spec.ports[0].port: 0 is not from 1 to 65535"},
		{"port", "{name: web}", "{clusterIP: None, ports: [{port: 65536}]}", "spec.ports[0].port: 65536 is not from 1 to 65535"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused(t, "apiVersion: v1\nkind: Service\nmetadata: "+tc.meta+"\nspec: "+tc.spec+"\n", tc.want)
		})
	}
}

func TestRefusedSlices(t *testing.T) {
	const meta = "{name: s, labels: {kubernetes.io/service-name: web}}"
	endpoint := func(t, e string) string { return "{addressType: " + t + ", endpoints: [" + e + "]}" }
	for _, tc := range []struct{ name, meta, rest, want string }{
		{"name", "{name: a_b, labels: {kubernetes.io/service-name: web}}", "{addressType: IPv4}", `metadata.name: "a_b" is not a domain name`},
		{"no labels", "{name: s}", "{addressType: IPv4}", "EndpointSlice default/s: skipped: no label kubernetes.io/service-name"},
		{"empty label", "{name: s, labels: {kubernetes.io/service-name: ''}}", "{addressType: IPv4}", `label kubernetes.io/service-name: "" is not a DNS label`},
		{"no address type", meta, "{}", "no addressType"},
		{"address type", meta, "{addressType: IP}", "addressType: IP is none of IPv4, IPv6, FQDN"},
		{"no address", meta, endpoint("IPv4", "{}"), "endpoints[0].addresses: 0 of them, not from 1 to 100"},
		{"101 addresses", meta, endpoint("IPv4", "{addresses: ["+strings.Repeat("192.0.2.1,", 101)+"]}"), "endpoints[0].addresses: 101 of them, not from 1 to 100"},
		{"1,001 endpoints", meta, endpoint("IPv4", strings.Repeat("{addresses: [192.0.2.1]},", 1001)), "endpoints: more than 1000"},
		{"not an address", meta, endpoint("IPv4", "{addresses: [192.0.2.1]}, {addresses: [192.0.2.1, pod]}"), "endpoints[1].addresses: pod is not an IP address"},
		{"IPv6 in IPv4", meta, endpoint("IPv4", "{addresses: ['2001:db8::1']}"), "2001:db8::1 is not of type IPv4"},
		{"IPv4 in IPv6", meta, endpoint("IPv6", "{addresses: [192.0.2.1]}"), "192.0.2.1 is not of type IPv6"},
		{"mapped", meta, endpoint("IPv6", "{addresses: ['::ffff:192.0.2.1']}"), "::ffff:192.0.2.1 is not an IP address"},
		{"loopback", meta, endpoint("IPv4", "{addresses: [127.0.0.1]}"), "127.0.0.1 cannot be an endpoint"},
		{"link-local", meta, endpoint("IPv6", "{addresses: ['fe80::1']}"), "fe80::1 cannot be an endpoint"},
		{"unspecified", meta, endpoint("IPv6", "{addresses: ['::']}"), ":: cannot be an endpoint"},
		{"FQDN of one label", meta, endpoint("FQDN", "{addresses: [www]}"), "www is not a domain name of at least two labels"},
		{"hostname with a dot", meta, endpoint("IPv4", "{addresses: [192.0.2.1], hostname: db-0.db}"), `endpoints[0].hostname: "db-0.db" is not a DNS label`},
		{"empty hostname", meta, endpoint("IPv4", "{addresses: [192.0.2.1], hostname: ''}"), `endpoints[0].hostname: "" is not a DNS label`},
		{"port's name", meta, "{addressType: IPv4, ports: [{name: Http}]}", `ports[0].name: "Http" is not a DNS label`},
		{"port's name twice", meta, "{addressType: IPv4, ports: [{port: 1}, {port: 2}]}", `ports[1].name: "" comes twice`},
		{"protocol", meta, "{addressType: IPv4, ports: [{protocol: ICMP}]}", "ports[0].protocol: ICMP is none of TCP, UDP, SCTP"},
		{"port", meta, "{addressType: IPv4, ports: [{port: 70000}]}", "ports[0].port: 70000 is not from 1 to 65535"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rest := strings.TrimSuffix(strings.TrimPrefix(tc.rest, "{"), "}")
			if rest != "" {
				rest = ", " + rest
			}
			refused(t, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: "+tc.meta+rest+"}", tc.want)
		})
	}
	t.Run("accepted: FQDN, no ports, several addresses", func(t *testing.T) {
		text := "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: " + meta +
			", addressType: FQDN, endpoints: [{addresses: [www.example.org, ftp.example.org], hostname: 0}]}"
		text = strings.Replace(text, "hostname: 0", "hostname: '0'", 1)
		o, problems, err := Read(write(t, map[string]string{"a.yaml": text}))
		if err != nil || problems != nil {
			t.Fatal(problems, err)
		}
		want := []string{"EndpointSlice default/s of web FQDN www.example.org,ftp.example.org=0"}
		if diff := cmp.Diff(want, summary(o)); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
}

func TestRefusedNodes(t *testing.T) {
	refused(t, "{apiVersion: v1, kind: Node, metadata: {name: Node_A}}", `Node Node_A: skipped: metadata.name: "Node_A" is not a domain name`)
	refused(t, "{apiVersion: v1, kind: Node}", `Node (no name): skipped: no metadata.name`)
}

// refused reads text and wants one problem with want in it, and no object.
func refused(t *testing.T, text, want string) {
	t.Helper()
	o, problems, err := Read(write(t, map[string]string{"a.yaml": text}))
	if err != nil {
		t.Fatal(err)
	}
	if got := summary(o); got != nil {
		t.Errorf("got %q, want nothing", got)
	}
	if len(problems) != 1 || !strings.HasPrefix(problems[0], "a.yaml: ") || !strings.Contains(problems[0], want) || strings.Contains(problems[0], "\n") {
		t.Errorf("got problems %q, want one with %q", problems, want)
	}
}
