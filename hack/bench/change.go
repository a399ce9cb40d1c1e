package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/fakeapi"
)

// compare sets what the run is in proportion to the ones around it, during which
// nothing changed: what the machine does differently from one minute to the
// next is as much as what is measured.
func (r *ChangeRun) compare(before, after ChangeRun) {
	r.Throughput = 2 * r.QPS / (before.QPS + after.QPS)
	r.Tail = 2 * r.P99 / (before.P99 + after.P99)
}

// A situation is what goes on in the cluster while questions come.
type situation struct {
	Name string
	// change is what changes; nil where nothing does.
	change *fakeapi.Change
	tcp    bool // how the check asks for the first Service that changes
}

const (
	situationQuiet  = "quiet"
	situationSpread = "spread"
	situationBig    = "big"
)

func (b *bench) situations() []situation {
	var headless []int
	big := 0
	for i := range b.cluster.Services {
		switch s := &b.cluster.Services[i]; {
		case s.Name == cluster.Big:
			big = i
		case s.Headless():
			headless = append(headless, i)
		}
	}
	return []situation{
		{situationSpread, &fakeapi.Change{Services: headless, Every: 5 * time.Millisecond}, false},
		{situationBig, &fakeapi.Change{Services: []int{big}, Every: 100 * time.Millisecond}, true},
	}
}

// goOn has the next load begin with the Service behind those that n changes
// were of: one of a second does not come to all of them.
func (s *situation) goOn(n int) {
	services := s.change.Services
	n %= len(services)
	s.change.Services = slices.Concat(services[n:], services[:n])
}

// The ratios that are wanted are finer than what one load tells, and a longer
// one tells hardly more: where the threads of a load find a core decides for all
// of it. So there are many short ones.
const (
	changeLoad  = time.Second
	changePairs = 2 // of each situation in a round, for each of the seconds that other loads last
	// settling is the time for what changes leave behind, before the next load.
	settling = 300 * time.Millisecond
)

// measureChange measures mixed questions at full speed while the cluster
// changes and while it does not.
func (b *bench) measureChange(ctx context.Context) error {
	for round := range b.o.Rounds {
		for _, p := range b.chosen(round, kubeDNS, coreDNS) {
			say("round %d of %d: %s, changes", round+1, b.o.Rounds, p.Title)
			if err := b.changes(ctx, p, round); err != nil {
				return fmt.Errorf("changes: %w", err)
			}
		}
	}
	return nil
}

func (b *bench) changes(ctx context.Context, p peer, round int) (err error) {
	r, err := b.startPeer(ctx, p)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, r.stop()); err != nil {
			err = fmt.Errorf("%s: %w", p.Name, err)
		}
	}()
	if _, err := b.load(ctx, r.addr, 0, b.warmUp(), forWarmUp); err != nil {
		return err
	}
	measure := func(s situation) (ChangeRun, error) {
		run, err := b.during(ctx, r, s)
		if err != nil {
			return run, fmt.Errorf("%s: %w", s.Name, err)
		}
		say("  %-8s %6.0f/s, p99 %4.0f µs, %.2f µs, %d changes", s.Name, run.QPS, run.P99, run.CPU, run.Changes)
		return run, sleep(ctx, settling)
	}
	quiet := situation{Name: situationQuiet}
	before, err := measure(quiet)
	if err != nil {
		return err
	}
	b.results.addChange(p.Name, quiet.Name, before)
	list := b.situations()
	for i := range changePairs * b.o.Seconds * len(list) {
		s := &list[(i+round)%len(list)]
		run, err := measure(*s)
		if err != nil {
			return err
		}
		s.goOn(run.Changes)
		after, err := measure(quiet)
		if err != nil {
			return err
		}
		run.compare(before, after)
		b.results.addChange(p.Name, s.Name, run)
		b.results.addChange(p.Name, quiet.Name, after)
		before = after
	}
	return nil
}

// during measures in one situation.
func (b *bench) during(ctx context.Context, r *running, s situation) (run ChangeRun, err error) {
	changing, stop := context.WithCancel(ctx)
	defer stop()
	type applied struct {
		n   int
		err error
	}
	done := make(chan applied, 1)
	seen := make(chan error, 1)
	if s.change != nil {
		go func() {
			n, err := b.api.Apply(changing, *s.change)
			done <- applied{n, err}
		}()
		go func() { seen <- b.seesChange(changing, r, s) }()
	}
	used, err := r.usage()
	if err != nil {
		return run, err
	}
	result, lerr := b.load(ctx, r.addr, 0, changeLoad, forChange)
	spent, uerr := r.usage()
	stop()
	if s.change != nil {
		a := <-done
		run.Changes = a.n
		lerr = errors.Join(lerr, a.err, <-seen)
	}
	if err := errors.Join(lerr, uerr); err != nil {
		return run, err
	}
	run.LatencyRun = latencyRun(result)
	run.CPU = micros(spent.cpu-used.cpu) / float64(result.Answered)
	return run, nil
}

// seesChange waits until the server answers with an address that an endpoint
// was changed to; it is an error when that does not come before ctx is done.
func (b *bench) seesChange(ctx context.Context, r *running, s situation) error {
	service := s.change.Services[0]
	changed := fakeapi.Changed(service)
	q := new(dns.Msg).SetQuestion(b.cluster.Services[service].DNSName(), dns.TypeA)
	c := dns.Client{Timeout: time.Second}
	if s.tcp {
		c.Net = "tcp"
	}
	for {
		if reply, _, err := c.ExchangeContext(ctx, q, r.addr.String()); err == nil {
			for _, rr := range reply.Answer {
				if a, ok := rr.(*dns.A); ok && a.A.Equal(net.IP(changed.AsSlice())) {
					return nil
				}
			}
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return errors.New("no answer has the changes")
		}
	}
}
