package harness

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterIPService is a Service with the port http, and with the cluster IP ip,
// or any where that is empty.
func ClusterIPService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip,
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// HeadlessService is a headless Service with the port http.
func HeadlessService(name string) *corev1.Service {
	return ClusterIPService(name, corev1.ClusterIPNone)
}

// Slice is an EndpointSlice of service with ready endpoints, whose hostnames
// are "p" and their number from first on.
func Slice(name, service string, first int, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)},
		},
	}
	for i, address := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Hostname:   new(fmt.Sprintf("p%d", first+i)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

// CreateService makes the Service s, and returns it as the API server has it.
func CreateService(t testing.TB, c *ControlPlane, namespace string, s *corev1.Service) *corev1.Service {
	t.Helper()
	made, err := c.Client.CoreV1().Services(namespace).Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// DeleteService deletes a Service.
func DeleteService(t testing.TB, c *ControlPlane, namespace, name string) {
	t.Helper()
	if err := c.Client.CoreV1().Services(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// CreateSlice makes the EndpointSlice s.
func CreateSlice(t testing.TB, c *ControlPlane, namespace string, s *discoveryv1.EndpointSlice) {
	t.Helper()
	if _, err := c.Client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
