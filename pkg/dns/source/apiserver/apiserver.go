// Package apiserver is the source that follows an API server: it lists and
// watches Services and EndpointSlices, and Nodes while the topology is needed.
// It keeps trimmed objects alone: package objects decodes and trims what the API
// server sends, a page or an event at a time.
//
// Three parts are written here although client-go has them. The figures are from
// hack/bench/README.md, "What was tried", and from the comments of each:
//
//   - Lists come in pages (pages.go), not as a stream: the mark at a stream's end
//     may come a second after the last object. The first right answer came 0.76 s
//     after exec with a stream and 0.24 s with pages.
//   - store takes the place of cache.Store, which needs a whole list before it
//     replaces anything. Replacing everything took 189 MB at most while listing
//     again, keeping what has not changed 109 MB.
//   - lister waits at most 10 s before it asks an API server again. A reflector's
//     wait grows to between 30 and 60 s, in which answers are old.
//
// Source.Run starts for each resource a reflector, which lists again and
// watches, and a goroutine that reads the watch.
package apiserver

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/treecache"
)

// Source is a source.Source that follows an API server. It is also a
// prometheus.Collector of its contact with the API server.
type Source struct {
	core, discovery rest.Interface
	memory          Memory
	contact         *contact
	events          source.Events // set by Run

	backoff      wait.Backoff  // after a watch that ended, before a list
	spreadRelist time.Duration // see lister

	services *store[*objects.Service]
	slices   *store[*objects.EndpointSlice]
	nodes    nodes

	listedAll    chan struct{} // closed once the Services and the slices were listed
	signalListed func()        // closes it
}

// Memory learns what takes much memory for a while, to set the garbage collector
// accordingly. Its methods are called from several goroutines at once, and
// return at once.
type Memory interface {
	// RelistBegins says that objects are listed again: for a while there is
	// about as much garbage as there are objects kept.
	RelistBegins()
	// RelistEnds is called once for each RelistBegins.
	RelistEnds()
	// ListDropped says that what a list took, about as much again as is kept,
	// is garbage now.
	ListDropped()
}

// New makes a source of the API server that the clients reach: core is one for
// core/v1, discovery for discovery.k8s.io/v1.
func New(core, discovery rest.Interface, memory Memory) *Source {
	s := &Source{
		core: core, discovery: discovery, memory: memory, contact: newContact(),
		backoff: apiclient.ReflectorBackoff(), spreadRelist: spreadRelist,
		nodes: nodes{changed: make(chan struct{}, 1)}, listedAll: make(chan struct{}),
	}
	s.signalListed = sync.OnceFunc(func() { close(s.listedAll) })
	s.services = newStore(s.serviceChanged, nil)
	s.slices = newStore(s.sliceChanged, (*objects.EndpointSlice).Owner)
	return s
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, events source.Events) error {
	s.events = events
	var wg sync.WaitGroup
	wg.Go(func() { follow(ctx, s, s.core, objects.Services(), s.services) })
	wg.Go(func() { follow(ctx, s, s.discovery, objects.Slices(), s.slices) })
	wg.Go(func() { s.watchNodes(ctx) })
	select {
	case <-s.listedAll:
		events.Listed()
	case <-ctx.Done():
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

func (s *Source) serviceChanged(last, now *objects.Service, initial bool) {
	switch {
	case now == nil:
		s.events.Changed(last.Key(), time.Time{})
	case last == nil && !initial:
		s.events.Changed(now.Key(), now.Created)
	default:
		s.events.Changed(now.Key(), time.Time{})
	}
}

func (s *Source) sliceChanged(last, now *objects.EndpointSlice, initial bool) {
	if last != nil && last.Service != "" && (now == nil || now.Service != last.Service) {
		s.events.Changed(last.Owner(), time.Time{})
	}
	if now == nil || now.Service == "" {
		return
	}
	var since time.Time
	if !initial {
		since = s.triggered(now)
	}
	s.events.Changed(now.Owner(), since)
}

// triggered is when a headless Service's slice changed; zero where that is
// unknown, and for other Services, whose addresses are not their slices'.
func (s *Source) triggered(slice *objects.EndpointSlice) time.Time {
	if service := s.Service(slice.Owner()); service != nil && service.Headless {
		return slice.Triggered
	}
	return time.Time{}
}

var _ source.Source = (*Source)(nil)

// Failed counts and logs a list or watch of a resource that somebody else has
// at the same API server.
func (s *Source) Failed(resource string, err error) { s.contact.failed(resource, err) }

// Service implements source.Source.
func (s *Source) Service(key treecache.Key) *objects.Service { return s.services.get(key) }

// Slices implements source.Source.
func (s *Source) Slices(key treecache.Key) []*objects.EndpointSlice {
	return objects.SortSlices(s.slices.of(key))
}

// All implements source.Source.
func (s *Source) All() ([]*objects.Service, []*objects.EndpointSlice) {
	return s.services.all(), s.slices.all()
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	return source.Status{Services: s.services.len(), Slices: s.slices.len(), Missing: s.missing(), APIServer: s.contact.status()}
}

func (s *Source) missing() string {
	var why []string
	for _, r := range []struct {
		resource string
		listed   bool
	}{{objects.Services().Name, s.services.listed()}, {objects.Slices().Name, s.slices.listed()}} {
		if r.listed {
			continue
		}
		text := r.resource + " not listed yet"
		if last := s.contact.failure(r.resource); last.Err != "" {
			text += ": " + last.Err
		}
		why = append(why, text)
	}
	return strings.Join(why, "; ")
}
