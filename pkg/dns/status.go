package dns

import (
	"time"

	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/treecache"
)

// Status is the state of a KubeDNS and its source at one moment.
type Status struct {
	// Services and Slices count the source's objects. While a snapshot is
	// served, the records are not made of them.
	Services, Slices int
	// ServicesServed counts the Services that have records.
	ServicesServed int
	Records        treecache.Counts
	// SnapshotTaken is when the snapshot that is served was; zero where the
	// records are the source's.
	SnapshotTaken time.Time
	// Manifests is set where the source follows no API server but a directory.
	// There is neither contact nor failure then.
	Manifests bool
	// LastContact is when the API server was last heard, zero before that.
	LastContact time.Time
	// Failures has the lists and watches that failed and have not succeeded
	// since, sorted by resource. The failure of a ConfigMap stays, as its
	// success is not reported.
	Failures []WatchFailure
}

// WatchFailure is why a list or watch of a resource failed last.
type WatchFailure = source.Failure

// Status returns the state now.
func (kd *KubeDNS) Status() Status {
	of := kd.source.Status()
	s := Status{Services: of.Services, Slices: of.Slices, Manifests: of.APIServer == nil}
	s.ServicesServed, s.Records = kd.tree.Stats()
	s.SnapshotTaken, _ = kd.Restored()
	if of.APIServer != nil {
		s.LastContact, s.Failures = of.APIServer.LastContact, of.APIServer.Failures
	}
	return s
}
