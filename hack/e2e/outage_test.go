package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
)

// TestOutage changes the cluster while kube-dns is cut off from it, in each of
// the ways there are: known names are answered all the while, that it is cut
// off can be seen, and after that nothing outlives its object.
func TestOutage(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		name string
		mode harness.ProxyMode
		// kill ends etcd and the API server meanwhile, which makes kube-dns
		// list anew: the new one does not remember what was before it.
		kill bool
	}{
		{"refused", harness.ProxyRefuse, false},
		{"closed at once", harness.ProxyClose, false},
		{"silent", harness.ProxySilent, false},
		{"refused, and everything killed", harness.ProxyRefuse, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			if tt.kill {
				c = ownCluster(t)
			}
			testOutage(t, c, 60+i, tt.mode, tt.kill)
		})
	}
}

// testOutage uses the cluster IPs 10.96.<third>.x and the endpoints'
// 10.211.<third>.x, which no other test has.
func testOutage(t *testing.T, c *harness.ControlPlane, third int, mode harness.ProxyMode, kill bool) {
	t.Helper()
	ctx := t.Context()
	api, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := harness.StartProxy(t, api.Host, harness.ProxyForward)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary:     kubeDNS(t),
		Kubeconfig: kubeconfig(t, c, "", "https://"+proxy.Addr),
	})
	ns := ownNamespace(t, c)
	serviceIP := func(n int) string { return fmt.Sprintf("10.96.%d.%d", third, n) }
	endpointIP := func(n int) string { return fmt.Sprintf("10.211.%d.%d", third, n) }
	fqdn := func(name string) string { return name + "." + ns + ".svc." + zone }
	createService(t, c, ns, clusterIPService("kept", serviceIP(1)))
	createService(t, c, ns, clusterIPService("gone", serviceIP(2)))
	createService(t, c, ns, clusterIPService("again", serviceIP(3)))
	createService(t, c, ns, headlessService("emptied"))
	createSlice(t, c, ns, slice("emptied-x", "emptied", 0, endpointIP(1)))
	createService(t, c, ns, headlessService("left"))
	createSlice(t, c, ns, slice("left-x", "left", 0, endpointIP(2)))
	awaitAddress(t, k.Addr, fqdn("again"), serviceIP(3), 10*time.Second)
	awaitAddress(t, k.Addr, fqdn("emptied"), endpointIP(1), 10*time.Second)
	awaitAddress(t, k.Addr, fqdn("left"), endpointIP(2), 10*time.Second)

	watch := watchName(t, k.Addr, fqdn("kept"))
	proxy.SetMode(t, mode)
	cut := time.Now()
	deleteService(t, c, ns, "gone")
	deleteService(t, c, ns, "again")
	createService(t, c, ns, clusterIPService("again", serviceIP(4)))
	if err := c.Client.DiscoveryV1().EndpointSlices(ns).Delete(ctx, "emptied-x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteService(t, c, ns, "left")
	createService(t, c, ns, clusterIPService("fresh", serviceIP(5)))
	if kill {
		for _, step := range []func() error{
			c.KillAPIServer, c.KillEtcd,
			func() error { return c.StartEtcd(ctx) }, func() error { return c.StartAPIServer(ctx) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}

	t.Run("that it is cut off can be seen", func(t *testing.T) {
		// A silent connection is given up after 45 s.
		harness.Eventually(t, 75*time.Second, func() error {
			m := k.ScrapeMetrics(t)
			// That it tries again and again is no contact.
			since := time.Since(cut).Seconds()
			if v, _ := m.Value("kubedns_apiserver_last_contact_seconds"); v < since-1 || since < 5 {
				return fmt.Errorf("kubedns_apiserver_last_contact_seconds is %v, want %v", v, since)
			}
			if v, _ := m.Value("kubedns_apiserver_errors_total"); v == 0 {
				return fmt.Errorf("kubedns_apiserver_errors_total is 0")
			}
			return nil
		})
		if status, body := k.Readiness(t); status != 200 {
			t.Errorf("/readiness answers %d %q, want 200: the records are complete, if old", status, body)
		}
		awaitAddress(t, k.Addr, fqdn("gone"), serviceIP(2), time.Second)
	})

	proxy.SetMode(t, harness.ProxyForward)
	const relist = 90 * time.Second // client-go waits up to 30 s, and longer by chance, before it tries again
	awaitAddress(t, k.Addr, fqdn("fresh"), serviceIP(5), relist)
	awaitAddress(t, k.Addr, fqdn("again"), serviceIP(4), relist)
	awaitRcode(t, k.Addr, fqdn("gone"), dns.RcodeNameError, relist)
	awaitRcode(t, k.Addr, fqdn("left"), dns.RcodeNameError, relist)
	awaitRcode(t, k.Addr, fqdn("emptied"), dns.RcodeNameError, relist)
	watch.stop(t)

	for _, address := range []string{serviceIP(2), serviceIP(3), endpointIP(1), endpointIP(2)} {
		name, err := dns.ReverseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		reply := ask(t, harness.Question{Server: k.Addr, Name: name, Type: dns.TypePTR})
		// What kube-dns does not hold it forwards, and nobody answers.
		if len(reply.Answer) > 0 || reply.Authoritative {
			t.Errorf("%s outlived its object:\n%s", name, reply)
		}
	}
}

// TestAPIServerRestart kills the API server under a kube-dns that is connected
// to it, and starts it again.
func TestAPIServerRestart(t *testing.T) {
	t.Parallel()
	c := ownCluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	name := "kubernetes.default.svc." + zone
	awaitAddress(t, k.Addr, name, "10.96.0.1", 10*time.Second)
	watch := watchName(t, k.Addr, name)
	for i, stop := range []func() error{c.KillAPIServer, c.StopAPIServer} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := c.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		fresh := fmt.Sprintf("fresh-%d", i)
		made := createService(t, c, "default", clusterIPService(fresh, ""))
		awaitAddress(t, k.Addr, fresh+".default.svc."+zone, made.Spec.ClusterIP, 90*time.Second)
	}
	watch.stop(t)
}

// A nameWatch asks for a name over and over.
type nameWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	asked  int
	failed []string
}

// watchName asks for the address of name every 20 ms, until stop.
func watchName(t *testing.T, server, name string) *nameWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &nameWatch{cancel: cancel, done: make(chan struct{})}
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	go func() {
		defer close(w.done)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			reply, err := harness.Ask(context.WithoutCancel(ctx), harness.Question{Server: server, Name: name, Type: dns.TypeA, Timeout: 2 * time.Second})
			w.mu.Lock()
			w.asked++
			if err != nil {
				w.failed = append(w.failed, err.Error())
			} else if len(reply.Answer) != 1 {
				w.failed = append(w.failed, reply.String())
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// stop ends the asking; every question must have been answered, and one at
// least asked.
func (w *nameWatch) stop(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 5*time.Second, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asked == 0 {
			return errors.New("nothing was asked")
		}
		return nil
	})
	w.cancel()
	<-w.done
	if len(w.failed) > 0 {
		t.Errorf("%d of %d questions were not answered, the first: %s", len(w.failed), w.asked, w.failed[0])
	}
}

// TestRandomHistory makes, changes and deletes Services and slices in an order
// that chance decides, and compares the answers with the objects there are in
// the end.
func TestRandomHistory(t *testing.T) {
	t.Parallel()
	const nServices, nChanges = 12, 400
	c := cluster(t)
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	ns := ownNamespace(t, c)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	services := c.Client.CoreV1().Services(ns)
	endpointSlices := c.Client.DiscoveryV1().EndpointSlices(ns)
	tolerate := func(err error) {
		t.Helper()
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for range nChanges {
		i := rng.IntN(nServices)
		name := fmt.Sprintf("s%d", i)
		switch rng.IntN(6) {
		case 0:
			_, err := services.Create(t.Context(), headlessService(name), metav1.CreateOptions{})
			tolerate(err)
		case 1:
			_, err := services.Create(t.Context(), clusterIPService(name, ""), metav1.CreateOptions{})
			tolerate(err)
		case 2:
			tolerate(services.Delete(t.Context(), name, metav1.DeleteOptions{}))
		default:
			sliceName := fmt.Sprintf("%s-%d", name, rng.IntN(2))
			if rng.IntN(3) == 0 {
				tolerate(endpointSlices.Delete(t.Context(), sliceName, metav1.DeleteOptions{}))
				continue
			}
			s := slice(sliceName, name, 0, fmt.Sprintf("10.212.%d.%d", i, 1+rng.IntN(4)), fmt.Sprintf("10.212.%d.%d", i, 5+rng.IntN(4)))
			s.Endpoints[1].Conditions.Ready = ptr(rng.IntN(2) == 0)
			_, err := endpointSlices.Create(t.Context(), s, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				_, err = endpointSlices.Update(t.Context(), s, metav1.UpdateOptions{})
			}
			tolerate(err)
		}
	}

	serviceList, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sliceList, err := endpointSlices.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nServices {
		name := fmt.Sprintf("s%d", i)
		want := wantAddresses(name, serviceList.Items, sliceList.Items)
		harness.Eventually(t, 20*time.Second, func() error {
			got, rcode := addresses(t, k.Addr, name+"."+ns+".svc."+zone)
			slices.Sort(got)
			if !slices.Equal(got, want) || (len(want) == 0) != (rcode == dns.RcodeNameError) {
				return fmt.Errorf("%s has %q (%s), want %q", name, got, dns.RcodeToString[rcode], want)
			}
			return nil
		})
	}
}

// wantAddresses are the addresses that the Service name is to have, sorted.
func wantAddresses(name string, services []corev1.Service, all []discoveryv1.EndpointSlice) []string {
	i := slices.IndexFunc(services, func(s corev1.Service) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	if ip := services[i].Spec.ClusterIP; ip != corev1.ClusterIPNone {
		return []string{ip}
	}
	var want []string
	for _, s := range all {
		if s.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				want = append(want, e.Addresses...)
			}
		}
	}
	slices.Sort(want)
	return slices.Compact(want)
}
