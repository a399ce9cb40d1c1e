package dnsmasq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kubedns/pkg/version"
)

// The results of a reload.
const (
	resultSuccess = "success" // dnsmasq has the new servers
	resultRefused = "refused" // invalid configuration, the servers stay
	resultFailed  = "failed"  // dnsmasq did not load them
)

// metrics are those of the nanny; the sidecar exports dnsmasq's.
type metrics struct {
	registry *prometheus.Registry
	reloads  *prometheus.CounterVec
	restarts *prometheus.CounterVec
	lastGood prometheus.Gauge
	servers  *prometheus.GaugeVec
}

func newMetrics() (*metrics, error) {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubedns_nanny_reloads_total",
			Help: "Changes of dnsmasq's servers: success, refused (invalid configuration, the servers stay) or failed (dnsmasq did not load them).",
		}, []string{"result"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubedns_nanny_dnsmasq_restarts_total",
			Help: "Restarts of dnsmasq by cause: died, deaf (did not answer and was killed) or asked (restarted by the nanny).",
		}, []string{"cause"}),
		lastGood: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_nanny_last_good_timestamp_seconds",
			Help: "When a valid configuration was last applied, in seconds since 1970.",
		}),
		servers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubedns_nanny_server_in_force",
			Help: "1 for each server that the nanny has given dnsmasq; domain is empty for upstream servers.",
		}, []string{"domain", "server"}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubedns_build_info",
		Help: "Always 1; the labels tell what the program was built from.",
	}, []string{"version", "revision", "goversion"})
	build.WithLabelValues(version.Version, version.Revision, runtime.Version()).Set(1)
	for _, result := range []string{resultSuccess, resultRefused, resultFailed} {
		m.reloads.WithLabelValues(result)
	}
	for _, cause := range []string{"died", "deaf", "asked"} {
		m.restarts.WithLabelValues(cause)
	}
	for _, c := range []prometheus.Collector{
		m.reloads, m.restarts, m.lastGood, m.servers, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := m.registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) setServers(servers []domainServer) {
	m.servers.Reset()
	for _, s := range servers {
		m.servers.WithLabelValues(s.domain, s.addr.String()).Set(1)
	}
}

// serve answers GET /metrics until ctx is done.
func (m *metrics) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving metrics: %w", err)
	case <-ctx.Done():
	}
	if err := server.Close(); err != nil {
		glog.Warningf("nanny: closing the metrics server: %v", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
