package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// TestLargeService has a headless Service with 1,500 endpoints in 15 slices,
// which is more than the Endpoints API could hold.
func TestLargeService(t *testing.T) {
	const nSlices, perSlice = 15, 100
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	ns := ownNamespace(t, c)
	createService(t, c, ns, headlessService("many"))
	var all []string
	for i := range nSlices {
		var some []string
		for j := range perSlice {
			some = append(some, fmt.Sprintf("10.209.%d.%d", i, j+1))
		}
		createSlice(t, c, ns, slice(fmt.Sprintf("many-%d", i), "many", i*perSlice, some...))
		all = append(all, some...)
	}
	slices.Sort(all)
	name := "many." + ns + ".svc." + zone

	harness.Eventually(t, 30*time.Second, func() error {
		got, _ := addresses(t, k.Addr, name)
		if len(got) != len(all) {
			return fmt.Errorf("%d addresses over TCP, want %d", len(got), len(all))
		}
		return nil
	})
	got, _ := addresses(t, k.Addr, name)
	slices.Sort(got)
	if !slices.Equal(got, all) {
		t.Errorf("the addresses over TCP are not those of the slices")
	}

	for _, tt := range []struct {
		name string
		edns *uint16
		size int
	}{
		{"without EDNS", nil, 512},
		{"512", ptr(uint16(512)), 512},
		{"1232", ptr(uint16(1232)), 1232},
		{"4096", ptr(uint16(4096)), 4096},
		{"65535", ptr(uint16(65535)), 4096}, // ours is the smaller
	} {
		t.Run("UDP "+tt.name, func(t *testing.T) {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
				reply := ask(t, harness.Question{Server: k.Addr, Name: name, Type: qtype, EDNS: tt.edns})
				if !reply.Truncated {
					t.Errorf("%s: TC is not set", dns.TypeToString[qtype])
				}
				if reply.Size > tt.size {
					t.Errorf("%s: %d octets, want %d at most", dns.TypeToString[qtype], reply.Size, tt.size)
				}
				// As many as fit: the next one would not have.
				if n := len(reply.Answer); n == 0 {
					t.Errorf("%s: no answers", dns.TypeToString[qtype])
				} else if each := dns.Len(reply.Answer[0]); reply.Size+each < tt.size {
					t.Errorf("%s: %d octets of %d are used, and a record has %d", dns.TypeToString[qtype], reply.Size, tt.size, each)
				}
			}
		})
	}

	t.Run("SRV over TCP is as long as a message can be", func(t *testing.T) {
		reply := ask(t, harness.Question{Server: k.Addr, TCP: true, Name: name, Type: dns.TypeSRV})
		if !reply.Truncated {
			t.Errorf("TC is not set, although 1,500 SRV records do not fit")
		}
		if reply.Size < 65000 {
			t.Errorf("%d octets with %d answers, want nearly 65,535", reply.Size, len(reply.Answer))
		}
	})

	t.Run("one endpoint of the many", func(t *testing.T) {
		awaitAddress(t, k.Addr, "p1234."+name, "10.209.12.35", 5*time.Second)
	})

	t.Run("a slice goes", func(t *testing.T) {
		if err := c.Client.DiscoveryV1().EndpointSlices(ns).Delete(t.Context(), "many-7", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 10*time.Second, func() error {
			if got, _ := addresses(t, k.Addr, name); len(got) != len(all)-perSlice {
				return fmt.Errorf("%d addresses, want %d", len(got), len(all)-perSlice)
			}
			return nil
		})
		awaitRcode(t, k.Addr, "p712."+name, dns.RcodeNameError, 5*time.Second)
	})
}
