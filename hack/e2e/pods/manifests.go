package pods

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"kubedns/hack/e2e/harness"
)

// DeployDir has the manifests; programs that use them run in hack/e2e.
const DeployDir = "../../deploy"

// Kustomize builds a kustomization as `kubectl kustomize` does.
func Kustomize(t testing.TB, dir string) []*unstructured.Unstructured {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("building %s: %v", dir, err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range built.Resources() {
		text, err := r.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(text); err != nil {
			t.Fatalf("in %s: %v", dir, err)
		}
		objects = append(objects, o)
	}
	return objects
}

// warnings collects the warnings that an API server sends with its replies.
type warnings struct {
	mu   sync.Mutex
	list []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// An Applier sends objects to an API server as `kubectl apply --server-side`
// does, with unknown and duplicate fields as errors.
type Applier struct {
	client   dynamic.Interface
	mapper   meta.RESTMapper
	warnings *warnings
}

// NewApplier returns one that is the admin of c.
func NewApplier(t testing.TB, c *harness.ControlPlane) *Applier {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.Client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	a := &Applier{mapper: restmapper.NewDiscoveryRESTMapper(groups), warnings: &warnings{}}
	cfg := rest.CopyConfig(c.Admin)
	cfg.WarningHandler = a.warnings
	if a.client, err = dynamic.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	return a
}

// Apply sends o.
func (a *Applier) Apply(ctx context.Context, o *unstructured.Unstructured) error {
	gvk := o.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var client dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = a.client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	_, err = client.Patch(ctx, o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: "kubectl", Force: new(true), FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}

// Warnings are those since it was last called.
func (a *Applier) Warnings() []string { return a.warnings.take() }

// ApplyAll applies every object, and fails the test for an error or a warning.
func (a *Applier) ApplyAll(t testing.TB, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		if err := a.Apply(t.Context(), o); err != nil {
			t.Fatalf("applying %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		if list := a.Warnings(); len(list) > 0 {
			t.Errorf("applying %s %s, the API server warns: %q", o.GetKind(), o.GetName(), list)
		}
	}
}
