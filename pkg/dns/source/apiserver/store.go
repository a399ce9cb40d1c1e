package apiserver

import (
	"maps"
	"slices"
	"sync"

	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/treecache"
)

// store holds the objects of one resource. A list puts its objects in page by
// page, so that records are built meanwhile. The objects of a list that fails
// stay, as they were true when they were sent; the next list that succeeds
// removes those that it does not have. An object that is put again unchanged
// does not replace the one in the store.
//
// The methods are safe for concurrent use, but those that write must be called
// by one goroutine at a time. It is not client-go's cache.Store because that
// needs a whole list before it replaces anything: a second copy of everything.
type store[T objects.Object] struct {
	// changed is called after each change with the object before and the one
	// now, nil where there is none. initial is set until a list has ended.
	changed func(last, now T, initial bool)
	// owner is what of finds objects by; nil where that is not needed.
	owner func(T) treecache.Key

	mu       sync.RWMutex
	byName   map[treecache.Key]T
	byOwner  map[treecache.Key][]T
	seen     map[treecache.Key]struct{} // in the list under way; else nil
	complete bool                       // a list has ended
}

func newStore[T objects.Object](changed func(last, now T, initial bool), owner func(T) treecache.Key) *store[T] {
	return &store[T]{changed: changed, owner: owner, byName: map[treecache.Key]T{}, byOwner: map[treecache.Key][]T{}}
}

// beginList is called when a list begins. It reports whether no list has ended
// yet.
func (s *store[T]) beginList() (initial bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[treecache.Key]struct{}{}
	return !s.complete
}

// endList is called at the end of a list. It removes the objects that the list
// did not have.
func (s *store[T]) endList() {
	s.mu.RLock()
	var gone []treecache.Key
	for key := range s.byName {
		if _, ok := s.seen[key]; !ok {
			gone = append(gone, key)
		}
	}
	s.mu.RUnlock()
	for _, key := range gone {
		s.remove(key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.complete = nil, true
}

// put adds or replaces an object.
func (s *store[T]) put(now T) {
	key := now.Key()
	s.mu.Lock()
	initial := !s.complete
	if s.seen != nil {
		s.seen[key] = struct{}{}
	}
	last, ok := s.byName[key]
	if ok && now.Equal(last) {
		s.mu.Unlock()
		return
	}
	if ok {
		s.disown(last)
	}
	s.byName[key] = now
	if s.owner != nil {
		owner := s.owner(now)
		s.byOwner[owner] = append(s.byOwner[owner], now)
	}
	s.mu.Unlock()
	s.changed(last, now, initial)
}

// remove deletes the object of that name, if there is one.
func (s *store[T]) remove(key treecache.Key) {
	s.mu.Lock()
	initial := !s.complete
	last, ok := s.byName[key]
	if ok {
		delete(s.byName, key)
		s.disown(last)
	}
	s.mu.Unlock()
	if ok {
		var none T
		s.changed(last, none, initial)
	}
}

// disown removes obj from its owner's objects; s is locked.
func (s *store[T]) disown(obj T) {
	if s.owner == nil {
		return
	}
	owner := s.owner(obj)
	left := slices.DeleteFunc(s.byOwner[owner], func(o T) bool { return o == obj })
	if len(left) == 0 {
		delete(s.byOwner, owner)
		return
	}
	s.byOwner[owner] = left
}

// get returns the object of that name, or nil.
func (s *store[T]) get(key treecache.Key) T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[key]
}

// of returns the owner's objects, in no order; the slice is the caller's.
func (s *store[T]) of(owner treecache.Key) []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.byOwner[owner])
}

// all returns every object, in no order.
func (s *store[T]) all() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.byName))
}

func (s *store[T]) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byName)
}

// listed reports whether a list has ended.
func (s *store[T]) listed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.complete
}
