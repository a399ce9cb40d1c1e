package dnsmasq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/dnsmasq/counters"
)

// limits are the times and numbers of supervision.
type limits struct {
	deaths       int           // the nanny gives up after this many deaths
	window       time.Duration // within this time
	healthy      time.Duration // a dnsmasq that lived this long is restarted at once
	pause        time.Duration // first pause before a restart, doubled each time
	maxPause     time.Duration // longest pause
	start        time.Duration // from start to first answer, at most
	probeTimeout time.Duration // for the answer to one probe
	probePeriod  time.Duration // between two probes
	probes       int           // dnsmasq counts as dead after this many probes without an answer in a row
	grace        time.Duration // between SIGTERM and SIGKILL
	hup          time.Duration // how long dnsmasq may answer with its old servers after SIGHUP
	takeover     time.Duration // how long it may take to answer with the new ones
	resolvConf   time.Duration // polling interval for resolv.conf
}

func defaultLimits() limits {
	return limits{
		deaths: 10, window: time.Minute, healthy: time.Second,
		pause: 100 * time.Millisecond, maxPause: 5 * time.Second,
		start: 6 * time.Second, probeTimeout: 2 * time.Second, probePeriod: 2 * time.Second, probes: 3,
		grace: killGrace, hup: 2 * time.Second, takeover: 10 * time.Second,
		resolvConf: time.Second, // dnsmasq's own where there is no inotify
	}
}

// nextPause is the pause that follows pause when dnsmasq dies young again.
func (l limits) nextPause(pause time.Duration) time.Duration {
	return min(max(2*pause, l.pause), l.maxPause)
}

// errDeaf is the error of a dnsmasq that runs and does not answer.
var errDeaf = errors.New("no answer")

// supervisor keeps one dnsmasq running.
type supervisor struct {
	path    string
	limits  limits
	output  *lineLog
	metrics *metrics
	guard   *guard           // nil: none
	client  *counters.Client // nil: dnsmasq cannot be asked
	abort   <-chan struct{}  // closed: stop dnsmasq with SIGKILL
	again   chan struct{}    // buffered, one: restart dnsmasq

	mu      sync.Mutex
	args    []string
	current *process // nil between two
	heard   bool     // dnsmasq has ever answered
}

// setArgs sets the arguments for the next start of dnsmasq.
func (s *supervisor) setArgs(args []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.args = slices.Clone(args)
}

// arguments returns what setArgs got last.
func (s *supervisor) arguments() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.args)
}

// restart asks for dnsmasq to be stopped and started again, and does not wait.
func (s *supervisor) restart() {
	select {
	case s.again <- struct{}{}:
	default: // asked already
	}
}

// running returns the dnsmasq that is ready for signals, or nil.
func (s *supervisor) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || !s.current.ready.Load() {
		return nil
	}
	return s.current
}

// wasHeard reports whether any dnsmasq has ever answered the nanny.
func (s *supervisor) wasHeard() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
}

// logStatistics sends dnsmasq SIGUSR1, on which it logs its statistics, once a
// period until ctx is done.
func (s *supervisor) logStatistics(ctx context.Context, period time.Duration) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := s.signal(syscall.SIGUSR1); err != nil {
				glog.Errorf("nanny: %v", err)
			}
		}
	}
}

// signal sends sig to dnsmasq, if one is ready for it.
func (s *supervisor) signal(sig syscall.Signal) error {
	if p := s.running(); p != nil {
		return p.signal(sig)
	}
	return nil
}

// Run starts dnsmasq, and restarts it whenever it ends. When ctx is done it stops
// dnsmasq and returns nil. The error is that dnsmasq keeps dying.
func (s *supervisor) Run(ctx context.Context) error {
	var deaths []time.Time
	pause := time.Duration(0)
	for {
		began := time.Now()
		cause := s.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if cause == nil {
			s.metrics.restarts.WithLabelValues("asked").Inc()
			continue
		}
		label := "died"
		if errors.Is(cause, errDeaf) {
			label = "deaf"
		}
		s.metrics.restarts.WithLabelValues(label).Inc()

		now := time.Now()
		deaths = append(deaths, now)
		deaths = slices.DeleteFunc(deaths, func(t time.Time) bool { return now.Sub(t) > s.limits.window })
		if len(deaths) >= s.limits.deaths {
			return fmt.Errorf("dnsmasq died %d times in %v, the last time: %w; its last lines:\n%s",
				len(deaths), s.limits.window, cause, s.output.lastLines())
		}
		if now.Sub(began) >= s.limits.healthy {
			pause = 0
		}
		glog.Errorf("nanny: dnsmasq died: %v; restarting it in %v", cause, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = s.limits.nextPause(pause)
	}
}

// runOnce starts one dnsmasq and returns once it is gone: nil when it was stopped
// on purpose, for a restart or because ctx is done.
func (s *supervisor) runOnce(ctx context.Context) error {
	select {
	case <-s.again: // for the previous one
	default:
	}
	s.mu.Lock()
	args := s.args
	s.mu.Unlock()
	glog.V(2).Infof("nanny: starting %s %q", s.path, args)
	began := time.Now()
	p, err := startProcess(s.path, args, s.output, s.guard)
	if err != nil {
		return err
	}
	s.setCurrent(p)
	watchCtx, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		defer close(watched)
		watched <- s.watch(watchCtx, p, began)
	}()
	defer func() {
		cancel()
		for range watched { // until it is closed
		}
		s.setCurrent(nil)
		s.guard.watch(0)
	}()
	select {
	case <-p.done:
		return cmp.Or(<-watched, p.err)
	case <-s.again:
		glog.Infof("nanny: restarting dnsmasq with new arguments")
		p.ready.Store(false)
		p.stop(s.limits.grace, s.abort)
		return nil
	case <-ctx.Done():
		p.ready.Store(false)
		p.stop(s.limits.grace, s.abort)
		return nil
	}
}

func (s *supervisor) setCurrent(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = p
}

// watch waits for the first answer of p and then probes it, until ctx is done or
// p has ended. When p stops answering, watch kills it and returns errDeaf; else
// it returns nil.
func (s *supervisor) watch(ctx context.Context, p *process, began time.Time) error {
	if s.client == nil {
		p.ready.Store(waitAtMost(ctx, p.done, time.Second))
		return nil
	}
	first := counters.Client{Addr: s.client.Addr, Timeout: 100 * time.Millisecond}
	for alive(ctx, &first) != nil {
		if time.Since(began) > s.limits.start {
			if s.wasHeard() {
				return s.killDeaf(p, fmt.Errorf("%w within %v of its start", errDeaf, s.limits.start))
			}
			// The address is a guess from the arguments, and may be wrong.
			glog.Warningf("nanny: no answer from dnsmasq at %s yet; liveness checks are off", s.client.Addr)
			p.ready.Store(true)
			break
		}
		if !waitAtMost(ctx, p.done, 3*time.Millisecond) {
			return nil
		}
	}
	if p.ready.CompareAndSwap(false, true) {
		s.mu.Lock()
		s.heard = true
		s.mu.Unlock()
		glog.Infof("nanny: dnsmasq, process %d, answers after %v", p.cmd.Process.Pid, time.Since(began).Round(time.Millisecond))
	}
	silent := 0
	for waitAtMost(ctx, p.done, s.limits.probePeriod) {
		for silent = 0; silent < s.limits.probes; silent++ {
			asked := time.Now()
			err := alive(ctx, s.client)
			if err == nil || ctx.Err() != nil {
				break
			}
			if s.wasHeard() {
				glog.Warningf("nanny: no answer from dnsmasq: %v", err)
			}
			// A closed port refuses at once.
			if !waitAtMost(ctx, p.done, s.limits.probeTimeout-time.Since(asked)) {
				return nil
			}
		}
		if silent == s.limits.probes && s.wasHeard() {
			return s.killDeaf(p, fmt.Errorf("%w to %d probes in a row", errDeaf, silent))
		}
	}
	return nil
}

// alive returns nil when dnsmasq answers, even if it refuses to tell its version.
func alive(ctx context.Context, client *counters.Client) error {
	if _, err := client.Version(ctx); !errors.Is(err, counters.ErrNoIdent) {
		return err
	}
	return nil
}

func (s *supervisor) killDeaf(p *process, err error) error {
	glog.Errorf("nanny: killing dnsmasq, process %d: %v", p.cmd.Process.Pid, err)
	p.kill()
	<-p.done
	return err
}

// waitAtMost waits for d and returns true, or less and false when ctx is done
// or done is closed.
func waitAtMost(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-done:
		return false
	case <-timer.C:
		return true
	}
}
