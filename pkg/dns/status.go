package dns

import (
	"maps"
	"slices"
	"time"

	"kubedns/pkg/dns/treecache"
)

// Status is what a KubeDNS knows at one moment, and from whom.
type Status struct {
	// Services and Slices count the objects that the source has told; while a
	// snapshot is served, they are not those of the records.
	Services, Slices int
	// ServicesServed counts the Services that have records.
	ServicesServed int
	Records        treecache.Counts
	// SnapshotTaken is when the snapshot that is served was; zero where the
	// records are the source's.
	SnapshotTaken time.Time
	// Manifests tells that the source is a directory, not an API server. There
	// is neither contact nor failure then.
	Manifests bool
	// LastContact is when the API server was last heard, zero before that.
	LastContact time.Time
	// Failures has the lists and watches that failed and have not succeeded
	// since, in the order of their resources. Nobody tells that a ConfigMap was
	// heard: its failure stays.
	Failures []WatchFailure
}

// WatchFailure is why a list or watch of a resource failed last.
type WatchFailure struct {
	Resource string // "services"
	Err      string
	Time     time.Time
}

// Status returns what is known now.
func (kd *KubeDNS) Status() Status {
	var s Status
	s.Services, s.Slices = kd.source.objects()
	s.ServicesServed, s.Records = kd.tree.Stats()
	if taken := kd.restored.Load(); taken != nil {
		s.SnapshotTaken = *taken
	}
	c, ok := kd.source.(*cluster)
	if !ok {
		s.Manifests = true
		return s
	}
	s.LastContact, s.Failures = c.lastContact(), c.failures()
	return s
}

func (c *cluster) failures() []WatchFailure {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []WatchFailure
	for _, resource := range slices.Sorted(maps.Keys(c.lastErrors)) {
		last := c.lastErrors[resource]
		all = append(all, WatchFailure{Resource: resource, Err: last.text, Time: last.time})
	}
	return all
}
