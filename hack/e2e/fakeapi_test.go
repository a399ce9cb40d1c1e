package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeAPI is an API server that lists Services that never change, and no
// slices, for tests that need thousands at once: to make as many in a real one
// takes minutes.
type fakeAPI struct {
	*httptest.Server

	mu       sync.Mutex
	services []corev1.Service
	status   int // answered in place of everything, unless 0
}

func newFakeAPI(t *testing.T, services []corev1.Service) *fakeAPI {
	t.Helper()
	f := &fakeAPI{services: services}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// manyServices are n Services with the cluster IPs 10.<second>.x.y.
func manyServices(n int, second int) []corev1.Service {
	var all []corev1.Service
	for i := range n {
		all = append(all, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%d", i), ResourceVersion: "7"},
			Spec:       clusterIPService("", manyAddress(i, second)).Spec,
		})
	}
	return all
}

// manyAddress is the cluster IP of Service i of manyServices.
func manyAddress(i, second int) string { return fmt.Sprintf("10.%d.%d.%d", second, i/250, 1+i%250) }

// fail has every request answered with the status, and those there are ended;
// 0 ends that.
func (f *fakeAPI) fail(status int) {
	f.mu.Lock()
	f.status = status
	f.mu.Unlock()
	f.CloseClientConnections()
}

// hold replaces the Services.
func (f *fakeAPI) hold(services []corev1.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services = services
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	services, status := f.services, f.status
	f.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	if q.Has("watch") {
		_ = http.NewResponseController(w).Flush() // whoever asked may be gone
		<-r.Context().Done()
		return
	}
	var list any
	if path.Base(r.URL.Path) == "services" {
		from, _ := strconv.Atoi(q.Get("continue")) // 0 for the first page
		to := len(services)
		if limit, err := strconv.Atoi(q.Get("limit")); err == nil && from+limit < to {
			to = from + limit
		}
		page := corev1.ServiceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: services[from:to],
		}
		if to < len(services) {
			page.Continue = strconv.Itoa(to)
		}
		list = page
	} else {
		list = discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		}
	}
	_ = json.NewEncoder(w).Encode(list) // whoever asked may be gone
}
