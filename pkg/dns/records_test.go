package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubedns/pkg/dns/treecache"
)

// The beginnings of a Service's slice, whose list of endpoints follows.
const (
	slice4 = `
---
{kind: EndpointSlice, metadata: {name: db-4, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, `
	slice6 = `
---
{kind: EndpointSlice, metadata: {name: db-6, labels: {kubernetes.io/service-name: db}}, addressType: IPv6, `
	sliceFQDN = `
---
{kind: EndpointSlice, metadata: {name: db-n, labels: {kubernetes.io/service-name: db}}, addressType: FQDN, `
	headlessDB = `{kind: Service, metadata: {name: db}, spec: {clusterIP: None, ports: [{name: pg, port: 1}]}}`
)

// TestBuildRecords has each row of docs/records.md that makes records of objects.
// Labels of addresses are those of TestSystemLabel and others calculated in
// the same way.
func TestBuildRecords(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     string
		empty    bool // the Service has no name, but its namespace exists
		ready    bool // a federated question is answered from here
	}{
		{
			name: "cluster IP, IPv4, named port",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}}`,
			want: `
				6266366134663036.web.default.svc A 10.96.0.1
				_http._tcp.web.default.svc SRV 80 web.default.svc
				web.default.svc A 10.96.0.1
				web.default.svc SRV 80 web.default.svc
				1.0.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name: "cluster IP, IPv6",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: "2001:db8::1", ports: [{name: http, port: 80}]}}`,
			want: `
				3537393061303264.web.default.svc AAAA 2001:db8::1
				_http._tcp.web.default.svc SRV 80 web.default.svc
				web.default.svc AAAA 2001:db8::1
				web.default.svc SRV 80 web.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR web.default.svc`,
		},
		{
			name: "cluster IP, dual stack, no port",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "2001:db8::1"]}}`,
			want: `
				3537393061303264.web.default.svc AAAA 2001:db8::1
				6266366134663036.web.default.svc A 10.96.0.1
				web.default.svc A 10.96.0.1
				web.default.svc AAAA 2001:db8::1
				1.0.96.10.in-addr.arpa. PTR web.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR web.default.svc`,
		},
		{
			name: "cluster IP whose slices have other ports and hostnames: they do not count",
			in: `{kind: Service, metadata: {name: db}, spec: {clusterIP: 10.96.0.1, ports: [{name: pg, port: 1}]}}` +
				slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: a}]}`,
			want: `
				6266366134663036.db.default.svc A 10.96.0.1
				_pg._tcp.db.default.svc SRV 1 db.default.svc
				db.default.svc A 10.96.0.1
				db.default.svc SRV 1 db.default.svc
				1.0.96.10.in-addr.arpa. PTR db.default.svc`,
			ready: true,
		},
		{
			name: "unnamed port: only at the Service's own name",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}`,
			want: `
				6266366134663036.web.default.svc A 10.96.0.1
				web.default.svc A 10.96.0.1
				web.default.svc SRV 80 web.default.svc
				1.0.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name: "one named and one unnamed port",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {port: 81}]}}`,
			want: `
				6266366134663036.web.default.svc A 10.96.0.1
				_http._tcp.web.default.svc SRV 80 web.default.svc
				web.default.svc A 10.96.0.1
				web.default.svc SRV 80 web.default.svc
				web.default.svc SRV 81 web.default.svc
				1.0.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name: "one number over UDP and TCP: one record at the Service's own name",
			in: `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1,
				ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}, {name: dns, port: 53, protocol: SCTP}, {name: Metrics, port: 9153, protocol: TCP}]}}`,
			want: `
				6266366134663036.web.default.svc A 10.96.0.1
				_dns-tcp._tcp.web.default.svc SRV 53 web.default.svc
				_dns._sctp.web.default.svc SRV 53 web.default.svc
				_dns._udp.web.default.svc SRV 53 web.default.svc
				_metrics._tcp.web.default.svc SRV 9153 web.default.svc
				web.default.svc A 10.96.0.1
				web.default.svc SRV 53 web.default.svc
				web.default.svc SRV 9153 web.default.svc
				1.0.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name: "two cluster IPs whose labels collide both answer",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.45.99, clusterIPs: [10.96.45.99, 10.96.80.210]}}`,
			want: `
				3133646438643765.web.default.svc A 10.96.45.99
				3133646438643765.web.default.svc A 10.96.80.210
				web.default.svc A 10.96.45.99
				web.default.svc A 10.96.80.210
				99.45.96.10.in-addr.arpa. PTR web.default.svc
				210.80.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name: "two endpoints whose labels collide both answer, with one SRV record",
			in:   headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.45.99]}, {addresses: [10.96.80.210]}]}`,
			want: `
				3133646438643765.db.default.svc A 10.96.45.99
				3133646438643765.db.default.svc A 10.96.80.210
				_pg._tcp.db.default.svc SRV 5432 3133646438643765.db.default.svc
				db.default.svc A 10.96.45.99
				db.default.svc A 10.96.80.210
				db.default.svc SRV 5432 3133646438643765.db.default.svc
				99.45.96.10.in-addr.arpa. PTR 3133646438643765.db.default.svc
				210.80.96.10.in-addr.arpa. PTR 3133646438643765.db.default.svc`,
			ready: true,
		},
		{
			name: "a cluster IP that is listed twice, as a manifest may have it",
			in:   `{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 10.96.0.1]}}`,
			want: `
				6266366134663036.web.default.svc A 10.96.0.1
				web.default.svc A 10.96.0.1
				1.0.96.10.in-addr.arpa. PTR web.default.svc`,
		},
		{
			name:  "no cluster IP yet",
			in:    `{kind: Service, metadata: {name: web}, spec: {ports: [{name: http, port: 80}]}}`,
			empty: true,
		},
		{
			name: "headless with hostnames",
			in:   headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: db-0}, {addresses: [192.0.2.2], hostname: DB-1}]}`,
			want: `
				_pg._tcp.db.default.svc SRV 5432 db-0.db.default.svc
				_pg._tcp.db.default.svc SRV 5432 db-1.db.default.svc
				db-0.db.default.svc A 192.0.2.1
				db-1.db.default.svc A 192.0.2.2
				db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.2
				db.default.svc SRV 5432 db-0.db.default.svc
				db.default.svc SRV 5432 db-1.db.default.svc
				1.2.0.192.in-addr.arpa. PTR db-0.db.default.svc
				2.2.0.192.in-addr.arpa. PTR db-1.db.default.svc`,
			ready: true,
		},
		{
			name: "headless without hostnames",
			in:   headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.0.1]}, {addresses: [10.96.0.55]}]}`,
			want: `
				33343738623035.db.default.svc A 10.96.0.55
				6266366134663036.db.default.svc A 10.96.0.1
				_pg._tcp.db.default.svc SRV 5432 33343738623035.db.default.svc
				_pg._tcp.db.default.svc SRV 5432 6266366134663036.db.default.svc
				db.default.svc A 10.96.0.1
				db.default.svc A 10.96.0.55
				db.default.svc SRV 5432 33343738623035.db.default.svc
				db.default.svc SRV 5432 6266366134663036.db.default.svc
				1.0.96.10.in-addr.arpa. PTR 6266366134663036.db.default.svc
				55.0.96.10.in-addr.arpa. PTR 33343738623035.db.default.svc`,
			ready: true,
		},
		{
			name: "a hostname that endpoints share: every address, one SRV record",
			in:   headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: h}, {addresses: [192.0.2.2], hostname: h}, {addresses: [192.0.2.3], hostname: h}]}`,
			want: `
				_pg._tcp.db.default.svc SRV 5432 h.db.default.svc
				db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.2
				db.default.svc A 192.0.2.3
				db.default.svc SRV 5432 h.db.default.svc
				h.db.default.svc A 192.0.2.1
				h.db.default.svc A 192.0.2.2
				h.db.default.svc A 192.0.2.3
				1.2.0.192.in-addr.arpa. PTR h.db.default.svc
				2.2.0.192.in-addr.arpa. PTR h.db.default.svc
				3.2.0.192.in-addr.arpa. PTR h.db.default.svc`,
			ready: true,
		},
		{
			name: "dual stack in two slices, one hostname",
			in: headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: db-0}]}` +
				slice6 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: ["2001:db8::1"], hostname: db-0}]}`,
			want: `
				_pg._tcp.db.default.svc SRV 5432 db-0.db.default.svc
				db-0.db.default.svc A 192.0.2.1
				db-0.db.default.svc AAAA 2001:db8::1
				db.default.svc A 192.0.2.1
				db.default.svc AAAA 2001:db8::1
				db.default.svc SRV 5432 db-0.db.default.svc
				1.2.0.192.in-addr.arpa. PTR db-0.db.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR db-0.db.default.svc`,
			ready: true,
		},
		{
			name: "one address in two slices: once",
			in: headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.0.1]}]}` +
				strings.Replace(slice4, "db-4", "db-5", 1) + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.0.1]}]}`,
			want: `
				6266366134663036.db.default.svc A 10.96.0.1
				_pg._tcp.db.default.svc SRV 5432 6266366134663036.db.default.svc
				db.default.svc A 10.96.0.1
				db.default.svc SRV 5432 6266366134663036.db.default.svc
				1.0.96.10.in-addr.arpa. PTR 6266366134663036.db.default.svc`,
			ready: true,
		},
		{
			name: "one address in two slices, with a hostname in one: both names, and the PTR record has the hostname",
			in: headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.0.1]}]}` +
				strings.Replace(slice4, "db-4", "db-5", 1) + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [10.96.0.1], hostname: h}]}`,
			want: `
				6266366134663036.db.default.svc A 10.96.0.1
				_pg._tcp.db.default.svc SRV 5432 6266366134663036.db.default.svc
				_pg._tcp.db.default.svc SRV 5432 h.db.default.svc
				db.default.svc A 10.96.0.1
				db.default.svc SRV 5432 6266366134663036.db.default.svc
				db.default.svc SRV 5432 h.db.default.svc
				h.db.default.svc A 10.96.0.1
				1.0.96.10.in-addr.arpa. PTR h.db.default.svc`,
			ready: true,
		},
		{
			name: "one address with a hostname in an endpoint that is not ready: the label has the PTR record",
			in: headlessDB + slice4 + `endpoints: [{addresses: [10.96.0.1]}, {addresses: [10.96.0.1], hostname: h, conditions: {ready: false}}]}` +
				slice6 + `endpoints: [{addresses: ["2001:db8::1"], hostname: p}, {addresses: ["2001:db8::1"], hostname: q}]}`,
			want: `
				6266366134663036.db.default.svc A 10.96.0.1
				db.default.svc A 10.96.0.1
				db.default.svc AAAA 2001:db8::1
				p.db.default.svc AAAA 2001:db8::1
				q.db.default.svc AAAA 2001:db8::1
				1.0.96.10.in-addr.arpa. PTR 6266366134663036.db.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR p.db.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR q.db.default.svc`,
			ready: true,
		},
		{
			name: "readiness: true and absent are, false is not, serving and terminating do not matter",
			in: headlessDB + slice4 + `endpoints: [{addresses: [192.0.2.1], hostname: a, conditions: {ready: true}}, {addresses: [192.0.2.2], hostname: b},
				{addresses: [192.0.2.3], hostname: c, conditions: {}}, {addresses: [192.0.2.4], hostname: d, conditions: {ready: false, serving: true, terminating: true}},
				{addresses: [192.0.2.5], hostname: e, conditions: {ready: true, serving: false, terminating: true}}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				b.db.default.svc A 192.0.2.2
				c.db.default.svc A 192.0.2.3
				db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.2
				db.default.svc A 192.0.2.3
				db.default.svc A 192.0.2.5
				e.db.default.svc A 192.0.2.5
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc
				2.2.0.192.in-addr.arpa. PTR b.db.default.svc
				3.2.0.192.in-addr.arpa. PTR c.db.default.svc
				5.2.0.192.in-addr.arpa. PTR e.db.default.svc`,
			ready: true,
		},
		{
			name: "publishNotReadyAddresses",
			in: `{kind: Service, metadata: {name: db}, spec: {clusterIP: None, publishNotReadyAddresses: true}}` +
				slice4 + `endpoints: [{addresses: [192.0.2.1], hostname: a, conditions: {ready: false}}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.1
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "the annotation from before it",
			in: `{kind: Service, metadata: {name: db, annotations: {service.alpha.kubernetes.io/tolerate-unready-endpoints: "true"}}, spec: {clusterIP: None}}` +
				slice4 + `endpoints: [{addresses: [192.0.2.1], hostname: a, conditions: {ready: false}}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.1
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name:  "no ready endpoint",
			in:    headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: a, conditions: {ready: false}}]}`,
			empty: true,
		},
		{name: "a slice without endpoints", in: headlessDB + slice4 + `endpoints: []}`, empty: true},
		{name: "no slice", in: headlessDB, empty: true},
		{
			name:  "FQDN slices only",
			in:    headlessDB + sliceFQDN + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [example.org], hostname: a}]}`,
			empty: true,
		},
		{
			name: "an FQDN slice beside another",
			in: headlessDB + sliceFQDN + `ports: [{name: x, port: 5432}], endpoints: [{addresses: [example.org], hostname: x}]}` +
				slice4 + `endpoints: [{addresses: [192.0.2.1], hostname: a}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.1
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "null and unnamed ports",
			in: headlessDB + slice4 + `ports: [{name: nothing}, {name: zero, port: 0}, {port: 8080}, {name: "", port: 8081, protocol: UDP}],
				endpoints: [{addresses: [192.0.2.1], hostname: a}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.1
				db.default.svc SRV 8080 a.db.default.svc
				db.default.svc SRV 8081 a.db.default.svc
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "ports: [] in the slice: none, whatever the Service says",
			in:   headlessDB + slice4 + `ports: [], endpoints: [{addresses: [192.0.2.1], hostname: a}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.1
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "each slice has its own number for a port, and one pair of target and port is one record",
			in: headlessDB + slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.1], hostname: a}, {addresses: [192.0.2.2], hostname: b}]}` +
				strings.Replace(slice4, "db-4", "db-5", 1) + `ports: [{name: pg, port: 15432}], endpoints: [{addresses: [192.0.2.3], hostname: c}, {addresses: [192.0.2.4], hostname: a}]}` +
				slice6 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: ["2001:db8::1"], hostname: a}]}`,
			want: `
				_pg._tcp.db.default.svc SRV 15432 a.db.default.svc
				_pg._tcp.db.default.svc SRV 15432 c.db.default.svc
				_pg._tcp.db.default.svc SRV 5432 a.db.default.svc
				_pg._tcp.db.default.svc SRV 5432 b.db.default.svc
				a.db.default.svc A 192.0.2.1
				a.db.default.svc A 192.0.2.4
				a.db.default.svc AAAA 2001:db8::1
				b.db.default.svc A 192.0.2.2
				c.db.default.svc A 192.0.2.3
				db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.2
				db.default.svc A 192.0.2.3
				db.default.svc A 192.0.2.4
				db.default.svc AAAA 2001:db8::1
				db.default.svc SRV 15432 a.db.default.svc
				db.default.svc SRV 15432 c.db.default.svc
				db.default.svc SRV 5432 a.db.default.svc
				db.default.svc SRV 5432 b.db.default.svc
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc
				2.2.0.192.in-addr.arpa. PTR b.db.default.svc
				3.2.0.192.in-addr.arpa. PTR c.db.default.svc
				4.2.0.192.in-addr.arpa. PTR a.db.default.svc
				1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "several addresses in one endpoint",
			in:   headlessDB + slice4 + `endpoints: [{addresses: [192.0.2.1, 192.0.2.2], hostname: a}]}`,
			want: `
				a.db.default.svc A 192.0.2.1
				a.db.default.svc A 192.0.2.2
				db.default.svc A 192.0.2.1
				db.default.svc A 192.0.2.2
				1.2.0.192.in-addr.arpa. PTR a.db.default.svc
				2.2.0.192.in-addr.arpa. PTR a.db.default.svc`,
			ready: true,
		},
		{
			name: "external name, in the manifest's spelling",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: WWW.Example.org, ports: [{name: http, port: 80}]}}`,
			want: `ext.default.svc CNAME WWW.Example.org.`,
		},
		{
			name: "external name with a trailing dot",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: example.org.}}`,
			want: `ext.default.svc CNAME example.org.`,
		},
		{
			name: "external name that is an IPv4 address",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: 192.0.2.9}}`,
			want: `ext.default.svc A 192.0.2.9`,
		},
		{
			name: "external name that is an IPv4 address with a trailing dot",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: 192.0.2.9.}}`,
			want: `ext.default.svc A 192.0.2.9`,
		},
		{
			name: "external name that is an IPv6 address",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: "2001:db8::9"}}`,
			want: `ext.default.svc AAAA 2001:db8::9`,
		},
		{
			name: "external name that is nearly an IPv4 address",
			in:   `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: 192.0.2.09}}`,
			want: `ext.default.svc CNAME 192.0.2.09.`,
		},
		{
			name:  "empty external name",
			in:    `{kind: Service, metadata: {name: ext}, spec: {type: ExternalName, externalName: ""}}`,
			empty: true,
		},
		{
			name: "external name with slices: ready, without records of theirs",
			in: `{kind: Service, metadata: {name: db}, spec: {type: ExternalName, externalName: example.org}}` +
				slice4 + `endpoints: [{addresses: [192.0.2.1], hostname: a}]}`,
			want:  `db.default.svc CNAME example.org.`,
			ready: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, own := parseOne(t, tt.in)
			r := buildRecords(s, own)
			if r.Empty != tt.empty {
				t.Errorf("Empty = %v, want %v", r.Empty, tt.empty)
			}
			if r.HasReady != tt.ready {
				t.Errorf("HasReady = %v, want %v", r.HasReady, tt.ready)
			}
			tree := treecache.New(testZone)
			tree.Replace(r.Key, r, time.Unix(0, 0))
			if got, want := zoneText(tree), lines(tt.want); got != want {
				t.Errorf("records\n%s\nwant\n%s", got, want)
			}
			// The order of the slices and of what is in them does not matter.
			rnd := rand.New(rand.NewPCG(1, 1))
			for range 5 {
				rnd.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
				for _, l := range own {
					rnd.Shuffle(len(l.endpoints), func(i, j int) { l.endpoints[i], l.endpoints[j] = l.endpoints[j], l.endpoints[i] })
				}
				shuffled := treecache.New(testZone)
				shuffled.Replace(r.Key, buildRecords(s, own), time.Unix(0, 0))
				if got, want := zoneText(shuffled), lines(tt.want); got != want {
					t.Errorf("records in another order\n%s\nwant\n%s", got, want)
				}
			}
			tree.Replace(r.Key, nil, time.Unix(0, 0))
			if _, counts := tree.Stats(); counts != (treecache.Counts{}) {
				t.Errorf("%+v outlive the Service", counts)
			}
		})
	}
}

func TestBuildRecordsWithoutService(t *testing.T) {
	_, own := parseOne(t, strings.TrimPrefix(strings.TrimSpace(slice4), "---")+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	if r := buildRecords(nil, own); r != nil {
		t.Errorf("slices without a Service have records: %+v", r)
	}
}

// TestBuildRecordsPodHostname: which endpoints come first among the owners of
// an address.
func TestBuildRecordsPodHostname(t *testing.T) {
	s, own := parseOne(t, headlessDB+slice4+`endpoints: [
		{addresses: [192.0.2.1], hostname: a, targetRef: {kind: Pod}}, {addresses: [192.0.2.2], hostname: b, targetRef: {kind: Node}},
		{addresses: [192.0.2.3], hostname: c}, {addresses: [192.0.2.4], targetRef: {kind: Pod}}, {addresses: [192.0.2.5], hostname: e},
		{addresses: [192.0.2.5], hostname: e, targetRef: {kind: Pod}}]}`)
	var got []string
	for _, a := range buildRecords(s, own).Addresses {
		if a.PodHostname {
			got = append(got, a.Label)
		}
	}
	if want := []string{"a", "e"}; !slices.Equal(got, want) {
		t.Errorf("Pods' hostnames %q, want %q", got, want)
	}
}

// TestBuildRecordsLarge pins a headless Service of many slices.
func TestBuildRecordsLarge(t *testing.T) {
	var b strings.Builder
	b.WriteString(headlessDB)
	for i := range 6 {
		family, addr := "IPv4", "192.0.2.%d"
		if i%3 == 2 {
			family, addr = "IPv6", "2001:db8::%x"
		}
		var endpoints []string
		for e := range 8 {
			n := i/3*8 + e
			more := ""
			switch e % 4 {
			case 0:
				more = fmt.Sprintf(", hostname: db-%d", n)
			case 1:
				more = fmt.Sprintf(", hostname: shared-%d, conditions: {ready: %v}", i/3, e < 4)
			case 2:
				more = ", conditions: {ready: true}, targetRef: {kind: Pod, name: x}"
			}
			endpoints = append(endpoints, fmt.Sprintf(`{addresses: ["%s"]%s}`, fmt.Sprintf(addr, 16+n), more))
		}
		fmt.Fprintf(&b, "\n---\n{kind: EndpointSlice, metadata: {name: db-%d, labels: {kubernetes.io/service-name: db}}, addressType: %s, ports: [{name: pg, port: %d}, {name: metrics, port: 9187, protocol: TCP}, {port: 7, protocol: UDP}], endpoints: [%s]}",
			i, family, 5432+i%2, strings.Join(endpoints, ", "))
	}
	s, own := parseOne(t, b.String())
	tree := treecache.New(testZone)
	r := buildRecords(s, own)
	tree.Replace(r.Key, r, time.Unix(0, 0))
	golden(t, zoneText(tree))
}

func BenchmarkBuildRecords(b *testing.B) {
	s := &service{meta: meta{Namespace: "default", Name: "db"}, headless: true}
	for _, n := range []int{20, 1500} {
		l := &slice{meta: meta{Namespace: "default", Name: "db-1"}, service: "db", ports: []port{{"http", corev1.ProtocolTCP, 80}}}
		addr := netip.MustParseAddr("10.244.0.1")
		for range n {
			l.endpoints = append(l.endpoints, endpoint{addr: addr, ready: true})
			addr = addr.Next()
		}
		b.Run(fmt.Sprintf("Headless%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r := buildRecords(s, []*slice{l}); len(r.Addresses) != n {
					b.Fatal(len(r.Addresses))
				}
			}
		})
	}
}
