package options

import (
	"errors"
	"flag"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"kubedns/pkg/dns/treecache"
)

// glogFlags stands in for the flags that glog registers.
func glogFlags() *flag.FlagSet {
	fs := flag.NewFlagSet("glog", flag.ContinueOnError)
	fs.Int("v", 0, "verbosity")
	fs.Bool("logtostderr", true, "log to standard error")
	fs.String("log_dir", "", "directory of log files")
	fs.String("vmodule", "", "verbosity by file")
	return fs
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == name {
				return v
			}
		}
		return ""
	}
}

// defaults are what kube-dns does when it is told nothing.
func defaults() *Options {
	return &Options{
		Domain: "cluster.local.", HealthzPort: 8081,
		BindAddress: netip.MustParseAddr("0.0.0.0"), Port: 53,
		ConfigMapNamespace: "kube-system", ConfigPeriod: 10 * time.Second,
		InitialSyncTimeout: time.Minute, DrainPeriod: 10 * time.Second, LogFlushFrequency: 5 * time.Second,
		TTL: 30 * time.Second, NegativeTTL: 30 * time.Second, UDPSize: 4096,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"}, MaxForwarded: 1000,
		MaxTCPConnections: 1000, TCPIdleTimeout: 10 * time.Second, MaxTCPConnectionsPerClient: 250,
		Prometheus: Prometheus{Path: "/metrics", Namespace: "skydns", Subsystem: "skydns"},
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		want func(*Options)
	}{
		{name: "nothing", want: func(*Options) {}},
		{
			name: "the stock pod",
			args: []string{"--domain=cluster.local.", "--dns-port=10053", "--config-dir=/kube-dns-config", "--v=2"},
			env:  []string{"PROMETHEUS_PORT=10055"},
			want: func(o *Options) {
				o.Port, o.ConfigDir, o.Prometheus.Port = 10053, "/kube-dns-config", 10055
			},
		},
		{
			name: "underscores count as dashes",
			args: []string{"--dns_port=10053", "--kube_master_url=http://192.0.2.1:8080", "--log_dir=/tmp/x", "-v", "3"},
			want: func(o *Options) { o.Port, o.MasterURL = 10053, "http://192.0.2.1:8080" },
		},
		{
			name: "a domain without a dot at its end, in mixed case",
			args: []string{"--domain=Cluster.Example.ORG"},
			want: func(o *Options) { o.Domain = "cluster.example.org." },
		},
		{
			name: "nameservers with blanks",
			args: []string{"--nameservers=192.0.2.1 , [2001:db8::1]:5353"},
			want: func(o *Options) {
				o.Nameservers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:5353")}
			},
		},
		{
			name: "a URL with environment variables",
			args: []string{"--kube-master-url=https://${KUBERNETES_SERVICE_HOST}:$KUBERNETES_SERVICE_PORT"},
			env:  []string{"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"},
			want: func(o *Options) { o.MasterURL = "https://10.96.0.1:443" },
		},
		{
			name: "an IPv6 address to bind",
			args: []string{"--dns-bind-address=::1"},
			want: func(o *Options) { o.BindAddress = netip.MustParseAddr("::1") },
		},
		{
			name: "federations",
			args: []string{"--federations=myfed=fed.example.org,other=example.com"},
			want: func(o *Options) {
				o.Federations = map[string]string{"myfed": "fed.example.org", "other": "example.com"}
			},
		},
		{
			name: "metrics' names",
			env:  []string{"PROMETHEUS_PATH=/m", "PROMETHEUS_NAMESPACE=a", "PROMETHEUS_SUBSYSTEM=b"},
			want: func(o *Options) { o.Prometheus = Prometheus{Path: "/m", Namespace: "a", Subsystem: "b"} },
		},
		{
			name: "metrics below a path",
			env:  []string{"PROMETHEUS_PATH=/a/m/"},
			want: func(o *Options) { o.Prometheus.Path = "/a/m/" },
		},
		{
			name: "another DNS service and TTL",
			args: []string{"--dns-service=kube-system/rke2-coredns", "--ttl=5s", "--negative-ttl=10s"},
			want: func(o *Options) {
				o.DNSService = treecache.Key{Namespace: "kube-system", Name: "rke2-coredns"}
				o.TTL, o.NegativeTTL = 5*time.Second, 10*time.Second
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, _, err := Parse(tc.args, env(tc.env...), glogFlags())
			if err != nil {
				t.Fatalf("Parse(%q): %v", tc.args, err)
			}
			want := defaults()
			tc.want(want)
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty(),
				cmpopts.IgnoreFields(Options{}, "Flags", "Environment")); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", tc.args, diff)
			}
		})
	}
}

// TestFlags: each flag and variable is listed with whether it was set, and no
// secret of a URL.
func TestFlags(t *testing.T) {
	getenv := env("PROMETHEUS_PORT=10055", "API=https://admin:secret@192.0.2.1")
	o, _, err := Parse([]string{"--dns_port=10053", "--ttl=30s", "--kube-master-url=https://admin:secret@192.0.2.1:6443/a?token=secret", "-v=2"}, getenv, glogFlags())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Flag{}
	for _, f := range append(o.Flags, o.Environment...) {
		got[f.Name] = f
	}
	for _, want := range []Flag{
		{"dns-port", "10053", "53", true},
		{"ttl", "30s", "30s", true},
		{"negative-ttl", "30s", "30s", false},
		{"kube-master-url", "https://xxxxx@192.0.2.1:6443/a?xxxxx", "", true},
		{"v", "2", "0", true},
		{"PROMETHEUS_PORT", "10055", "", true},
		{"PROMETHEUS_PATH", "/metrics", "/metrics", false},
	} {
		if got[want.Name] != want {
			t.Errorf("%s: %+v, want %+v", want.Name, got[want.Name], want)
		}
	}
	for in, want := range map[string]string{
		"$API": "$API", "http://a@b@c/d@e": "http://xxxxx@c/d@e", "http://[::1]:8080/@": "http://[::1]:8080/@", "https://h?a@b": "https://h?xxxxx", "a@b": "a@b",
	} {
		if got := hideSecrets(in); got != want {
			t.Errorf("hideSecrets(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestUnlistedFlagIsHidden: a flag that nobody has decided about is not shown,
// nor is its default.
func TestUnlistedFlagIsHidden(t *testing.T) {
	for _, args := range [][]string{nil, {"--api-token=hunter2"}} {
		fs := glogFlags()
		fs.String("api_token", "default-hunter2", "a flag of a library")
		o, _, err := Parse(args, env(), fs)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(o.Flags, func(f Flag) bool { return f.Name == "api-token" })
		if i < 0 {
			t.Fatalf("no --api-token in %+v", o.Flags)
		}
		if want := (Flag{"api-token", "xxxxx", "xxxxx", len(args) > 0}); o.Flags[i] != want {
			t.Errorf("%q: %+v, want %+v", args, o.Flags[i], want)
		}
	}
	if got, want := newFlag("PROMETHEUS_PASSWORD", "hunter2", "", true), (Flag{"PROMETHEUS_PASSWORD", "xxxxx", "xxxxx", true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestParseGlogFlags(t *testing.T) {
	fs := glogFlags()
	if _, _, err := Parse([]string{"--v=4", "--log-dir=/tmp/logs"}, env(), fs); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"v": "4", "log_dir": "/tmp/logs"} {
		if got := fs.Lookup(name).Value.String(); got != want {
			t.Errorf("-%s is %q, want %q", name, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"unknown flag", []string{"--no-such-flag"}, nil, "unknown flag: --no-such-flag"},
		{"an argument", []string{"serve"}, nil, `unexpected argument "serve"`},
		{"port that is no number", []string{"--dns-port=domain"}, nil, `invalid argument "domain" for "--dns-port" flag: must be an integer`},
		{"port too large", []string{"--dns-port=65536"}, nil, `--dns-port="65536": not a port from 1 to 65535`},
		{"port 0", []string{"--healthz-port=0"}, nil, `--healthz-port="0": not a port from 1 to 65535`},
		{"domain with an underscore", []string{"--domain=my_cluster.local"}, nil, `--domain="my_cluster.local": label "my_cluster": `},
		{"domain with an empty label", []string{"--domain=cluster..local"}, nil, `--domain="cluster..local": label "": `},
		{"domain with a long label", []string{"--domain=" + strings.Repeat("a", 64)}, nil, "must be no more than 63"},
		{"no domain", []string{"--domain=."}, nil, `--domain=".": must not be empty`},
		{"nameserver that is a name", []string{"--nameservers=ns.example.org"}, nil, `--nameservers="ns.example.org": `},
		{"nameserver with port 0", []string{"--nameservers=192.0.2.1:0"}, nil, `--nameservers="192.0.2.1:0": `},
		{"bind address that is a name", []string{"--dns-bind-address=localhost"}, nil, `--dns-bind-address="localhost": not an IP address`},
		{"URL without a host", []string{"--kube-master-url=https://$NONE"}, nil, `--kube-master-url="https://$NONE": "https://" is not http(s)://host[:port]`},
		{"URL of another kind", []string{"--kube-master-url=ftp://192.0.2.1"}, nil, `is not http(s)://host[:port]`},
		{"federation without a domain", []string{"--federations=myfed"}, nil, `--federations="myfed": `},
		{"both sources", []string{"--config-map=kube-dns", "--config-dir=/x"}, nil, "--config-map and --config-dir cannot be combined"},
		{"federations and a ConfigMap", []string{"--federations=a=example.org", "--config-map=kube-dns"}, nil, "--federations and --config-map cannot be combined"},
		{"federations and a directory", []string{"--federations=a=example.org", "--config-dir=/x"}, nil, "--federations and --config-dir cannot be combined"},
		{"manifests and a kubeconfig", []string{"--manifests=/x", "--kubecfg-file=/y"}, nil, "--manifests replaces the API server"},
		{"TTL of half a second", []string{"--ttl=500ms"}, nil, `--ttl="500ms": must be whole seconds, from 1s to 168h (a week)`},
		{"UDP size below 512", []string{"--udp-size=511"}, nil, `--udp-size="511": must be from 512 to 65535`},
		{"DNS service without a namespace", []string{"--dns-service=kube-dns"}, nil, `--dns-service="kube-dns": not namespace/name`},
		{"negative rate", []string{"--max-answers-per-second=-1"}, nil, `--max-answers-per-second="-1": must be at least 0`},
		{"no TCP connections", []string{"--max-tcp-connections=0"}, nil, `--max-tcp-connections="0": must be at least 1`},
		{"negative drain", []string{"--drain-period=-1s"}, nil, `--drain-period="-1s": must be at least 0s`},
		{"metrics port that is none", nil, []string{"PROMETHEUS_PORT=metrics"}, `PROMETHEUS_PORT="metrics": not a port from 1 to 65535`},
		{"metrics port too large", nil, []string{"PROMETHEUS_PORT=70000"}, `PROMETHEUS_PORT="70000": not a port from 1 to 65535`},
		{"metrics path without a slash", nil, []string{"PROMETHEUS_PATH=metrics"}, `PROMETHEUS_PATH="metrics": must begin with /`},
		{"metrics path with a brace", nil, []string{"PROMETHEUS_PATH=/{x"}, `PROMETHEUS_PATH="/{x": must not contain braces or blanks`},
		{"metrics path with a blank", nil, []string{"PROMETHEUS_PATH=/GET /metrics"}, `PROMETHEUS_PATH="/GET /metrics": must not contain braces or blanks`},
		{"metrics path that no request has", nil, []string{"PROMETHEUS_PATH=/a//b"}, `PROMETHEUS_PATH="/a//b": must not contain //, /./ or /../`},
		{"metrics namespace with a dash", nil, []string{"PROMETHEUS_NAMESPACE=my-dns"}, `PROMETHEUS_NAMESPACE="my-dns": must be letters, digits and underscores, and not begin with a digit`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := Parse(tc.args, env(tc.env...), glogFlags())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse(%q) with %q: error %v, want one with %q", tc.args, tc.env, err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %q", err)
			}
		})
	}
}

func TestParseHelp(t *testing.T) {
	_, usage, err := Parse([]string{"--help"}, env(), glogFlags())
	if !errors.Is(err, pflag.ErrHelp) {
		t.Fatalf("error %v, want %v", err, pflag.ErrHelp)
	}
	for _, name := range []string{"--domain", "--nameservers", "--kubecfg-file", "--kube-master-url", "--healthz-port",
		"--dns-bind-address", "--dns-port", "--federations", "--config-map", "--config-map-namespace", "--config-dir",
		"--config-period", "--initial-sync-timeout", "--profiling", "--version", "--drain-period", "--manifests", "--vmodule", "--logtostderr"} {
		if !strings.Contains(usage, name) {
			t.Errorf("the usage lacks %s", name)
		}
	}
}

func FuzzParseDomain(f *testing.F) {
	f.Add("cluster.local.")
	f.Add("Cluster.Example")
	f.Fuzz(func(t *testing.T, in string) {
		got, err := parseDomain(in)
		if err != nil {
			return
		}
		if again, err := parseDomain(got); err != nil || again != got {
			t.Errorf("parseDomain(%q) = %q, of which parseDomain makes %q, %v", in, got, again, err)
		}
	})
}
