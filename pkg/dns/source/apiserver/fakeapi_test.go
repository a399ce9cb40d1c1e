package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"kubedns/pkg/dns"
	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/internal/clustertest"
)

// apiServer speaks as much of the API as reflectors need: lists in pages,
// watches, bookmarks and resource versions that are too old.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever something below changes
	version  int
	oldest   int // watches from an older version get 410 Gone
	log      []apiEvent
	objects  map[string]map[string]runtime.Object // by resource, by namespace/name
	failures map[string]int                       // HTTP status by resource; 0 is none
	epoch    int                                  // watches of an earlier one end
	watches  map[string]int                       // open ones, by resource
	lists    map[string]int                       // lists answered to their end, by resource
	pageSize int                                  // how many objects a page has at the most
	instead  func(http.ResponseWriter)            // answers everything, where set
	listing  func(resource string, from int)      // called, where set, after a page that has others after it; s is locked
}

type apiEvent struct {
	resource string
	version  int
	kind     watch.EventType
	object   json.RawMessage
}

func newAPIServer(t *testing.T, pageSize int) *apiServer {
	t.Helper()
	s := &apiServer{
		changed: make(chan struct{}), version: 100, oldest: 100,
		objects:  map[string]map[string]runtime.Object{"services": {}, "endpointslices": {}, "nodes": {}},
		failures: map[string]int{}, watches: map[string]int{}, lists: map[string]int{}, pageSize: pageSize,
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// source makes a Source of the server's objects, and a KubeDNS of that.
func (s *apiServer) source(t *testing.T) (*Source, *dns.KubeDNS) {
	t.Helper()
	cfg := &rest.Config{Host: s.URL, QPS: -1}
	core, err := apiclient.Core(cfg)
	if err != nil {
		t.Fatal(err)
	}
	discovery, err := apiclient.Discovery(cfg)
	if err != nil {
		t.Fatal(err)
	}
	src := New(core, discovery, ignoreMemory{})
	src.backoff.Duration, src.spreadRelist = 20*time.Millisecond, 50*time.Millisecond // what is tested is not how long they are
	return src, dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30}, src)
}

// kubeDNS makes a KubeDNS of the server's objects.
func (s *apiServer) kubeDNS(t *testing.T) *dns.KubeDNS {
	t.Helper()
	_, kd := s.source(t)
	return kd
}

// ignoreMemory leaves the collector alone.
type ignoreMemory struct{}

func (ignoreMemory) RelistBegins() {}
func (ignoreMemory) RelistEnds()   {}
func (ignoreMemory) ListDropped()  {}

// do runs f with the server locked and tells everyone of the change.
func (s *apiServer) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// get reads something with the server locked.
func get[T any](s *apiServer, f func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

func resourceOf(object runtime.Object) (resource string, meta *metav1.ObjectMeta) {
	switch o := object.(type) {
	case *corev1.Service:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		return "services", &o.ObjectMeta
	case *discoveryv1.EndpointSlice:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		return "endpointslices", &o.ObjectMeta
	case *corev1.Node:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		return "nodes", &o.ObjectMeta
	}
	panic(fmt.Sprintf("%T", object))
}

// set creates or updates an object; s is locked.
func (s *apiServer) set(object runtime.Object) {
	object = object.DeepCopyObject()
	resource, meta := resourceOf(object)
	key := meta.Namespace + "/" + meta.Name
	kind := watch.Added
	if s.objects[resource][key] != nil {
		kind = watch.Modified
	}
	s.version++
	meta.ResourceVersion = strconv.Itoa(s.version)
	s.objects[resource][key] = object
	s.log = append(s.log, apiEvent{resource, s.version, kind, marshal(object)})
}

// remove deletes an object; s is locked.
func (s *apiServer) remove(object runtime.Object) {
	object = object.DeepCopyObject()
	resource, meta := resourceOf(object)
	delete(s.objects[resource], meta.Namespace+"/"+meta.Name)
	s.version++
	meta.ResourceVersion = strconv.Itoa(s.version)
	s.log = append(s.log, apiEvent{resource, s.version, watch.Deleted, marshal(object)})
}

func (s *apiServer) change(c clustertest.Change) {
	switch {
	case c.Service != nil && c.Deleted:
		s.remove(c.Service)
	case c.Service != nil:
		s.set(c.Service)
	case c.Deleted:
		s.remove(c.Slice)
	default:
		s.set(c.Slice)
	}
}

// restart ends every watch and forgets the events so far, so that whoever
// watched has to list anew; s is locked.
func (s *apiServer) restart() {
	s.epoch++
	s.oldest = s.version
	s.log = nil
}

func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	code, instead := s.failures[resource], s.instead
	s.mu.Unlock()
	if instead != nil {
		instead(w)
		return
	}
	if code != 0 {
		fail(w, code, resource)
		return
	}
	if q.Get("watch") == "true" || q.Get("watch") == "1" {
		s.watch(w, r, resource)
		return
	}
	_, _ = w.Write(s.list(resource, q))
}

// list is a page of a list. A change between two pages of a list makes the
// rest of it be in vain here, which a real API server puts off for minutes.
func (s *apiServer) list(resource string, q url.Values) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.Sorted(maps.Keys(s.objects[resource]))
	from, version := 0, strconv.Itoa(s.version)
	if token := q.Get("continue"); token != "" {
		at, of, _ := strings.Cut(token, "-")
		if of != version {
			return marshal(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "the continue token is too old",
			})
		}
		from, _ = strconv.Atoi(at)
	}
	size := s.pageSize
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil {
		size = min(size, limit)
	}
	to := min(from+size, len(keys))
	next := ""
	if to < len(keys) {
		next = fmt.Sprintf("%d-%s", to, version)
	} else if q.Get("limit") != "1" { // which asks for the version alone
		s.lists[resource]++
	}
	items := make([]runtime.Object, 0, size)
	for _, key := range keys[from:to] {
		items = append(items, s.objects[resource][key])
	}
	if s.listing != nil && next != "" {
		defer s.listing(resource, from)
	}
	return marshal(map[string]any{
		"apiVersion": apiVersion(resource), "kind": kindOf(resource) + "List",
		"metadata": map[string]string{"resourceVersion": version, "continue": next}, "items": items,
	})
}

func apiVersion(resource string) string {
	if resource == "endpointslices" {
		return "discovery.k8s.io/v1"
	}
	return "v1"
}

func kindOf(resource string) string {
	return map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node"}[resource]
}

func fail(w http.ResponseWriter, code int, resource string) {
	reason := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusInternalServerError: metav1.StatusReasonInternalError,
	}[code]
	w.WriteHeader(code)
	_, _ = w.Write(marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: fmt.Sprintf("%s is %s", resource, http.StatusText(code)),
	}))
}

// watch sends events until the client goes or the epoch ends.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	controller := http.NewResponseController(w)
	send := func(kind watch.EventType, object json.RawMessage) bool {
		_, err := w.Write(append(marshal(map[string]any{"type": kind, "object": object}), '\n'))
		return err == nil && controller.Flush() == nil
	}
	since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	epoch := s.epoch
	if err != nil || since < s.oldest {
		s.mu.Unlock()
		send(watch.Error, marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
		}))
		return
	}
	s.watches[resource]++
	s.mu.Unlock()
	defer s.do(func() { s.watches[resource]-- })

	if controller.Flush() != nil {
		return
	}
	for {
		s.mu.Lock()
		over, changed := s.epoch != epoch, s.changed
		var events []apiEvent
		for _, e := range s.log {
			if e.resource == resource && e.version > since {
				events = append(events, e)
			}
		}
		since = max(since, s.version)
		s.mu.Unlock()
		if over {
			return
		}
		for _, e := range events {
			if !send(e.kind, e.object) {
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
