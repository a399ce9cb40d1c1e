package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/soak"
)

// TestSoakModel compares kube-dns's answers with those of TestSoak's model about
// clusters that stand still: of several that chance makes, each in a directory
// of manifests.
func TestSoakModel(t *testing.T) {
	const clusters, questions = 3, 1500
	upstreams := soakUpstreams(t)
	for range clusters {
		seed := uint64(time.Now().UnixNano()) % 1_000_000_000
		h := soak.NewHistory()
		m := &soak.Model{History: h, Zone: zone, ConfigMap: soakConfigMap, Upstreams: upstreams}
		s := &soaker{rng: rand.New(rand.NewPCG(seed, 0)), history: h, model: m, world: newSoakWorld(m)}
		upstream := s.world.upstreams[0]
		k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: kubeDNS(t), Nameservers: upstream,
			Args: []string{"--manifests=" + s.writeManifests(t, upstream), "--v=0"},
		})
		conn, err := dns.Dial("udp", k.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range questions {
			q := s.world.question(s.rng)
			asked := time.Now()
			got, err := soakExchange(conn, q)
			if err != nil {
				t.Fatalf("seed %d: %s %s: %v", seed, q.name, dns.TypeToString[q.qtype], err)
			}
			v := m.Check(dns.Question{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}, asked, time.Now(), got)
			if !v.Right || v.Rule != 0 {
				t.Errorf("seed %d: %s %s:\n  got %v\n  want %s", seed, q.name, dns.TypeToString[q.qtype], got, strings.Join(v.Wants, "\n  or   "))
			}
		}
	}
}

// writeManifests makes Services and slices, and the one Service that every
// cluster has, and returns the directory where their manifests are.
func (s *soaker) writeManifests(t *testing.T, upstream string) string {
	t.Helper()
	dir := t.TempDir()
	note := func(k soak.Key, value any) {
		t.Helper()
		if err := s.history.Write(k, func() (any, error) { return value, nil }); err != nil {
			t.Fatal(err)
		}
	}
	put := func(k soak.Key, o runtime.Object) {
		t.Helper()
		data, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, strings.NewReplacer(" ", "-", "/", "-").Replace(k.String())+".yaml")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		note(k, o)
	}
	putService := func(k soak.Key, o *corev1.Service) {
		t.Helper()
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		put(k, o)
	}
	note(soakConfigMap, upstream)
	kubernetes := clusterIPService("kubernetes", "10.96.0.1")
	kubernetes.Namespace, kubernetes.Spec.ClusterIPs = metav1.NamespaceDefault, []string{"10.96.0.1"}
	putService(soak.Key{Resource: soak.Services, Namespace: kubernetes.Namespace, Name: kubernetes.Name}, kubernetes)
	for _, k := range s.world.services {
		if s.rng.IntN(8) == 0 {
			continue
		}
		putService(k, s.service(k))
		for n := range soakSlices {
			if s.rng.IntN(2) == 0 {
				continue
			}
			sliceKey := soakSliceKey(k, n)
			o := s.slice(sliceKey, k, n == soakSlices-1)
			o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
			put(sliceKey, o)
		}
	}
	return dir
}
