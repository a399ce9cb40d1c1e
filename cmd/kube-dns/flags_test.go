package main

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"kubedns/cmd/kube-dns/app/options"
)

// TestShownFlags decides on each flag and variable of kube-dns, the libraries'
// included, whether /config shows it. One that is in neither list makes the
// test fail: to show it, list it here and in options.
func TestShownFlags(t *testing.T) {
	asGiven := []string{
		"PROMETHEUS_NAMESPACE", "PROMETHEUS_PATH", "PROMETHEUS_PORT", "PROMETHEUS_SUBSYSTEM",
		"alsologtostderr", "config-dir", "config-map", "config-map-namespace", "config-period", "dns-bind-address",
		"dns-port", "dns-service", "domain", "drain-period", "federations", "healthz-port", "initial-sync-timeout",
		"kubecfg-file", // a file's name, not what is in it
		"log-backtrace-at", "log-dir", "log-flush-frequency", "log-link", "logbuflevel", "logtostderr", "manifests",
		"max-answers-per-second", "max-forwarded", "max-tcp-connections", "max-tcp-connections-per-client", "nameservers",
		"negative-ttl", "profiling", "snapshot-file", "stderrthreshold", "tcp-idle-timeout", "ttl", "udp-size", "udp-sockets",
		"v", "version", "vmodule",
	}
	withoutSecrets := map[string]string{
		"kube-master-url": "https://admin:hunter2@192.0.2.1:6443/api?token=hunter2", // user and query are hidden
	}
	libraries := flag.NewFlagSet("libraries", flag.ContinueOnError)
	flag.CommandLine.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			libraries.Var(f.Value, f.Name, f.Usage)
		}
	})
	o, _, err := options.Parse([]string{"--kube-master-url=" + withoutSecrets["kube-master-url"]}, func(string) string { return "" }, libraries)
	if err != nil {
		t.Fatal(err)
	}
	var decided []string
	for _, f := range slices.Concat(o.Environment, o.Flags) {
		switch _, secret := withoutSecrets[f.Name]; {
		case secret:
			if f.Value != "https://xxxxx@192.0.2.1:6443/api?xxxxx" {
				t.Errorf("--%s is shown as %s", f.Name, f.Value)
			}
		case slices.Contains(asGiven, f.Name):
			decided = append(decided, f.Name)
			if f.Value == "xxxxx" || f.Default == "xxxxx" {
				t.Errorf("%s is hidden", f.Name)
			}
		default:
			t.Errorf("%s: is it to be shown or hidden?", f.Name)
		}
	}
	for _, name := range asGiven {
		if !slices.Contains(decided, name) {
			t.Errorf("there is no %s", name)
		}
	}
}
