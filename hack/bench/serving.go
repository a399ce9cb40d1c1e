package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/load"
)

// A workload is one load that servers are measured under.
type workload struct {
	Name, Title string
	Kind        cluster.Kind
	TCP         bool
}

func workloads() []workload {
	return []workload{
		{"a", "A, cluster IP", cluster.A, false},
		{"aaaa", "AAAA, NODATA", cluster.AAAA, false},
		{"nxdomain", "NXDOMAIN", cluster.NXDOMAIN, false},
		{"headless", "A, headless, 20", cluster.Headless, false},
		{"headless-big", "A, headless, 1,500, truncated", cluster.HeadlessBig, false},
		{"srv", "SRV, cluster IP", cluster.SRV, false},
		{"srv-headless", "SRV, headless, 20", cluster.SRVHeadless, false},
		{"mixed", "mixed", cluster.Mixed, false},
		{"a-tcp", "A over TCP", cluster.A, true},
		{"headless-big-tcp", "A, headless, 1,500, over TCP", cluster.HeadlessBig, true},
	}
}

// wanted are the workloads of this run for p.
func (b *bench) wanted(p peer) []workload {
	return slices.DeleteFunc(workloads(), func(w workload) bool {
		part := partUDP
		if w.TCP {
			part = partTCP
		}
		return !b.o.has(part) || p.Workloads != nil && !slices.Contains(p.Workloads, w.Name)
	})
}

// chosen are the peers of this run, in the order of a round: each round begins
// with another.
func (b *bench) chosen(round int, names ...string) []peer {
	list := slices.DeleteFunc(peers(), func(p peer) bool {
		return !slices.Contains(b.o.Peers, p.Name) || len(names) > 0 && !slices.Contains(names, p.Name)
	})
	if len(list) > 0 {
		k := round % len(list)
		list = slices.Concat(list[k:], list[:k])
	}
	return list
}

// measureServing measures throughput and latency: in every round each peer is
// started, given every load in turn, and stopped.
func (b *bench) measureServing(ctx context.Context) error {
	for round := range b.o.Rounds {
		for _, p := range b.chosen(round) {
			say("round %d of %d: %s", round+1, b.o.Rounds, p.Title)
			if err := b.serve(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) serve(ctx context.Context, p peer) (err error) {
	r, err := b.startPeer(ctx, p)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, r.stop()); err != nil {
			err = fmt.Errorf("%s: %w", p.Name, err)
		}
	}()
	for _, w := range b.wanted(p) {
		if p.Name != echo {
			if err := b.check(ctx, r, w); err != nil {
				return fmt.Errorf("a wrong answer: %w", err)
			}
		}
		run, err := b.throughput(ctx, r, w, p.Name != echo)
		if err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		say("  %-16s %6.2f µs, %6.0f/s, %d lost", w.Name, run.CPU, run.QPS, run.Lost)
		b.results.addThroughput(p.Name, w.Name, run)
	}
	if b.o.has(partLatency) {
		run, err := b.latency(ctx, r)
		if err != nil {
			return fmt.Errorf("latency: %w", err)
		}
		say("  at %d/s         p50 %.0f µs, p99 %.0f µs, p99.9 %.0f µs, %d lost", latencyRate, run.P50, run.P99, run.P999, run.Lost)
		b.results.addLatency(p.Name, run)
	}
	return nil
}

// check asks some questions of the workload and looks at the answers.
func (b *bench) check(ctx context.Context, r *running, w workload) error {
	q := cluster.NewQuestions(b.cluster, 4)
	for range 20 {
		m, k := q.Next(w.Kind)
		if err := b.ask(ctx, r.addr, k, m, w.TCP); err != nil {
			return err
		}
	}
	return nil
}

// warmUp is how long a load lasts before it is measured.
func (b *bench) warmUp() time.Duration { return time.Second }

func (b *bench) seconds() time.Duration { return time.Duration(b.o.Seconds) * time.Second }

// throughput has dnsperf ask the workload's questions, as many as it gets
// answered.
func (b *bench) throughput(ctx context.Context, r *running, w workload, strict bool) (run ThroughputRun, err error) {
	warm, err := b.questions(w.Kind, forWarmUp)
	if err != nil {
		return run, err
	}
	file, err := b.questions(w.Kind, forThroughput)
	if err != nil {
		return run, err
	}
	ask := dnsperf
	if w.Kind == cluster.HeadlessBig && w.TCP {
		ask = b.loadTCP
	}
	if _, err := ask(ctx, r.addr, warm.path, b.warmUp(), w.TCP); err != nil {
		return run, err
	}
	used, err := r.usage()
	if err != nil {
		return run, err
	}
	result, err := ask(ctx, r.addr, file.path, b.seconds(), w.TCP)
	if err != nil {
		return run, err
	}
	spent, err := r.usage()
	if err != nil {
		return run, err
	}
	if strict {
		if err := result.right(w.Kind); err != nil {
			return run, err
		}
	}
	if w.Kind.Unbounded() && result.Sent > file.n {
		return run, fmt.Errorf("%d questions were asked and only %d were made: some came twice", result.Sent, file.n)
	}
	per := func(d time.Duration) float64 { return micros(d) / float64(max(result.Completed, 1)) }
	return ThroughputRun{
		CPU: per(spent.cpu - used.cpu), CPUBehind: per(spent.cpuBehind - used.cpuBehind),
		QPS: result.QPS, Answered: result.Completed, Lost: result.Lost, RSS: spent.rss,
	}, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// spent is what a peer has used.
type spent struct {
	cpu, cpuBehind time.Duration
	rss            int64
}

func (r *running) usage() (s spent, err error) {
	u, err := r.measured.Usage()
	if err != nil {
		return s, fmt.Errorf("what it uses: %w; it says: %s", err, r.measured.Log.Tail(2000))
	}
	s.cpu, s.rss = u.CPU, u.RSS
	if r.behind != nil {
		if u, err = r.behind.Usage(); err != nil {
			return s, fmt.Errorf("what kube-dns behind it uses: %w", err)
		}
		s.cpuBehind = u.CPU
	}
	return s, nil
}

// latencyRate is how many questions a second are asked when latency is
// measured.
const latencyRate = 20_000

// latency asks mixed questions at latencyRate.
func (b *bench) latency(ctx context.Context, r *running) (run LatencyRun, err error) {
	if _, err := b.load(ctx, r.addr, latencyRate, b.warmUp(), forWarmUp); err != nil {
		return run, err
	}
	result, err := b.load(ctx, r.addr, latencyRate, b.seconds(), forLoad)
	if err != nil {
		return run, err
	}
	return latencyRun(result), nil
}

func latencyRun(r *load.Result) LatencyRun {
	return LatencyRun{
		QPS: float64(r.Answered) / r.Elapsed.Seconds(), Answered: r.Answered, Lost: r.Lost, Failed: r.Failed,
		P50: micros(r.P50), P99: micros(r.P99), P999: micros(r.P999), Max: micros(r.Max),
	}
}

// load has a process of its own ask mixed questions: rate a second, or as many
// as it gets answered where rate is 0.
func (b *bench) load(ctx context.Context, addr netip.AddrPort, rate int, d time.Duration, use purpose) (*load.Result, error) {
	file, err := b.questions(cluster.Mixed, use)
	if err != nil {
		return nil, err
	}
	args := []string{"-rate", strconv.Itoa(rate)}
	if rate == 0 {
		// No core is ever without work then: what changes cost is what questions
		// lose, wherever the system puts a thread.
		args = append(args, "-threads", strconv.Itoa(min(runtime.NumCPU(), clients)))
	}
	r, err := b.runSelf(ctx, addr, file.path, d, args...)
	if err != nil {
		return nil, err
	}
	if r.Failed > 0 && rate == 0 { // at a fixed rate a server may be overloaded
		return nil, fmt.Errorf("%d of %d answers are failures", r.Failed, r.Answered)
	}
	if r.Sent > file.n {
		return nil, fmt.Errorf("%d questions were asked and only %d were made: some came twice", r.Sent, file.n)
	}
	return r, nil
}

// runSelf runs this program as the load.
func (b *bench) runSelf(ctx context.Context, addr netip.AddrPort, file string, d time.Duration, args ...string) (*load.Result, error) {
	args = append([]string{
		"load", "-server", addr.String(), "-questions", file, "-duration", d.String(),
		"-sockets", strconv.Itoa(clients), "-outstanding", strconv.Itoa(outstanding),
	}, args...)
	text, err := runTool(ctx, b.bins.self, args...)
	if err != nil {
		return nil, err
	}
	r := &load.Result{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("what the load says: %w: %s", err, text)
	}
	if r.Answered == 0 {
		return nil, errors.New("no question was answered")
	}
	return r, nil
}

// loadTCP is dnsperf for answers over TCP that are larger than the 16 KB that
// dnsperf has room for.
func (b *bench) loadTCP(ctx context.Context, addr netip.AddrPort, file string, d time.Duration, _ bool) (*dnsperfResult, error) {
	r, err := b.runSelf(ctx, addr, file, d, "-tcp")
	if err != nil {
		return nil, err
	}
	if r.Failed > 0 {
		return nil, fmt.Errorf("%d of %d answers are failures", r.Failed, r.Answered)
	}
	return &dnsperfResult{
		Sent: r.Sent, Completed: r.Answered, Lost: r.Lost, Seconds: r.Elapsed.Seconds(),
		QPS: float64(r.Answered) / r.Elapsed.Seconds(), Rcodes: map[string]int{"NOERROR": r.Answered},
	}, nil
}
