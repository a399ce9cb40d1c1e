package manifests

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/treecache"
)

// Source is a source.Source of the objects in a directory of manifests. It
// replaces all of them at once when one changes.
type Source struct {
	dir   string
	set   atomic.Pointer[objects.Set]
	fault atomic.Pointer[error] // why there is no set yet
}

var _ source.Source = (*Source)(nil)

// New makes a source of the manifests in dir, see Watch.
func New(dir string) *Source {
	s := &Source{dir: dir}
	s.set.Store(&objects.Set{})
	return s
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, events source.Events) error {
	listed := false
	return Watch(ctx, s.dir, func(o *Objects, problems []string, err error) {
		for _, p := range problems {
			glog.Warningf("manifests: %s", p)
		}
		if err != nil {
			glog.Errorf("manifests: %v", err)
			s.fault.Store(&err)
			return
		}
		next := objects.NewSet(o.Services, o.EndpointSlices, o.Nodes)
		last := s.set.Swap(next)
		for _, set := range []*objects.Set{last, next} {
			for _, key := range set.Services() {
				events.Changed(key, time.Time{})
			}
		}
		if !listed {
			listed = true
			events.Listed()
		}
		services, slices := next.Len()
		glog.Infof("manifests: %s has %d services and %d slices", s.dir, services, slices)
	})
}

// Service implements source.Source.
func (s *Source) Service(key treecache.Key) *objects.Service { return s.set.Load().Service(key) }

// Slices implements source.Source.
func (s *Source) Slices(key treecache.Key) []*objects.EndpointSlice { return s.set.Load().Slices(key) }

// All implements source.Source.
func (s *Source) All() ([]*objects.Service, []*objects.EndpointSlice) { return s.set.Load().All() }

// NeedTopology implements source.Source: the topology is always known.
func (s *Source) NeedTopology(bool) {}

// Topology implements source.Source.
func (s *Source) Topology() (topologyZone, region string) { return s.set.Load().Topology() }

// Status implements source.Source.
func (s *Source) Status() source.Status {
	var status source.Status
	status.Services, status.Slices = s.set.Load().Len()
	if err := s.fault.Load(); err != nil {
		status.Missing = fmt.Sprintf("manifests not read yet: %v", *err)
	}
	return status
}
