package dnsmasq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"kubedns/pkg/dns/config"
	"kubedns/pkg/dnsmasq/counters"
)

const (
	// testTimeout bounds `dnsmasq --test`, which takes some milliseconds.
	testTimeout = 5 * time.Second
	// lookupGrace is how long a new configuration waits for names that have
	// not been looked up yet, so that their domains are not without a server.
	lookupGrace = 300 * time.Millisecond
	// hupRepeat is after how long SIGHUP is sent again: dnsmasq ignores one
	// that comes before it is ready.
	hupRepeat = 500 * time.Millisecond
)

// Options are what the nanny needs to know. Zero values mean the default that
// the field's comment has.
type Options struct {
	Exec           string          // dnsmasq; /usr/sbin/dnsmasq
	Args           []string        // dnsmasq's own arguments, which it gets as they are
	ConfigDir      string          // /etc/k8s/dns/dnsmasq-nanny
	SyncInterval   time.Duration   // how often the directory is looked at where inotify does not work; 10 s
	Restart        bool            // changes of the configuration count; false: they are logged and ignored
	KubednsServer  string          // host:port that resolves names in the cluster's domain; 127.0.0.1:10053
	LogInterval    time.Duration   // how often dnsmasq logs its statistics; 0: never
	DrainPeriod    time.Duration   // how long dnsmasq goes on once the nanny shall end; 0: not at all
	MetricsAddr    string          // host:port for GET /metrics; none
	StateDir       string          // for the servers file and the last good configuration; /run/dnsmasq-nanny
	Guard          []string        // a command that calls RunGuard; none
	Abort          <-chan struct{} // closed: end at once, whatever is going on; never
	ResolvConfPath string          // /etc/resolv.conf
}

// Nanny supervises one dnsmasq. It is made by New and run once.
type Nanny struct {
	opts    Options
	limits  limits
	args    arguments
	plan    plan
	output  lineLog
	metrics *metrics
	super   *supervisor
	names   *names
	state   *stateDir // nil: there is no folder, so that changes need restarts
	resolv  *resolvConf

	// From here on: of the goroutine that follows changes.
	cfg         *config.Config
	candidate   *config.Config // not in force yet, as names are being looked up
	grace       *time.Timer    // when the candidate stops waiting for that
	nameservers []netip.AddrPort
	servers     []domainServer                     // in force
	entries     []domainServer                     // in dnsmasq, padding included
	name        string                             // by which entries can be seen to be in force, or ""
	refusal     string                             // logged already
	logged      struct{ config, servers []string } // warnings, logged already
	folders     []string                           // keys that are folders
}

// New returns a Nanny that has not done anything yet.
func New(o Options) *Nanny {
	o.Exec = cmp.Or(o.Exec, "/usr/sbin/dnsmasq")
	o.ConfigDir = cmp.Or(o.ConfigDir, "/etc/k8s/dns/dnsmasq-nanny")
	o.KubednsServer = cmp.Or(o.KubednsServer, "127.0.0.1:10053")
	o.StateDir = cmp.Or(o.StateDir, defaultStateDir)
	o.ResolvConfPath = cmp.Or(o.ResolvConfPath, defaultResolvConf)
	return &Nanny{opts: o, limits: defaultLimits(), args: parseArguments(o.Args, os.ReadFile)}
}

// retryArgument makes dnsmasq ask again what has no answer after 500 ms, then
// after twice as long and so on. By itself it never does. Its default of 1 s
// would be the whole patience of some clients; a healthy upstream that is
// slower than half a second is rare, and costs a second question.
const retryArgument = "--fast-dns-retry=500"

// plan is how dnsmasq is started, as far as it does not change with the
// configuration.
type plan struct {
	rootUser    bool   // it cannot change its user
	fastRetry   bool   // it knows --fast-dns-retry
	serversFile string // it reads its servers there; "": they are arguments
}

// nannyArguments are those that dnsmasq gets before the operator's own: what
// the nanny depends on and the operator has not said otherwise. Only servers
// and whether there are upstreams among the configuration change them.
func nannyArguments(a arguments, p plan, upstreams bool, servers []domainServer) []string {
	var list []string
	add := func(wanted bool, arg string) {
		if wanted {
			list = append(list, arg)
		}
	}
	add(!a.foreground, "--keep-in-foreground")
	add(!a.logFacility, "--log-facility=-")
	add(!a.pidFile, "--pid-file=") // none: the nanny knows, and the file system may be read-only
	add(p.rootUser, "--user=root")
	add(p.fastRetry, retryArgument)
	add(!a.noResolv && (!a.resolvFile || upstreams), "--no-resolv")
	if p.serversFile == "" {
		for _, s := range servers {
			list = append(list, "--server="+s.String())
		}
		return list
	}
	// See inForceName.
	return append(list, "--servers-file="+p.serversFile, "--address=/"+inForceDomain+"/127.0.0.1")
}

// Run starts dnsmasq and keeps it running, with the servers that the
// configuration has. When ctx is done dnsmasq goes on for the drain period,
// then Run stops it and returns nil. An error means that dnsmasq cannot run:
// its own arguments are wrong, or it keeps dying.
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

// supervise is Run from dnsmasq's start on.
func (n *Nanny) supervise(ctx context.Context) error {
	if n.state != nil {
		defer n.state.close()
	}
	defer n.super.guard.close()
	parts := []func(context.Context) error{n.super.Run, n.follow}
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
	glog.Infof("dnsmasq: dnsmasq has ended")
	return err
}

// drain waits until dnsmasq is to be stopped.
func (n *Nanny) drain(ctx context.Context) {
	glog.Infof("dnsmasq: shutting down, dnsmasq goes on for %v", n.opts.DrainPeriod)
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
	if err := n.test(ctx, n.opts.Args); err != nil {
		return fmt.Errorf("dnsmasq's own arguments: %w", err)
	}
	kubedns, err := netip.ParseAddrPort(n.opts.KubednsServer)
	if err != nil {
		glog.V(2).Infof("dnsmasq: kube-dns is not known by address: %v", err)
	}
	if n.metrics, err = newMetrics(); err != nil {
		return err
	}
	n.output.verbose = n.args.logQueries || n.opts.LogInterval > 0
	n.plan = n.makePlan(ctx)
	n.names = newNames((&resolver{kubedns: n.opts.KubednsServer, clusterDomains: n.args.clusterDomains(kubedns)}).lookup)
	n.super = &supervisor{
		path: n.opts.Exec, limits: n.limits, output: &n.output, metrics: n.metrics,
		abort: n.opts.Abort, again: make(chan struct{}, 1),
	}
	if addr := n.args.probeAddr(); addr.IsValid() {
		n.super.client = &counters.Client{Addr: addr.String(), Timeout: n.limits.probeTimeout}
	}
	if !n.args.noResolv && !n.args.resolvFile {
		n.resolv = &resolvConf{path: n.opts.ResolvConfPath, period: resolvPeriod}
		n.nameservers = n.resolv.read()
	}
	if err := n.firstServers(ctx); err != nil {
		return err
	}
	// So that children of a dnsmasq that was killed are ours to reap.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		glog.V(2).Infof("dnsmasq: becoming a subreaper: %v", err)
	}
	// Nothing outlives process 1 of a container.
	if len(n.opts.Guard) > 0 && os.Getpid() != 1 {
		if n.super.guard, err = startGuard(n.opts.Guard); err != nil {
			return err
		}
	}
	return nil
}

// makePlan finds out what dnsmasq and the machine can do.
func (n *Nanny) makePlan(ctx context.Context) plan {
	p := plan{fastRetry: !n.args.fastRetry}
	if p.fastRetry && n.test(ctx, []string{retryArgument}) != nil {
		glog.Warningf("dnsmasq: this dnsmasq has no --fast-dns-retry (2.87 has), questions on their way to a server that is removed are lost")
		p.fastRetry = false
	}
	if os.Geteuid() == 0 && !n.args.user && !canChangeUser() {
		glog.Infof("dnsmasq: dnsmasq stays root, which has no capabilities here to become another user (SETUID) and to be stopped then (KILL)")
		p.rootUser = true
	}
	switch state, err := openStateDir(n.opts.StateDir); {
	case err != nil:
		glog.Warningf("dnsmasq: no folder to write to, so that new servers need a restart of dnsmasq: %v", err)
	case n.args.serversFile:
		n.state = state
		glog.Infof("dnsmasq: dnsmasq's own arguments have --servers-file, so that new servers need a restart of dnsmasq")
	default:
		n.state = state
		p.serversFile = state.serversFile()
	}
	return p
}

// canChangeUser tells whether a dnsmasq that root starts can become another
// user and still be sent signals.
func canChangeUser() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true
	}
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_KILL
	return data[0].Effective&needed == needed
}

// passingError is what is wrong with the machine and not with a configuration,
// as a full disk or a process that cannot be started: it may be right later.
type passingError struct{ error }

func (e passingError) Unwrap() error { return e.error }

// test has dnsmasq read arguments and says what it says about them.
func (n *Nanny) test(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, n.opts.Exec, slices.Concat([]string{"--test"}, args)...).CombinedOutput()
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return passingError{fmt.Errorf("trying them with %s --test: %w", n.opts.Exec, err)}
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	said := strings.TrimPrefix(lines[len(lines)-1], "dnsmasq: ")
	if said == "" {
		return fmt.Errorf("trying them with %s --test: %w", n.opts.Exec, err)
	}
	return fmt.Errorf("dnsmasq refuses them: %s", said)
}

// syncInterval is how often what may have changed unseen is looked at.
func (n *Nanny) syncInterval() time.Duration {
	return cmp.Or(n.opts.SyncInterval, 10*time.Second)
}

// source is where the configuration comes from.
func (n *Nanny) source() *config.DirSource {
	return config.Dir(n.opts.ConfigDir, n.opts.SyncInterval)
}

// firstServers finds the configuration to start with: the directory's, else the
// last good one, else the default.
func (n *Nanny) firstServers(ctx context.Context) error {
	update := n.source().Read()
	n.lookAtDir(&update)
	logWarnings(update.Warnings, &n.logged.config)
	err := update.Err
	if err == nil {
		if _, _, err = n.install(ctx, update.Config, true); err == nil {
			n.accept(update.Config)
			return nil
		}
	}
	n.refuse(update.Origin, err)
	if n.state != nil {
		switch cfg, err := n.state.loadLastGood(); {
		case err == nil:
			if _, _, err = n.install(ctx, cfg, true); err == nil {
				glog.Errorf("dnsmasq: starting with the last good configuration, as %s has none", update.Origin)
				n.cfg = cfg
				return nil
			}
			glog.Errorf("dnsmasq: the last good configuration: %v", err)
		case !errors.Is(err, fs.ErrNotExist):
			glog.Errorf("dnsmasq: the last good configuration: %v", err)
		}
	}
	glog.Errorf("dnsmasq: starting with the default configuration, as %s has no valid one", update.Origin)
	n.cfg = &config.Config{}
	_, _, err = n.install(ctx, n.cfg, true)
	return err
}

// lookAtDir adds to an update what the directory's source does not tell, as it
// is the same as nothing for it: a key that is a folder refuses the update, and
// a directory that is not there is worth a warning.
func (n *Nanny) lookAtDir(u *config.Update) {
	if _, err := os.Stat(n.opts.ConfigDir); errors.Is(err, fs.ErrNotExist) {
		u.Warnings = append(slices.Clip(u.Warnings), u.Origin+" does not exist, which means the default configuration")
	}
	n.folders = folderKeys(n.opts.ConfigDir)
	if len(n.folders) > 0 && u.Err == nil {
		u.Config, u.Err = nil, fmt.Errorf("%s: a folder in place of a file", strings.Join(n.folders, ", "))
	}
}

// folderKeys returns which of the configuration's keys are folders in dir.
func folderKeys(dir string) []string {
	var folders []string
	for _, key := range []string{"federations", "stubDomains", "upstreamNameservers"} {
		if info, err := os.Stat(filepath.Join(dir, key)); err == nil && info.IsDir() {
			folders = append(folders, key)
		}
	}
	return folders
}

// refuse says once why a configuration is not used.
func (n *Nanny) refuse(origin string, err error) {
	if reason := origin + ": " + err.Error(); reason != n.refusal {
		n.refusal = reason
		n.metrics.reloads.WithLabelValues(resultRefused).Inc()
		glog.Errorf("dnsmasq: configuration refused, the running one stays: %s", reason)
	}
}

// accept notes that cfg is the configuration in force.
func (n *Nanny) accept(cfg *config.Config) {
	n.cfg, n.refusal = cfg, ""
	n.metrics.lastGood.SetToCurrentTime()
	if n.state == nil {
		return
	}
	if err := n.state.saveLastGood(cfg); err != nil {
		glog.Errorf("dnsmasq: keeping the last good configuration: %v", err)
	}
}

// logWarnings logs those that are not among logged, and makes them logged.
func logWarnings(warnings []string, logged *[]string) {
	for _, w := range warnings {
		if !slices.Contains(*logged, w) {
			glog.Warningf("dnsmasq: %s", w)
		}
	}
	*logged = warnings
}

// follow applies changes until ctx is done.
func (n *Nanny) follow(ctx context.Context) error {
	defer n.names.wait()
	updates := make(chan config.Update)
	nameservers := make(chan []netip.AddrPort)
	sources := []func(context.Context) error{
		func(ctx context.Context) error {
			return n.source().Run(ctx, func(u config.Update) { send(ctx, updates, u) })
		},
		func(ctx context.Context) error { return n.changes(ctx, updates, nameservers) },
	}
	if n.resolv != nil && !n.args.noPoll {
		sources = append(sources, func(ctx context.Context) error {
			return n.resolv.Run(ctx, func(list []netip.AddrPort) { send(ctx, nameservers, list) })
		})
	}
	return run(ctx, sources...)
}

func send[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	case <-ctx.Done():
	}
}

// changes applies what comes through the channels, one after the other.
func (n *Nanny) changes(ctx context.Context, updates <-chan config.Update, nameservers <-chan []netip.AddrPort) error {
	var statistics <-chan time.Time
	if n.opts.LogInterval > 0 {
		ticker := time.NewTicker(n.opts.LogInterval)
		defer ticker.Stop()
		statistics = ticker.C
	}
	n.grace = time.NewTimer(lookupGrace)
	n.grace.Stop()
	defer n.grace.Stop()
	n.names.want(ctx, hosts(n.cfg))
	if err := n.bringIntoForce(ctx, needStart, n.name); err == nil {
		n.reportMissing(ctx)
	} else if ctx.Err() == nil {
		glog.Errorf("dnsmasq: the first servers are not in force: %v", err)
	}
	folders := time.NewTicker(n.syncInterval())
	defer folders.Stop()
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-updates:
			n.update(ctx, u, first)
			first = false
		case <-folders.C:
			// A folder that comes or goes is no change for the source.
			if !first && !slices.Equal(folderKeys(n.opts.ConfigDir), n.folders) {
				n.update(ctx, n.source().Read(), false)
			}
		case <-n.grace.C:
			n.apply(ctx)
		case <-n.names.changed:
			if _, pending := n.names.addrs(); !pending || n.candidate == nil {
				n.apply(ctx)
			}
		case n.nameservers = <-nameservers:
			glog.V(2).Infof("dnsmasq: %s has nameservers %v", n.opts.ResolvConfPath, n.nameservers)
			n.apply(ctx)
		case <-statistics:
			if err := n.super.signal(syscall.SIGUSR1); err != nil {
				glog.Errorf("dnsmasq: %v", err)
			}
		}
	}
}

// update takes what the directory has now. The first one is what the nanny has
// started with, or a change since.
func (n *Nanny) update(ctx context.Context, u config.Update, first bool) {
	if !first && !n.opts.Restart {
		n.folders = folderKeys(n.opts.ConfigDir)
		glog.Warningf("dnsmasq: %s has changed, which is ignored without -restartDnsmasq", u.Origin)
		return
	}
	n.lookAtDir(&u)
	logWarnings(u.Warnings, &n.logged.config)
	if u.Err != nil {
		n.dropCandidate(ctx)
		n.refuse(u.Origin, u.Err)
		return
	}
	if u.Config.Equal(n.cfg) {
		n.dropCandidate(ctx)
		if n.refusal != "" {
			glog.Infof("dnsmasq: %s is valid again and says what is in force", u.Origin)
			n.accept(u.Config)
		}
		return
	}
	glog.V(2).Infof("dnsmasq: %s has a new configuration, version %s", u.Origin, u.Version)
	n.candidate = u.Config
	n.names.want(ctx, slices.Concat(hosts(n.cfg), hosts(u.Config)))
	if _, pending := n.names.addrs(); !pending {
		n.apply(ctx)
		return
	}
	n.grace.Reset(lookupGrace)
}

// dropCandidate forgets a configuration that was to be tried, and its names.
func (n *Nanny) dropCandidate(ctx context.Context) {
	if n.candidate != nil {
		n.candidate = nil
		n.names.want(ctx, hosts(n.cfg))
	}
}

// apply gives dnsmasq the servers that follow from the configuration, the
// newest if there is one, and from the addresses and nameservers known.
func (n *Nanny) apply(ctx context.Context) {
	cfg, isNew := n.cfg, false
	if n.candidate != nil {
		cfg, isNew = n.candidate, true
		n.candidate = nil
	}
	began := time.Now()
	need, name, err := n.install(ctx, cfg, false)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		n.refuse("directory "+n.opts.ConfigDir, err)
		if errors.As(err, &passingError{}) {
			if isNew {
				n.candidate = cfg
			}
			glog.V(2).Infof("dnsmasq: trying that again in %v", n.syncInterval())
			n.grace.Reset(n.syncInterval())
			return
		}
		n.names.want(ctx, hosts(n.cfg))
		return
	}
	if isNew {
		n.accept(cfg)
		n.names.want(ctx, hosts(cfg))
	}
	if need == needNothing {
		glog.V(2).Infof("dnsmasq: no server has changed")
		return
	}
	switch err := n.bringIntoForce(ctx, need, name); {
	case ctx.Err() != nil:
	case err != nil:
		n.metrics.reloads.WithLabelValues(resultFailed).Inc()
		glog.Errorf("dnsmasq: new servers are not in force: %v", err)
	default:
		n.metrics.reloads.WithLabelValues(resultSuccess).Inc()
		glog.Infof("dnsmasq: %d servers in force after %v", len(n.servers), time.Since(began).Round(time.Millisecond))
		n.reportMissing(ctx)
	}
}

// bringIntoForce has dnsmasq take over what install has prepared.
func (n *Nanny) bringIntoForce(ctx context.Context, what need, name string) error {
	if what == needHUP {
		err := n.awaitInForce(ctx, nil, name, true, n.limits.takeover)
		if err == nil || ctx.Err() != nil {
			return err
		}
		n.metrics.reloads.WithLabelValues(resultFailed).Inc()
		glog.Errorf("dnsmasq: dnsmasq does not take its new servers over, restarting it: %v", err)
	}
	var old *process
	if what != needStart {
		old = n.super.running()
		n.super.restart()
	}
	err := n.awaitInForce(ctx, old, name, false, n.limits.takeover)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errOldServers) {
		return err
	}
	// As when a folder above the file is closed to dnsmasq's user.
	glog.Errorf("dnsmasq: dnsmasq does not read %s, from now on new servers need a restart of dnsmasq", n.plan.serversFile)
	n.plan.serversFile = ""
	if _, _, err := n.install(ctx, n.cfg, true); err != nil {
		return err
	}
	old = n.super.running()
	n.super.restart()
	return n.awaitInForce(ctx, old, "", false, n.limits.takeover)
}

// need is what dnsmasq needs to have its new servers.
type need int

const (
	needNothing need = iota
	needHUP
	needRestart
	needStart // it is being started
)

// install makes the servers that follow from cfg those that dnsmasq reads next,
// and tells what it needs to read them and the name by which that can be seen
// (see inForceName; "" where it cannot). Nothing has changed when it returns an
// error.
func (n *Nanny) install(ctx context.Context, cfg *config.Config, start bool) (need, string, error) {
	resolved, pending := n.names.addrs()
	if start && len(hosts(cfg)) > 0 {
		pending = true // no name has been looked up yet
	}
	local := localAddrs()
	isOwn := func(addr netip.AddrPort) bool { return n.args.isOwn(addr, local) }
	servers, warnings := desiredServers(cfg, resolved, n.nameservers, isOwn)
	if !pending {
		logWarnings(warnings, &n.logged.servers)
	}
	if err := validateServers(servers); err != nil {
		return needNothing, "", err
	}
	upstreams := len(cfg.UpstreamNameservers) > 0
	args := slices.Concat(nannyArguments(n.args, n.plan, upstreams, servers), n.opts.Args)
	var result need
	switch {
	case start || !slices.Equal(args, n.super.arguments()):
		result = needRestart
		if start {
			result = needStart
		}
	case !slices.Equal(servers, n.servers):
		result = needHUP
	default:
		return needNothing, "", nil
	}
	asArguments := n.plan
	asArguments.serversFile = ""
	if err := n.test(ctx, slices.Concat(nannyArguments(n.args, asArguments, upstreams, servers), n.opts.Args)); err != nil {
		return needNothing, "", err
	}
	entries, name := servers, ""
	if n.plan.serversFile != "" {
		if result == needHUP {
			entries = pad(servers, n.entries, n.args.servers, n.args.local)
		}
		var text string
		text, name = serversText(entries)
		if err := n.state.writeServers(text); err != nil {
			return needNothing, "", passingError{err}
		}
	}
	n.super.setArgs(args)
	n.servers, n.entries, n.name = servers, entries, name
	n.metrics.setServers(servers)
	return result, name, nil
}

// localAddrs are the addresses of this machine; none when they are not to be
// had.
func localAddrs() []netip.Addr {
	list, err := net.InterfaceAddrs()
	if err != nil {
		glog.V(2).Infof("dnsmasq: finding local addresses: %v", err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, prefix.Addr().Unmap())
		}
	}
	return addrs
}

// errOldServers is why servers are not in force though dnsmasq is well.
var errOldServers = errors.New("it answers with the old ones")

// awaitInForce sends SIGHUP, where hup says so, and returns nil once a dnsmasq
// other than old has the servers that come with name. The error is that it does
// not within timeout, or errOldServers when it has had the others for as long as
// it may take after SIGHUP.
func (n *Nanny) awaitInForce(ctx context.Context, old *process, name string, hup bool, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	err := errors.New("dnsmasq is not running")
	var sent, answered time.Time // answered: first, with the old ones
	for {
		if p := n.super.running(); p != nil && p != old {
			if hup && time.Since(sent) >= hupRepeat {
				if err := p.signal(syscall.SIGHUP); err != nil {
					return err
				}
				sent = time.Now()
			}
			if name == "" || !n.super.wasHeard() {
				return nil // there is no way to see it
			}
			ok, askErr := n.inForce(ctx, name)
			switch {
			case ok:
				return nil
			case askErr == nil && answered.IsZero():
				answered = time.Now()
				err = errOldServers
			case answered.IsZero() && ctx.Err() == nil:
				err = askErr
			case !answered.IsZero() && time.Since(answered) > n.limits.hup:
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// inForce asks dnsmasq whether it has read the servers that come with name.
func (n *Nanny) inForce(ctx context.Context, name string) (bool, error) {
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), dns.TypeA)
	reply, _, err := (&dns.Client{Timeout: hupRepeat}).ExchangeContext(ctx, question, n.super.client.Addr)
	return err == nil && reply.Rcode == dns.RcodeNameError, err
}

// reportMissing warns of servers that dnsmasq has left out.
func (n *Nanny) reportMissing(ctx context.Context) {
	if !n.super.wasHeard() {
		return
	}
	stats, err := n.super.client.Servers(ctx)
	if err != nil {
		glog.V(2).Infof("dnsmasq: seeing which servers dnsmasq has: %v", err)
		return
	}
	var have []string
	for _, s := range stats {
		have = append(have, s.Addr)
	}
	if missing := missingServers(n.servers, have); len(missing) > 0 {
		glog.Warningf("dnsmasq: dnsmasq has left out servers, its own lines say why: %v", missing)
	}
}
