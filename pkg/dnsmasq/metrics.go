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
	resultSuccess = "success" // the new servers are in force
	resultRefused = "refused" // the configuration is invalid, the servers stay
	resultFailed  = "failed"  // dnsmasq did not take over
)

// metrics are the nanny's own; dnsmasq's are the sidecar's.
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
			Help: "Changes of dnsmasq's servers: success, refused (invalid, the servers stay) or failed (dnsmasq did not take over).",
		}, []string{"result"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubedns_nanny_dnsmasq_restarts_total",
			Help: "Starts of dnsmasq after its first, because it died, was deaf (lived and did not answer) or was asked to restart.",
		}, []string{"cause"}),
		lastGood: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_nanny_last_good_timestamp_seconds",
			Help: "When a valid configuration last came into force, in seconds since 1970.",
		}),
		servers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubedns_nanny_server_in_force",
			Help: "1 for each server that dnsmasq has from the nanny; the domain of upstream servers is empty.",
		}, []string{"domain", "server"}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubedns_build_info",
		Help: "1, with what the program was built from.",
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
		glog.Warningf("dnsmasq: closing the metrics server: %v", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
