package dns

import (
	"slices"
	"sync"

	"kubedns/pkg/dns/treecache"
)

// firstList holds the objects of the first lists while they come, so that
// records are built meanwhile and not only when an informer is given the whole
// list. It is let go of once the informers have them. Its methods are safe for
// concurrent use.
type firstList struct {
	mu       sync.Mutex
	services map[treecache.Key]*service
	slices   map[treecache.Key][]*slice // by Service; those of none under an empty name
	stale    map[treecache.Key]struct{} // Services of a list that did not come to its end
	ended    map[string]bool            // by resource
	all      chan struct{}              // closed by whoever end told that both have ended
	handed   map[string]bool            // by resource, see handOver
	gone     bool
}

func newFirstList() *firstList {
	return &firstList{
		services: map[treecache.Key]*service{},
		slices:   map[treecache.Key][]*slice{},
		stale:    map[treecache.Key]struct{}{},
		ended:    map[string]bool{},
		all:      make(chan struct{}),
		handed:   map[string]bool{},
	}
}

// begin is called when a list of the resource begins, and tells whether it is
// a first one. What an earlier one brought, which failed on its way, is
// forgotten.
func (f *firstList) begin(resource string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.ended[resource] {
		return false
	}
	switch resource {
	case resourceServices:
		for key := range f.services {
			f.stale[key] = struct{}{}
		}
		clear(f.services)
	case resourceSlices:
		for key := range f.slices {
			f.stale[key] = struct{}{}
		}
		clear(f.slices)
	default:
		return false
	}
	return true
}

// add takes an object and returns the Service that it belongs to, if any.
func (f *firstList) add(obj any) (key treecache.Key, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch o := obj.(type) {
	case *service:
		key = treecache.Key{Namespace: o.Namespace, Name: o.Name}
		f.services[key] = o
	case *slice:
		key = treecache.Key{Namespace: o.Namespace, Name: o.service}
		f.slices[key] = append(f.slices[key], o)
	}
	return key, key.Name != ""
}

// end is called at the end of a list that begin has called a first one. It
// tells whether both lists have ended; then the caller has the stale Services
// looked at again, and closes all.
func (f *firstList) end(resource string) (stale []treecache.Key, both bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[resource] = true
	if !f.ended[resourceServices] || !f.ended[resourceSlices] {
		return nil, false
	}
	for key := range f.stale {
		stale = append(stale, key)
	}
	f.stale = nil
	return stale, true
}

// listed tells whether the resource has been listed once.
func (f *firstList) listed(resource string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[resource]
}

// has tells whether the object was taken, this very one: then whoever was told
// of it need not be told again.
func (f *firstList) has(obj any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch o := obj.(type) {
	case *service:
		return f.services[treecache.Key{Namespace: o.Namespace, Name: o.Name}] == o
	case *slice:
		return slices.Contains(f.slices[treecache.Key{Namespace: o.Namespace, Name: o.service}], o)
	}
	return false
}

// handOver is called with the first event after those of the first list: from
// then on the informer's store is what counts, a moment before the informer
// says that it has synced.
func (f *firstList) handOver(resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handed[resource] = true
}

// drop lets go of everything.
func (f *firstList) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone, f.services, f.slices = true, nil, nil
}

// service is the Service of that name, or nil. ok is false once the resource is
// handed over or all is let go of, as with the methods below.
func (f *firstList) service(key treecache.Key) (s *service, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services[key], f.holds(resourceServices)
}

func (f *firstList) slicesOf(key treecache.Key) (s []*slice, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.slices[key]), f.holds(resourceSlices)
}

// counts is for people to read; ok is false only once all is let go of.
func (f *firstList) counts() (services, slices int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.slices {
		slices += len(s)
	}
	return len(f.services), slices, !f.gone
}

func (f *firstList) allServices() (all []*service, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.services {
		all = append(all, s)
	}
	return all, f.holds(resourceServices)
}

func (f *firstList) allSlices() (all []*slice, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.slices {
		all = append(all, s...)
	}
	return all, f.holds(resourceSlices)
}

// holds tells whether what is here counts; f is locked.
func (f *firstList) holds(resource string) bool { return !f.gone && !f.handed[resource] }
