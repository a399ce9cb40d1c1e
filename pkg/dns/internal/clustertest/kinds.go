package clustertest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EachKind are a Service of each kind and the slices of one.
func EachKind() ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	created := metav1.NewTime(time.Unix(1700000000, 0))
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7", CreationTimestamp: created}
	}
	ready, not, host, port, name := true, false, "db-0", int32(5432), "pg"
	return []*corev1.Service{
			{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
				ClusterIP: "192.0.2.7", ClusterIPs: []string{"192.0.2.7", "2001:db8::7"},
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 53, Protocol: corev1.ProtocolUDP}},
			}},
			{ObjectMeta: meta("db"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true}},
			{ObjectMeta: meta("out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.org"}},
		}, []*discoveryv1.EndpointSlice{{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}, {Name: new(string)}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"198.51.100.1"}, Hostname: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0"}},
				{Addresses: []string{"198.51.100.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &not}},
			},
		}}
}
