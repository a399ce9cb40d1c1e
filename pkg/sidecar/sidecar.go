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

// shutdownTimeout is what requests under way have when the sidecar ends.
const shutdownTimeout = 500 * time.Millisecond

// Config says what a Sidecar does. There are no defaults here; cmd/sidecar's
// flags have them.
type Config struct {
	// Dnsmasq is the host:port where dnsmasq is asked for its counters, every
	// PollInterval, which is positive.
	Dnsmasq      string
	PollInterval time.Duration
	// Listen is the host:port of the HTTP server; an empty host is every
	// address, port 0 any that is free.
	Listen string
	// MetricsPath is where the metrics are, beginning with a slash.
	MetricsPath string
	// Namespace is what the names of the metrics begin with; empty: nothing.
	Namespace string
	// Probes have labels that differ.
	Probes []Probe
}

// Sidecar probes, polls and serves what it found.
type Sidecar struct {
	listen  string
	probers []*prober
	poller  *poller
	server  *http.Server
}

// New returns a Sidecar with a registry and a mux of its own, so that there
// can be several. It does no I/O; an error says what is wrong in cfg.
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

// Run listens where Config says and then does what Serve does.
func (s *Sidecar) Run(ctx context.Context) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", s.listen, innermost(err))
	}
	return s.Serve(ctx, l)
}

// innermost leaves out what net repeats of the address.
func innermost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Serve probes, polls and answers HTTP requests on l, which it closes, until
// ctx ends or a part fails. It returns when all have ended, nil if because of
// ctx. It can be called once.
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

// serveHTTP serves until ctx ends; then requests under way have a moment.
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
		glog.Warningf("sidecar: cutting off HTTP requests: %v", err)
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		glog.Warningf("sidecar: serving HTTP, as it was to end: %v", err)
	}
	return nil
}
