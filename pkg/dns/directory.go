package dns

import (
	"context"
	"fmt"
	"maps"
	stdslices "slices"
	"sync/atomic"

	"github.com/golang/glog"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/manifests"
	"kubedns/pkg/dns/treecache"
)

// directory is the source that a directory of manifests is.
type directory struct {
	dir   string
	state atomic.Pointer[objects]
	fault atomic.Pointer[error] // why there is no state yet
}

// objects is everything a cluster has, at one moment. It is not written to
// once made.
type objects struct {
	services             map[treecache.Key]*service
	slices               map[treecache.Key][]*slice // by the Service they belong to
	sliceCount           int
	topologyZone, region string
}

// NewDirectory makes a KubeDNS of the Services and EndpointSlices in a
// directory of manifests.
func NewDirectory(o Options, dir string) *KubeDNS {
	d := &directory{dir: dir}
	d.state.Store(&objects{})
	return newKubeDNS(o, d, newMetrics())
}

func (d *directory) run(ctx context.Context, kd *KubeDNS) error {
	known := false
	return manifests.Watch(ctx, d.dir, func(o *manifests.Objects, problems []string, err error) {
		for _, p := range problems {
			glog.Warningf("manifests: %s", p)
		}
		if err != nil {
			glog.Errorf("manifests: %v", err)
			d.fault.Store(&err)
			return
		}
		next := trimObjects(o)
		last := d.state.Swap(next)
		for key := range last.services {
			kd.touch(key)
		}
		for key := range next.services {
			kd.touch(key)
		}
		if !known {
			known = true
			kd.listed()
		}
		glog.Infof("manifests: %s has %d services and %d slices", d.dir, len(next.services), next.sliceCount)
	})
}

func newObjects() *objects {
	return &objects{services: map[treecache.Key]*service{}, slices: map[treecache.Key][]*slice{}}
}

func (o *objects) addService(s *corev1.Service) {
	t := trimService(s)
	o.services[t.key()] = t
}

func (o *objects) addSlice(s *discoveryv1.EndpointSlice) {
	l := trimSlice(s)
	o.slices[l.owner()] = append(o.slices[l.owner()], l)
	o.sliceCount++
}

func (o *objects) sort() {
	for _, own := range o.slices {
		sortSlices(own)
	}
}

func trimObjects(m *manifests.Objects) *objects {
	o := newObjects()
	for _, s := range m.Services {
		o.addService(s)
	}
	for _, s := range m.EndpointSlices {
		o.addSlice(s)
	}
	o.sort()
	first := ""
	for _, n := range m.Nodes {
		zone, region := federation.Topology(n.Labels)
		if zone != "" && region != "" && (first == "" || n.Name < first) {
			first, o.topologyZone, o.region = n.Name, zone, region
		}
	}
	return o
}

func (d *directory) service(key treecache.Key) *service { return d.state.Load().services[key] }

func (d *directory) slicesOf(key treecache.Key) []*slice { return d.state.Load().slices[key] }

func (d *directory) topology() (topologyZone, region string) {
	o := d.state.Load()
	return o.topologyZone, o.region
}

func (d *directory) objects() (services, slices int) {
	o := d.state.Load()
	return len(o.services), o.sliceCount
}

func (d *directory) all() (services []*service, slices []*slice) {
	o := d.state.Load()
	for _, own := range o.slices {
		slices = append(slices, own...)
	}
	return stdslices.Collect(maps.Values(o.services)), slices
}

func (d *directory) missing() string {
	if err := d.fault.Load(); err != nil {
		return fmt.Sprintf("manifests not read yet: %v", *err)
	}
	return ""
}
