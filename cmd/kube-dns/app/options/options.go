// Package options has kube-dns's flags and environment variables, parsed and
// validated.
package options

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/treecache"
)

// Options is what kube-dns is told by its flags and its environment. It is
// valid once Parse has returned it.
type Options struct {
	Domain      string           // "cluster.local.", in lower case
	Nameservers []netip.AddrPort // nil: those of /etc/resolv.conf

	Kubeconfig string
	MasterURL  string // with environment variables expanded

	HealthzPort int
	BindAddress netip.Addr
	Port        int

	Federations        map[string]string
	ConfigMap          string // name; empty for none
	ConfigMapNamespace string
	ConfigDir          string // empty for none
	ConfigPeriod       time.Duration
	Manifests          string // directory that stands in for the cluster; empty for none

	SnapshotFile string // where what is known outlives a restart; empty for nowhere

	InitialSyncTimeout time.Duration
	DrainPeriod        time.Duration
	Profiling          bool
	LogFlushFrequency  time.Duration
	Version            bool

	TTL               time.Duration
	NegativeTTL       time.Duration
	UDPSize           int
	UDPSockets        int
	DNSService        treecache.Key
	MaxForwarded      int
	MaxTCPConnections int
	TCPIdleTimeout    time.Duration

	MaxTCPConnectionsPerClient int
	MaxAnswersPerSecond        int // 0: no bound

	Prometheus Prometheus

	// Flags has every flag, in the order of their names, for people to read.
	Flags []Flag
	// Environment has the variables that are read, likewise.
	Environment []Flag
}

// Prometheus is what the environment says of the metrics.
type Prometheus struct {
	Port                 int // 0: none
	Path                 string
	Namespace, Subsystem string
}

// Parse reads args, without the program's name, and the environment. goFlags
// are those that libraries have (glog's). The error is pflag.ErrHelp, with
// usage the text to print, or says which flag is wrong and why.
func Parse(args []string, getenv func(string) string, goFlags *flag.FlagSet) (o *Options, usage string, err error) {
	o = &Options{}
	fs := pflag.NewFlagSet("kube-dns", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	var domain, nameservers, bind, federations, dnsService, master string
	fs.StringVar(&domain, "domain", "cluster.local.", "cluster domain; kube-dns is authoritative for the names below it")
	fs.StringVar(&nameservers, "nameservers", "", "comma-separated ip[:port] of the upstream nameservers; overrides those of /etc/resolv.conf")
	fs.StringVar(&o.Kubeconfig, "kubecfg-file", "", "kubeconfig file for access to the API server; without it and --kube-master-url, the pod's service account is used")
	fs.StringVar(&master, "kube-master-url", "", "URL of the API server, overrides the kubeconfig's; environment variables in it are expanded")
	fs.IntVar(&o.HealthzPort, "healthz-port", 8081, "HTTP port of /, /explain, /config, /readiness and /cache")
	fs.StringVar(&bind, "dns-bind-address", "0.0.0.0", "IPv4 or IPv6 address to listen on for DNS")
	fs.IntVar(&o.Port, "dns-port", 53, "port to listen on for DNS, UDP and TCP")
	fs.StringVar(&federations, "federations", "", "federations as name=domain,name=domain; deprecated, use the ConfigMap")
	fs.StringVar(&o.ConfigMap, "config-map", "", "name of the ConfigMap to watch for the configuration; cannot be combined with --config-dir")
	fs.StringVar(&o.ConfigMapNamespace, "config-map-namespace", "kube-system", "namespace of the ConfigMap")
	fs.StringVar(&o.ConfigDir, "config-dir", "", "directory to read the configuration from, such as a mounted ConfigMap; cannot be combined with --config-map")
	fs.DurationVar(&o.ConfigPeriod, "config-period", 10*time.Second, "polling interval for --config-dir, in addition to inotify")
	fs.StringVar(&o.Manifests, "manifests", "", "directory of YAML or JSON files; serve their Services and EndpointSlices instead of an API server's")
	fs.StringVar(&o.SnapshotFile, "snapshot-file", "", "file to save Services and EndpointSlices in; after a restart they are served until the API server answers")
	fs.DurationVar(&o.InitialSyncTimeout, "initial-sync-timeout", time.Minute, "log a warning if Services and EndpointSlices are not listed after this time")
	fs.DurationVar(&o.DrainPeriod, "drain-period", 10*time.Second, "maximum time to keep answering after SIGTERM; ends early once there are no more queries")
	fs.BoolVar(&o.Profiling, "profiling", false, "serve pprof on localhost:6060")
	fs.DurationVar(&o.LogFlushFrequency, "log-flush-frequency", 5*time.Second, "interval between two flushes of the log")
	fs.BoolVar(&o.Version, "version", false, "print the version and exit")
	fs.DurationVar(&o.TTL, "ttl", 30*time.Second, "TTL of records, in whole seconds")
	fs.DurationVar(&o.NegativeTTL, "negative-ttl", 30*time.Second, "TTL of negative answers, in whole seconds")
	fs.IntVar(&o.UDPSize, "udp-size", 4096, "maximum size of a UDP response, in octets")
	fs.IntVar(&o.UDPSockets, "udp-sockets", 0, "number of UDP sockets that share the port; 0 = one per CPU")
	fs.StringVar(&dnsService, "dns-service", "kube-system/kube-dns", "namespace/name of the Service that provides the addresses of ns.dns.<domain>")
	fs.IntVar(&o.MaxForwarded, "max-forwarded", 1000, "maximum concurrent forwarded queries; excess gets SERVFAIL")
	fs.IntVar(&o.MaxTCPConnections, "max-tcp-connections", 1000, "maximum concurrent TCP connections; when exceeded, the longest idle one is closed")
	fs.IntVar(&o.MaxTCPConnectionsPerClient, "max-tcp-connections-per-client", 250, "maximum concurrent TCP connections of one client address; when exceeded, the client's own longest idle one is closed")
	fs.IntVar(&o.MaxAnswersPerSecond, "max-answers-per-second", 0, "maximum UDP responses a second to one client address, 0 = unlimited; not for use behind dnsmasq, which is one client")
	fs.DurationVar(&o.TCPIdleTimeout, "tcp-idle-timeout", 10*time.Second, "time after which an idle TCP connection is closed")
	goFlags.VisitAll(func(f *flag.Flag) {
		if fs.Lookup(f.Name) == nil {
			fs.AddGoFlag(f)
		}
	})

	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil, "Usage: kube-dns [flags]\n\n" + fs.FlagUsages(), err
	} else if err != nil {
		return nil, "", err
	}
	if fs.NArg() > 0 {
		return nil, "", fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.Version {
		return o, "", nil
	}
	fs.VisitAll(func(f *pflag.Flag) {
		o.Flags = append(o.Flags, newFlag(f.Name, f.Value.String(), f.DefValue, f.Changed))
	})
	return o, "", o.complete(raw{domain, nameservers, bind, federations, dnsService, master}, getenv)
}

// raw are the flags' values that are parsed further.
type raw struct{ domain, nameservers, bind, federations, dnsService, master string }

func (o *Options) complete(r raw, getenv func(string) string) (err error) {
	flagErr := func(name, value string, err error) error {
		return fmt.Errorf("--%s=%q: %w", name, value, err)
	}
	if o.Domain, err = parseDomain(r.domain); err != nil {
		return flagErr("domain", r.domain, err)
	}
	if o.Nameservers, err = config.ParseNameservers(r.nameservers); err != nil {
		return flagErr("nameservers", r.nameservers, err)
	}
	if o.BindAddress, err = netip.ParseAddr(strings.Trim(r.bind, "[]")); err != nil {
		return flagErr("dns-bind-address", r.bind, errors.New("not an IP address"))
	}
	if o.MasterURL, err = expandURL(r.master, getenv); err != nil {
		return flagErr("kube-master-url", r.master, err)
	}
	if o.Federations, err = config.ParseFederations(r.federations); err != nil {
		return flagErr("federations", r.federations, err)
	}
	if o.DNSService, err = parseService(r.dnsService); err != nil {
		return flagErr("dns-service", r.dnsService, err)
	}
	for _, p := range []struct {
		name string
		port int
	}{{"dns-port", o.Port}, {"healthz-port", o.HealthzPort}} {
		if p.port < 1 || p.port > 65535 {
			return flagErr(p.name, strconv.Itoa(p.port), errors.New("not a port from 1 to 65535"))
		}
	}
	for _, d := range []struct {
		name     string
		duration time.Duration
		least    time.Duration
	}{
		{"config-period", o.ConfigPeriod, time.Millisecond}, {"initial-sync-timeout", o.InitialSyncTimeout, 0},
		{"drain-period", o.DrainPeriod, 0}, {"log-flush-frequency", o.LogFlushFrequency, time.Millisecond},
		{"tcp-idle-timeout", o.TCPIdleTimeout, time.Millisecond},
	} {
		if d.duration < d.least {
			return flagErr(d.name, d.duration.String(), fmt.Errorf("must be at least %v", d.least))
		}
	}
	for _, t := range []struct {
		name string
		ttl  time.Duration
	}{{"ttl", o.TTL}, {"negative-ttl", o.NegativeTTL}} {
		if t.ttl < time.Second || t.ttl > time.Hour*24*7 || t.ttl%time.Second != 0 {
			return flagErr(t.name, t.ttl.String(), errors.New("must be whole seconds, from 1s to 168h (a week)"))
		}
	}
	if o.UDPSize < 512 || o.UDPSize > 65535 {
		return flagErr("udp-size", strconv.Itoa(o.UDPSize), errors.New("must be from 512 to 65535"))
	}
	if o.UDPSockets < 0 || o.UDPSockets > 1024 {
		return flagErr("udp-sockets", strconv.Itoa(o.UDPSockets), errors.New("must be from 0 to 1024"))
	}
	for _, n := range []struct {
		name         string
		value, least int
	}{
		{"max-forwarded", o.MaxForwarded, 1}, {"max-tcp-connections", o.MaxTCPConnections, 1},
		{"max-tcp-connections-per-client", o.MaxTCPConnectionsPerClient, 1}, {"max-answers-per-second", o.MaxAnswersPerSecond, 0},
	} {
		if n.value < n.least {
			return flagErr(n.name, strconv.Itoa(n.value), fmt.Errorf("must be at least %d", n.least))
		}
	}
	if err := o.exclusive(); err != nil {
		return err
	}
	return o.environment(getenv)
}

// exclusive refuses flags that cannot be combined.
func (o *Options) exclusive() error {
	switch {
	case o.ConfigMap != "" && o.ConfigDir != "":
		return errors.New("--config-map and --config-dir cannot be combined")
	case len(o.Federations) > 0 && o.ConfigMap != "":
		return errors.New("--federations and --config-map cannot be combined")
	case len(o.Federations) > 0 && o.ConfigDir != "":
		return errors.New("--federations and --config-dir cannot be combined")
	case o.Manifests != "" && o.ConfigMap != "":
		return errors.New("--config-map needs an API server, and --manifests replaces it")
	case o.Manifests != "" && o.SnapshotFile != "":
		return errors.New("--snapshot-file saves objects of an API server, and --manifests replaces it")
	case o.Manifests != "" && (o.Kubeconfig != "" || o.MasterURL != ""):
		return errors.New("--manifests replaces the API server, so --kubecfg-file and --kube-master-url cannot be used with it")
	}
	return nil
}

func (o *Options) environment(getenv func(string) string) error {
	or := func(name, otherwise string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	for _, v := range []struct{ name, otherwise string }{
		{"PROMETHEUS_NAMESPACE", "skydns"}, {"PROMETHEUS_PATH", "/metrics"}, {"PROMETHEUS_PORT", ""}, {"PROMETHEUS_SUBSYSTEM", "skydns"},
	} {
		o.Environment = append(o.Environment, newFlag(v.name, or(v.name, v.otherwise), v.otherwise, getenv(v.name) != ""))
	}
	o.Prometheus = Prometheus{
		Path:      or("PROMETHEUS_PATH", "/metrics"),
		Namespace: or("PROMETHEUS_NAMESPACE", "skydns"),
		Subsystem: or("PROMETHEUS_SUBSYSTEM", "skydns"),
	}
	if err := checkPath(o.Prometheus.Path); err != nil {
		return fmt.Errorf("PROMETHEUS_PATH=%q: %w", o.Prometheus.Path, err)
	}
	for _, name := range []string{"PROMETHEUS_NAMESPACE", "PROMETHEUS_SUBSYSTEM"} {
		if v := or(name, "skydns"); !validMetricPart(v) {
			return fmt.Errorf("%s=%q: must be letters, digits and underscores, and not begin with a digit", name, v)
		}
	}
	if v := getenv("PROMETHEUS_PORT"); v != "" {
		port, err := strconv.Atoi(v)
		if err != nil || port < 1 || port > 65535 {
			return fmt.Errorf("PROMETHEUS_PORT=%q: not a port from 1 to 65535", v)
		}
		o.Prometheus.Port = port
	}
	return nil
}

// checkPath refuses what http.ServeMux would panic at, or never match: its
// patterns have a meaning for braces and blanks, and requests' paths are
// cleaned.
func checkPath(s string) error {
	switch {
	case !strings.HasPrefix(s, "/"):
		return errors.New("must begin with /")
	case strings.ContainsAny(s, "{} \t"):
		return errors.New("must not contain braces or blanks")
	case s != "/" && strings.TrimSuffix(s, "/") != path.Clean(s):
		return errors.New("must not contain //, /./ or /../")
	}
	return nil
}

func validMetricPart(s string) bool {
	for i, c := range s {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// parseDomain is the cluster domain in lower case and with a trailing dot.
func parseDomain(s string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	if name == "" {
		return "", errors.New("must not be empty")
	}
	for label := range strings.SplitSeq(name, ".") {
		if msgs := validation.IsDNS1123Label(label); len(msgs) > 0 {
			return "", fmt.Errorf("label %q: %s", label, strings.Join(msgs, "; "))
		}
	}
	// There is to be room for names below it; those that are too long all the
	// same the tree leaves out.
	if len(name) > 200 {
		return "", errors.New("must be at most 200 octets long")
	}
	return name + ".", nil
}

func parseService(s string) (treecache.Key, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return treecache.Key{}, errors.New("not namespace/name")
	}
	return treecache.Key{Namespace: namespace, Name: name}, nil
}

// expandURL expands environment variables, and refuses what is no API server's
// URL after that.
func expandURL(s string, getenv func(string) string) (string, error) {
	if s == "" {
		return "", nil
	}
	expanded := os.Expand(s, getenv)
	u, err := url.Parse(expanded)
	if err != nil {
		return "", fmt.Errorf("%q: %w", expanded, err)
	}
	if !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Host == "" || u.Hostname() == "" {
		return "", fmt.Errorf("%q is not http(s)://host[:port]", expanded)
	}
	return expanded, nil
}
