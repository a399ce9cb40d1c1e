package main

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"kubedns/pkg/sidecar"
)

func defaults() sidecar.Config {
	return sidecar.Config{
		Dnsmasq: "127.0.0.1:53", PollInterval: 5 * time.Second,
		Listen: "0.0.0.0:10054", MetricsPath: "/metrics", Namespace: "kubedns",
	}
}

func stockProbes(qtype uint16) []sidecar.Probe {
	const name = "kubernetes.default.svc.cluster.local."
	return []sidecar.Probe{
		{Label: "kubedns", Server: "127.0.0.1:10053", Name: name, Interval: 5 * time.Second, Qtype: qtype},
		{Label: "dnsmasq", Server: "127.0.0.1:53", Name: name, Interval: 5 * time.Second, Qtype: qtype},
	}
}

func TestParseFlags(t *testing.T) {
	config := func(change func(*sidecar.Config)) sidecar.Config {
		c := defaults()
		change(&c)
		return c
	}
	tests := []struct {
		name      string
		args      string // separated by blanks
		want      sidecar.Config
		verbosity string // of glog, "0" where empty
	}{
		{name: "none", args: "", want: defaults()},
		{
			name: "stock manifest",
			args: "--v=2 --probe=kubedns,127.0.0.1:10053,kubernetes.default.svc.cluster.local,5,SRV --probe=dnsmasq,127.0.0.1:53,kubernetes.default.svc.cluster.local,5,SRV",
			want: config(func(c *sidecar.Config) { c.Probes = stockProbes(dns.TypeSRV) }), verbosity: "2",
		},
		{
			name: "older manifest",
			args: "--v=2 --logtostderr --probe=kubedns,127.0.0.1:10053,kubernetes.default.svc.cluster.local,5,A --probe=dnsmasq,127.0.0.1:53,kubernetes.default.svc.cluster.local,5,A",
			want: config(func(c *sidecar.Config) { c.Probes = stockProbes(dns.TypeA) }), verbosity: "2",
		},
		{name: "one dash", args: "-v=2 -logtostderr=true -prometheus-port=10055", verbosity: "2",
			want: config(func(c *sidecar.Config) { c.Listen = "0.0.0.0:10055" })},
		{name: "one dash, blank", args: "-v 3 -logtostderr -dnsmasq-port 54", verbosity: "3",
			want: config(func(c *sidecar.Config) { c.Dnsmasq = "127.0.0.1:54" })},
		{name: "underscores", args: "--prometheus_port=10055 --log_dir=/tmp", want: config(func(c *sidecar.Config) { c.Listen = "0.0.0.0:10055" })},
		{name: "glog's others", args: "--vmodule=prober=4 --alsologtostderr=false --stderrthreshold=2 --log-flush-frequency=1s --log_backtrace_at=", want: defaults()},
		{
			name: "all",
			args: "--dnsmasq-addr=::1 --dnsmasq-port=54 --dnsmasq-poll-interval-ms=100 --prometheus-addr=[::] --prometheus-port=1 --prometheus-path=/m --prometheus-namespace=dns --probe=a,::1,example.org",
			want: sidecar.Config{
				Dnsmasq: "[::1]:54", PollInterval: 100 * time.Millisecond, Listen: "[::]:1", MetricsPath: "/m", Namespace: "dns",
				Probes: []sidecar.Probe{{Label: "a", Server: "[::1]:53", Name: "example.org.", Interval: 5 * time.Second, Qtype: dns.TypeANY}},
			},
		},
		{name: "every address", args: "--prometheus-addr=", want: config(func(c *sidecar.Config) { c.Listen = ":10054" })},
		{name: "host names", args: "--dnsmasq-addr=dnsmasq.example.org --prometheus-addr=localhost", want: config(func(c *sidecar.Config) {
			c.Dnsmasq, c.Listen = "dnsmasq.example.org:53", "localhost:10054"
		})},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resetLogFlags(t)
			opts, err := parseFlags(strings.Fields(test.args))
			if err != nil {
				t.Fatalf("parseFlags(%q): %v", test.args, err)
			}
			if diff := cmp.Diff(test.want, opts.config); diff != "" {
				t.Errorf("parseFlags(%q) (-want +got):\n%s", test.args, diff)
			}
			if _, err := sidecar.New(opts.config); err != nil {
				t.Errorf("New: %v", err)
			}
			if test.verbosity == "" {
				test.verbosity = "0"
			}
			if got := flag.Lookup("v").Value.String(); got != test.verbosity {
				t.Errorf("glog's verbosity %s, want %s", got, test.verbosity)
			}
			if got := flag.Lookup("logtostderr").Value.String(); got != "true" {
				t.Errorf("logtostderr %s, want true", got)
			}
		})
	}
}

// resetLogFlags gives the flags of glog, which are the process's, their
// defaults now and when the test ends.
func resetLogFlags(t *testing.T) {
	t.Helper()
	reset := func() {
		for name, value := range map[string]string{
			"v": "0", "vmodule": "", "logtostderr": "true", "alsologtostderr": "false", "stderrthreshold": "2", "log_dir": "", "log_backtrace_at": "",
		} {
			if err := flag.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	reset()
	t.Cleanup(reset)
}
