package dns

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"kubedns/pkg/dns/treecache"
)

// keptObject is what is kept of an object of the API.
type keptObject interface {
	comparable
	key() treecache.Key
	version() string // the resource version
	// same tells whether the other, which is not nil, is equal to it.
	same(other any) bool
	weight() int
}

// kept holds the objects of one resource. A list puts them in as it comes, so
// that records are built meanwhile; one that fails on its way leaves what it
// has brought, which was true when it was sent, and the next one takes out what
// it does not have. What an object is the same as stays in its place.
//
// Its methods are safe for concurrent use; those that put in and take out are
// called by one goroutine at a time.
type kept[T keptObject] struct {
	// changed is told of each change after it was made: the object before and
	// the one now, nil where there is none. first is set while the first list
	// comes.
	changed func(last, now T, first bool)
	// owner is what objects are found by besides their name; nil for nothing.
	owner func(T) treecache.Key

	mu       sync.RWMutex
	byName   map[treecache.Key]T
	byOwner  map[treecache.Key][]T
	seen     map[treecache.Key]struct{} // by the list that is under way; else nil
	complete bool
}

func newKept[T keptObject](changed func(last, now T, first bool), owner func(T) treecache.Key) *kept[T] {
	return &kept[T]{changed: changed, owner: owner, byName: map[treecache.Key]T{}, byOwner: map[treecache.Key][]T{}}
}

// begin is called when a list begins, and tells whether it is the first that
// may come to its end.
func (k *kept[T]) begin() (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = map[treecache.Key]struct{}{}
	return !k.complete
}

// end is called at the end of a list: what it did not have is gone.
func (k *kept[T]) end() {
	k.mu.RLock()
	var gone []treecache.Key
	for key := range k.byName {
		if _, ok := k.seen[key]; !ok {
			gone = append(gone, key)
		}
	}
	k.mu.RUnlock()
	for _, key := range gone {
		k.remove(key)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.complete = nil, true
}

// put takes an object in.
func (k *kept[T]) put(now T) {
	key := now.key()
	k.mu.Lock()
	first := !k.complete
	if k.seen != nil {
		k.seen[key] = struct{}{}
	}
	last, ok := k.byName[key]
	if ok && now.same(last) {
		k.mu.Unlock()
		return
	}
	if ok {
		k.disown(last)
	}
	k.byName[key] = now
	if k.owner != nil {
		owner := k.owner(now)
		k.byOwner[owner] = append(k.byOwner[owner], now)
	}
	k.mu.Unlock()
	k.changed(last, now, first)
}

// remove takes an object out, if it is there.
func (k *kept[T]) remove(key treecache.Key) {
	k.mu.Lock()
	first := !k.complete
	last, ok := k.byName[key]
	if ok {
		delete(k.byName, key)
		k.disown(last)
	}
	k.mu.Unlock()
	if ok {
		var none T
		k.changed(last, none, first)
	}
}

// disown takes the object from its owner's; k is locked.
func (k *kept[T]) disown(obj T) {
	if k.owner == nil {
		return
	}
	owner := k.owner(obj)
	left := slices.DeleteFunc(k.byOwner[owner], func(o T) bool { return o == obj })
	if len(left) == 0 {
		delete(k.byOwner, owner)
		return
	}
	k.byOwner[owner] = left
}

// get is the object of that name, or nil.
func (k *kept[T]) get(key treecache.Key) T {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.byName[key]
}

// of has the owner's objects, in no order.
func (k *kept[T]) of(owner treecache.Key) []T {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return slices.Clone(k.byOwner[owner])
}

// all has every object, in no order.
func (k *kept[T]) all() []T {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return slices.Collect(maps.Values(k.byName))
}

func (k *kept[T]) len() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.byName)
}

// listed tells whether a list has come to its end.
func (k *kept[T]) listed() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.complete
}

// reflected is what a reflector writes the events of a watch to.
type reflected[T keptObject] struct{ kept *kept[T] }

// Add implements cache.ReflectorStore, as the others do.
func (r reflected[T]) Add(obj any) error {
	o, ok := obj.(*received[T])
	if !ok {
		return fmt.Errorf("a %T in place of a %T", obj, o)
	}
	r.kept.put(o.kept)
	return nil
}

func (r reflected[T]) Update(obj any) error { return r.Add(obj) }

func (r reflected[T]) Delete(obj any) error {
	o, ok := obj.(*received[T])
	if !ok {
		return fmt.Errorf("a %T in place of a %T", obj, o)
	}
	r.kept.remove(o.kept.key())
	return nil
}

// Replace has nothing to do: the list has put everything in as it came.
func (r reflected[T]) Replace([]any, string) error { return nil }

func (r reflected[T]) Resync() error { return nil }
