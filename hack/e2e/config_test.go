package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// A configStore is where kube-dns reads its configuration from.
type configStore interface {
	// args are the flags that name it.
	args() []string
	// write makes or replaces the configuration.
	write(t *testing.T, data map[string]string)
	// remove deletes it.
	remove(t *testing.T)
}

// TestConfig changes the configuration of a running kube-dns, by a watched
// ConfigMap and by directories as kubelet mounts one, and asks for names of
// the zone all the while.
func TestConfig(t *testing.T) {
	c := cluster(t)
	for _, tt := range []struct {
		name string
		open func(t *testing.T) configStore
	}{
		{"ConfigMap", func(*testing.T) configStore { return &configMapStore{c: c, name: "configured"} }},
		{"directory as kubelet mounts it", func(t *testing.T) configStore {
			t.Helper()
			return &directoryStore{dir: filepath.Join(t.TempDir(), "config")}
		}},
		{"directory behind a symbolic link", func(t *testing.T) configStore {
			t.Helper()
			dir := t.TempDir()
			link := filepath.Join(dir, "link")
			if err := os.Symlink(filepath.Join(dir, "config"), link); err != nil {
				t.Fatal(err)
			}
			return &directoryStore{dir: filepath.Join(dir, "config"), named: link}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			testConfig(t, c, tt.open(t))
		})
	}
}

func testConfig(t *testing.T, c *harness.ControlPlane, store configStore) {
	t.Helper()
	first := harness.StartUpstream(t, "testdata/upstream.conf")
	second := harness.StartUpstream(t, "testdata/upstream2.conf")
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Args: store.args(),
	})
	const outside = "www.example.org."
	federated := "nosuch.default.pluto.svc." + zone
	upstream := func(addr string) string { return fmt.Sprintf("[%q]", addr) }
	successful := func(want float64) {
		t.Helper()
		harness.Eventually(t, 15*time.Second, func() error {
			if v, ok := k.ScrapeMetrics(t).Value("kubedns_config_last_reload_successful"); !ok || v != want {
				return fmt.Errorf("kubedns_config_last_reload_successful is %v (%v), want %v", v, ok, want)
			}
			return nil
		})
	}
	watch := watchName(t, k.Addr, "kubernetes.default.svc."+zone)
	const soon = 15 * time.Second

	// There is none: the default, which is --nameservers, where nobody is.
	successful(1)
	awaitRcode(t, k.Addr, outside, dns.RcodeServerFailure, soon)
	awaitRcode(t, k.Addr, federated, dns.RcodeNameError, soon)

	store.write(t, map[string]string{"upstreamNameservers": upstream(first)})
	awaitAddress(t, k.Addr, outside, "192.0.2.80", soon)
	before, ok := k.ScrapeMetrics(t).Value("kubedns_config_last_reload_success_timestamp_seconds")
	if age := time.Since(time.Unix(int64(before), 0)); !ok || age > time.Minute || age < -time.Minute {
		t.Errorf("kubedns_config_last_reload_success_timestamp_seconds is %v, %v ago", before, age)
	}

	store.write(t, map[string]string{"upstreamNameservers": upstream(second), "federations": "pluto=fed.example.org"})
	awaitAddress(t, k.Addr, outside, "192.0.2.81", soon)
	// No Node has a region, so that the federation's name cannot be made.
	awaitRcode(t, k.Addr, federated, dns.RcodeServerFailure, soon)

	for _, tt := range []struct {
		name string
		data map[string]string
		// names is a text that the log has to have.
		names string
	}{
		{"JSON", map[string]string{"upstreamNameservers": `["192.0.2.1"`}, "upstreamNameservers"},
		{"address", map[string]string{"upstreamNameservers": `["example.org"]`}, "example.org"},
		{"port", map[string]string{"upstreamNameservers": `["192.0.2.1:99999"]`}, "99999"},
		{"federation", map[string]string{"federations": "no_label=fed.example.org"}, "no_label"},
		{"stub domain", map[string]string{"stubDomains": `{"example.net": ["http://192.0.2.1"]}`}, "http://192.0.2.1"},
	} {
		t.Run("invalid "+tt.name, func(t *testing.T) {
			// All of it is refused: the other key is right.
			data := maps.Clone(tt.data)
			if data["federations"] == "" {
				data["federations"] = "venus=fed.example.org"
			}
			store.write(t, data)
			successful(0)
			awaitAddress(t, k.Addr, outside, "192.0.2.81", time.Second)
			awaitRcode(t, k.Addr, federated, dns.RcodeServerFailure, time.Second)
			if !strings.Contains(k.Log.String(), tt.names) {
				t.Errorf("the log does not name %s", tt.names)
			}
			store.write(t, map[string]string{"upstreamNameservers": upstream(second), "federations": "pluto=fed.example.org"})
			successful(1)
		})
	}

	t.Run("an unknown key is a warning", func(t *testing.T) {
		store.write(t, map[string]string{"upstreamNameservers": upstream(first), "upstreamNamservers": "x"})
		awaitAddress(t, k.Addr, outside, "192.0.2.80", soon)
		successful(1)
		awaitRcode(t, k.Addr, federated, dns.RcodeNameError, soon)
		if !strings.Contains(k.Log.String(), "upstreamNamservers") {
			t.Error("the log does not name the key")
		}
	})

	store.remove(t)
	awaitRcode(t, k.Addr, outside, dns.RcodeServerFailure, soon)
	successful(1)

	store.write(t, map[string]string{"upstreamNameservers": upstream(first)})
	awaitAddress(t, k.Addr, outside, "192.0.2.80", soon)
	store.write(t, nil)
	awaitRcode(t, k.Addr, outside, dns.RcodeServerFailure, soon)
	successful(1)
	watch.stop(t)
}

// configMapStore is a ConfigMap in kube-system.
type configMapStore struct {
	c    *harness.ControlPlane
	name string
}

func (s *configMapStore) args() []string { return []string{"--config-map=" + s.name} }

func (s *configMapStore) write(t *testing.T, data map[string]string) {
	t.Helper()
	maps := s.c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Data: data}
	_, err := maps.Create(t.Context(), cm, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), cm, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (s *configMapStore) remove(t *testing.T) {
	t.Helper()
	if err := s.c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// directoryStore is a directory that is changed as kubelet's atomic writer
// changes a mounted ConfigMap: the files are links through ..data, which is a
// link to a folder with the data and is renamed into place.
type directoryStore struct {
	dir string
	// named is the path that kube-dns is given; dir where empty.
	named string
	n     int
}

func (s *directoryStore) args() []string {
	named := s.named
	if named == "" {
		named = s.dir
	}
	return []string{"--config-dir=" + named, "--config-period=200ms"}
}

func (s *directoryStore) write(t *testing.T, data map[string]string) {
	t.Helper()
	s.n++
	version := fmt.Sprintf("..2026_12_01_%d", s.n)
	// What is not a file of the configuration is not read.
	must(t, os.MkdirAll(filepath.Join(s.dir, version, "folder"), 0o755))
	must(t, os.WriteFile(filepath.Join(s.dir, version, ".hidden"), []byte{0xff}, 0o600))
	for key, value := range data {
		must(t, os.WriteFile(filepath.Join(s.dir, version, key), []byte(value), 0o600))
	}
	old, err := os.Readlink(filepath.Join(s.dir, "..data"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	must(t, os.Symlink(version, filepath.Join(s.dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(s.dir, "..data_tmp"), filepath.Join(s.dir, "..data")))
	entries, err := os.ReadDir(s.dir)
	must(t, err)
	have := map[string]bool{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			have[e.Name()] = true
		}
	}
	for key := range data {
		if !have[key] {
			must(t, os.Symlink(filepath.Join("..data", key), filepath.Join(s.dir, key)))
		}
		delete(have, key)
	}
	for key := range have {
		must(t, os.Remove(filepath.Join(s.dir, key)))
	}
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(s.dir, old)))
	}
}

func (s *directoryStore) remove(t *testing.T) {
	t.Helper()
	must(t, os.RemoveAll(s.dir))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestConfigDirNotUTF8 has a file that is no text.
func TestConfigDirNotUTF8(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "federations"), []byte{0xff, 0xfe, 'x'}, 0o600))
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c), Args: []string{"--config-dir=" + dir},
	})
	harness.Eventually(t, 10*time.Second, func() error {
		if v, ok := k.ScrapeMetrics(t).Value("kubedns_config_last_reload_successful"); !ok || v != 0 {
			return fmt.Errorf("kubedns_config_last_reload_successful is %v (%v), want 0", v, ok)
		}
		if !strings.Contains(k.Log.String(), "UTF-8") {
			return fmt.Errorf("the log does not say UTF-8")
		}
		return nil
	})
}
