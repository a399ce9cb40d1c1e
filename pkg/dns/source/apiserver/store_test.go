package apiserver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/treecache"
)

// TestFirstListBroken: of a first list that breaks off in the middle nothing
// remains that the next one does not have, and nothing is complete before both
// resources came to their end.
func TestFirstListBroken(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1)
	services, all := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}
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
		if resource == "services" {
			s.remove(services[1]) // aaa
		} else {
			s.remove(all[0])
		}
	}
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	s.do(func() {
		if !broken["services"] || !broken["endpointslices"] {
			t.Errorf("lists broken off: %v", broken)
		}
	})
	got := clustertest.ZoneText(kd.Tree())
	if strings.Contains(got, "192.0.2.7") || strings.Contains(got, "192.0.2.1\n") || !strings.Contains(got, "192.0.2.8") {
		t.Errorf("records\n%s\nwant web's alone", got)
	}
}

// TestStore puts objects in by lists and watches, and compares what is there and
// which changes were reported after each step.
func TestStore(t *testing.T) {
	svc := func(name, version string) *objects.Service {
		return &objects.Service{Meta: objects.Meta{Namespace: "default", Name: name, ResourceVersion: version}}
	}
	var reported []string
	version := func(s *objects.Service) string {
		if s == nil {
			return "none"
		}
		return s.Name + s.ResourceVersion
	}
	k := newStore(func(last, now *objects.Service, first bool) {
		text := version(last) + " to " + version(now)
		if first {
			text += ", first"
		}
		reported = append(reported, text)
	}, nil)
	want := func(step string, complete bool, have string, changes ...string) {
		t.Helper()
		var got []string
		for _, s := range k.all() {
			got = append(got, version(s))
			if k.get(s.Key()) != s {
				t.Errorf("%s: get(%v) = %v", step, s.Key(), k.get(s.Key()))
			}
		}
		slices.Sort(got)
		slices.Sort(reported)
		if text := strings.Join(got, " "); text != have || k.len() != len(got) || k.listed() != complete {
			t.Errorf("%s: %d objects, %q, listed: %t, want %q, %t", step, k.len(), text, k.listed(), have, complete)
		}
		if !slices.Equal(reported, changes) {
			t.Errorf("%s: reported %q, want %q", step, reported, changes)
		}
		reported = nil
	}
	a1 := svc("a", "1")
	if !k.beginList() {
		t.Error("beginList() = false before any list")
	}
	k.put(a1)
	k.put(svc("b", "1"))
	want("a first list", false, "a1 b1", "none to a1, first", "none to b1, first")
	if !k.beginList() { // the one before has failed
		t.Error("beginList() = false after a list that has failed")
	}
	k.put(svc("a", "1"))
	k.put(svc("c", "1"))
	want("another first list", false, "a1 b1 c1", "none to c1, first")
	k.endList()
	want("its end", true, "a1 c1", "b1 to none, first")
	k.put(svc("a", "1"))
	if k.get(a1.Key()) != a1 {
		t.Error("an object that is the same as before took its place")
	}
	k.put(svc("c", "2"))
	k.put(svc("d", "1"))
	k.remove(a1.Key())
	k.remove(a1.Key())
	want("a watch", true, "c2 d1", "a1 to none", "c1 to c2", "none to d1")
	if k.beginList() {
		t.Error("beginList() = true after the end of a list")
	}
	k.put(svc("d", "1"))
	k.put(svc("e", "1"))
	want("a second list", true, "c2 d1 e1", "none to e1")
	k.endList()
	want("its end", true, "d1 e1", "c2 to none")
	if got := k.get(a1.Key()); got != nil {
		t.Errorf("get() of what is gone = %v", got)
	}
}

// TestStoreByOwner: a slice is found by the Service it belongs to now.
func TestStoreByOwner(t *testing.T) {
	of := func(service, name, version string) *objects.EndpointSlice {
		return &objects.EndpointSlice{Meta: objects.Meta{Namespace: "default", Name: name, ResourceVersion: version}, Service: service}
	}
	k := newStore(func(_, _ *objects.EndpointSlice, _ bool) {}, (*objects.EndpointSlice).Owner)
	want := func(step string, owners ...string) {
		t.Helper()
		for i, service := range []string{"web", "db", "gone"} {
			var got []string
			for _, s := range objects.SortSlices(k.of(treecache.Key{Namespace: "default", Name: service})) {
				got = append(got, s.Name+s.ResourceVersion)
			}
			if text := strings.Join(got, " "); text != owners[i] {
				t.Errorf("%s: %s has %q, want %q", step, service, text, owners[i])
			}
		}
	}
	k.put(of("web", "x", "1"))
	k.put(of("web", "y", "1"))
	k.put(of("db", "z", "1"))
	k.put(of("", "nobody's", "1"))
	want("put", "x1 y1", "z1", "")
	mine := k.of(treecache.Key{Namespace: "default", Name: "web"})
	k.put(of("web", "y", "2"))
	k.put(of("db", "x", "2"))
	want("moved", "y2", "x2 z1", "")
	if len(mine) != 2 || mine[0] == nil || mine[1] == nil {
		t.Errorf("what was read before has changed: %v", mine)
	}
	k.remove(treecache.Key{Namespace: "default", Name: "y"})
	k.remove(treecache.Key{Namespace: "default", Name: "z"})
	want("removed", "", "x2", "")
	if n := len(k.byOwner); n != 2 {
		t.Errorf("%d owners, want db and none", n)
	}
}

// TestReflectorStore: what a watch brings goes in and out by name, and what is no
// object of the resource is an error.
func TestReflectorStore(t *testing.T) {
	k := newStore(func(_, _ *objects.Service, _ bool) {}, nil)
	r := reflectorStore[*objects.Service]{k}
	web := &watchObject[*objects.Service]{object: &objects.Service{Meta: objects.Meta{Namespace: "default", Name: "web"}}}
	if err := errors.Join(r.Add(web), r.Update(web), r.Replace(nil, "1"), r.Resync()); err != nil || k.len() != 1 {
		t.Errorf("%d objects, %v", k.len(), err)
	}
	for _, stranger := range []any{nil, "x", &corev1.Service{}, &watchObject[*objects.Node]{}} {
		if r.Add(stranger) == nil || r.Update(stranger) == nil || r.Delete(stranger) == nil {
			t.Errorf("%T is no error", stranger)
		}
	}
	if err := r.Delete(web); err != nil || k.len() != 0 {
		t.Errorf("%d objects after the end, %v", k.len(), err)
	}
}

// TestListAgain: what has not changed since the last list is not held twice,
// and what has changed is seen, also where its resource version is the same as
// before (etcd was restored to an older state).
func TestListAgain(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 2)
	services, all := clustertest.Parse(t, clustertest.HeadlessDB+clustertest.Slice4+`endpoints: [{addresses: [192.0.2.1], hostname: a}]}
---
{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.8}}
---
{kind: Service, metadata: {name: back}, spec: {clusterIP: 192.0.2.9}}`)
	for _, service := range services {
		s.set(service)
	}
	s.set(all[0])
	src, kd := s.source(t)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	db, web := treecache.Key{Namespace: "default", Name: "db"}, treecache.Key{Namespace: "default", Name: "web"}
	before, slicesBefore := src.Service(web), src.Slices(db)
	if before == nil || len(slicesBefore) != 1 {
		t.Fatalf("service %v, slices %v", before, slicesBefore)
	}
	s.do(func() {
		back := s.objects["services"]["default/back"].(*corev1.Service).DeepCopy()
		back.Spec.ClusterIP, back.Spec.ClusterIPs = "192.0.2.10", nil
		s.objects["services"]["default/back"] = back // its version stays
		fresh := services[1].DeepCopy()
		fresh.Name, fresh.Spec.ClusterIP, fresh.Spec.ClusterIPs = "fresh", "192.0.2.11", nil
		s.set(fresh)
		s.restart()
	})
	clustertest.Eventually(t, "all is listed again", func() bool {
		return get(s, func() bool { return s.lists["services"] > 1 && s.lists["endpointslices"] > 1 })
	})
	clustertest.Eventually(t, "what is new is there", func() bool { return strings.Contains(clustertest.ZoneText(kd.Tree()), "192.0.2.11") })
	clustertest.Eventually(t, "what has changed without another version is there", func() bool {
		got := clustertest.ZoneText(kd.Tree())
		return strings.Contains(got, "192.0.2.10") && !strings.Contains(got, "192.0.2.9\n")
	})
	if got := src.Service(web); got != before {
		t.Error("a Service that has not changed is another object")
	}
	if got := src.Slices(db); len(got) != 1 || got[0] != slicesBefore[0] {
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
