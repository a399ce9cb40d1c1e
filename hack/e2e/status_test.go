package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// statusJSON is what is looked at of /.
type statusJSON struct {
	Ready   bool
	Reason  string
	Records struct {
		Source        string
		SnapshotTaken time.Time
		Incomplete    string
		Services      int
		ByType        map[string]int
	}
	APIServer struct {
		LastContact time.Time
		Failures    []struct{ Resource, Error string }
	}
	Configuration struct{ Origin, Version, Refused string }
}

// configJSON is what is looked at of /config.
type configJSON struct {
	Values []struct {
		Key   string
		Value any
		From  struct{ Kind, Name, Version string }
	}
	InForce struct{ Origin, Version string }
	Refused *struct {
		Version, Reason string
		Stands          bool
	}
}

func getJSON[T any](t *testing.T, k *harness.KubeDNS, path string) (v T) {
	t.Helper()
	status, body := k.Get(t, path)
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d, %v: %s", path, status, err, body)
	}
	return v
}

// TestStatus looks at / and /config before the API server can be reached,
// while it can, once it is away again, and after a restart without it.
func TestStatus(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	api, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := harness.StartProxy(t, api.Host, harness.ProxyRefuse)
	store := &configMapStore{c: c, name: "status"}
	store.write(t, nil)
	defer store.remove(t)
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	options := harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: kubeconfig(t, c, "", "https://"+proxy.Addr), NoWait: true,
		Args: append(store.args(), "--snapshot-file="+snapshot),
	}
	k := harness.StartKubeDNS(t, options)
	awaitStatus := func(what string, done func(statusJSON) bool) (s statusJSON) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, func() error {
			if status, _ := k.Readiness(t); status == 0 {
				return errors.New("nobody answers")
			}
			if s = getJSON[statusJSON](t, k, "/"); !done(s) {
				return fmt.Errorf("not %s: %+v", what, s)
			}
			return nil
		})
		return s
	}
	fails := func(s statusJSON, resource string) bool {
		for _, f := range s.APIServer.Failures {
			if f.Resource == resource && strings.Contains(f.Error, "connection refused") {
				return true
			}
		}
		return false
	}

	s := awaitStatus("without an API server", func(s statusJSON) bool {
		return fails(s, "services") && fails(s, "endpointslices") && fails(s, "configmaps")
	})
	if s.Ready || !strings.Contains(s.Reason, "services not listed yet") || !s.APIServer.LastContact.IsZero() || s.Configuration.Origin != "default" {
		t.Errorf("status without an API server: %+v", s)
	}

	proxy.SetMode(t, harness.ProxyForward)
	k.AwaitReady(t, 90*time.Second)
	s = awaitStatus("heard again", func(s statusJSON) bool { return len(s.APIServer.Failures) == 0 && s.Configuration.Origin != "default" })
	if s.Records.Source != "apiServer" || s.Records.Services == 0 || s.Records.ByType["A"] == 0 || time.Since(s.APIServer.LastContact) > time.Minute {
		t.Errorf("status with an API server: %+v", s)
	}
	store.write(t, map[string]string{"upstreamNameservers": `["192.0.2.54"]`})
	version := func() string {
		t.Helper()
		cm, err := c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), store.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return cm.ResourceVersion
	}
	first := version()
	awaitStatus("configured", func(s statusJSON) bool { return s.Configuration.Version == first })
	store.write(t, map[string]string{"upstreamNameservers": `["` + markup + `"]`})
	awaitStatus("refused", func(s statusJSON) bool { return strings.Contains(s.Configuration.Refused, markup) })
	got := getJSON[configJSON](t, k, "/config")
	if r := got.Refused; r == nil || r.Version != version() || !r.Stands || !strings.Contains(r.Reason, markup) {
		t.Errorf("refused: %+v, want version %s", r, version())
	}
	for _, v := range got.Values {
		if v.Key == "upstreamNameservers" && (v.From.Kind != "configMap" || v.From.Name != "kube-system/status" || v.From.Version != first || fmt.Sprint(v.Value) != "[192.0.2.54:53]") {
			t.Errorf("%+v, want it from version %s", v, first)
		}
	}

	harness.Eventually(t, 30*time.Second, func() error { _, err := os.Stat(snapshot); return err })
	proxy.SetMode(t, harness.ProxyRefuse)
	s = awaitStatus("cut off", func(s statusJSON) bool { return fails(s, "services") })
	if !s.Ready {
		t.Errorf("status of one that is cut off: %+v", s)
	}
	if err := k.Stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	k = harness.StartKubeDNS(t, options)
	s = awaitStatus("serving a snapshot", func(s statusJSON) bool { return s.Records.Source == "snapshot" && fails(s, "services") })
	if !s.Ready || s.Records.SnapshotTaken.IsZero() || !strings.Contains(s.Records.Incomplete, "services not listed yet") || s.Records.ByType["A"] == 0 {
		t.Errorf("status of one that serves a snapshot: %+v", s)
	}
	if _, body := k.Get(t, "/?format=html"); !strings.Contains(body, "Serving a snapshot") {
		t.Errorf("the page does not speak of the snapshot:\n%s", body)
	}
}
