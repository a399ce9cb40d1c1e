package dns

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/golang/glog"

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

func trimObjects(o *manifests.Objects) *objects {
	t := &objects{services: map[treecache.Key]*service{}, slices: map[treecache.Key][]*slice{}}
	for _, s := range o.Services {
		t.services[treecache.Key{Namespace: s.Namespace, Name: s.Name}] = trimService(s)
	}
	for _, s := range o.EndpointSlices {
		l := trimSlice(s)
		key := treecache.Key{Namespace: l.Namespace, Name: l.service}
		t.slices[key] = append(t.slices[key], l)
		t.sliceCount++
	}
	for _, own := range t.slices {
		sortSlices(own)
	}
	first := ""
	for _, n := range o.Nodes {
		zone, region := federation.Topology(n.Labels)
		if zone != "" && region != "" && (first == "" || n.Name < first) {
			first, t.topologyZone, t.region = n.Name, zone, region
		}
	}
	return t
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

func (d *directory) missing() string {
	if err := d.fault.Load(); err != nil {
		return fmt.Sprintf("manifests not read yet: %v", *err)
	}
	return ""
}
