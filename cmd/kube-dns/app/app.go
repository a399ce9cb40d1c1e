// Package app runs kube-dns: it puts the parts together, starts them, reloads
// the configuration and drains at the end. /readiness and /cache are here; what
// people read is in cmd/kube-dns/site.
package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/cmd/kube-dns/site"
	"kubedns/pkg/dns"
	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/config/configmap"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/source/apiserver"
	"kubedns/pkg/dns/source/manifests"
	"kubedns/pkg/localaddr"
	"kubedns/pkg/version"
)

// resolvConf names the nameservers where nothing else does.
const resolvConf = "/etc/resolv.conf"

// Run serves until ctx is done, then drains and returns nil. Any other end is
// an error.
func Run(ctx context.Context, o *options.Options) error {
	started := time.Now()
	glog.Infof("kube-dns %s (%s), domain %s", version.Version, version.Revision, o.Domain)
	if err := logToGlog(); err != nil {
		return err
	}
	a := &app{options: o, registry: prometheus.NewRegistry(), memory: newMemory()}
	a.memory.setLimit()
	kd, source, err := a.cluster()
	if err != nil {
		return err
	}
	a.kd = kd
	a.forwarder = forward.New(forward.Options{MaxInFlight: o.MaxForwarded})
	a.server, err = server.New(server.Options{
		Tree: kd.Tree(), Backend: kd, Forwarder: a.forwarder,
		TTL: seconds(o.TTL), NegativeTTL: seconds(o.NegativeTTL), UDPSize: uint16(o.UDPSize),
		DNSService: o.DNSService, Sockets: o.UDPSockets,
		MaxTCPConnections: o.MaxTCPConnections, TCPIdleTimeout: o.TCPIdleTimeout,
		MaxTCPConnectionsPerClient: o.MaxTCPConnectionsPerClient, MaxAnswersPerSecond: o.MaxAnswersPerSecond,
		Namespace: o.Prometheus.Namespace, Subsystem: o.Prometheus.Subsystem,
	})
	if err != nil {
		return err
	}
	a.reload = newReload(a.apply)
	if err := a.useNameservers(nil); err != nil {
		return err
	}
	if err := a.register(); err != nil {
		return err
	}
	if a.site, err = site.New(site.Options{
		Flags: o, Started: started, NotReady: a.ready.reason, Cluster: a.kd, Server: a.server,
		Forwarder: a.forwarder, Configuration: a.configuration,
	}); err != nil {
		return err
	}
	return a.run(ctx, source)
}

// app is kube-dns's parts.
type app struct {
	options   *options.Options
	kd        *dns.KubeDNS
	server    *server.Server
	forwarder *forward.Forwarder
	reload    *reload
	registry  *prometheus.Registry
	contact   prometheus.Collector // nil where no API server is followed
	memory    *memory
	ready     readiness
	site      *site.Site

	nameservers atomic.Pointer[site.Nameservers] // as useNameservers left them
}

// cluster makes the KubeDNS and the source of its configuration.
func (a *app) cluster() (*dns.KubeDNS, config.Source, error) {
	o := a.options
	dnsOptions := dns.Options{Zone: o.Domain, TTL: seconds(o.TTL), SnapshotFile: o.SnapshotFile}
	source := config.Fixed(&config.Config{Federations: o.Federations})
	if o.ConfigDir != "" {
		source = config.Dir(o.ConfigDir, o.ConfigPeriod)
	}
	if o.Manifests != "" {
		return dns.New(dnsOptions, manifests.New(o.Manifests)), source, nil
	}
	cfg, err := apiclient.Config(o.Kubeconfig, o.MasterURL)
	if err != nil {
		return nil, nil, err
	}
	core, err := apiclient.Core(cfg)
	if err != nil {
		return nil, nil, err
	}
	discovery, err := apiclient.Discovery(cfg)
	if err != nil {
		return nil, nil, err
	}
	objects := apiserver.New(core, discovery, a.memory)
	a.contact = objects
	if o.ConfigMap != "" {
		source = configmap.New(core, o.ConfigMapNamespace, o.ConfigMap, func(err error) {
			objects.Failed("configmaps", err)
		})
	}
	return dns.New(dnsOptions, objects), source, nil
}

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }

// register adds every metric.
func (a *app) register() error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubedns_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version.Version, "revision": version.Revision},
	})
	info.Set(1)
	all := []prometheus.Collector{
		a.server, a.kd, a.reload, info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	if a.contact != nil {
		all = append(all, a.contact)
	}
	for _, c := range all {
		if err := a.registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// run opens the ports and serves. What answers DNS and HTTP outlives ctx for
// as long as the drain takes.
func (a *app) run(ctx context.Context, source config.Source) error {
	o := a.options
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	mux := http.NewServeMux()
	addHealth(mux, &a.ready, a.kd.Tree(), seconds(o.TTL))
	a.site.Register(mux)
	health, err := listenHTTP(ctx, o.HealthzPort)
	if err != nil {
		return err
	}
	listeners, err := a.server.Listen(ctx, netip.AddrPortFrom(o.BindAddress, uint16(o.Port)))
	if err != nil {
		return errors.Join(err, health.Close())
	}
	a.ready.set(a.kd.Missing)
	parts := []func(context.Context) error{
		httpPart(health, mux),
		func(ctx context.Context) error { return a.server.Serve(ctx, listeners) },
		a.kd.Run,
		func(ctx context.Context) error { return source.Run(ctx, a.reload.report) },
		a.watchSync,
		a.site.Run,
		a.memory.run,
		flushLog(o.LogFlushFrequency),
	}
	if o.Prometheus.Port != 0 {
		l, err := listenHTTP(ctx, o.Prometheus.Port)
		if err != nil {
			return errors.Join(err, health.Close(), listeners.Close())
		}
		metrics := http.NewServeMux()
		metrics.Handle(o.Prometheus.Path, promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
		parts = append(parts, httpPart(l, metrics))
	}
	if o.Profiling {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", "localhost:6060")
		if err != nil {
			return errors.Join(fmt.Errorf("listening for profiling: %w", err), health.Close(), listeners.Close())
		}
		parts = append(parts, httpPart(l, pprofMux()))
	}
	glog.Infof("kube-dns: answering on %v", listeners.Addr())
	parts = append(parts, func(serving context.Context) error {
		select {
		case <-ctx.Done():
			a.drain(serving)
			stop()
		case <-serving.Done():
		}
		return nil
	})
	return runParts(serving, parts...)
}

// runParts starts every part, cancels all on the first failure, and returns
// that once all have ended. A part that returns nil ends no other.
func runParts(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

// quiet is how long no question has to come for the drain to end early, and
// how long the drain takes at the least.
const quiet = 2 * time.Second

// drain goes on serving while readiness says no, so that whoever still sends
// questions here gets answers: for the drain period, or until no question has
// come for 2 s.
func (a *app) drain(ctx context.Context) {
	a.ready.set(func() string { return "shutting down" })
	glog.Infof("kube-dns: draining for at most %v", a.options.DrainPeriod)
	start := time.Now()
	end := time.NewTimer(a.options.DrainPeriod)
	defer end.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case now := <-look.C:
			if now.Sub(start) >= quiet && now.Sub(a.server.LastQuestion()) >= quiet {
				return
			}
		}
	}
}

// watchSync says once a minute what is missing, once the first list has taken
// longer than --initial-sync-timeout.
func (a *app) watchSync(ctx context.Context) error {
	look := time.NewTimer(a.options.InitialSyncTimeout)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		why := a.kd.Incomplete()
		if why == "" {
			return nil
		}
		what := "not ready"
		if a.kd.HasSynced() {
			what = "serving a snapshot"
		}
		glog.Warningf("kube-dns: %s: %s", what, why)
		look.Reset(time.Minute)
	}
}

// apply puts a configuration into force.
func (a *app) apply(c *config.Config) error {
	if err := a.useNameservers(c.UpstreamNameservers); err != nil {
		return err
	}
	a.kd.SetFederations(c.Federations)
	return nil
}

// configuration returns what is in force and what was refused, for the site.
func (a *app) configuration() (c site.Configuration) {
	a.reload.last(func(inForce, refused config.Update) {
		c = site.Configuration{InForce: inForce, Refused: refused, Nameservers: *a.nameservers.Load()}
	})
	return c
}

// useNameservers forwards to the configuration's nameservers, or those of the
// flag, or those of /etc/resolv.conf, less our own address.
func (a *app) useNameservers(configured []netip.AddrPort) error {
	list, from := configured, "configuration"
	now := site.Nameservers{Read: time.Now()} // from the configuration, which knows where that is from
	if len(list) == 0 {
		list, from = a.options.Nameservers, "--nameservers"
		now.From = site.Origin{Kind: "flag", Name: from}
	}
	if len(list) == 0 {
		var err error
		from = resolvConf
		now.From = site.Origin{Kind: "resolvConf", Name: from}
		if list, err = forward.ResolvConf(resolvConf); err != nil {
			glog.Warningf("kube-dns: %v", err)
			now.Error = err.Error()
		}
	}
	local, err := localaddr.All()
	if err != nil {
		return fmt.Errorf("listing the addresses of this host: %w", err)
	}
	own := []netip.AddrPort{netip.AddrPortFrom(a.options.BindAddress, uint16(a.options.Port))}
	kept, left := forward.ExcludeSelf(list, own, local)
	for _, addr := range left {
		glog.Warningf("kube-dns: ignoring nameserver %v (%s), which is this server", addr, from)
	}
	if len(kept) == 0 {
		glog.Warningf("kube-dns: no nameservers to forward to (%s): names outside %s get SERVFAIL", from, a.options.Domain)
	}
	if !slices.Equal(kept, a.forwarder.Nameservers()) {
		glog.Infof("kube-dns: forwarding to %v (%s)", kept, from)
		a.forwarder.SetNameservers(kept)
	}
	now.Addrs, now.LeftOut = a.forwarder.Nameservers(), append([]netip.AddrPort{}, left...)
	a.nameservers.Store(&now)
	return nil
}

func listenHTTP(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listening for HTTP: %w", err)
	}
	return l, nil
}

// httpPart serves h on l until its context is done.
func httpPart(l net.Listener, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := newHTTPServer(h)
		stop := context.AfterFunc(ctx, func() {
			if err := srv.Close(); err != nil {
				glog.V(2).Infof("app: closing %v: %v", l.Addr(), err)
			}
		})
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving HTTP on %v: %w", l.Addr(), err)
		}
		return nil
	}
}

// pprofMux has the profiles that the package's own handlers would register on
// the default mux.
func pprofMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func flushLog(every time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
				glog.Flush()
			}
		}
	}
}
