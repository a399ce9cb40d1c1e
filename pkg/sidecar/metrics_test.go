package sidecar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// gather returns the metrics in registry as parseMetrics does.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	recorder := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return parseMetrics(t, recorder.Body)
}

// parseMetrics reads Prometheus' text format: the key is the series as it is
// written there, `kubedns_probe_success{probe="dns"}`.
func parseMetrics(t *testing.T, r io.Reader) map[string]float64 {
	t.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading metrics: %v", err)
	}
	values := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("reading metrics: %q: %v", line, err)
		}
		values[line[:i]] = value
	}
	return values
}

// checkMetrics compares the series that want names.
func checkMetrics(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for series, w := range want {
		if g, ok := got[series]; !ok || g != w {
			t.Errorf("%s = %v (there: %v), want %v", series, g, ok, w)
		}
	}
}
