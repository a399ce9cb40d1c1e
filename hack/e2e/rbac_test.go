package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

func right(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// TestEnoughRights runs kube-dns with a ServiceAccount that has the rights the
// documentation names and no others.
func TestEnoughRights(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	services := right("", "services", "list", "watch")
	slices := right("discovery.k8s.io", "endpointslices", "list", "watch")
	configMap := right("", "configmaps", "get", "list", "watch")
	configMap.ResourceNames = []string{"rights-configmap"}
	if _, err := c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "rights-configmap"},
		Data:       map[string]string{"federations": "rights=fed.example.org"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		wide       []rbacv1.PolicyRule
		namespaced []rbacv1.PolicyRule
		args       []string
		// federated reports whether a federation is configured then, whose
		// names are SERVFAIL while the region is not known.
		federated bool
	}{
		{name: "plain", wide: []rbacv1.PolicyRule{services, slices}},
		{
			name: "federation", wide: []rbacv1.PolicyRule{services, slices, right("", "nodes", "list", "watch")},
			args: []string{"--federations=rights=fed.example.org"}, federated: true,
		},
		{
			name: "configmap", wide: []rbacv1.PolicyRule{services, slices, right("", "nodes", "list", "watch")},
			namespaced: []rbacv1.PolicyRule{configMap},
			args:       []string{"--config-map=rights-configmap"}, federated: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			token, err := c.ServiceAccountToken(t.Context(), "enough-"+tt.name, tt.wide, tt.namespaced)
			if err != nil {
				t.Fatal(err)
			}
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary:     kubeDNS(t),
				Kubeconfig: kubeconfig(t, c, token, c.URL),
				Args:       tt.args,
			})
			awaitAddress(t, k.Addr, "kubernetes.default.svc.cluster.local.", "10.96.0.1", 10*time.Second)
			want := dns.RcodeNameError
			if tt.federated {
				want = dns.RcodeServerFailure
			}
			awaitRcode(t, k.Addr, "nosuch.default.rights.svc.cluster.local.", want, 10*time.Second)
			if log := k.Log.String(); strings.Contains(strings.ToLower(log), "forbidden") {
				t.Errorf("something was forbidden:\n%s", log)
			}
		})
	}
}

// TestMissingRights runs kube-dns without a right that it needs: it says so,
// and is ready once it has it.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	services := right("", "services", "list", "watch")
	slices := right("discovery.k8s.io", "endpointslices", "list", "watch")
	for _, tt := range []struct {
		missing string
		rights  rbacv1.PolicyRule
		later   rbacv1.PolicyRule
	}{
		{missing: "services", rights: slices, later: services},
		{missing: "endpointslices", rights: services, later: slices},
	} {
		t.Run(tt.missing, func(t *testing.T) {
			t.Parallel()
			name := "missing-" + tt.missing
			token, err := c.ServiceAccountToken(t.Context(), name, []rbacv1.PolicyRule{tt.rights}, nil)
			if err != nil {
				t.Fatal(err)
			}
			k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
				Binary:     kubeDNS(t),
				Kubeconfig: kubeconfig(t, c, token, c.URL),
				Args:       []string{"--initial-sync-timeout=100ms"},
				NoWait:     true,
			})
			says := func(text string) bool {
				text = strings.ToLower(text)
				return strings.Contains(text, tt.missing) && strings.Contains(text, "forbidden")
			}
			harness.Eventually(t, 20*time.Second, func() error {
				if status, body := k.Readiness(t); status != http.StatusServiceUnavailable || !says(body) {
					return fmt.Errorf("/readiness answers %d %q, want 503 and that %s are forbidden", status, body, tt.missing)
				}
				return nil
			})
			harness.Eventually(t, 20*time.Second, func() error {
				for line := range strings.Lines(k.Log.String()) {
					if says(line) {
						return nil
					}
				}
				return fmt.Errorf("no line of the log says that %s are forbidden:\n%s", tt.missing, k.Log)
			})
			awaitRcode(t, k.Addr, "kubernetes.default.svc.cluster.local.", dns.RcodeRefused, 5*time.Second)

			role, err := c.Client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			role.Rules = append(role.Rules, tt.later)
			if _, err := c.Client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			k.AwaitReady(t, time.Minute)
			awaitAddress(t, k.Addr, "kubernetes.default.svc.cluster.local.", "10.96.0.1", 5*time.Second)
		})
	}
}
