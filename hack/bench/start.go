package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/bench/cluster"
)

// settle is how long a server is left alone before its memory counts.
const settle = 5 * time.Second

// startVerbose is kube-dns as the stock manifest has it.
const startVerbose = "kube-dns -v=2"

// starter starts a server against an API server.
type starter struct {
	name  string
	start func(b *bench, r *running, kubeconfig string) error
}

func starters() []starter {
	return []starter{
		{kubeDNS, func(b *bench, r *running, k string) error { return b.startKubeDNSWith(r, k) }},
		{startVerbose, func(b *bench, r *running, k string) error { return b.startKubeDNSWith(r, k, "--v=2") }},
		{coreDNS, func(b *bench, r *running, k string) error { return b.startCoreDNS(r, k, false) }},
	}
}

// measureCluster measures what needs a real API server: the start, and memory.
func (b *bench) measureCluster(ctx context.Context) (err error) {
	for _, shape := range []cluster.Shape{cluster.Small, cluster.Large} {
		if shape == cluster.Large && !b.o.has(partMemory) {
			break
		}
		if err := b.withCluster(ctx, shape); err != nil {
			return err
		}
	}
	if b.o.has(partStart) {
		return b.measureListEnd(ctx)
	}
	return nil
}

func (b *bench) withCluster(ctx context.Context, shape cluster.Shape) error {
	c, err := b.startControlPlane(ctx, shape)
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := c.setMarker(ctx, false); err != nil {
		return fmt.Errorf("deleting an older run's marker: %w", err)
	}
	if shape == cluster.Small && b.o.has(partStart) {
		// Neither is to be busy with itself any more.
		if err := sleep(ctx, settle); err != nil {
			return err
		}
		for round := range b.o.Rounds {
			list := starters()
			for i := range list {
				s := list[(i+round)%len(list)]
				run, err := b.startOnce(ctx, s, c)
				if err != nil {
					return fmt.Errorf("starting %s: %w", s.name, err)
				}
				say("start %-14s %4.0f ms, %.1f MB after sync, %.1f MB at the highest", s.name, run.FirstAnswer, mb(run.RSS), mb(run.Highest))
				b.results.addStart(s.name, run)
			}
		}
	}
	if !b.o.has(partMemory) {
		return nil
	}
	for _, s := range starters() {
		if s.name == startVerbose {
			continue
		}
		m, err := b.memory(ctx, s, c)
		if err != nil {
			return fmt.Errorf("memory of %s: %w", s.name, err)
		}
		say("memory %-9s %d Services, %d endpoints: %.1f MB after sync, %.1f MB at the highest while all was listed again, %.1f MB after it",
			s.name, shape.Services(), shape.Headless*shape.Endpoints, mb(m.RSS), mb(m.Highest), mb(m.After))
		b.results.Memory = append(b.results.Memory, m)
	}
	return nil
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// startOnce starts a server and measures how long it takes to the first right
// answer, and its memory a while later.
func (b *bench) startOnce(ctx context.Context, s starter, c *controlPlane) (run StartRun, err error) {
	r, first, err := b.firstAnswer(ctx, s, c.kubeconfig, &c.cluster.Services[0])
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := sleep(ctx, settle); err != nil {
		return run, err
	}
	run.FirstAnswer = millis(first.Sub(r.measured.Started))
	run.RSS, run.Highest, err = r.measured.Memory()
	return run, err
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// firstAnswer starts a server and asks it for svc once a millisecond, from
// before its start, until it answers right; it returns when that was. The
// server is to be stopped where the error is nil.
func (b *bench) firstAnswer(ctx context.Context, s starter, kubeconfig string, svc *cluster.Service) (r *running, first time.Time, err error) {
	r = &running{}
	if r.addr, err = freeAddr(); err != nil {
		return nil, first, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	answered := make(chan time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		t, err := poll(ctx, r.addr, svc)
		if err != nil {
			failed <- err
			return
		}
		answered <- t
	}()
	if err := s.start(b, r, kubeconfig); err != nil {
		return nil, first, err
	}
	select {
	case first = <-answered:
		return r, first, nil
	case err = <-failed:
	case <-r.measured.Exited():
		err = errors.New("it has ended")
	}
	return nil, first, errors.Join(fmt.Errorf("no right answer: %w; it says: %s", err, r.measured.Log.Tail(2000)), r.stop())
}

// poll asks the server at addr for svc's address once a millisecond, and
// returns when the first right answer came.
func poll(ctx context.Context, addr netip.AddrPort, svc *cluster.Service) (time.Time, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	msg, err := new(dns.Msg).SetQuestion(svc.DNSName(), dns.TypeA).Pack()
	if err != nil {
		return time.Time{}, err
	}
	buf := make([]byte, dns.MaxMsgSize)
	for next := time.Now(); ctx.Err() == nil; next = next.Add(time.Millisecond) {
		_, _ = conn.Write(msg) // refused, as long as nobody listens
		for {
			if err := conn.SetReadDeadline(next.Add(time.Millisecond)); err != nil {
				return time.Time{}, err
			}
			n, err := conn.Read(buf)
			now := time.Now()
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			if err == nil && isAnswer(buf[:n], svc) {
				return now, nil
			}
		}
	}
	return time.Time{}, context.Cause(ctx)
}

func isAnswer(msg []byte, svc *cluster.Service) bool {
	var m dns.Msg
	if m.Unpack(msg) != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return false
	}
	a, ok := m.Answer[0].(*dns.A)
	return ok && a.A.Equal(net.IP(svc.ClusterIP.AsSlice()))
}

// measureListEnd measures the time from the end of the API server's list to
// the first right answer, with the API server here that knows when that is.
func (b *bench) measureListEnd(ctx context.Context) error {
	for round := range b.o.Rounds {
		list := starters()
		for i := range list {
			s := list[(i+round)%len(list)]
			b.api.ForgetLists()
			r, first, err := b.firstAnswer(ctx, s, b.kubeconfig, &b.cluster.Services[0])
			if err != nil {
				return fmt.Errorf("starting %s: %w", s.name, err)
			}
			if err := r.stop(); err != nil {
				return err
			}
			var end time.Time
			for _, t := range b.api.Listed() {
				if t.After(end) && t.Before(first) {
					end = t
				}
			}
			if end.IsZero() {
				return fmt.Errorf("%s answered before it was given a list", s.name)
			}
			run := ListEndRun{FirstAnswer: millis(first.Sub(r.measured.Started)), AfterList: millis(first.Sub(end))}
			say("start %-14s %4.0f ms, %.0f ms after the end of the list", s.name, run.FirstAnswer, run.AfterList)
			b.results.addListEnd(s.name, run)
		}
	}
	return nil
}

// memory measures a server's memory after the first list, and the highest
// while the API server is restarted and everything is listed again.
func (b *bench) memory(ctx context.Context, s starter, c *controlPlane) (m MemoryRow, err error) {
	m = MemoryRow{Peer: s.name, Shape: c.cluster.Shape}
	r, _, err := b.firstAnswer(ctx, s, c.kubeconfig, &c.cluster.Services[0])
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := sleep(ctx, settle); err != nil {
		return m, err
	}
	if m.RSS, m.HighestStart, err = r.measured.Memory(); err != nil {
		return m, err
	}
	if err := r.measured.ResetHighest(); err != nil {
		return m, err
	}
	if err := c.restart(ctx); err != nil {
		return m, fmt.Errorf("restarting the API server: %w", err)
	}
	if err := b.awaitListed(ctx, c, r); err != nil {
		return m, err
	}
	if err := sleep(ctx, settle); err != nil {
		return m, err
	}
	m.After, m.Highest, err = r.measured.Memory()
	return m, err
}

// awaitListed waits until the server has listed the slices again and has heard
// of a Service that is made now.
func (b *bench) awaitListed(ctx context.Context, c *controlPlane, r *running) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := c.setMarker(ctx, true); err != nil {
		return err
	}
	svc := marker()
	if _, err := poll(ctx, r.addr, &svc); err != nil {
		return fmt.Errorf("waiting for what came after the restart: %w; it says: %s", err, r.measured.Log.Tail(2000))
	}
	for {
		n, err := c.listed(ctx)
		if err == nil && n >= c.cluster.Slices() {
			break
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("the server did not list all slices again: %d of %d were sent (%w)", n, c.cluster.Slices(), err)
		}
	}
	return c.setMarker(ctx, false)
}
