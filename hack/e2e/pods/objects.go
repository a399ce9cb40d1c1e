package pods

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// Server is where a pod answers.
const Server = "127.0.0.1:53"

// StubConfig is a file that makes dnsmasq the nameserver of corp.example.net.
func StubConfig(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stub.conf")
	text := `no-resolv
no-hosts
local=/corp.example.net/
host-record=db.corp.example.net,192.0.2.55
address=/load.corp.example.net/192.0.2.56
local-ttl=60
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// MakeObjects makes the Services that the pod is asked about.
func MakeObjects(t testing.TB, c *harness.ControlPlane) {
	t.Helper()
	harness.CreateService(t, c, "default", harness.ClusterIPService("web", "10.96.7.7"))
	harness.CreateService(t, c, "default", harness.HeadlessService("db"))
	harness.CreateSlice(t, c, "default", harness.Slice("db-1", "db", 0, "10.244.1.1", "10.244.1.2", "10.244.1.3"))
	for name, target := range map[string]string{"docs": "www.example.org", "partner": "db.corp.example.net"} {
		harness.CreateService(t, c, "default", &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target},
		})
	}
}
