package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// Short names for what nearly every test uses.
var (
	clusterIPService = harness.ClusterIPService
	headlessService  = harness.HeadlessService
	slice            = harness.Slice
	createService    = harness.CreateService
	createSlice      = harness.CreateSlice
	deleteService    = harness.DeleteService
)

// ownNamespace makes a Namespace that no other test uses. What is in it goes
// with the test; the Namespace itself stays.
func ownNamespace(t testing.TB, c *harness.ControlPlane) string {
	t.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // t.Context is done by now
		services, err := c.Client.CoreV1().Services(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Errorf("cleaning up: %v", err)
			return
		}
		for _, s := range services.Items {
			if err := c.Client.CoreV1().Services(ns.Name).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		}
		if err := c.Client.DiscoveryV1().EndpointSlices(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return ns.Name
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
