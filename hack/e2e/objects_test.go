package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// ownNamespace makes a Namespace that no other test uses.
func ownNamespace(t testing.TB, c *harness.ControlPlane) string {
	t.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// clusterIPService is a Service with the port http, and with the cluster IP ip,
// or any where that is empty.
func clusterIPService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip,
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// headlessService is a headless Service with the port http.
func headlessService(name string) *corev1.Service {
	return clusterIPService(name, corev1.ClusterIPNone)
}

// slice is an EndpointSlice of service with ready endpoints, whose hostnames
// are "p" and their number from first on.
func slice(name, service string, first int, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr("http"), Port: ptr(int32(80)), Protocol: ptr(corev1.ProtocolTCP)},
		},
	}
	for i, address := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Hostname:   ptr(fmt.Sprintf("p%d", first+i)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)},
		})
	}
	return s
}

func createService(t testing.TB, c *harness.ControlPlane, namespace string, s *corev1.Service) *corev1.Service {
	t.Helper()
	made, err := c.Client.CoreV1().Services(namespace).Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func deleteService(t testing.TB, c *harness.ControlPlane, namespace, name string) {
	t.Helper()
	if err := c.Client.CoreV1().Services(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func createSlice(t testing.TB, c *harness.ControlPlane, namespace string, s *discoveryv1.EndpointSlice) {
	t.Helper()
	if _, err := c.Client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// addresses asks for the A records of name and returns the addresses, sorted
// by no rule, with the rcode.
func addresses(t testing.TB, server, name string) ([]string, int) {
	t.Helper()
	reply := ask(t, harness.Question{Server: server, TCP: true, Name: name, Type: dns.TypeA})
	var all []string
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	return all, reply.Rcode
}

// awaitRcode waits until the A question for name has the rcode.
func awaitRcode(t testing.TB, server, name string, want int, timeout time.Duration) {
	t.Helper()
	harness.Eventually(t, timeout, func() error {
		reply, err := harness.Ask(t.Context(), harness.Question{Server: server, Name: name, Type: dns.TypeA})
		if err != nil {
			return err
		}
		if reply.Rcode != want {
			return fmt.Errorf("%s: rcode is %s, want %s", name, dns.RcodeToString[reply.Rcode], dns.RcodeToString[want])
		}
		return nil
	})
}

// awaitAddress waits until name has the address want and no other.
func awaitAddress(t testing.TB, server, name, want string, timeout time.Duration) {
	t.Helper()
	harness.Eventually(t, timeout, func() error {
		got, rcode := addresses(t, server, name)
		if len(got) != 1 || got[0] != want {
			return fmt.Errorf("%s: addresses are %q (%s), want %s", name, got, dns.RcodeToString[rcode], want)
		}
		return nil
	})
}
