package fakeapi

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubedns/hack/bench/cluster"
)

var shape = cluster.Shape{Namespaces: 3, ClusterIP: 10, Headless: 4, Endpoints: 5, Big: 250}

func start(t *testing.T) (*Server, kubernetes.Interface) {
	t.Helper()
	s, err := New(cluster.New(shape))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := &rest.Config{Host: s.URL(), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

// A client lists what the shape has.
func TestList(t *testing.T) {
	_, client := start(t)
	namespaces, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) != shape.Namespaces {
		t.Errorf("%d namespaces, %v", len(namespaces.Items), err)
	}
	services, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(services.Items) != shape.Services() {
		t.Errorf("%d services, %v; want %d", len(services.Items), err, shape.Services())
	}
	slices, err := client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != shape.Slices() {
		t.Errorf("%d slices, %v; want %d", len(slices.Items), err, shape.Slices())
	}
}

// Pages have what was asked for, each object once, and the end of the last is
// the end of the list.
func TestPages(t *testing.T) {
	s, client := start(t)
	var names []string
	var sizes []int
	o := metav1.ListOptions{Limit: 6}
	for {
		page, err := client.CoreV1().Services("").List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Items {
			names = append(names, page.Items[i].Name)
		}
		sizes = append(sizes, len(page.Items))
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
		if n := len(s.Listed()); n != 0 {
			t.Errorf("%d lists were read before the last page", n)
		}
		if left := page.RemainingItemCount; left == nil || int(*left) != shape.Services()-len(names) {
			t.Errorf("%v objects remain after %d of %d", left, len(names), shape.Services())
		}
	}
	var want []string
	for i := range s.c.Services {
		want = append(want, s.c.Services[i].Name)
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if want := []int{6, 6, 3}; !slices.Equal(sizes, want) {
		t.Errorf("pages of %v objects, want %v", sizes, want)
	}
	for deadline := time.Now().Add(20 * time.Second); len(s.Listed()) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d lists were read, want 1", len(s.Listed()))
		}
	}
}

// An informer gets all by a streaming list, sees a change, and sees it undone.
func TestWatch(t *testing.T) {
	s, client := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	addresses := make(chan string, 100)
	slices := factory.Discovery().V1().EndpointSlices().Informer()
	if _, err := slices.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok && slice.Name == cluster.Big+"-000" {
			addresses <- slice.Endpoints[0].Addresses[0]
		}
	}}); err != nil {
		t.Fatal(err)
	}
	services := factory.Core().V1().Services().Informer()
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	if !cache.WaitForCacheSync(ctx.Done(), slices.HasSynced, services.HasSynced) {
		t.Fatal("not synced")
	}
	if n := len(slices.GetStore().List()); n != shape.Slices() {
		t.Errorf("%d slices, want %d", n, shape.Slices())
	}
	for _, o := range services.GetStore().List() {
		if svc, ok := o.(*corev1.Service); !ok || svc.Spec.ClusterIP == "" || svc.UID == "" {
			t.Errorf("a service without address or UID: %v", o)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); len(s.Listed()) != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d lists were read, want 2", len(s.Listed()))
		}
	}

	changes, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	big := shape.Services() - 1
	go func() {
		n, err := s.Apply(changes, Change{Services: []int{big}, Every: time.Millisecond})
		if n == 0 {
			t.Error("no change was made")
		}
		done <- err
	}()
	original := s.c.Services[big].Endpoints[0].Addr.String()
	await := func(want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case got := <-addresses:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("the endpoint never became %s", want)
			}
		}
	}
	await(Changed(big).String())
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.slices[s.firstSlice[big]].Endpoints[0].Addresses[0]; got != original {
		t.Errorf("the endpoint stayed %s, want %s", got, original)
	}
}

// A watch from the past is told to list.
func TestWatchFromThePast(t *testing.T) {
	s, client := start(t)
	if err := s.SetEndpoint(shape.Services()-1, 0, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	w, err := client.DiscoveryV1().EndpointSlices("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e, ok := <-w.ResultChan()
	status, isStatus := e.Object.(*metav1.Status)
	if !ok || !isStatus || status.Code != 410 {
		t.Errorf("got %v %v, want a status with code 410", e.Type, e.Object)
	}
}

func TestUnread(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C001 01 00000010:00000007 01:00000014 00000000     0        0 101 4 0 20 4 30 10 -1
   2: 0100007F:C001 0100007F:1F90 01 00000005:00000020 00:00000000 00000000     0        0 102 2 0 20 4 30 10 -1
   3: 0100007F:C002 0100007F:1F90 01 00000005:00000000 00:00000000 00000000     0        0 103 2 0 20 4 30 10 -1
`
	for _, tt := range []struct {
		port uint16
		want uint64
		ok   bool
	}{{0xC001, 0x30, true}, {0xC002, 0, true}, {0xC003, 0, false}} {
		if got, ok := unread(table, tt.port); got != tt.want || ok != tt.ok {
			t.Errorf("unread of port %x = %d, %t; want %d, %t", tt.port, got, ok, tt.want, tt.ok)
		}
	}
}
