package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kubedns/pkg/sidecar"
)

// options is the parsed command line.
type options struct {
	config            sidecar.Config
	logFlushFrequency time.Duration
	version           bool
}

// parseFlags reads the command line. It prints the usage and returns
// pflag.ErrHelp for --help. glog's flags take effect at once.
func parseFlags(args []string) (options, error) {
	var opts options
	var dnsmasqAddr, listenAddr string
	var dnsmasqPort, listenPort uint16
	var pollMilliseconds int64

	flags := pflag.NewFlagSet("sidecar", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	cfg := &opts.config
	flags.StringVar(&dnsmasqAddr, "dnsmasq-addr", "127.0.0.1", "IP address or host name of dnsmasq")
	flags.Uint16Var(&dnsmasqPort, "dnsmasq-port", 53, "port of dnsmasq")
	flags.Int64Var(&pollMilliseconds, "dnsmasq-poll-interval-ms", 5000, "polling interval for dnsmasq's counters in milliseconds")
	flags.StringVar(&listenAddr, "prometheus-addr", "0.0.0.0", "IP address or host name to listen on for metrics and health")
	flags.Uint16Var(&listenPort, "prometheus-port", 10054, "port to listen on for metrics and health")
	flags.StringVar(&cfg.MetricsPath, "prometheus-path", "/metrics", "path of the metrics")
	flags.StringVar(&cfg.Namespace, "prometheus-namespace", "kubedns", "prefix of the metrics' names")
	flags.Var((*probeFlag)(&cfg.Probes), "probe", "`label,server,name[,interval[,type[,uncached]]]`: a DNS query to send to a server periodically; "+
		"its health is served at /healthcheck/label. May be repeated. The port defaults to 53, the interval to 5 seconds, "+
		"the type (A, AAAA, SRV or ANY) to ANY. With uncached, dnsmasq forwards the query to the server behind it "+
		"in place of answering from its cache")
	flags.DurationVar(&opts.logFlushFrequency, "log-flush-frequency", 5*time.Second, "maximum time between two flushes of log files")
	flags.BoolVar(&opts.version, "version", false, "print the version and exit")
	if err := addLogFlags(flags); err != nil {
		return options{}, err
	}

	err := flags.Parse(twoDashes(flags, args))
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(os.Stdout, "Usage of sidecar:\n%s", flags.FlagUsages())
		return options{}, pflag.ErrHelp
	case err != nil:
		return options{}, err
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case dnsmasqPort == 0:
		return options{}, errors.New("--dnsmasq-port 0 must be 1 to 65535")
	case listenPort == 0:
		return options{}, errors.New("--prometheus-port 0 must be 1 to 65535")
	case pollMilliseconds <= 0 || pollMilliseconds > maxPollMilliseconds:
		return options{}, fmt.Errorf("--dnsmasq-poll-interval-ms %d must be 1 to %d", pollMilliseconds, maxPollMilliseconds)
	case opts.logFlushFrequency <= 0:
		return options{}, fmt.Errorf("--log-flush-frequency %v must be positive", opts.logFlushFrequency)
	}
	cfg.PollInterval = time.Duration(pollMilliseconds) * time.Millisecond
	if cfg.Dnsmasq, err = joinHostPort(dnsmasqAddr, dnsmasqPort); err != nil {
		return options{}, fmt.Errorf("--dnsmasq-addr %q %w", dnsmasqAddr, err)
	}
	if listenAddr == "" {
		cfg.Listen = net.JoinHostPort("", strconv.Itoa(int(listenPort))) // every address
	} else if cfg.Listen, err = joinHostPort(listenAddr, listenPort); err != nil {
		return options{}, fmt.Errorf("--prometheus-addr %q %w", listenAddr, err)
	}
	return opts, nil
}

// maxPollMilliseconds is a day.
const maxPollMilliseconds = 24 * 60 * 60 * 1000

func joinHostPort(host string, port uint16) (string, error) {
	host, err := sidecar.ParseHost(host)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port))), nil
}

// addLogFlags adds glog's flags, with standard error as the default for logs: the
// root file system may be read-only.
func addLogFlags(flags *pflag.FlagSet) error {
	if err := flag.CommandLine.Parse(nil); err != nil { // else glog logs that flags are not parsed
		return err
	}
	if err := flag.Set("logtostderr", "true"); err != nil {
		return err
	}
	flags.AddGoFlagSet(flag.CommandLine)
	flags.Lookup("logtostderr").DefValue = "true"
	return nil
}

// twoDashes returns args with two dashes before each long flag that has one, such
// as "-logtostderr=true". Go's flag package, and so older manifests, allow that;
// pflag would read it as a group of one-letter flags.
func twoDashes(flags *pflag.FlagSet, args []string) []string {
	var out []string
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if len(name) > 1 && name[0] != '-' && arg[0] == '-' && flags.Lookup(name) != nil {
			arg = "-" + arg
		}
		out = append(out, arg)
	}
	return out
}

// probeFlag is the value of --probe, which adds a probe each time.
type probeFlag []sidecar.Probe

func (f *probeFlag) Set(text string) error {
	p, err := sidecar.ParseProbe(text)
	if err != nil {
		return err
	}
	*f = append(*f, p)
	return nil
}

func (f *probeFlag) String() string {
	var texts []string
	for _, p := range *f {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " ")
}

func (f *probeFlag) Type() string { return "probe" }
