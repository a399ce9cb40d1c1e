package apiserver

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/source"
)

// contact records when the API server was last heard, and which lists and
// watches fail. It is safe for concurrent use.
type contact struct {
	started time.Time
	errors  *prometheus.CounterVec

	mu       sync.Mutex
	last     time.Time                 // zero before the first contact
	failures map[string]source.Failure // by resource; deleted when it is heard again
	warned   map[string]time.Time      // by resource
}

func newContact() *contact {
	return &contact{
		started: time.Now(),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubedns_apiserver_errors_total",
			Help: "Lists and watches that failed, by resource and reason.",
		}, []string{"resource", "reason"}),
		failures: map[string]source.Failure{}, warned: map[string]time.Time{},
	}
}

// heard records contact with the API server.
func (c *contact) heard(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	delete(c.failures, resource)
}

// failed counts and logs a list or watch that failed; client-go tries again
// after a pause. The end of a watch at its timeout is no failure.
func (c *contact) failed(resource string, err error) {
	var request *url.Error
	if err == nil || errors.Is(err, io.EOF) && !errors.As(err, &request) {
		return
	}
	reason := errorReason(err)
	c.errors.WithLabelValues(resource, reason).Inc()
	if c.note(resource, err, time.Now()) {
		glog.Warningf("dns: watching %s: %v", resource, err)
	} else {
		glog.V(2).Infof("dns: watching %s: %v", resource, err)
	}
}

// warnInterval is how often to warn of a failure that lasts.
const warnInterval = time.Minute

// note records a failure and reports whether to warn of it: where it is the
// first since the resource was heard, and again after warnInterval. (A
// ConfigMap is never reported as heard.)
func (c *contact) note(resource string, err error, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, lasts := c.failures[resource]
	c.failures[resource] = source.Failure{Resource: resource, Err: err.Error(), Time: now}
	if lasts && now.Sub(c.warned[resource]) < warnInterval {
		return false
	}
	c.warned[resource] = now
	return true
}

// failure is the last failure of a resource since it was heard; Err is "" for
// none.
func (c *contact) failure(resource string) source.Failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures[resource]
}

func (c *contact) status() *source.APIServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &source.APIServer{LastContact: c.last}
	for _, resource := range slices.Sorted(maps.Keys(c.failures)) {
		s.Failures = append(s.Failures, c.failures[resource])
	}
	return s
}

var lastContactDesc = prometheus.NewDesc("kubedns_apiserver_last_contact_seconds",
	"Seconds since the API server was last heard: a list, a watch event or a bookmark.", nil, nil)

// Describe implements prometheus.Collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	s.contact.errors.Describe(ch)
	ch <- lastContactDesc
}

// Collect implements prometheus.Collector. Before the first contact the time
// counts from New.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	s.contact.errors.Collect(ch)
	since := s.contact.started
	if last := s.contact.status().LastContact; !last.IsZero() {
		since = last
	}
	ch <- prometheus.MustNewConstMetric(lastContactDesc, prometheus.GaugeValue, time.Since(since).Seconds())
}

// errEmptyWatch is the error of a watch that ended before its first event.
var errEmptyWatch = errors.New("the connection ended before the first event")

// errorReason is a metric's label for an error.
func errorReason(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return strings.ToLower(string(reason))
	}
	var netErr net.Error
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, errEmptyWatch):
		return "unexpectedeof"
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout"
	case errors.As(err, &netErr):
		return "network"
	}
	return "other"
}
