package dnsmasq

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/dns/config"
)

// lookupGrace is how long a new configuration waits for names that have not been
// looked up yet, so that their domains are not without a server.
const lookupGrace = 300 * time.Millisecond

// reloader gives dnsmasq the servers of the newest configuration that is valid,
// as the directory, resolv.conf and the addresses of servers' names change.
// start comes first, then Run.
type reloader struct {
	dir     *directory
	resolv  *resolvConf // nil: dnsmasq's own arguments say where upstreams are from
	noPoll  bool        // resolv.conf is read once
	frozen  bool        // changes of the directory are logged and ignored
	retry   time.Duration
	names   *names
	state   *stateDir // nil: there is no folder to write to
	metrics *metrics
	active  *active

	cfg         *config.Config // committed
	candidate   *config.Config // newer; not applied yet, as names are being looked up or the machine has a fault
	timer       *time.Timer    // when the candidate is applied all the same
	nameservers []netip.AddrPort
	refusal     string   // as logged last
	logged      []string // warnings
}

// start prepares the first servers: the directory's, else those of the last good
// configuration, else of the default one.
func (r *reloader) start(ctx context.Context) error {
	if r.resolv != nil {
		r.nameservers = r.resolv.read()
	}
	update := r.dir.read()
	logWarnings(update.Warnings, &r.logged)
	err := update.Err
	if err == nil {
		if _, err = r.active.prepare(ctx, update.Config, r.nameservers, true); err == nil {
			r.commit(update.Config)
			return nil
		}
	}
	r.refuse(update.Origin, err)
	if r.state != nil {
		switch cfg, err := r.state.loadLastGood(); {
		case err == nil:
			if _, err = r.active.prepare(ctx, cfg, r.nameservers, true); err == nil {
				glog.Errorf("nanny: starting with the last good configuration, as that of %s is invalid", update.Origin)
				r.cfg = cfg
				return nil
			}
			glog.Errorf("nanny: the last good configuration: %v", err)
		case !errors.Is(err, fs.ErrNotExist):
			glog.Errorf("nanny: the last good configuration: %v", err)
		}
	}
	glog.Errorf("nanny: starting with the default configuration, as that of %s is invalid", update.Origin)
	r.cfg = &config.Config{}
	_, err = r.active.prepare(ctx, r.cfg, r.nameservers, true)
	return err
}

// Run applies changes until ctx is done. dnsmasq is being started meanwhile.
func (r *reloader) Run(ctx context.Context) error {
	defer r.names.wait()
	updates := make(chan config.Update)
	nameservers := make(chan []netip.AddrPort)
	parts := []func(context.Context) error{
		func(ctx context.Context) error {
			return r.dir.Run(ctx, func(u config.Update) { send(ctx, updates, u) })
		},
		func(ctx context.Context) error { return r.follow(ctx, updates, nameservers) },
	}
	if r.resolv != nil && !r.noPoll {
		parts = append(parts, func(ctx context.Context) error {
			return r.resolv.Run(ctx, func(list []netip.AddrPort) { send(ctx, nameservers, list) })
		})
	}
	return run(ctx, parts...)
}

// follow applies what comes through the channels, one after the other.
func (r *reloader) follow(ctx context.Context, updates <-chan config.Update, nameservers <-chan []netip.AddrPort) error {
	r.timer = time.NewTimer(lookupGrace)
	r.timer.Stop()
	defer r.timer.Stop()
	r.names.want(ctx, hosts(r.cfg))
	if err := r.active.activate(ctx, changeStart); err == nil {
		r.active.warnMissing(ctx)
	} else if ctx.Err() == nil {
		glog.Errorf("nanny: dnsmasq has not loaded its first servers: %v", err)
	}
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-updates:
			r.update(ctx, u, first)
			first = false
		case <-r.timer.C:
			r.apply(ctx)
		case <-r.names.changed:
			if _, pending := r.names.addrs(); !pending || r.candidate == nil {
				r.apply(ctx)
			}
		case r.nameservers = <-nameservers:
			glog.V(2).Infof("nanny: %s has nameservers %v", r.resolv.path, r.nameservers)
			r.apply(ctx)
		}
	}
}

// update takes what the directory has now. The first update is what start has
// read, or a change since.
func (r *reloader) update(ctx context.Context, u config.Update, first bool) {
	if !first && r.frozen {
		glog.Warningf("nanny: %s has changed: ignored without -restartDnsmasq", u.Origin)
		return
	}
	logWarnings(u.Warnings, &r.logged)
	if u.Err != nil {
		r.dropCandidate(ctx)
		r.refuse(u.Origin, u.Err)
		return
	}
	if u.Config.Equal(r.cfg) {
		r.dropCandidate(ctx)
		if r.refusal != "" {
			glog.Infof("nanny: %s is valid again, unchanged", u.Origin)
			r.commit(u.Config)
		}
		return
	}
	glog.V(2).Infof("nanny: %s has a new configuration, version %s", u.Origin, u.Version)
	r.candidate = u.Config
	r.names.want(ctx, slices.Concat(hosts(r.cfg), hosts(u.Config)))
	if _, pending := r.names.addrs(); !pending {
		r.apply(ctx)
		return
	}
	r.timer.Reset(lookupGrace)
}

// dropCandidate forgets the candidate and its names.
func (r *reloader) dropCandidate(ctx context.Context) {
	if r.candidate != nil {
		r.candidate = nil
		r.names.want(ctx, hosts(r.cfg))
	}
}

// apply gives dnsmasq the servers that follow from the candidate, or from the
// committed configuration where there is none, and from the addresses and
// nameservers known.
func (r *reloader) apply(ctx context.Context) {
	cfg, isNew := r.cfg, false
	if r.candidate != nil {
		cfg, isNew = r.candidate, true
		r.candidate = nil
	}
	began := time.Now()
	what, err := r.active.prepare(ctx, cfg, r.nameservers, false)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		r.refuse("directory "+r.dir.path, err)
		if errors.As(err, &transientError{}) {
			if isNew {
				r.candidate = cfg
			}
			glog.V(2).Infof("nanny: trying again in %v", r.retry)
			r.timer.Reset(r.retry)
			return
		}
		r.names.want(ctx, hosts(r.cfg))
		return
	}
	if isNew {
		r.commit(cfg)
		r.names.want(ctx, hosts(cfg))
	}
	if what == changeNothing {
		glog.V(2).Infof("nanny: the servers are unchanged")
		return
	}
	switch err := r.active.activate(ctx, what); {
	case ctx.Err() != nil:
	case err != nil:
		r.metrics.reloads.WithLabelValues(resultFailed).Inc()
		glog.Errorf("nanny: dnsmasq has not loaded its new servers: %v", err)
	default:
		r.metrics.reloads.WithLabelValues(resultSuccess).Inc()
		glog.Infof("nanny: %d servers active after %v", len(r.active.servers), time.Since(began).Round(time.Millisecond))
		r.active.warnMissing(ctx)
	}
}

// refuse logs, once, why a configuration is not used.
func (r *reloader) refuse(origin string, err error) {
	if reason := origin + ": " + err.Error(); reason != r.refusal {
		r.refusal = reason
		r.metrics.reloads.WithLabelValues(resultRefused).Inc()
		glog.Errorf("nanny: configuration refused, keeping the last valid one: %s", reason)
	}
}

// commit makes cfg the configuration that dnsmasq has, and the last good one.
func (r *reloader) commit(cfg *config.Config) {
	r.cfg, r.refusal = cfg, ""
	r.metrics.lastGood.SetToCurrentTime()
	if r.state == nil {
		return
	}
	if err := r.state.saveLastGood(cfg); err != nil {
		glog.Errorf("nanny: saving the last good configuration: %v", err)
	}
}
