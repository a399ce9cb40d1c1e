// Package sourcetest has a source whose objects a test sets.
package sourcetest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/records"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/treecache"
)

// Fake is a source.Source whose objects a test sets. The fields are set before
// Run.
type Fake struct {
	TopologyZone, Region string
	// Begin, where set, is what Run does in place of reporting every Service and
	// the end of the list.
	Begin func(source.Events)
	// AfterRead, where set, is called when a Service's slices were read.
	AfterRead func(treecache.Key)

	events source.Events
	begun  chan struct{} // closed once events is set

	mu       sync.Mutex
	services map[treecache.Key]*objects.Service
	slices   map[treecache.Key]*objects.EndpointSlice
	missing  string
	topology []bool // as NeedTopology was called
}

// New makes a source of objects as the API has them.
func New(services []*corev1.Service, all []*discoveryv1.EndpointSlice) *Fake {
	f := &Fake{
		begun:    make(chan struct{}),
		services: map[treecache.Key]*objects.Service{}, slices: map[treecache.Key]*objects.EndpointSlice{},
	}
	for _, s := range services {
		f.put(clustertest.Change{Service: s})
	}
	for _, s := range all {
		f.put(clustertest.Change{Slice: s})
	}
	return f
}

// Run implements source.Source.
func (f *Fake) Run(ctx context.Context, events source.Events) error {
	f.events = events
	close(f.begun)
	if f.Begin != nil {
		f.Begin(events)
	} else {
		f.mu.Lock()
		keys := slices.Collect(maps.Keys(f.services))
		f.mu.Unlock()
		for _, key := range keys {
			events.Changed(key, time.Time{})
		}
		events.Listed()
	}
	<-ctx.Done()
	return nil
}

// Put makes a change and reports nothing.
func (f *Fake) Put(c clustertest.Change) { f.put(c) }

// Apply makes a change and reports it, once Run was called.
func (f *Fake) Apply(c clustertest.Change) {
	<-f.begun
	for _, key := range f.put(c) {
		f.events.Changed(key, time.Time{})
	}
}

// put makes a change and returns the Services that it is about.
func (f *Fake) put(c clustertest.Change) []treecache.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Service != nil {
		s := objects.TrimService(c.Service)
		f.services[s.Key()] = s
		if c.Deleted {
			delete(f.services, s.Key())
		}
		return []treecache.Key{s.Key()}
	}
	s := objects.TrimSlice(c.Slice)
	keys := []treecache.Key{s.Owner()}
	if last := f.slices[s.Key()]; last != nil {
		keys = append(keys, last.Owner())
	}
	f.slices[s.Key()] = s
	if c.Deleted {
		delete(f.slices, s.Key())
	}
	return keys
}

// Service implements source.Source.
func (f *Fake) Service(key treecache.Key) *objects.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services[key]
}

// Slices implements source.Source.
func (f *Fake) Slices(key treecache.Key) []*objects.EndpointSlice {
	f.mu.Lock()
	var own []*objects.EndpointSlice
	for _, s := range f.slices {
		if s.Owner() == key {
			own = append(own, s)
		}
	}
	f.mu.Unlock()
	if f.AfterRead != nil {
		f.AfterRead(key)
	}
	return objects.SortSlices(own)
}

// All implements source.Source.
func (f *Fake) All() (services []*objects.Service, all []*objects.EndpointSlice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.services)), slices.Collect(maps.Values(f.slices))
}

// NeedTopology implements source.Source.
func (f *Fake) NeedTopology(needed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topology = append(f.topology, needed)
}

// NeededTopology returns what NeedTopology was called with so far.
func (f *Fake) NeededTopology() []bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.topology)
}

// Topology implements source.Source.
func (f *Fake) Topology() (topologyZone, region string) { return f.TopologyZone, f.Region }

// SetMissing sets what Status says is missing.
func (f *Fake) SetMissing(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missing = why
}

// Status implements source.Source.
func (f *Fake) Status() source.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return source.Status{Services: len(f.services), Slices: len(f.slices), Missing: f.missing}
}

// Tree makes the records of a state without a source.
func Tree(s *clustertest.State) *treecache.Tree {
	tree := treecache.New(clustertest.Zone)
	set := objects.NewSet(slices.Collect(maps.Values(s.Services)), slices.Collect(maps.Values(s.Slices)), nil)
	for _, key := range set.Services() {
		tree.Replace(key, records.Build(set.Service(key), set.Slices(key)), time.Unix(0, 0))
	}
	return tree
}
