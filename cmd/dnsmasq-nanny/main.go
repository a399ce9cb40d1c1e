// Dnsmasq-nanny runs dnsmasq, gives it its servers from a ConfigMap's directory,
// and restarts it when it dies. See package dnsmasq.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/dnsmasq"
	"kubedns/pkg/version"
)

const (
	// guardWord is the program's only argument when it runs as its own guard.
	guardWord = "guard"
	// guardedWord comes before dnsmasq's path and arguments when the program
	// becomes dnsmasq once the guard knows of it.
	guardedWord = "guarded"
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	if len(args) == 2 && args[1] == guardWord {
		// It ignores signals that are for the nanny, and ends when the pipe does.
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		if err := dnsmasq.RunGuard(os.Stdin); err != nil {
			return 1
		}
		return 0
	}
	if len(args) > 2 && args[1] == guardedWord {
		fmt.Fprintln(os.Stderr, "dnsmasq-nanny:", dnsmasq.RunGuarded(args[2:]))
		return 127 // as a shell that cannot start a program
	}
	defer glog.Flush()
	opts, showVersion, err := parseFlags(flag.CommandLine, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "dnsmasq-nanny: %v\n", err)
		return 2
	case showVersion:
		fmt.Println(version.Version)
		return 0
	}
	glog.Infof("dnsmasq-nanny: version %s, revision %s", version.Version, version.Revision)

	// The first signal drains, the second one aborts.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	abort := make(chan struct{})
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for _, act := range []func(){cancel, func() { close(abort) }} {
			select {
			case s := <-signals:
				glog.Infof("dnsmasq-nanny: received %v", s)
				act()
			case <-ended:
				return
			}
		}
	}()
	opts.Abort = abort
	if self, err := os.Executable(); err == nil {
		opts.Guard, opts.Guarded = []string{self, guardWord}, []string{self, guardedWord}
	} else {
		glog.Warningf("dnsmasq-nanny: dnsmasq would be orphaned if the nanny were killed: %v", err)
	}
	if err := dnsmasq.New(opts).Run(ctx); err != nil {
		glog.Errorf("dnsmasq-nanny: %v", err)
		return 1
	}
	select {
	case <-abort:
		return 1
	default:
		return 0
	}
}

// parseFlags reads the arguments, without the program's name. Flags are in Go's
// style, with one dash or two; what follows "--" is for dnsmasq and stays
// unchanged. set may have other flags already, such as glog's, whose default is
// made standard error.
func parseFlags(set *flag.FlagSet, args []string) (opts dnsmasq.Options, showVersion bool, err error) {
	set.Init("dnsmasq-nanny", flag.ContinueOnError)
	set.Usage = func() { usage(set, set.Output()) }
	set.StringVar(&opts.Exec, "dnsmasqExec", "/usr/sbin/dnsmasq", "`path` of dnsmasq")
	set.StringVar(&opts.ConfigDir, "configDir", "/etc/k8s/dns/dnsmasq-nanny", "`directory` where the ConfigMap with stubDomains and upstreamNameservers is mounted")
	set.BoolVar(&opts.Restart, "restartDnsmasq", false, "apply changes of the configuration, most without a restart of dnsmasq; false: log and ignore them")
	set.DurationVar(&opts.SyncInterval, "syncInterval", 10*time.Second, "polling interval for -configDir, in addition to inotify")
	set.StringVar(&opts.KubednsServer, "kubednsServer", "127.0.0.1:10053", "`host:port` of kube-dns, which resolves stub domains' servers that are names in the cluster domain")
	set.DurationVar(&opts.LogInterval, "logInterval", 0, "how often dnsmasq logs its statistics; 0 = never")
	set.DurationVar(&opts.DrainPeriod, "drainPeriod", 7*time.Second, "how long dnsmasq goes on answering after SIGTERM")
	set.StringVar(&opts.MetricsAddr, "metricsAddr", "", "`host:port` to serve /metrics on; empty = disabled")
	set.StringVar(&opts.StateDir, "stateDir", "/run/dnsmasq-nanny", "`directory` for the servers file and the last good configuration")
	set.BoolVar(&showVersion, "version", false, "print the version and exit")
	if f := set.Lookup("logtostderr"); f != nil {
		if err := f.Value.Set("true"); err != nil {
			return opts, false, err
		}
		f.DefValue = "true"
	}
	if err := set.Parse(args); err != nil {
		return opts, false, err
	}
	rest := set.Args()
	if at := len(args) - len(rest); len(rest) > 0 && (at == 0 || args[at-1] != "--") {
		return opts, false, fmt.Errorf("unexpected argument %q: dnsmasq's own arguments come after --", rest[0])
	}
	opts.Args = rest
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"syncInterval", opts.SyncInterval}, {"logInterval", opts.LogInterval}, {"drainPeriod", opts.DrainPeriod}} {
		if d.value < 0 {
			return opts, false, fmt.Errorf("-%s is negative: %v", d.name, d.value)
		}
	}
	return opts, showVersion, nil
}

func usage(set *flag.FlagSet, w io.Writer) {
	fmt.Fprintf(w, "Usage: %s [flags] -- [dnsmasq's arguments]\n", filepath.Base(set.Name()))
	set.PrintDefaults()
}
