package server

import (
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// system is the part of kube-dns that answered, as its metrics name it.
type system uint8

const (
	systemAuth system = iota
	systemRecursive
	systemReverse
	systems
)

var systemNames = [systems]string{"auth", "recursive", "reverse"}

// cause is why an answer counts as an error, as kube-dns's metrics name it.
type cause uint8

const (
	causeNone cause = iota
	causeNXDomain
	causeNodata
	causeTruncated
	causeRefused
	causeOverflow
	causeServfail
	causes
)

var causeNames = [causes]string{"", "nxdomain", "nodata", "truncated", "refused", "overflow", "servfail"}

// causeOf is the one cause of an answer. A cut answer is "truncated" over UDP and
// "overflow" over TCP.
func causeOf(rcode int, answers uint16, truncated, tcp bool) cause {
	switch {
	case rcode == dns.RcodeNameError:
		return causeNXDomain
	case rcode == dns.RcodeRefused:
		return causeRefused
	case rcode == dns.RcodeServerFailure:
		return causeServfail
	case truncated && tcp:
		return causeOverflow
	case truncated:
		return causeTruncated
	case rcode == dns.RcodeSuccess && answers == 0:
		return causeNodata
	}
	return causeNone
}

// metrics are those of kube-dns, and our own (kubedns_…).
type metrics struct {
	requests [systems]prometheus.Counter
	duration [systems]prometheus.Observer
	size     [systems]prometheus.Observer
	errors   [systems][causes]prometheus.Counter
	misses   prometheus.Counter
	panics   prometheus.Counter
	shed     prometheus.Counter
	limited  prometheus.Counter

	all []prometheus.Collector
}

func newMetrics(namespace, subsystem string, tcpConns func() float64) *metrics {
	if namespace == "" {
		namespace = "skydns"
	}
	if subsystem == "" {
		subsystem = "skydns"
	}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
		}, []string{"system"})
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts(
		opts("dns_request_count_total", "DNS questions answered.")), []string{"system"})
	duration := histogram("dns_request_duration_seconds", "Time each question took.",
		append([]float64{0.001, 0.003}, prometheus.DefBuckets...))
	size := histogram("dns_response_size_bytes", "Size of the replies in octets.", []float64{
		0, 512, 1024, 1500, 2048, 4096, 8192, 12288, 16384, 20480, 24576, 28672,
		32768, 36864, 40960, 45056, 49152, 53248, 57344, 61440, 65536})
	errs := prometheus.NewCounterVec(prometheus.CounterOpts(
		opts("dns_error_count_total", "DNS questions answered without what was asked for, by cause.")), []string{"system", "cause"})
	misses := prometheus.NewCounterVec(prometheus.CounterOpts(
		opts("dns_cachemiss_count_total", "DNS questions not answered from a cache of responses, which is all of the zone's.")), []string{"cache"})
	m := &metrics{
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubedns_panics_total", Help: "Panics caught while a question was answered."}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubedns_forward_overloaded_total", Help: "Questions answered SERVFAIL since too many were being forwarded, or came at all."}),
		limited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubedns_rate_limited_total", Help: "Questions past --max-answers-per-second."}),
		misses: misses.WithLabelValues("response"),
	}
	for i, name := range systemNames {
		m.requests[i] = requests.WithLabelValues(name)
		m.duration[i] = duration.WithLabelValues(name)
		m.size[i] = size.WithLabelValues(name)
		for c := causeNXDomain; c < causes; c++ {
			m.errors[i][c] = errs.WithLabelValues(name, causeNames[c])
		}
	}
	m.all = []prometheus.Collector{requests, duration, size, errs, misses, m.panics, m.shed, m.limited,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubedns_tcp_connections", Help: "TCP connections open."}, tcpConns)}
	return m
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// answered counts one question.
func (m *metrics) answered(sys system, d time.Duration, size int, c cause) {
	m.requests[sys].Inc()
	m.duration[sys].Observe(d.Seconds())
	m.size[sys].Observe(float64(size))
	if sys == systemAuth {
		m.misses.Inc()
	}
	if c != causeNone {
		m.errors[sys][c].Inc()
	}
}
