package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// shutdownTimeout is how long HTTP requests in flight may take when the sidecar
// ends.
const shutdownTimeout = 500 * time.Millisecond

// Config configures a Sidecar. The defaults are those of cmd/sidecar's flags; there
// are none here.
type Config struct {
	// Dnsmasq is dnsmasq's host:port, queried for its counters every
	// PollInterval, which must be positive.
	Dnsmasq      string
	PollInterval time.Duration
	// Listen is the host:port of the HTTP server; an empty host is every
	// address, port 0 any free port.
	Listen string
	// MetricsPath is the path of the metrics, beginning with a slash.
	MetricsPath string
	// Namespace is the prefix of the metrics' names; empty: none.
	Namespace string
	// Probes must have different labels.
	Probes []Probe
}

// Sidecar probes, polls and serves the results.
type Sidecar struct {
	listen  string
	probers []*prober
	poller  *poller
	server  *http.Server
}

// New returns a Sidecar with its own registry and mux, so that a process can have
// several. It does no I/O. An error is about cfg.
func New(cfg Config) (*Sidecar, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registerProcess(registry, cfg.Namespace); err != nil {
		return nil, err
	}
	probers, err := newProbers(registry, cfg.Namespace, cfg.Probes)
	if err != nil {
		return nil, err
	}
	poller, err := newPoller(registry, cfg.Namespace, cfg.Dnsmasq, cfg.PollInterval)
	if err != nil {
		return nil, err
	}
	root, err := newStatusPage(probers, poller, cfg.MetricsPath)
	if err != nil {
		return nil, err
	}
	return &Sidecar{
		listen:  cfg.Listen,
		probers: probers,
		poller:  poller,
		server:  newServer(newMux(probers, registry, cfg.MetricsPath, root)),
	}, nil
}

func (c Config) validate() error {
	if c.PollInterval <= 0 {
		return fmt.Errorf("dnsmasq poll interval %v must be positive", c.PollInterval)
	}
	if n := c.Namespace; !only(n, "_") || n != "" && n[0] >= '0' && n[0] <= '9' {
		return fmt.Errorf("prometheus namespace %q must be letters, digits and underscores, and not begin with a digit", c.Namespace)
	}
	if err := validateMetricsPath(c.MetricsPath); err != nil {
		return fmt.Errorf("prometheus path %q: %w", c.MetricsPath, err)
	}
	seen := make(map[string]bool)
	for _, p := range c.Probes {
		if p.Interval <= 0 {
			return fmt.Errorf("probe %q: interval %v must be positive", p.Label, p.Interval)
		}
		if seen[p.Label] {
			return fmt.Errorf("more than one probe with the label %q", p.Label)
		}
		seen[p.Label] = true
	}
	return nil
}

func validateMetricsPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/") || !only(p, "/._~-"):
		return errors.New("must begin with a slash and have letters, digits and ._~- only")
	case path.Clean(p) != p && path.Clean(p)+"/" != p:
		return errors.New("must not have empty or dotted parts")
	case path.Clean(p) == healthzPath, path.Clean(p) == healthcheckPath, strings.HasPrefix(p, healthcheckPath+"/"):
		return errors.New("is taken")
	}
	return nil
}

// Run listens on Config.Listen and calls Serve.
func (s *Sidecar) Run(ctx context.Context) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", s.listen, innermost(err))
	}
	return s.Serve(ctx, l)
}

// innermost removes the address, which package net repeats.
func innermost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Serve probes, polls and answers HTTP requests on l, which it closes, until ctx
// ends or a part fails. It returns when all parts have ended, nil if ctx ended. It
// can be called once.
func (s *Sidecar) Serve(ctx context.Context, l net.Listener) error {
	glog.Infof("sidecar: serving HTTP on %v, %d probes", l.Addr(), len(s.probers))
	// The first that fails cancels ctx; Wait returns its error once all have ended.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveHTTP(ctx, s.server, l) })
	g.Go(func() error { return s.poller.run(ctx) })
	for _, p := range s.probers {
		g.Go(func() error { return p.run(ctx) })
	}
	return g.Wait()
}

// serveHTTP serves until ctx ends, and gives requests in flight shutdownTimeout.
func serveHTTP(ctx context.Context, server *http.Server, l net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		glog.Warningf("sidecar: HTTP requests cut off: %v", err)
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		glog.Warningf("sidecar: HTTP server shutdown: %v", err)
	}
	return nil
}
