// Package clustertest has what the tests of several packages share: objects of
// the API in YAML, random clusters and their histories, and trees of records as
// text.
package clustertest

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The beginnings of a Service's slice, whose list of endpoints follows.
const (
	Slice4 = `
---
{kind: EndpointSlice, metadata: {name: db-4, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, `
	Slice6 = `
---
{kind: EndpointSlice, metadata: {name: db-6, labels: {kubernetes.io/service-name: db}}, addressType: IPv6, `
	SliceFQDN = `
---
{kind: EndpointSlice, metadata: {name: db-n, labels: {kubernetes.io/service-name: db}}, addressType: FQDN, `
	HeadlessDB = `{kind: Service, metadata: {name: db}, spec: {clusterIP: None, ports: [{name: pg, port: 1}]}}`
)

// Parse reads Services and EndpointSlices from YAML; their namespace is
// default where none is given.
func Parse(t *testing.T, text string) (services []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) {
	t.Helper()
	for _, document := range strings.Split(text, "---") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v in %s", err, document)
		}
		var err error
		switch kind.Kind {
		case "Service":
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
			err = yaml.UnmarshalStrict([]byte(document), s)
			services = append(services, s)
		case "EndpointSlice":
			s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
			err = yaml.UnmarshalStrict([]byte(document), s)
			endpointSlices = append(endpointSlices, s)
		default:
			t.Fatalf("kind %q in %s", kind.Kind, document)
		}
		if err != nil {
			t.Fatalf("%v in %s", err, document)
		}
	}
	return services, endpointSlices
}

// Addrs parses addresses.
func Addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
