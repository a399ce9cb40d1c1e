package dnsmasq

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/golang/glog"

	"kubedns/pkg/dns/config"
	"kubedns/pkg/localaddr"
)

// change is what makes dnsmasq use what prepare has prepared.
type change int

const (
	changeNothing change = iota
	changeHUP
	changeRestart
	changeStart // dnsmasq is not running yet
)

// active is what dnsmasq runs with: the servers that follow from a
// configuration, and the form in which dnsmasq gets them. prepare makes the
// next, activate makes dnsmasq use it. One goroutine at a time may use it.
type active struct {
	program  program
	ownArgs  []string  // dnsmasq's own arguments
	args     arguments // the same, parsed
	can      capabilities
	super    *supervisor
	takeover takeover
	state    *stateDir // nil: there is no folder to write to
	names    *names
	metrics  *metrics
	logged   []string // warnings

	// As prepared last.
	cfg         *config.Config
	nameservers []netip.AddrPort
	servers     []domainServer // as the configuration has them
	entries     []domainServer // as dnsmasq gets them: repeated ones included, see keepEntryCount
	marker      string         // the name by which entries are seen in dnsmasq, "" when they cannot be
}

// prepare makes the servers that follow from cfg and from resolv.conf's
// nameservers those that dnsmasq reads next, and returns what makes dnsmasq read
// them. start is for the first time. Nothing has changed when it returns an
// error.
func (a *active) prepare(ctx context.Context, cfg *config.Config, nameservers []netip.AddrPort, start bool) (change, error) {
	resolved, pending := a.names.addrs()
	if start && len(hosts(cfg)) > 0 {
		pending = true // no name has been looked up yet
	}
	local, err := localaddr.All()
	if err != nil {
		glog.V(2).Infof("nanny: %v", err)
	}
	isOwn := func(addr netip.AddrPort) bool { return a.args.isOwn(addr, local) }
	servers, warnings := desiredServers(cfg, resolved, nameservers, isOwn)
	if !pending {
		logWarnings(warnings, &a.logged)
	}
	if err := validateServers(servers); err != nil {
		return changeNothing, err
	}
	upstreams := len(cfg.UpstreamNameservers) > 0
	args := slices.Concat(nannyArguments(a.args, a.can, upstreams, servers), a.ownArgs)
	var what change
	switch {
	case start:
		what = changeStart
	case !slices.Equal(args, a.super.arguments()):
		what = changeRestart
	case !slices.Equal(servers, a.servers):
		what = changeHUP
	default:
		return changeNothing, nil
	}
	asArguments := a.can
	asArguments.serversFile = ""
	if err := a.program.test(ctx, slices.Concat(nannyArguments(a.args, asArguments, upstreams, servers), a.ownArgs)); err != nil {
		return changeNothing, err
	}
	entries, marker := servers, ""
	if a.can.serversFile != "" {
		if what == changeHUP {
			entries = keepEntryCount(servers, a.entries, a.args.servers, a.args.local)
		}
		var text string
		text, marker = serversText(entries)
		if err := a.state.writeServers(text); err != nil {
			return changeNothing, transientError{err}
		}
	}
	a.super.setArgs(args)
	a.cfg, a.nameservers = cfg, nameservers
	a.servers, a.entries, a.marker = servers, entries, marker
	a.metrics.setServers(servers)
	return what, nil
}

// activate makes dnsmasq use what was prepared last, and returns once it does.
// Where SIGHUP does not help it restarts dnsmasq; where dnsmasq cannot read the
// servers file the servers become arguments.
func (a *active) activate(ctx context.Context, what change) error {
	if what == changeHUP {
		err := a.takeover.hangUp(ctx, a.marker)
		if err == nil || ctx.Err() != nil {
			return err
		}
		a.metrics.reloads.WithLabelValues(resultFailed).Inc()
		glog.Errorf("nanny: restarting dnsmasq, which has not loaded its new servers: %v", err)
	}
	var err error
	if what == changeStart {
		err = a.takeover.awaitNew(ctx, nil, a.marker)
	} else {
		err = a.restart(ctx)
	}
	if err == nil || ctx.Err() != nil || !errors.Is(err, errOldServers) {
		return err
	}
	// As when a folder above the file is closed to dnsmasq's user.
	glog.Errorf("nanny: dnsmasq cannot read %s: from now on every change of servers restarts dnsmasq", a.can.serversFile)
	a.can.serversFile = ""
	if _, err := a.prepare(ctx, a.cfg, a.nameservers, true); err != nil {
		return err
	}
	return a.restart(ctx)
}

// restart restarts dnsmasq and waits until the new one has the servers.
func (a *active) restart(ctx context.Context) error {
	old := a.super.running()
	a.super.restart()
	return a.takeover.awaitNew(ctx, old, a.marker)
}

// warnMissing warns of servers that dnsmasq has left out.
func (a *active) warnMissing(ctx context.Context) {
	missing, err := a.takeover.missing(ctx, a.servers)
	switch {
	case err != nil:
		glog.V(2).Infof("nanny: asking dnsmasq for its servers: %v", err)
	case len(missing) > 0:
		glog.Warningf("nanny: dnsmasq has ignored the servers %v, its own log lines say why", missing)
	}
}

// logWarnings logs those that are not among logged, and makes them logged.
func logWarnings(warnings []string, logged *[]string) {
	for _, w := range warnings {
		if !slices.Contains(*logged, w) {
			glog.Warningf("nanny: %s", w)
		}
	}
	*logged = warnings
}
