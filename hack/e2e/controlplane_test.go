package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"kubedns/hack/e2e/harness"
)

// shared is the control plane that most tests use; TestMain stops it.
var shared struct {
	sync.Mutex
	dir   string // of the test binary's run
	plane *harness.ControlPlane
	err   error
	bins  map[string]string
}

// parallel is how many tests run at one time where -parallel does not say it.
// Go's default is the number of processors, which would then have nothing to do:
// tests that are parallel wait nearly all of their time. Tests that measure,
// have bounds of a few seconds, or look at all that is in the shared cluster,
// are not parallel: they run first, one after the other, if with subtests that
// are.
const parallel = 8

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	dir, err := os.MkdirTemp("", "kube-dns-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	shared.dir = dir
	defer func() {
		if shared.plane != nil {
			shared.plane.Stop()
		}
	}()
	return m.Run()
}

// cluster returns the shared control plane, which the first test to ask for it
// starts. Tests that share it use Namespaces of their own.
func cluster(t *testing.T) *harness.ControlPlane {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil && shared.err == nil {
		dir := filepath.Join(shared.dir, "controlplane")
		if shared.err = os.Mkdir(dir, 0o700); shared.err == nil {
			starting.Lock()
			shared.plane, shared.err = harness.StartControlPlane(context.Background(), dir) // it outlives t
			starting.Unlock()
		}
	}
	usable(t, shared.err)
	return shared.plane
}

// starting has control planes start one after the other: each takes all the
// processor time that there is, and tests beside it need some.
var starting sync.Mutex

// ownCluster returns a control plane of the test's own, to be stopped and
// started at will. apiArgs are more flags of the API server.
func ownCluster(t *testing.T, apiArgs ...string) *harness.ControlPlane {
	t.Helper()
	starting.Lock()
	c, err := harness.StartControlPlane(t.Context(), t.TempDir(), apiArgs...)
	starting.Unlock()
	usable(t, err)
	t.Cleanup(c.Stop)
	return c
}

// usable skips or fails t where the control plane is not built, and fails it
// where it did not start.
func usable(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, harness.ErrNotBuilt) {
		harness.Require(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kubeDNS returns the kube-dns binary, with the race detector where this
// machine can build that. KUBE_DNS in the environment names one to use instead.
func kubeDNS(t *testing.T) string {
	t.Helper()
	return program(t, "kube-dns", true)
}

// fastKubeDNS returns the kube-dns binary as it is shipped.
func fastKubeDNS(t *testing.T) string {
	t.Helper()
	return program(t, "kube-dns", false)
}

func program(t *testing.T, name string, race bool) string {
	t.Helper()
	if path := os.Getenv("KUBE_DNS"); path != "" && name == "kube-dns" {
		return path
	}
	shared.Lock()
	defer shared.Unlock()
	key := fmt.Sprint(name, race)
	if path, ok := shared.bins[key]; ok {
		return path
	}
	path, err := harness.Build(context.Background(), shared.dir, name, race) // later tests use it too
	if err != nil {
		t.Fatal(err)
	}
	if shared.bins == nil {
		shared.bins = map[string]string{}
	}
	shared.bins[key] = path
	return path
}

// adminKubeconfig writes a kubeconfig of the admin of c.
func adminKubeconfig(t *testing.T, c *harness.ControlPlane) string {
	t.Helper()
	return kubeconfig(t, c, "", c.URL)
}

// kubeconfig writes a kubeconfig with the token, the admin's where it is empty,
// that names server as the API server.
func kubeconfig(t *testing.T, c *harness.ControlPlane, token, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.WriteKubeconfigTo(file, token, server); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestControlPlane looks at the control plane itself: what later tests take
// for granted of it.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	c := ownCluster(t)
	ctx := t.Context()
	services := c.Client.CoreV1().Services("default")
	created, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: ptr(corev1.IPFamilyPolicyRequireDualStack),
			Ports:          []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := created.Spec.ClusterIPs; len(got) != 2 {
		t.Errorf("a dual-stack Service has the cluster IPs %q, want two", got)
	}

	t.Run("objects survive kill -9 of both", func(t *testing.T) {
		if err := c.KillAPIServer(); err != nil {
			t.Fatal(err)
		}
		if err := c.KillEtcd(); err != nil {
			t.Fatal(err)
		}
		if err := c.StartEtcd(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		again, err := services.Get(ctx, "kept", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if again.UID != created.UID {
			t.Errorf("UID is %s, want %s", again.UID, created.UID)
		}
	})

	t.Run("a ServiceAccount's token has its rights and no others", func(t *testing.T) {
		token, err := c.ServiceAccountToken(ctx, "reader", []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig(t, c, token, c.URL))
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("listing Services: %v", err)
		}
		if _, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing Pods: %v, want Forbidden", err)
		}
	})
}

func ptr[T any](v T) *T { return &v }
