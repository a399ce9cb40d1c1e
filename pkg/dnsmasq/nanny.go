package dnsmasq

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/golang/glog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"kubedns/pkg/dnsmasq/counters"
	"kubedns/pkg/resolvconf"
)

// Options are what the nanny needs to know. A zero value means the default named
// in the field's comment.
type Options struct {
	Exec           string          // path of dnsmasq; /usr/sbin/dnsmasq
	Args           []string        // dnsmasq's own arguments, passed unchanged
	ConfigDir      string          // directory of the ConfigMap; /etc/k8s/dns/dnsmasq-nanny
	SyncInterval   time.Duration   // polling interval for ConfigDir, in addition to inotify; 10 s
	Restart        bool            // apply changes of the configuration; false: log and ignore them
	KubednsServer  string          // host:port of kube-dns, which resolves names in the cluster domain; 127.0.0.1:10053
	LogInterval    time.Duration   // how often dnsmasq logs its statistics; 0: never
	DrainPeriod    time.Duration   // how long dnsmasq goes on answering after the context is done; 0: not at all
	MetricsAddr    string          // host:port for GET /metrics; none
	StateDir       string          // folder for the servers file and the last good configuration; /run/dnsmasq-nanny
	Guard          []string        // command that calls RunGuard; none
	Guarded        []string        // command that calls RunGuarded on its further arguments; needed with Guard
	Abort          <-chan struct{} // when closed, the nanny kills dnsmasq and ends at once; never
	ResolvConfPath string          // /etc/resolv.conf
}

// Nanny supervises one dnsmasq: it prepares its start, runs the parts that keep
// it up and reload its servers, and stops it. It is made by New and run once.
type Nanny struct {
	opts    Options
	limits  limits
	output  lineLog
	metrics *metrics
	state   *stateDir // nil: there is no folder to write to, so changes need restarts
	super   *supervisor
	reload  *reloader
}

// New returns a Nanny that has not done anything yet.
func New(o Options) *Nanny {
	o.Exec = cmp.Or(o.Exec, "/usr/sbin/dnsmasq")
	o.ConfigDir = cmp.Or(o.ConfigDir, "/etc/k8s/dns/dnsmasq-nanny")
	o.SyncInterval = cmp.Or(o.SyncInterval, 10*time.Second)
	o.KubednsServer = cmp.Or(o.KubednsServer, "127.0.0.1:10053")
	o.StateDir = cmp.Or(o.StateDir, defaultStateDir)
	o.ResolvConfPath = cmp.Or(o.ResolvConfPath, resolvconf.Path)
	return &Nanny{opts: o, limits: defaultLimits()}
}

// Run starts dnsmasq and keeps it running with the configuration's servers. When
// ctx is done dnsmasq goes on answering for the drain period, then Run stops it
// and returns nil. An error means that dnsmasq cannot run: its own arguments are
// wrong, or it keeps dying.
func (n *Nanny) Run(ctx context.Context) error {
	if err := n.prepare(ctx); err != nil {
		if n.state != nil {
			n.state.close()
		}
		if ctx.Err() != nil {
			return nil // it was cut short
		}
		return err
	}
	return n.supervise(ctx)
}

// supervise runs dnsmasq, once prepare has succeeded.
func (n *Nanny) supervise(ctx context.Context) error {
	if n.state != nil {
		defer n.state.close()
	}
	defer n.super.guard.close()
	parts := []func(context.Context) error{n.super.Run, n.reload.Run}
	if n.opts.LogInterval > 0 {
		parts = append(parts, func(ctx context.Context) error { return n.super.logStatistics(ctx, n.opts.LogInterval) })
	}
	if n.opts.MetricsAddr != "" {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", n.opts.MetricsAddr)
		if err != nil {
			return fmt.Errorf("listening for metrics: %w", err)
		}
		parts = append(parts, func(ctx context.Context) error { return n.metrics.serve(ctx, listener) })
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		select {
		case <-ctx.Done():
			n.drain(inner)
			cancel()
		case <-inner.Done():
		}
	}()
	err := run(inner, parts...)
	cancel()
	<-drained
	glog.Infof("nanny: dnsmasq has ended")
	return err
}

// drain waits for the drain period, or less when the nanny is aborted.
func (n *Nanny) drain(ctx context.Context) {
	glog.Infof("nanny: shutting down, dnsmasq goes on answering for %v", n.opts.DrainPeriod)
	timer := time.NewTimer(n.opts.DrainPeriod)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.opts.Abort:
	case <-ctx.Done():
	}
}

// run starts every part, cancels all on the first failure, and returns it once
// all have ended. A part that returns nil ends no other.
func run(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

// prepare does all that comes before dnsmasq's start.
func (n *Nanny) prepare(ctx context.Context) error {
	// What the operator wrote must be right by itself, so that later refusals
	// are the configuration's fault.
	dnsmasq := program(n.opts.Exec)
	if err := dnsmasq.test(ctx, n.opts.Args); err != nil {
		return fmt.Errorf("dnsmasq's own arguments: %w", err)
	}
	args := parseArguments(n.opts.Args, os.DirFS("/"))
	args.logFiles()
	kubedns, err := netip.ParseAddrPort(n.opts.KubednsServer)
	if err != nil {
		glog.V(2).Infof("nanny: the address of kube-dns is a name: %v", err)
	}
	if n.metrics, err = newMetrics(); err != nil {
		return err
	}
	if n.state, err = openStateDir(n.opts.StateDir); err != nil {
		glog.Warningf("nanny: no folder to write to, so every change of servers restarts dnsmasq: %v", err)
	}
	n.output.verbose = args.logQueries || n.opts.LogInterval > 0
	n.super = &supervisor{
		path: n.opts.Exec, limits: n.limits, output: &n.output, metrics: n.metrics,
		abort: n.opts.Abort, again: make(chan struct{}, 1),
	}
	if addr := args.probeAddr(); addr.IsValid() {
		n.super.client = &counters.Client{Addr: addr.String(), Timeout: n.limits.probeTimeout}
	}
	names := newNames((&resolver{kubedns: n.opts.KubednsServer, clusterDomains: args.clusterDomains(kubedns)}).lookup)
	n.reload = &reloader{
		dir:     newDirectory(n.opts.ConfigDir, n.opts.SyncInterval),
		noPoll:  args.noPoll,
		frozen:  !n.opts.Restart,
		retry:   n.opts.SyncInterval,
		names:   names,
		state:   n.state,
		metrics: n.metrics,
		active: &active{
			program: dnsmasq, ownArgs: n.opts.Args, args: args, can: findCapabilities(ctx, dnsmasq, args, n.state),
			super: n.super, takeover: takeover{n.super, n.limits}, state: n.state, names: names, metrics: n.metrics,
		},
	}
	if !args.noResolv && !args.resolvFile {
		n.reload.resolv = &resolvConf{path: n.opts.ResolvConfPath, period: n.limits.resolvConf}
	}
	if err := n.reload.start(ctx); err != nil {
		return err
	}
	// So that children of a dnsmasq that was killed are ours to reap.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		glog.V(2).Infof("nanny: becoming a subreaper: %v", err)
	}
	// Nothing outlives process 1 of a container.
	if len(n.opts.Guard) > 0 && os.Getpid() != 1 {
		if n.super.guard, err = startGuard(n.opts.Guard, n.opts.Guarded); err != nil {
			return err
		}
	}
	return nil
}
