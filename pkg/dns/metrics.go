package dns

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dns/treecache"
)

// metrics are the ones that count; the others are gauges that Collect makes.
type metrics struct{ programming *prometheus.HistogramVec }

func newMetrics() *metrics {
	return &metrics{
		programming: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubedns_dns_programming_duration_seconds",
			Help: "Time from a change in the cluster to the moment its records were served: " +
				"from the endpoints' last-change-trigger-time, or from the Service's creation, which has whole seconds.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"service_kind"}),
	}
}

func (m *metrics) programmed(k treecache.Kind, d time.Duration) {
	m.programming.WithLabelValues(k.String()).Observe(max(d, 0).Seconds())
}

// Describe implements prometheus.Collector.
func (kd *KubeDNS) Describe(ch chan<- *prometheus.Desc) {
	// It has no metric to be described by before something happened.
	kd.metrics.programming.Describe(ch)
	prometheus.DescribeByCollect(kd, ch)
}

// Collect implements prometheus.Collector.
func (kd *KubeDNS) Collect(ch chan<- prometheus.Metric) {
	kd.metrics.programming.Collect(ch)
	if kd.snapshot != nil {
		kd.snapshot.Collect(ch)
	}
	gauge := func(name, help string, v float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
	}
	s := kd.source.Status()
	gauge("kubedns_services", "Services known.", float64(s.Services))
	gauge("kubedns_endpoint_slices", "EndpointSlices known.", float64(s.Slices))
	_, c := kd.tree.Stats()
	records := prometheus.NewDesc("kubedns_records", "Records served, by type.", []string{"type"}, nil)
	for _, r := range []struct {
		name string
		n    int
	}{{"A", c.A}, {"AAAA", c.AAAA}, {"SRV", c.SRV}, {"PTR", c.PTR}, {"CNAME", c.CNAME}} {
		ch <- prometheus.MustNewConstMetric(records, prometheus.GaugeValue, float64(r.n), r.name)
	}
}
