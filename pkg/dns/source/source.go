// Package source defines what delivers a cluster's objects to package dns: the
// interface of a source, of its consumer, and the state it reports. The sources
// are in the folders below: apiserver follows an API server, manifests a
// directory of files.
//
// A snapshot is no source: it holds what a source had delivered before a
// restart. Package dns serves it until the source is complete, see package
// snapshot.
package source

import (
	"context"
	"time"

	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/treecache"
)

// A Source keeps the objects of a cluster as they are now. Objects are trimmed
// and never written to, neither by the source nor by whoever reads them; a
// changed object is another one. All methods but Run may be called at any time,
// before Run and after it too, and are safe for concurrent use.
type Source interface {
	// Run keeps the objects current and reports each change to events until ctx
	// is done; then it returns nil. It returns once every goroutine that it
	// started has ended and no call to events is under way. Any other error
	// means that the source cannot work at all. It must be called once.
	Run(ctx context.Context, events Events) error

	// Service returns the Service of that name, or nil.
	Service(key treecache.Key) *objects.Service
	// Slices returns the slices of the Service of that name, sorted by name.
	// The caller must not change them. There may be slices without a Service.
	Slices(key treecache.Key) []*objects.EndpointSlice
	// All returns all Services and slices, in no order.
	All() (services []*objects.Service, slices []*objects.EndpointSlice)

	// NeedTopology says whether Topology is needed; it is not before the first
	// call. A source that has to watch Nodes for it does so only while it is.
	NeedTopology(needed bool)
	// Topology returns the topology zone and region of the cluster's Nodes; ""
	// and "" while they are unknown or not needed.
	Topology() (topologyZone, region string)

	// Status returns the source's state now.
	Status() Status
}

// Events is what a source reports to. A source calls the methods from several
// goroutines at once and in no order between Services, so that the consumer
// must read what it needs from the source, which has the change by then. They
// return quickly, and the source holds no lock while it calls them.
type Events interface {
	// Changed says that the Service of that name, or one of its slices, was
	// added, changed or deleted. since is when that happened in the cluster;
	// zero where it is unknown or must not be measured, as in the first list. A
	// source may call it when nothing has changed.
	Changed(key treecache.Key, since time.Time)
	// Listed says that the source is complete: Changed was called for each
	// Service that existed at the start. It is called once, or never when Run
	// ends before that.
	Listed()
}

// Status is a source's state at one moment.
type Status struct {
	// Services and Slices count the objects kept.
	Services, Slices int
	// Missing says, for an operator, what has not been listed yet and why: ""
	// once everything has been, or where nothing is known to be wrong.
	Missing string
	// APIServer is nil where no API server is followed.
	APIServer *APIServer
}

// APIServer is how a source gets on with its API server.
type APIServer struct {
	// LastContact is when the API server was last heard; zero before the first
	// time.
	LastContact time.Time
	// Failures has the lists and watches that failed and have not succeeded
	// since, sorted by resource.
	Failures []Failure
}

// Failure is why a list or watch of a resource failed last.
type Failure struct {
	Resource string // "services"
	Err      string
	Time     time.Time
}
