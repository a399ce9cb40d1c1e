package sidecar

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Paths that --prometheus-path cannot be.
const (
	healthzPath     = "/healthz"
	healthcheckPath = "/healthcheck"
)

// newMux serves the probers' health under /healthcheck/<label>, the metrics under
// metricsPath, "ok" under /healthz, and root under / unless the metrics are there.
func newMux(probers []*prober, gatherer prometheus.Gatherer, metricsPath string, root http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthzPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	for _, p := range probers {
		mux.HandleFunc("GET "+healthcheckPath+"/"+p.probe.Label, func(w http.ResponseWriter, _ *http.Request) {
			writeHealth(w, p.health())
		})
	}
	if metricsPath != "/" {
		mux.Handle("GET /{$}", root)
	}
	if metricsPath[len(metricsPath)-1] == '/' {
		metricsPath += "{$}" // this path only, not the paths below it
	}
	mux.Handle("GET "+metricsPath, promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorLog: errorLog()}))
	return mux
}

func writeHealth(w http.ResponseWriter, h health) {
	body, err := json.Marshal(h)
	if err != nil { // only if the latency were not a number
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !h.IsOk {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body)
}

// newServer returns a server with a timeout for everything that a client can delay.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       2 * time.Minute, // longer than Prometheus' usual scrape interval
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog(),
	}
}

// errorLog passes the errors of net/http and promhttp to glog.
func errorLog() *log.Logger {
	return log.New(glogWriter{}, "sidecar: ", 0)
}

type glogWriter struct{}

func (glogWriter) Write(line []byte) (int, error) {
	glog.Warningf("%s", line)
	return len(line), nil
}
