package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

const kubeSystem = metav1.NamespaceSystem

// object returns the object of kind named name, decoded into a T.
func object[T any](t testing.TB, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		var decoded T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &decoded, true); err != nil {
			t.Fatalf("decoding %s %s: %v", kind, name, err)
		}
		return &decoded
	}
	t.Fatalf("no %s named %s", kind, name)
	return nil
}

// restrict makes kube-system a Namespace where a pod must meet the Pod Security
// Standard "restricted", the strictest.
func restrict(t testing.TB, c *harness.ControlPlane) {
	t.Helper()
	patch := `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":"restricted"}}}`
	if _, err := c.Client.CoreV1().Namespaces().Patch(t.Context(), kubeSystem, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// overlays are deploy and everything under deploy/overlays.
func overlays(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(pods.DeployDir, "overlays", "*"))
	if err != nil || len(dirs) < 4 {
		t.Fatalf("overlays %q: %v", dirs, err)
	}
	return append([]string{pods.DeployDir}, dirs...)
}

// TestManifests applies deploy and each overlay to a real API server, one
// after the other in the same cluster, and has a pod admitted.
func TestManifests(t *testing.T) {
	t.Parallel()
	c := ownCluster(t)
	restrict(t, c)
	a := pods.NewApplier(t, c)

	t.Run("a warning is noticed", func(t *testing.T) {
		deprecated := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Endpoints",
			"metadata": map[string]any{"name": "old", "namespace": "default"},
		}}
		if err := a.Apply(t.Context(), deprecated); err != nil {
			t.Fatal(err)
		}
		if len(a.Warnings()) == 0 {
			t.Error("no warning for Endpoints: other tests here could not fail")
		}
	})
	for _, dir := range overlays(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			objects := pods.Kustomize(t, dir)
			a.ApplyAll(t, objects)
			a.ApplyAll(t, objects) // a second time changes nothing

			deployment, err := c.Client.AppsV1().Deployments(kubeSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-" + filepath.Base(dir), Namespace: kubeSystem, Labels: deployment.Spec.Template.Labels},
				Spec:       deployment.Spec.Template.Spec,
			}
			if _, err := c.Client.CoreV1().Pods(kubeSystem).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Errorf("creating a pod of it: %v", err)
			}
		})
	}
	t.Run("dual-stack/addresses", func(t *testing.T) {
		a.ApplyAll(t, pods.Kustomize(t, filepath.Join(pods.DeployDir, "overlays", "dual-stack")))
		service, err := c.Client.CoreV1().Services(kubeSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ips := service.Spec.ClusterIPs; len(ips) != 2 || ips[0] != "10.96.0.10" || !strings.Contains(ips[1], ":") {
			t.Errorf("cluster IPs %q, want 10.96.0.10 and one of IPv6", ips)
		}
	})
	t.Run("over the Deployment of kube-dns 1.2x", func(t *testing.T) {
		for _, o := range pods.Kustomize(t, "testdata/pod-stock") {
			if err := a.Apply(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		if len(a.Warnings()) == 0 {
			t.Error("no warning of what its containers may do")
		}
		a.ApplyAll(t, pods.Kustomize(t, pods.DeployDir))
		deployment, err := c.Client.AppsV1().Deployments(kubeSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, container := range deployment.Spec.Template.Spec.Containers {
			if added := container.SecurityContext.Capabilities.Add; len(added) > 0 {
				t.Errorf("%s still has %q", container.Name, added)
			}
		}
	})
	t.Run("a ConfigMap's data stays", func(t *testing.T) {
		configMaps := c.Client.CoreV1().ConfigMaps(kubeSystem)
		patch := `{"data":{"upstreamNameservers":"[\"192.0.2.1\"]"}}`
		if _, err := configMaps.Patch(t.Context(), "kube-dns", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "operator"}); err != nil {
			t.Fatal(err)
		}
		a.ApplyAll(t, pods.Kustomize(t, pods.DeployDir))
		configMap, err := configMaps.Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if configMap.Data["upstreamNameservers"] == "" {
			t.Errorf("data is %q after the manifests were applied again", configMap.Data)
		}
	})
}

// TestManifestsAsWritten looks at what an API server would accept in another
// way as well.
func TestManifestsAsWritten(t *testing.T) {
	for _, dir := range overlays(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			objects := pods.Kustomize(t, dir)
			d := object[appsv1.Deployment](t, objects, "Deployment", "kube-dns")
			spec := d.Spec.Template.Spec
			rolling := d.Spec.Strategy.RollingUpdate
			if rolling.MaxSurge.IntValue() != 1 || rolling.MaxUnavailable.IntValue() != 0 {
				t.Errorf("rolling update %v", rolling)
			}
			if spec.DNSPolicy != corev1.DNSDefault || spec.PriorityClassName != "system-cluster-critical" || len(spec.TopologySpreadConstraints) == 0 {
				t.Errorf("dnsPolicy %s, priority %q, spread %v", spec.DNSPolicy, spec.PriorityClassName, spec.TopologySpreadConstraints)
			}
			var names []string
			for _, container := range spec.Containers {
				names = append(names, container.Name)
				s := container.SecurityContext
				if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
					!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
					t.Errorf("%s: security context %v", container.Name, s)
				}
				if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Memory().IsZero() {
					t.Errorf("%s: resources %v", container.Name, container.Resources)
				}
			}
			if want := []string{"kubedns", "dnsmasq", "sidecar"}; !slices.Equal(names, want) {
				t.Errorf("containers %q, want %q", names, want)
			}
		})
	}
}

// An access is what a ServiceAccount may do, "verb group/resource[/name]".
type access struct{ verb, group, resource, namespace, name string }

func (a access) String() string {
	s := a.verb + " " + a.resource
	if a.group != "" {
		s += "." + a.group
	}
	if a.name != "" {
		s += " " + a.name
	}
	if a.namespace != "" {
		s += " in " + a.namespace
	}
	return s
}

// TestManifestRights asks a real API server about every verb on every resource
// it has, whether the manifests' ServiceAccount may do it.
func TestManifestRights(t *testing.T) {
	t.Parallel()
	own := []string{
		"list services", "watch services",
		"list endpointslices.discovery.k8s.io", "watch endpointslices.discovery.k8s.io",
		"list configmaps kube-dns in kube-system", "watch configmaps kube-dns in kube-system",
	}
	// The API server gives it this itself, whatever the manifests are.
	builtIn := []string{"list endpoints", "watch endpoints"}
	for _, tt := range []struct {
		name, overlay string
		components    []string
		want          []string
	}{
		{name: "base", overlay: "..", want: slices.Concat(own, builtIn)},
		{name: "federation", overlay: "federation", want: slices.Concat(own, builtIn, []string{"list nodes", "watch nodes"})},
		{name: "own rights only", overlay: "..", components: []string{"own-rights-only"}, want: own},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := ownCluster(t)
			a := pods.NewApplier(t, c)
			dir := filepath.Join(pods.DeployDir, "overlays", tt.overlay)
			if tt.overlay == ".." {
				dir = pods.DeployDir
			}
			if tt.components != nil {
				dir = withComponents(t, tt.components)
			}
			a.ApplyAll(t, pods.Kustomize(t, dir))
			// What every ServiceAccount may do, as to ask what it may do.
			everybody, _ := accesses(t, c, "somebody")
			allowed, denied := accesses(t, c, "kube-dns")
			allowed = slices.DeleteFunc(allowed, func(a string) bool { return slices.Contains(everybody, a) })
			slices.Sort(tt.want)
			if !slices.Equal(allowed, tt.want) {
				t.Errorf("more than every ServiceAccount it may\n%s\nwant\n%s", strings.Join(allowed, "\n"), strings.Join(tt.want, "\n"))
			}
			if len(denied) < 300 {
				t.Errorf("only %d accesses denied: was everything asked?", len(denied))
			}
			t.Logf("%d allowed, %d more that are everybody's, %d denied", len(allowed), len(everybody), len(denied))
			tryToken(t, c)
		})
	}
}

// withComponents writes a kustomization of deploy/base and components.
func withComponents(t testing.TB, components []string) string {
	t.Helper()
	dir := t.TempDir()
	deploy, err := filepath.Abs(pods.DeployDir)
	if err != nil {
		t.Fatal(err)
	}
	// kustomize takes no absolute paths.
	if deploy, err = filepath.Rel(dir, deploy); err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + deploy + "/base]\ncomponents:\n"
	for _, c := range components {
		text += "- " + deploy + "/components/" + c + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// accesses asks about every verb on every resource and subresource that the
// API server has, cluster-wide, and on the ConfigMap kube-dns by name, whether
// the ServiceAccount kube-system/name may do it.
func accesses(t testing.TB, c *harness.ControlPlane, name string) (allowed, denied []string) {
	t.Helper()
	_, lists, err := c.Client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	seen := map[access]bool{}
	var all []access
	add := func(a access) {
		if !seen[a] {
			seen[a] = true
			all = append(all, a)
		}
	}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, r := range list.APIResources {
			for _, verb := range verbs {
				add(access{verb: verb, group: group, resource: r.Name})
			}
		}
	}
	for _, verb := range verbs {
		add(access{verb: verb, resource: "configmaps", namespace: kubeSystem})
		add(access{verb: verb, resource: "configmaps", namespace: kubeSystem, name: "kube-dns"})
		add(access{verb: verb, resource: "configmaps", namespace: kubeSystem, name: "other"})
		add(access{verb: verb, resource: "configmaps", namespace: "default", name: "kube-dns"})
		add(access{verb: verb, resource: "secrets", namespace: kubeSystem})
	}
	for _, verb := range []string{"impersonate"} {
		add(access{verb: verb, resource: "users"})
		add(access{verb: verb, resource: "serviceaccounts", namespace: kubeSystem})
	}
	for _, a := range all {
		resource, sub, _ := strings.Cut(a.resource, "/")
		review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authzv1.SubjectAccessReview{
			Spec: authzv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:kube-system:" + name,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
				ResourceAttributes: &authzv1.ResourceAttributes{
					Verb: a.verb, Group: a.group, Resource: resource, Subresource: sub, Namespace: a.namespace, Name: a.name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed {
			allowed = append(allowed, a.String())
		} else {
			denied = append(denied, a.String())
		}
	}
	slices.Sort(allowed)
	slices.Sort(denied)
	return allowed, denied
}

// tryToken does with a token of the ServiceAccount what kube-dns does, and some
// things that must be forbidden.
func tryToken(t testing.TB, c *harness.ControlPlane) {
	t.Helper()
	token, err := c.Client.CoreV1().ServiceAccounts(kubeSystem).CreateToken(t.Context(), "kube-dns", &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(c.Admin)
	cfg.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	core := client.CoreV1()
	for _, tt := range []struct {
		name      string
		do        func() error
		forbidden bool
	}{
		{name: "list services", do: func() error { _, err := core.Services("").List(ctx, metav1.ListOptions{}); return err }},
		{name: "list endpointslices", do: func() error {
			_, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
			return err
		}},
		{name: "list its ConfigMap", do: func() error {
			_, err := core.ConfigMaps(kubeSystem).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kube-dns"})
			return err
		}},
		{name: "list other ConfigMaps", forbidden: true, do: func() error { _, err := core.ConfigMaps(kubeSystem).List(ctx, metav1.ListOptions{}); return err }},
		{name: "get a Service", forbidden: true, do: func() error {
			_, err := core.Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			return err
		}},
		{name: "delete a Service", forbidden: true, do: func() error { return core.Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}) }},
		{name: "list secrets", forbidden: true, do: func() error { _, err := core.Secrets(kubeSystem).List(ctx, metav1.ListOptions{}); return err }},
		{name: "list pods", forbidden: true, do: func() error { _, err := core.Pods(kubeSystem).List(ctx, metav1.ListOptions{}); return err }},
		{name: "list namespaces", forbidden: true, do: func() error { _, err := core.Namespaces().List(ctx, metav1.ListOptions{}); return err }},
		{name: "make a token", forbidden: true, do: func() error {
			_, err := core.ServiceAccounts(kubeSystem).CreateToken(ctx, "kube-dns", &authv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		}},
	} {
		switch err := tt.do(); {
		case tt.forbidden && !apierrors.IsForbidden(err):
			t.Errorf("%s: %v, want Forbidden", tt.name, err)
		case !tt.forbidden && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
