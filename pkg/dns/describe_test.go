package dns

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
	"kubedns/pkg/dns/treecache"
)

func TestDescribeService(t *testing.T) {
	services, slicesOf := clustertest.EachKind()
	kd := newTestKubeDNS(sourcetest.New(services, slicesOf))
	if d, ok := kd.DescribeService(treecache.Key{Namespace: "default", Name: "gone"}); ok {
		t.Errorf("a Service that there is not: %+v", d)
	}
	web, ok := kd.DescribeService(treecache.Key{Namespace: "default", Name: "web"})
	if !ok || web.Headless || web.ResourceVersion != "7" || !web.Created.Equal(time.Unix(1700000000, 0)) ||
		!slices.Equal(web.ClusterIPs, []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}) ||
		!slices.Equal(web.Ports, []DescribedPort{{"http", "TCP", 80}, {"", "UDP", 53}}) || len(web.Slices) != 0 {
		t.Errorf("web is %+v", web)
	}
	web.ClusterIPs[0], web.Ports[0].Name = netip.Addr{}, "changed"
	if again, _ := kd.DescribeService(web.Key); !again.ClusterIPs[0].IsValid() || again.Ports[0].Name != "http" {
		t.Error("what is returned is not the caller's")
	}
	db, ok := kd.DescribeService(treecache.Key{Namespace: "default", Name: "db"})
	if !ok || !db.Headless || !db.PublishNotReady || len(db.Slices) != 1 {
		t.Fatalf("db is %+v", db)
	}
	slice := db.Slices[0]
	want := []DescribedEndpoint{
		{Addr: netip.MustParseAddr("198.51.100.1"), Hostname: "db-0", Ready: true, Pod: true},
		{Addr: netip.MustParseAddr("198.51.100.2")},
	}
	if slice.Name != "db-1" || slice.AddressType != "IPv4" || !slices.Equal(slices.Collect(slice.Endpoints), want) ||
		!slices.Equal(slice.Ports, []DescribedPort{{"pg", "TCP", 5432}, {"", "TCP", 0}}) {
		t.Errorf("its slice is %+v with %+v", slice, slices.Collect(slice.Endpoints))
	}
	out, _ := kd.DescribeService(treecache.Key{Namespace: "default", Name: "out"})
	if out.Type != "ExternalName" || out.ExternalName != "www.example.org" {
		t.Errorf("out is %+v", out)
	}
	if taken, ok := kd.Restored(); ok {
		t.Errorf("a snapshot of %v", taken)
	}
}
