package dns

import (
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/treecache"
)

// TestFirstListBroken: of a first list that breaks off in the middle nothing
// remains that the next one does not have, and nothing is complete before both
// resources came to their end.
func TestFirstListBroken(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1)
	services, all := parseObjects(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}
---
{kind: Service, metadata: {name: aaa}, spec: {clusterIP: 192.0.2.7}}
---
{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.8}}`)
	for _, service := range services {
		s.set(service)
	}
	s.set(all[0])
	other := all[0].DeepCopy()
	other.Name = "zzz" // so that there are two pages of slices
	other.Endpoints = nil
	s.set(other)
	broken := map[string]bool{}
	kd := s.kubeDNS(t)
	s.listing = func(resource string, from int) {
		if from != 0 || broken[resource] {
			return
		}
		broken[resource] = true
		if kd.HasSynced() {
			t.Error("complete after a page")
		}
		// The first object was in the page that was sent. With it gone, what
		// is left of the list is in vain.
		if resource == resourceServices {
			s.remove(services[1]) // aaa
		} else {
			s.remove(all[0])
		}
	}
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	s.do(func() {
		if !broken[resourceServices] || !broken[resourceSlices] {
			t.Errorf("lists broken off: %v", broken)
		}
	})
	got := zoneText(kd.Tree())
	if strings.Contains(got, "192.0.2.7") || strings.Contains(got, "192.0.2.1\n") || !strings.Contains(got, "192.0.2.8") {
		t.Errorf("records\n%s\nwant web's alone", got)
	}
}

// TestRecordsBeforeInformers: what an informer does with the list that ends last
// comes after the records, which need the processor first.
func TestRecordsBeforeInformers(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1)
	services, all := parseObjects(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}`)
	s.set(services[0])
	s.set(all[0])
	kd := s.kubeDNS(t)
	c := kd.source.(*cluster)
	kd.mu.Lock() // no record is built
	unlock := sync.OnceFunc(kd.mu.Unlock)
	start(t, kd)
	t.Cleanup(unlock) // or the worker would never end
	eventually(t, "both lists have ended", func() bool {
		return c.first.listed(resourceServices) && c.first.listed(resourceSlices)
	})
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if c.services.HasSynced() && c.slices.HasSynced() {
			t.Fatal("both informers have their list before there is a record")
		}
	}
	unlock()
	eventually(t, "the records are complete", kd.HasSynced)
	eventually(t, "the informers have everything", func() bool { return c.services.HasSynced() && c.slices.HasSynced() })
}

func TestFirstList(t *testing.T) {
	svc := func(name string) *service {
		return &service{meta: meta{metav1.ObjectMeta{Namespace: "default", Name: name}}, kind: corev1.ServiceTypeClusterIP}
	}
	of := func(service, name string) *slice {
		return &slice{meta: meta{metav1.ObjectMeta{Namespace: "default", Name: name}}, service: service}
	}
	key := func(name string) treecache.Key { return treecache.Key{Namespace: "default", Name: name} }
	f := newFirstList()
	if f.begin("nodes") {
		t.Error("Nodes are part of the first list")
	}
	web, x, none := svc("web"), of("web", "x"), of("", "y")
	if !f.begin(resourceServices) || !f.begin(resourceSlices) {
		t.Fatal("begin() = false before any list")
	}
	for _, tt := range []struct {
		obj  any
		want string
	}{{web, "web"}, {x, "web"}, {none, ""}} {
		got, ok := f.add(tt.obj)
		if got.Name != tt.want || ok != (tt.want != "") {
			t.Errorf("add(%v) = %v, %v, want %q", tt.obj, got, ok, tt.want)
		}
		if !f.has(tt.obj) {
			t.Errorf("has(%v) = false", tt.obj)
		}
	}
	if f.has(svc("web")) || f.has(of("web", "x")) {
		t.Error("has() of an equal object, not of the same")
	}
	if s, _ := f.service(key("web")); s != web {
		t.Errorf("service() = %v", s)
	}
	if services, slices, ok := f.counts(); services != 1 || slices != 2 || !ok {
		t.Errorf("counts() = %d, %d, %v", services, slices, ok)
	}
	if _, both := f.end(resourceSlices); both {
		t.Error("both lists have ended after one")
	}
	if f.begin(resourceSlices) {
		t.Error("begin() = true after the end")
	}
	f.begin(resourceServices) // again: the one before has failed
	if s, ok := f.service(key("web")); s != nil || !ok {
		t.Errorf("service() = %v, %v after a list that has failed", s, ok)
	}
	if stale, both := f.end(resourceServices); len(stale) != 1 || stale[0] != key("web") || !both {
		t.Errorf("stale %v, both ended: %v", stale, both)
	}
	f.handOver(resourceServices)
	if _, ok := f.service(key("web")); ok {
		t.Error("service() counts after an event that came later")
	}
	if _, ok := f.allServices(); ok {
		t.Error("allServices() counts after an event that came later")
	}
	if s, ok := f.slicesOf(key("web")); len(s) != 1 || !ok {
		t.Errorf("slicesOf() = %v, %v, and only the Services were handed over", s, ok)
	}
	f.drop()
	if _, ok := f.slicesOf(key("web")); ok || f.has(x) || f.begin(resourceServices) {
		t.Error("there is something left after drop()")
	}
}

// TestListAgain: what has not changed since the last list is not held twice,
// and what has changed is seen, also where its resource version is the same as
// before (etcd was restored to an older state).
func TestListAgain(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 2)
	services, all := parseObjects(t, headlessDB+slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}
---
{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.8}}
---
{kind: Service, metadata: {name: back}, spec: {clusterIP: 192.0.2.9}}`)
	for _, service := range services {
		s.set(service)
	}
	s.set(all[0])
	kd := s.kubeDNS(t)
	start(t, kd)
	eventually(t, "the records are complete", kd.HasSynced)
	c := kd.source.(*cluster)
	eventually(t, "the informers have everything", func() bool { return c.services.HasSynced() && c.slices.HasSynced() })
	db, web := treecache.Key{Namespace: "default", Name: "db"}, treecache.Key{Namespace: "default", Name: "web"}
	kept, keptSlices := c.service(web), c.slicesOf(db)
	if kept == nil || len(keptSlices) != 1 {
		t.Fatalf("service %v, slices %v", kept, keptSlices)
	}
	s.do(func() {
		back := s.objects[resourceServices]["default/back"].(*corev1.Service).DeepCopy()
		back.Spec.ClusterIP, back.Spec.ClusterIPs = "192.0.2.10", nil
		s.objects[resourceServices]["default/back"] = back // its version stays
		fresh := services[1].DeepCopy()
		fresh.Name, fresh.Spec.ClusterIP, fresh.Spec.ClusterIPs = "fresh", "192.0.2.11", nil
		s.set(fresh)
		s.restart()
	})
	eventually(t, "all is listed again", func() bool {
		return get(s, func() bool { return s.lists[resourceServices] > 1 && s.lists[resourceSlices] > 1 })
	})
	eventually(t, "what is new is there", func() bool { return strings.Contains(zoneText(kd.Tree()), "192.0.2.11") })
	eventually(t, "what has changed without another version is there", func() bool {
		got := zoneText(kd.Tree())
		return strings.Contains(got, "192.0.2.10") && !strings.Contains(got, "192.0.2.9\n")
	})
	if got := c.service(web); got != kept {
		t.Error("a Service that has not changed is another object")
	}
	if got := c.slicesOf(db); len(got) != 1 || got[0] != keptSlices[0] {
		t.Error("a slice that has not changed is another object")
	}
}

func TestNextPage(t *testing.T) {
	for _, tt := range []struct{ last, weight, want int }{
		{firstPage, firstPage, largestPage},          // Services
		{firstPage, 21 * firstPage, 476},             // slices of 20 endpoints
		{firstPage, 101 * firstPage, 99},             // of 100
		{firstPage, 1001 * firstPage, 10},            // of 1,000
		{500, 0, largestPage}, {10, 20, largestPage}, // hardly anything
		{500, 50_000, 100},
	} {
		if got := nextPage(tt.last, tt.weight); got != tt.want {
			t.Errorf("nextPage(%d, %d) = %d, want %d", tt.last, tt.weight, got, tt.want)
		}
	}
}
