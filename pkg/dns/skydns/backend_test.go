package skydns_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	etcd "github.com/coreos/etcd/client"
	"github.com/skynetservices/skydns/msg"

	"kubedns/pkg/dns"
	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

const backendCluster = `
{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.1, ports: [{name: http, port: 80}, {name: http, port: 80, protocol: UDP}, {port: 9}]}}
---
{kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 192.0.2.2, clusterIPs: [192.0.2.2, "2001:db8::2"], ports: [{name: http, port: 8080}]}}
---
{kind: Service, metadata: {name: mail, namespace: shop}, spec: {type: ExternalName, externalName: mail.example.org}}
---
{kind: Service, metadata: {name: idle, namespace: idle}, spec: {clusterIP: None}}
---
{kind: Service, metadata: {name: db}, spec: {clusterIP: None}}` +
	clustertest.Slice4 + `ports: [{name: pg, port: 5432}], endpoints: [{addresses: [192.0.2.11], hostname: a}, {addresses: [192.0.2.12], hostname: b}, {addresses: [192.0.2.11], hostname: c}]}`

// TestBackend pins what SkyDNS is given: host, or host:port, of each record.
func TestBackend(t *testing.T) {
	kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30}, sourcetest.New(clustertest.Parse(t, backendCluster)))
	kd.SetFederations(map[string]string{"fed": "fed.example.org"})
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	const (
		web, shop, db, label1 = "web.default.svc.cluster.local.", "web.shop.svc.cluster.local.", "db.default.svc.cluster.local.", "3365393837663430"
	)
	for _, tt := range []struct {
		name string
		a    []string // nil where the name does not exist
		srv  []string // the same as a where nil
	}{
		{"cluster.local.", []string{}, nil},
		{"svc.cluster.local.", []string{}, nil},
		{"pod.cluster.local.", []string{}, nil},
		{"any.pod.cluster.local.", []string{}, nil},
		{"default.svc.cluster.local.", []string{}, nil},
		{"idle.svc.cluster.local.", []string{}, nil}, // a namespace exists when it has a Service
		{"idle.idle.svc.cluster.local.", nil, nil},
		{"gone.svc.cluster.local.", nil, nil},
		{"*.svc.cluster.local.", []string{}, nil},
		{web, []string{"192.0.2.1"}, nil},
		{shop, []string{"192.0.2.2", "2001:db8::2"}, nil},
		{label1 + "." + web, []string{"192.0.2.1"}, nil},
		{"x." + web, nil, nil},
		{"_tcp." + web, []string{}, nil},
		{"_sctp." + web, nil, nil},
		{"_http._tcp." + web, []string{web + ":80"}, nil},
		{"_http._sctp." + web, nil, nil},
		{"x._http._tcp." + web, nil, nil},
		{db, []string{"192.0.2.11", "192.0.2.12"}, nil},
		{"a." + db, []string{"192.0.2.11"}, nil},
		{"c." + db, []string{"192.0.2.11"}, nil},
		{"_pg._tcp." + db, []string{"a." + db + ":5432", "b." + db + ":5432", "c." + db + ":5432"}, nil},
		{"mail.shop.svc.cluster.local.", []string{"mail.example.org."}, nil},
		{"x.mail.shop.svc.cluster.local.", nil, nil},
		{"*.mail.shop.svc.cluster.local.", nil, nil},
		{"10-1-2-3.any.pod.cluster.local.", []string{"10.1.2.3"}, nil},
		{"2001-db8--1.any.pod.cluster.local.", []string{"2001:db8::1"}, nil},
		{"x.any.pod.cluster.local.", nil, nil},
		{"x.10-1-2-3.any.pod.cluster.local.", nil, nil},
		{"x.cluster.local.", nil, nil},
		{"example.org.", nil, nil},
		{"xcluster.local.", nil, nil},
		{"web.default.fed.svc.cluster.local.", nil, nil}, // unknown topology, and no slice makes web ready
		{"db.default.fed.svc.cluster.local.", []string{db}, nil},

		// A name with an asterisk has different records of type SRV.
		{"web.*.svc.cluster.local.", []string{"192.0.2.1", "192.0.2.2", "2001:db8::2"}, []string{web + ":80", web + ":9", shop + ":8080"}},
		{"*.default.svc.cluster.local.", []string{"192.0.2.1", "192.0.2.11", "192.0.2.12"},
			[]string{"a." + db + ":5432", "b." + db + ":5432", "c." + db + ":5432", web + ":80", web + ":9"}},
		{"*.shop.svc.cluster.local.", []string{"192.0.2.2", "2001:db8::2"}, []string{shop + ":8080"}}, // a CNAME tolerates nothing beside it
		{"mail.*.svc.cluster.local.", []string{}, []string{}},
		{"gone.*.svc.cluster.local.", nil, nil},
		{"*.gone.svc.cluster.local.", nil, nil},
		{"*.idle.svc.cluster.local.", nil, nil},
		{"*." + db, []string{"192.0.2.11", "192.0.2.12"}, []string{}},
		{"a.*.default.svc.cluster.local.", []string{"192.0.2.11"}, []string{}},
		{"*.*.*.svc.cluster.local.", []string{"192.0.2.1", "192.0.2.11", "192.0.2.12", "192.0.2.2", "2001:db8::2"}, []string{}},
		{"x.*.default.svc.cluster.local.", nil, nil},
		{"_tcp.*.default.svc.cluster.local.", []string{}, nil},
		{"_sctp.*.default.svc.cluster.local.", nil, nil},
		{"_*." + web, []string{}, nil},
		{"*._tcp." + web, []string{}, []string{web + ":80"}},
		{"_http.*." + web, []string{}, []string{web + ":80"}}, // over UDP and TCP: one
		{"_*._*." + web, []string{}, []string{web + ":80"}},
		{"_http._tcp.web.*.svc.cluster.local.", []string{}, []string{web + ":80", shop + ":8080"}},
		{"_http._tcp.*.*.svc.cluster.local.", []string{}, []string{web + ":80", shop + ":8080"}},
		{"_gone.*." + web, nil, nil},
		{"*._sctp." + web, nil, nil},
		{"*.any.pod.cluster.local.", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.srv == nil {
				tt.srv = tt.a
			}
			check := func(kind string, services []msg.Service, err error, want []string) {
				t.Helper()
				var e etcd.Error
				if exists := err == nil; exists != (want != nil) || !exists && (!errors.As(err, &e) || e.Code != etcd.ErrorCodeKeyNotFound) {
					t.Errorf("%s: error %v, want records %q", kind, err, want)
				}
				got := []string{}
				for _, s := range services {
					text := s.Host
					if s.Port != 0 {
						text += fmt.Sprint(":", s.Port)
					}
					got = append(got, text)
					if s.Key == "" || s.Ttl != 30 || s.Priority != 10 || s.Weight == 0 {
						t.Errorf("%s: incomplete record %+v", kind, s)
					}
				}
				slices.Sort(got)
				want = slices.Sorted(slices.Values(want))
				if !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", kind, got, want)
				}
			}
			services, err := kd.Records(tt.name, false)
			check("Records", services, err, tt.a)
			services, err = kd.SRVRecords(tt.name)
			check("SRVRecords", services, err, tt.srv)
		})
	}
	for _, tt := range []struct{ name, want string }{
		{"1.2.0.192.in-addr.arpa.", web},
		{"11.2.0.192.in-addr.arpa.", "a." + db},
		{"2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.B.D.0.1.0.0.2.IP6.arpa.", shop},
		{"9.2.0.192.in-addr.arpa.", ""},
		{"2.0.192.in-addr.arpa.", ""},
		{"example.org.", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := kd.ReverseRecord(tt.name)
			switch {
			case tt.want == "" && err == nil:
				t.Errorf("ReverseRecord(%s) = %+v", tt.name, s)
			case tt.want != "" && (err != nil || s.Host != tt.want):
				t.Errorf("ReverseRecord(%s) = %+v, %v, want %s", tt.name, s, err, tt.want)
			}
		})
	}
}
