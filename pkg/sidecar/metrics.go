package sidecar

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"kubedns/pkg/version"
)

// registerProcess registers the metrics of the process.
func registerProcess(registry prometheus.Registerer, namespace string) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "build_info",
		Help:      "Always 1; the labels tell what the program was built from.",
		ConstLabels: prometheus.Labels{
			"version": version.Version, "revision": version.Revision, "goversion": runtime.Version(),
		},
	})
	info.Set(1)
	return register(registry, info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// newProbers returns a prober for each of probes, whose labels differ, with
// its metrics registered.
func newProbers(registry prometheus.Registerer, namespace string, probes []Probe) ([]*prober, error) {
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace,
		Subsystem: "probe",
		Name:      "duration_seconds",
		Help:      "Duration of DNS probes, failed ones included.",
		Buckets:   prometheus.ExponentialBuckets(0.00025, 2, 14), // up to 2.048 s, just above the longest timeout
	}, []string{"probe"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Subsystem: "probe",
		Name:      "failures_total",
		Help:      "Failed DNS probes by reason.",
	}, []string{"probe", "reason"})
	if err := register(registry, durations, failures); err != nil {
		return nil, err
	}

	var probers []*prober
	for _, probe := range probes {
		metrics, err := newProbeMetrics(registry, namespace, probe.Label)
		if err != nil {
			return nil, err
		}
		p := &prober{probe: probe, exchange: exchange, metrics: metrics}
		p.metrics.duration = durations.WithLabelValues(probe.Label)
		for _, reason := range reasons() {
			p.metrics.failures[reason] = failures.WithLabelValues(probe.Label, reason)
		}
		success := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace:   namespace,
			Subsystem:   "probe",
			Name:        "success",
			Help:        "1 while the probe's health path reports success, else 0.",
			ConstLabels: prometheus.Labels{"probe": probe.Label},
		}, func() float64 { return oneIf(p.health().IsOk) })
		if err := register(registry, success); err != nil {
			return nil, err
		}
		probers = append(probers, p)
	}
	return probers, nil
}

// newProbeMetrics registers the metrics that kube-dns has always had, with the
// probe's label in their names.
func newProbeMetrics(registry prometheus.Registerer, namespace, label string) (probeMetrics, error) {
	latency := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace,
		Subsystem: "probe",
		Name:      label + "_latency_ms",
		Help:      "Latency of the DNS probe " + label + " in milliseconds.",
		Buckets:   prometheus.ExponentialBuckets(0.25, 2, 16),
	})
	errors := prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Subsystem: "probe",
		Name:      label + "_errors",
		Help:      "Failures of the DNS probe " + label + ".",
	})
	metrics := probeMetrics{latency: latency, errors: errors, failures: make(map[string]prometheus.Counter)}
	return metrics, register(registry, latency, errors)
}

// register registers all of them, or returns the first error.
func register(registry prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
