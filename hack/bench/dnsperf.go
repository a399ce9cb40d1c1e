package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/proc"
)

// The load of every throughput measurement.
const (
	clients     = 16
	outstanding = 100
)

// dnsperfResult is what dnsperf says of a run.
type dnsperfResult struct {
	Sent, Completed, Lost int
	Seconds               float64
	QPS                   float64
	Rcodes                map[string]int
}

// parseDNSPerf reads dnsperf's statistics.
func parseDNSPerf(text string) (*dnsperfResult, error) {
	r := &dnsperfResult{Rcodes: map[string]int{}}
	seen := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		key, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		fields := strings.Fields(value)
		if !ok || len(fields) == 0 {
			continue
		}
		var err error
		switch key {
		case "Queries sent":
			r.Sent, err = strconv.Atoi(fields[0])
		case "Queries completed":
			r.Completed, err = strconv.Atoi(fields[0])
		case "Queries lost":
			r.Lost, err = strconv.Atoi(fields[0])
		case "Run time (s)":
			r.Seconds, err = strconv.ParseFloat(fields[0], 64)
		case "Queries per second":
			r.QPS, err = strconv.ParseFloat(fields[0], 64)
		case "Response codes": // NOERROR 90 (90.00%), NXDOMAIN 10 (10.00%)
			err = parseRcodes(value, r.Rcodes)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("dnsperf's line %q: %w", lines.Text(), err)
		}
		seen[key] = true
	}
	for _, key := range []string{"Queries sent", "Queries completed", "Queries lost", "Run time (s)", "Queries per second"} {
		if !seen[key] {
			return nil, fmt.Errorf("dnsperf does not say %q: %s", key, text)
		}
	}
	return r, nil
}

func parseRcodes(text string, into map[string]int) error {
	for part := range strings.SplitSeq(text, ",") {
		fields := strings.Fields(part)
		if len(fields) < 2 {
			return errors.New("no code and number")
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return err
		}
		into[fields[0]] = n
	}
	return nil
}

// right reports whether all answers have the response code that they should:
// a server that refuses everything is fast.
func (r *dnsperfResult) right(k cluster.Kind) error {
	nxdomain := 0.0
	switch k {
	case cluster.NXDOMAIN:
		nxdomain = 100
	case cluster.Mixed:
		for _, s := range cluster.Shares() {
			if s.Kind == cluster.NXDOMAIN {
				nxdomain = float64(s.Percent)
			}
		}
	}
	if r.Completed == 0 {
		return errors.New("no question was answered")
	}
	percent := float64(r.Rcodes["NXDOMAIN"]) / float64(r.Completed) * 100
	if percent < nxdomain-2 || percent > nxdomain+2 || r.Rcodes["NXDOMAIN"]+r.Rcodes["NOERROR"] != r.Completed {
		return fmt.Errorf("the answers are %v, want %.0f %% NXDOMAIN and the others NOERROR", r.Rcodes, nxdomain)
	}
	return nil
}

// dnsperf asks the questions in file for so long.
func dnsperf(ctx context.Context, addr netip.AddrPort, file string, d time.Duration, tcp bool) (*dnsperfResult, error) {
	path, err := find("dnsperf")
	if err != nil {
		return nil, err
	}
	mode := "udp"
	if tcp {
		mode = "tcp"
	}
	text, err := runTool(ctx, path, "-B", "-d", file, "-s", addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())),
		"-m", mode, "-c", strconv.Itoa(clients), "-q", strconv.Itoa(outstanding),
		"-l", strconv.FormatFloat(d.Seconds(), 'f', -1, 64), "-t", "2")
	if err != nil {
		return nil, err
	}
	return parseDNSPerf(text)
}

// runTool runs a program to its end and returns what it wrote.
func runTool(ctx context.Context, path string, args ...string) (string, error) {
	p, err := proc.Start(nil, path, args...)
	if err != nil {
		return "", err
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), p.Stop(2*time.Second))
	}
	if code := p.ExitCode(); code != 0 {
		return "", fmt.Errorf("%s exited with %d: %s", filepath.Base(path), code, p.Log.Tail(2000))
	}
	return p.Log.String(), nil
}

// A purpose is what a file of questions is for. Those of different purposes
// have different names in them, where names are ever new.
type purpose string

const (
	forWarmUp     purpose = "warm-up"
	forThroughput purpose = "throughput"
	forLoad       purpose = "load"
	forChange     purpose = "change"
)

// fileKey is what a file of questions is known by.
type fileKey struct {
	kind cluster.Kind
	use  purpose
}

// questionFile is a file of questions.
type questionFile struct {
	path string
	n    int
}

// mostQPS is how many questions a second a file of ever new ones has to last
// for.
const mostQPS = 500_000

// questions is a file of questions of kind, made when it is first asked for.
func (b *bench) questions(k cluster.Kind, use purpose) (questionFile, error) {
	key := fileKey{k, use}
	f, ok := b.files[key]
	if ok {
		return f, nil
	}
	f = questionFile{path: filepath.Join(b.dir, fmt.Sprintf("%s-%s.questions", k, use)), n: 50_000}
	switch {
	case !k.Unbounded():
	case use == forWarmUp, use == forChange: // a second
		f.n = mostQPS
	default:
		f.n = mostQPS * b.o.Seconds
	}
	seed := map[purpose]uint64{forThroughput: 1, forWarmUp: 2, forLoad: 3, forChange: 4}[use]
	out, err := os.Create(f.path)
	if err != nil {
		return f, err
	}
	err = errors.Join(cluster.NewQuestions(b.cluster, seed).Write(out, k, f.n), out.Close())
	b.files[key] = f
	return f, err
}
