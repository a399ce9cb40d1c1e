package dns

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dns/treecache"
)

// metrics are what a KubeDNS tells of itself.
type metrics struct {
	programming     *prometheus.HistogramVec
	apiserverErrors *prometheus.CounterVec
	snapshotErrors  prometheus.Counter
	snapshotTime    prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		programming: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubedns_dns_programming_duration_seconds",
			Help: "Time from a change in the cluster to the moment its records were served: " +
				"from the endpoints' last-change-trigger-time, or from the Service's creation, which has whole seconds.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"service_kind"}),
		apiserverErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubedns_apiserver_errors_total",
			Help: "Lists and watches that failed, by resource and reason.",
		}, []string{"resource", "reason"}),
		snapshotErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubedns_snapshot_errors_total",
			Help: "Snapshots that could not be written.",
		}),
		snapshotTime: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_snapshot_last_success_timestamp_seconds",
			Help: "When a snapshot was last written; 0 before the first.",
		}),
	}
}

func (m *metrics) snapshot(err error, now time.Time) {
	if err != nil {
		m.snapshotErrors.Inc()
		return
	}
	m.snapshotTime.Set(float64(now.UnixNano()) / float64(time.Second))
}

func (m *metrics) programmed(k treecache.Kind, d time.Duration) {
	m.programming.WithLabelValues(k.String()).Observe(max(d, 0).Seconds())
}

// Describe implements prometheus.Collector.
func (kd *KubeDNS) Describe(ch chan<- *prometheus.Desc) {
	// These have no metric to be described by before something happened.
	kd.metrics.programming.Describe(ch)
	kd.metrics.apiserverErrors.Describe(ch)
	prometheus.DescribeByCollect(kd, ch)
}

// Collect implements prometheus.Collector.
func (kd *KubeDNS) Collect(ch chan<- prometheus.Metric) {
	kd.metrics.programming.Collect(ch)
	kd.metrics.apiserverErrors.Collect(ch)
	if kd.snapshotFile != "" {
		kd.metrics.snapshotErrors.Collect(ch)
		kd.metrics.snapshotTime.Collect(ch)
	}
	gauge := func(name, help string, v float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
	}
	services, slices := kd.source.objects()
	gauge("kubedns_services", "Services known.", float64(services))
	gauge("kubedns_endpoint_slices", "EndpointSlices known.", float64(slices))
	if s, ok := kd.source.(interface{ lastContact() time.Time }); ok {
		since := time.Since(kd.started)
		if last := s.lastContact(); !last.IsZero() {
			since = time.Since(last)
		}
		gauge("kubedns_apiserver_last_contact_seconds",
			"Seconds since the API server was last heard: a list, a watch event or a bookmark.", since.Seconds())
	}
	_, c := kd.tree.Stats()
	records := prometheus.NewDesc("kubedns_records", "Records served, by type.", []string{"type"}, nil)
	for _, r := range []struct {
		name string
		n    int
	}{{"A", c.A}, {"AAAA", c.AAAA}, {"SRV", c.SRV}, {"PTR", c.PTR}, {"CNAME", c.CNAME}} {
		ch <- prometheus.MustNewConstMetric(records, prometheus.GaugeValue, float64(r.n), r.name)
	}
}
