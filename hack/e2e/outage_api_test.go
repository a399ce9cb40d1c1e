package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubedns/hack/e2e/harness"
)

// TestAPIServerFaults has the API server fail in the ways it has besides not
// being there, each with a kube-dns of its own: what was known is answered all
// the while, and after that nothing outlives its object.
func TestAPIServerFaults(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for _, f := range apiServerFaults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.happen(t, c)
		})
	}
}

// An apiServerFault is a way for the API server to fail.
type apiServerFault struct {
	name string
	// begin has the API server fail, and end has it be as before; with no
	// end, kube-dns has to help itself within the time.
	begin, end func(*rig)
	within     time.Duration
	// resumes tells that the watch goes on, without a list.
	resumes bool
	// check looks at the requests since the beginning.
	check func(t *testing.T, r *rig, requests []harness.APIRequest)
}

func apiServerFaults() []apiServerFault {
	both := []string{"services", "endpointslices"}
	everything := func(f harness.Fault) func(*rig) {
		return func(r *rig) {
			r.api.SetFault(func(harness.APIRequest) *harness.Fault { return &f })
			r.api.Disconnect()
		}
	}
	over := func(r *rig) { r.api.SetFault(nil) }
	// gone refuses the watch, and then the first page behind a list's first.
	gone := func(event bool) (begin, end func(*rig)) {
		expired := &harness.Fault{Status: http.StatusGone, Reason: metav1.StatusReasonExpired}
		return func(r *rig) {
				r.api.SetPageSize(1) // there may be two slices in all
				r.api.SetFault(func(q harness.APIRequest) *harness.Fault {
					if q.Watch {
						return &harness.Fault{Status: http.StatusGone, Reason: metav1.StatusReasonExpired, Event: event}
					}
					return &harness.Fault{Status: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError}
				})
				r.api.Disconnect()
			}, func(r *rig) {
				refused := map[string]bool{}
				r.api.SetFault(func(q harness.APIRequest) *harness.Fault {
					if q.Continue && !refused[q.Resource] {
						refused[q.Resource] = true
						return expired
					}
					return nil
				})
			}
	}
	goneHTTP, goneHTTPOver := gone(false)
	goneEvent, goneEventOver := gone(true)
	return []apiServerFault{
		{
			name:   "every connection is silent, new ones are not",
			begin:  func(r *rig) { r.tcp.Freeze() },
			within: time.Minute,
		},
		{
			name: "the watch is cut in the middle of an event",
			begin: func(r *rig) {
				for _, resource := range both {
					r.api.CutWatch(resource)
				}
			},
			within: 15 * time.Second,
			check: func(t *testing.T, r *rig, _ []harness.APIRequest) {
				t.Helper()
				for _, resource := range both {
					if !r.api.Cut(resource) {
						t.Errorf("the watch of %s was not cut", resource)
					}
				}
			},
		},
		{
			name:  "a new certificate of the same CA",
			begin: func(r *rig) { r.tcp.SetMode(r.t, harness.ProxyRefuse) },
			end: func(r *rig) {
				r.api.RotateCertificate(r.t, false)
				r.tcp.SetMode(r.t, harness.ProxyForward)
			},
		},
		{
			name:  "a new certificate of a new CA",
			begin: func(r *rig) { r.api.RotateCertificate(r.t, true) },
			end:   func(r *rig) { r.writeFile("ca.crt", r.api.CA()) },
		},
		{
			name: "a new token",
			begin: func(r *rig) {
				r.api.SetToken("second-token")
				r.api.Disconnect()
			},
			end: func(r *rig) { r.writeFile("token", []byte("second-token")) },
			// client-go reads the file again when it is 50 s later.
			within: 75 * time.Second,
			check: func(t *testing.T, _ *rig, requests []harness.APIRequest) {
				t.Helper()
				if !slices.ContainsFunc(requests, func(q harness.APIRequest) bool { return q.Status == http.StatusUnauthorized }) {
					t.Error("no request was refused")
				}
			},
		},
		{name: "410 to the watch, and to a page", begin: goneHTTP, end: goneHTTPOver, check: gonePage},
		{name: "410 as an event, and to a page", begin: goneEvent, end: goneEventOver, check: gonePage},
		{
			name: "429", begin: everything(harness.Fault{Status: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 1}), end: over,
			resumes: true, // a list would be more of a burden
			check: func(t *testing.T, _ *rig, requests []harness.APIRequest) {
				t.Helper()
				last := map[string]time.Time{}
				for _, q := range requests {
					// Another kind of request is another's wait.
					key := fmt.Sprint(q.Resource, q.Watch, q.Limit)
					if gap := q.Begun.Sub(last[key]); gap < 900*time.Millisecond && q.Status == http.StatusTooManyRequests {
						t.Errorf("asked for %s again after %v, want 1s", key, gap)
					}
					last[key] = q.Begun
				}
			},
		},
		{name: "500", begin: everything(harness.Fault{Status: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError}), end: over},
		{name: "503 of a load balancer", begin: everything(harness.Fault{Status: http.StatusServiceUnavailable}), end: over},
	}
}

// happen has the fault happen to a kube-dns, and then end.
func (f apiServerFault) happen(t *testing.T, c *harness.ControlPlane) {
	t.Helper()
	r := newRig(t, c)
	begun := time.Now()
	f.begin(r)
	r.change()
	since := begun
	if f.end != nil {
		r.awaitAway(begun)
		since = time.Now()
		f.end(r)
		if f.within == 0 {
			// The waits are 10 s at the most, and the reflector's first.
			f.within = 15 * time.Second
		}
	}
	right := r.awaitRight(f.within)
	r.watch.stop(t)
	listed := later(r.api.Listed("services", since), r.api.Listed("endpointslices", since))
	switch {
	case f.end != nil && f.resumes:
		t.Logf("right %v after the end", right.Sub(since).Round(time.Millisecond))
	case f.end != nil:
		t.Logf("right %v after the end, %v after both were listed", right.Sub(since).Round(time.Millisecond), right.Sub(listed).Round(time.Millisecond))
		if listed.IsZero() {
			t.Error("right without a list")
		} else if took := right.Sub(listed); took > 2*time.Second {
			t.Errorf("right %v after both were listed, want 2s at the most", took)
		}
	default:
		t.Logf("right %v after the beginning", right.Sub(begun).Round(time.Millisecond))
	}
	if f.check != nil {
		f.check(t, r, r.api.Requests(begun))
	}
}

// gonePage wants a list that began anew after a page was gone.
func gonePage(t *testing.T, _ *rig, requests []harness.APIRequest) {
	t.Helper()
	for _, resource := range []string{"services", "endpointslices"} {
		refused, again := false, false
		for _, q := range requests {
			if q.Resource != resource || q.Watch {
				continue
			}
			refused = refused || q.Continue && q.Status == http.StatusGone
			again = again || refused && !q.Continue && q.Status == http.StatusOK
		}
		if !refused || !again {
			t.Errorf("%s: a page was gone: %v, and listed anew: %v", resource, refused, again)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.IsZero() || b.IsZero() {
		return time.Time{}
	}
	if a.After(b) {
		return a
	}
	return b
}

// A rig is a kube-dns that reaches the API server through two proxies, and a
// Namespace with Services that change.
type rig struct {
	t   *testing.T
	c   *harness.ControlPlane
	tcp *harness.Proxy
	api *harness.APIProxy
	k   *harness.KubeDNS

	ns, dir string
	watch   *nameWatch
	old     map[string]string // addresses of Services that go
	again   string            // the new one
	fresh   string
}

// newRig starts one that has no fault yet. Its ConfigMap and its files for the
// token and the CA are there.
func newRig(t *testing.T, c *harness.ControlPlane) *rig {
	t.Helper()
	r := &rig{t: t, c: c, api: harness.StartAPIProxy(t, c), ns: ownNamespace(t, c), dir: t.TempDir(), old: map[string]string{}}
	r.tcp = harness.StartProxy(t, r.api.Addr, harness.ProxyForward)
	r.api.SetToken("first-token")
	r.writeFile("token", []byte("first-token"))
	r.writeFile("ca.crt", r.api.CA())
	r.configure(1)
	file := filepath.Join(r.dir, "kubeconfig")
	r.api.WriteKubeconfig(t, file, r.tcp.Addr, filepath.Join(r.dir, "ca.crt"), &clientcmdapi.AuthInfo{TokenFile: filepath.Join(r.dir, "token")})
	r.k = harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: file,
		Args: []string{"--config-map=outage", "--config-map-namespace=" + r.ns},
	})
	for _, name := range []string{"kept", "gone", "again"} {
		made := createService(t, c, r.ns, clusterIPService(name, ""))
		r.old[name] = made.Spec.ClusterIP
	}
	for i, name := range []string{"emptied", "left", "moved"} {
		createService(t, c, r.ns, headlessService(name))
		r.old[name] = fmt.Sprintf("10.211.1.%d", i+1)
		createSlice(t, c, r.ns, slice(name+"-x", name, 0, r.old[name]))
	}
	for name, address := range r.old {
		awaitAddress(t, r.k.Addr, r.fqdn(name), address, 20*time.Second)
	}
	r.awaitConfigured(1)
	r.watch = watchName(t, r.k.Addr, r.fqdn("kept"))
	return r
}

func (r *rig) fqdn(name string) string { return name + "." + r.ns + ".svc." + zone }

// writeFile replaces a file in one step, as kubelet does.
func (r *rig) writeFile(name string, b []byte) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.WriteFile(file+".new", b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		r.t.Fatal(err)
	}
}

// configure makes or changes the ConfigMap.
func (r *rig) configure(n int) {
	r.t.Helper()
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "outage"},
		Data:       map[string]string{"upstreamNameservers": fmt.Sprintf(`["127.0.0.1:%d"]`, n)},
	}
	maps := r.c.Client.CoreV1().ConfigMaps(r.ns)
	var err error
	if n == 1 {
		_, err = maps.Create(r.t.Context(), cm, metav1.CreateOptions{})
	} else {
		_, err = maps.Update(r.t.Context(), cm, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// configured is nil once the last configuration in force is the n-th.
func (r *rig) configured(n int) error {
	text := r.k.Log.String()
	at := strings.LastIndex(text, "kube-dns: forwarding to ")
	if at < 0 || !strings.HasPrefix(text[at:], fmt.Sprintf("kube-dns: forwarding to [127.0.0.1:%d] (configuration)", n)) {
		return fmt.Errorf("configuration %d is not in force", n)
	}
	return nil
}

func (r *rig) awaitConfigured(n int) {
	r.t.Helper()
	harness.Eventually(r.t, 20*time.Second, func() error { return r.configured(n) })
}

// change makes, changes and deletes Services, slices and the ConfigMap.
func (r *rig) change() {
	t, c, ns := r.t, r.c, r.ns
	t.Helper()
	endpointSlices := c.Client.DiscoveryV1().EndpointSlices(ns)
	deleteService(t, c, ns, "gone")
	deleteService(t, c, ns, "again")
	// Of its old address another Service has taken hold.
	createService(t, c, ns, clusterIPService("heir", r.old["again"]))
	r.again = createService(t, c, ns, clusterIPService("again", "")).Spec.ClusterIP
	if err := endpointSlices.Delete(t.Context(), "emptied-x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteService(t, c, ns, "left")
	if _, err := endpointSlices.Update(t.Context(), slice("moved-x", "moved", 0, "10.211.1.9"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.fresh = createService(t, c, ns, clusterIPService("fresh", "")).Spec.ClusterIP
	r.configure(2)
}

// awaitAway waits until kube-dns has tried for 2 s and says so; all it knew it
// still answers.
func (r *rig) awaitAway(begun time.Time) {
	t := r.t
	t.Helper()
	harness.Eventually(t, 30*time.Second, func() error {
		m := r.k.ScrapeMetrics(t)
		since := time.Since(begun).Seconds()
		if v, _ := m.Value("kubedns_apiserver_last_contact_seconds"); v < since-1 || since < 3 {
			return fmt.Errorf("kubedns_apiserver_last_contact_seconds is %v, want %v", v, since)
		}
		for _, resource := range []string{"services", "endpointslices"} {
			if v, _ := m.Value("kubedns_apiserver_errors_total", "resource", resource); v == 0 {
				return fmt.Errorf("kubedns_apiserver_errors_total of %s is 0", resource)
			}
		}
		return nil
	})
	if status, body := r.k.Readiness(t); status != http.StatusOK {
		t.Errorf("/readiness answers %d %q, want 200: the records are complete, if old", status, body)
	}
	for name, address := range r.old {
		if got, rcode := addresses(t, r.k.Addr, r.fqdn(name)); len(got) != 1 || got[0] != address {
			t.Errorf("%s while it is away: %q (%s), want %s", name, got, dns.RcodeToString[rcode], address)
		}
	}
}

// awaitRight waits until the records are those of the changed Services and no
// others, and returns when that was.
func (r *rig) awaitRight(timeout time.Duration) time.Time {
	t := r.t
	t.Helper()
	harness.Eventually(t, timeout, func() error {
		return errors.Join(
			r.has("kept", r.old["kept"]), r.has("gone", ""), r.has("again", r.again), r.has("heir", r.old["again"]),
			r.has("emptied", ""), r.has("left", ""), r.has("moved", "10.211.1.9"), r.has("fresh", r.fresh))
	})
	right := time.Now()
	for name, address := range r.old {
		if name == "kept" {
			continue
		}
		reverse, err := dns.ReverseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		reply := ask(t, harness.Question{Server: r.k.Addr, Name: reverse, Type: dns.TypePTR})
		for _, rr := range reply.Answer {
			if ptr, ok := rr.(*dns.PTR); ok && strings.HasPrefix(strings.TrimPrefix(ptr.Ptr, "p0."), name+"."+r.ns+".") {
				t.Errorf("%s outlived its object:\n%s", reverse, reply)
			}
		}
	}
	// The ConfigMap has a wait of its own, of up to 20 s.
	harness.Eventually(t, max(timeout-time.Since(right), 25*time.Second), func() error { return r.configured(2) })
	return right
}

// has is nil when name has the address and no other; "" is NXDOMAIN.
func (r *rig) has(name, address string) error {
	got, rcode := addresses(r.t, r.k.Addr, r.fqdn(name))
	if address == "" && rcode == dns.RcodeNameError || len(got) == 1 && got[0] == address {
		return nil
	}
	return fmt.Errorf("%s: addresses are %q (%s), want %q", name, got, dns.RcodeToString[rcode], address)
}

// TestEtcdRestored puts etcd back to an older state: its resource versions are
// from then on used for something else. One kube-dns sees that the API server
// was away; another's connection is silent for as long.
func TestEtcdRestored(t *testing.T) {
	t.Parallel()
	c := ownCluster(t)
	r := newRig(t, c)
	direct := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: kubeDNS(t), Kubeconfig: adminKubeconfig(t, c)})
	backup := filepath.Join(t.TempDir(), "etcd")
	if err := c.BackUpEtcd(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	// What follows is lost.
	harness.Eventually(t, time.Minute, func() error { // until the API server has found etcd again
		_, err := c.Client.CoreV1().Services(r.ns).Create(t.Context(), clusterIPService("lost", ""), metav1.CreateOptions{})
		return err
	})
	r.change()
	for i := range 100 { // so that the resource version goes back a long way
		createService(t, c, r.ns, headlessService(fmt.Sprintf("lost-%d", i)))
	}
	lost := r.awaitRight(time.Minute)
	awaitAddress(t, direct.Addr, r.fqdn("again"), r.again, 20*time.Second)

	r.tcp.SetMode(t, harness.ProxySilent)
	for _, step := range []func() error{
		c.KillAPIServer, c.KillEtcd, func() error { return c.RestoreEtcd(backup) },
		func() error { return c.StartEtcd(t.Context()) }, func() error { return c.StartAPIServer(t.Context()) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("restored %v later", time.Since(lost).Round(time.Millisecond))
	fresh := createService(t, c, r.ns, clusterIPService("second", "")).Spec.ClusterIP
	back := time.Now()
	r.tcp.SetMode(t, harness.ProxyForward) // which ends the connections
	for _, k := range []*harness.KubeDNS{direct, r.k} {
		harness.Eventually(t, 30*time.Second, func() error {
			at := &rig{t: t, k: k, ns: r.ns}
			var errs []error
			for name, address := range r.old {
				errs = append(errs, at.has(name, address))
			}
			return errors.Join(append(errs, at.has("fresh", ""), at.has("heir", ""), at.has("lost", ""), at.has("lost-99", ""), at.has("second", fresh))...)
		})
		t.Logf("right %v after the API server was back", time.Since(back).Round(time.Millisecond))
	}
	harness.Eventually(t, 40*time.Second, func() error { return r.configured(1) })
	// And the watches are good.
	last := createService(t, c, r.ns, clusterIPService("last", "")).Spec.ClusterIP
	for _, k := range []*harness.KubeDNS{direct, r.k} {
		awaitAddress(t, k.Addr, r.fqdn("last"), last, 10*time.Second)
	}
	r.watch.stop(t)
}
