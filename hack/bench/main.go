// Bench measures kube-dns beside its peers, each alone, on one machine in one
// run, and writes what it found: a table in README.md, chart.svg and
// results.json. README.md says what is measured and how.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"kubedns/hack/bench/load"
)

func main() { os.Exit(start(os.Args[1:])) }

// start runs what the arguments ask for, until SIGINT or SIGTERM, and returns
// the exit code.
func start(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run := run
	if len(args) > 0 && args[0] == "load" {
		run, args = runLoad, args[1:]
	}
	if err := run(ctx, args); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// The parts of a run.
const (
	partUDP     = "udp"
	partTCP     = "tcp"
	partLatency = "latency"
	partStart   = "start"
	partChange  = "change"
	partMemory  = "memory"
)

func allParts() []string {
	return []string{partUDP, partTCP, partLatency, partStart, partChange, partMemory}
}

// options are the flags.
type options struct {
	Rounds  int
	Seconds int
	Parts   []string
	Peers   []string // nil: all
	Out     string   // "": as its text says
	Timeout time.Duration
}

func parseOptions(args []string, output io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(output)
	var only, peers string
	fs.IntVar(&o.Rounds, "rounds", 3, "how often everything is measured; the medians are reported")
	fs.IntVar(&o.Seconds, "seconds", 5, "how long each load lasts")
	fs.StringVar(&only, "only", "", "comma-separated parts, of "+strings.Join(allParts(), ",")+"; all where empty")
	fs.StringVar(&peers, "peers", "", "comma-separated servers, of "+strings.Join(peerNames(), ",")+"; all where empty")
	fs.StringVar(&o.Out, "out", "", "directory for README.md, chart.svg and results.json; hack/bench after a run of everything, else bin/bench")
	fs.DurationVar(&o.Timeout, "timeout", time.Hour, "end after so long, whatever is missing")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.Rounds < 1 || o.Seconds < 1 {
		return nil, errors.New("-rounds and -seconds are 1 at the least")
	}
	var err error
	if o.Parts, err = choose("-only", only, allParts()); err != nil {
		return nil, err
	}
	o.Peers, err = choose("-peers", peers, peerNames())
	return o, err
}

// choose is the words of list, which are all in of; all of these where list is
// empty.
func choose(name, list string, of []string) ([]string, error) {
	if list == "" {
		return of, nil
	}
	words := strings.Split(list, ",")
	for _, w := range words {
		if !slices.Contains(of, w) {
			return nil, fmt.Errorf("%s: %q is none of %s", name, w, strings.Join(of, ","))
		}
	}
	return words, nil
}

// complete reports whether the run measures everything.
func (o *options) complete() bool {
	return len(o.Parts) == len(allParts()) && len(o.Peers) == len(peerNames())
}

func (o *options) has(part string) bool { return slices.Contains(o.Parts, part) }

// run is the whole of `make bench`.
func run(ctx context.Context, args []string) error {
	o, err := parseOptions(args, os.Stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	err = b.measure(ctx)
	if err = errors.Join(err, b.close()); err != nil {
		return err
	}
	return b.write()
}

// runLoad is this program as the load of its own run, in a process that has
// nothing else to do. It writes a load.Result as JSON.
func runLoad(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	server := fs.String("server", "", "address:port")
	questions := fs.String("questions", "", "file of messages with their lengths")
	o := load.Options{}
	tcp := fs.Bool("tcp", false, "ask over TCP; -rate does not count")
	fs.IntVar(&o.Sockets, "sockets", 16, "sockets")
	fs.DurationVar(&o.Duration, "duration", time.Second, "how long")
	fs.IntVar(&o.Rate, "rate", 0, "questions a second; 0: as fast as -outstanding allows")
	fs.IntVar(&o.Outstanding, "outstanding", 100, "questions under way at one time")
	fs.IntVar(&o.Threads, "threads", 1, "threads that ask, where there is no -rate")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if o.Server, err = netip.ParseAddrPort(*server); err != nil {
		return err
	}
	if o.Questions, err = os.ReadFile(*questions); err != nil {
		return err
	}
	ask := load.Run
	if *tcp {
		ask = load.RunTCP
	}
	r, err := ask(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
