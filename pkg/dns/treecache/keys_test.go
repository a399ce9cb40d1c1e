package treecache

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func compareKeys(a, b Key) int {
	return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
}

func TestKeys(t *testing.T) {
	tree := New(zone)
	if got := tree.Keys(); len(got) != 0 {
		t.Errorf("an empty tree has %v", got)
	}
	var want []Key
	for i := range 3*keysAtOnce + 1 {
		key := Key{fmt.Sprint("ns", i%3), fmt.Sprint("s", i)}
		put(tree, service(key.Namespace, key.Name, "10.0.0.1"))
		want = append(want, key)
	}
	put(tree, &Records{Key: Key{"ns0", "empty"}, Empty: true})
	got := tree.Keys()
	slices.SortFunc(got, compareKeys)
	slices.SortFunc(want, compareKeys)
	if !slices.Equal(got, want) {
		t.Errorf("%d keys, want the %d Services that have a name", len(got), len(want))
	}
}

// Keys lets writers in, and has what they leave alone.
func TestKeysWhileWriting(t *testing.T) {
	tree := New(zone)
	for i := range 4 * keysAtOnce {
		put(tree, service("stays", fmt.Sprint("s", i), "10.0.0.1"))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			ns := []string{"stays", "comes"}[i%2]
			put(tree, service(ns, fmt.Sprint("x", i), "10.0.0.2"))
			if i > 10 {
				tree.Replace(Key{[]string{"stays", "comes"}[(i-10)%2], fmt.Sprint("x", i-10)}, nil, epoch)
			}
		}
	})
	for range 20 {
		seen := map[Key]int{}
		for _, key := range tree.Keys() {
			seen[key]++
		}
		for i := range 4 * keysAtOnce {
			if key := (Key{"stays", fmt.Sprint("s", i)}); seen[key] != 1 {
				t.Errorf("%v is there %d times", key, seen[key])
			}
		}
	}
	close(stop)
	wg.Wait()
}

func TestSince(t *testing.T) {
	tree := New(zone)
	r := service("default", "web", "10.0.0.1")
	if got := r.Since(); !got.IsZero() {
		t.Errorf("before it is in a tree: %v", got)
	}
	first := time.Unix(100, 5)
	tree.Replace(r.Key, r, first)
	// Equal records leave those that are there.
	tree.Replace(r.Key, service("default", "web", "10.0.0.1"), time.Unix(200, 0))
	got, _ := tree.Service([]byte("default"), []byte("web"))
	if !got.Since().Equal(first) {
		t.Errorf("since %v, want %v", got.Since(), first)
	}
	tree.Replace(r.Key, service("default", "web", "10.0.0.2"), time.Unix(300, 0))
	if got, _ = tree.Service([]byte("default"), []byte("web")); !got.Since().Equal(time.Unix(300, 0)) {
		t.Errorf("after a change: since %v", got.Since())
	}
}
