package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"kubedns/hack/bench/cluster"
)

// What dnsperf 2.10 prints.
const dnsperfText = `DNS Performance Testing Tool
Version 2.10.0

[Status] Command line: dnsperf -B -d a.questions -s 127.0.0.1 -p 5300 -m udp -c 16 -q 100 -l 5
[Status] Sending queries (to 127.0.0.1:5300)
[Status] Started at: Tue Dec  1 05:00:00 2026
[Status] Stopping after 5.000000 seconds
[Timeout] Query timed out: msg id 12
[Status] Testing complete (time limit)

Statistics:

  Queries sent:         1000
  Queries completed:    999 (99.90%)
  Queries lost:         1 (0.10%)

  Response codes:       NOERROR 549 (54.95%), NXDOMAIN 450 (45.05%)
  Average packet size:  request 53, response 69
  Run time (s):         5.001
  Queries per second:   199.760048

  Average Latency (s):  0.001 (min 0.0001, max 0.01)
  Latency StdDev (s):   0.0003
`

func TestParseDNSPerf(t *testing.T) {
	r, err := parseDNSPerf(dnsperfText)
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent != 1000 || r.Completed != 999 || r.Lost != 1 || r.Seconds != 5.001 || r.QPS != 199.760048 ||
		!maps.Equal(r.Rcodes, map[string]int{"NOERROR": 549, "NXDOMAIN": 450}) {
		t.Errorf("got %+v", r)
	}
	for _, text := range []string{"", "Queries sent: 3", strings.Replace(dnsperfText, "5.001", "x", 1), strings.Replace(dnsperfText, "NOERROR 549", "NOERROR", 1)} {
		if r, err := parseDNSPerf(text); err == nil {
			t.Errorf("parseDNSPerf(%q) = %+v, want an error", text, r)
		}
	}
}

func TestRight(t *testing.T) {
	tests := []struct {
		name   string
		kind   cluster.Kind
		rcodes map[string]int
		ok     bool
	}{
		{"all right", cluster.A, map[string]int{"NOERROR": 100}, true},
		{"refuses", cluster.A, map[string]int{"REFUSED": 100}, false},
		{"fails at times", cluster.A, map[string]int{"NOERROR": 99, "SERVFAIL": 1}, false},
		{"no such names", cluster.NXDOMAIN, map[string]int{"NXDOMAIN": 100}, true},
		{"names that should not be", cluster.NXDOMAIN, map[string]int{"NOERROR": 100}, false},
		{"mixed", cluster.Mixed, map[string]int{"NXDOMAIN": 45, "NOERROR": 55}, true},
		{"too few", cluster.Mixed, map[string]int{"NXDOMAIN": 30, "NOERROR": 70}, false},
		{"none", cluster.A, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &dnsperfResult{Rcodes: tt.rcodes}
			for _, n := range tt.rcodes {
				r.Completed += n
			}
			if err := r.right(tt.kind); (err == nil) != tt.ok {
				t.Errorf("right: %v, want ok %t", err, tt.ok)
			}
		})
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NSD version 4.6.1\nWritten by NLnet Labs.":        "4.6.1",
		"Dnsmasq version 2.90  Copyright (c) 2000-2024":    "2.90",
		"DNS Performance Testing Tool\nVersion 2.10.0\n\n": "2.10.0",
		"no such thing": "",
		"version":       "",
		"":              "",
	} {
		if got := parseVersion(text); got != want {
			t.Errorf("parseVersion(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestAPIServerVersion(t *testing.T) {
	const paths = "etcd=/c/etcd-v3.7.3-go1.26.8/etcd\nkube-apiserver=/c/kube-apiserver-v1.37.2-go1.26.8/kube-apiserver\n"
	if got := apiServerVersion(paths); got != "1.37.2" {
		t.Errorf("apiServerVersion = %q", got)
	}
	if got := apiServerVersion(""); got != "unknown" {
		t.Errorf("apiServerVersion of nothing = %q", got)
	}
}

func TestInitEvents(t *testing.T) {
	const metrics = `# HELP apiserver_init_events_total Counter of init events
# TYPE apiserver_init_events_total counter
apiserver_init_events_total{group="",resource="services"} 5500
apiserver_init_events_total{group="discovery.k8s.io",resource="endpointslices"} 500
apiserver_init_events_total{group="x",resource="endpointslices"} 1.5e+03
other{resource="endpointslices"} 7
`
	if n, err := initEvents(metrics, "endpointslices"); n != 2000 || err != nil {
		t.Errorf("initEvents = %d, %v; want 2000", n, err)
	}
	if _, err := initEvents(`apiserver_init_events_total{resource="pods"} x`, "pods"); err == nil {
		t.Error("initEvents took x for a number")
	}
}

func TestParseOptions(t *testing.T) {
	tests := []struct {
		name     string
		args     []string
		ok       bool
		complete bool
	}{
		{"default", nil, true, true},
		{"shorter", []string{"-rounds", "1", "-seconds", "1"}, true, true},
		{"parts", []string{"-only", "udp,latency"}, true, false},
		{"peers", []string{"-peers", "kube-dns,nsd"}, true, false},
		{"no such part", []string{"-only", "udp,tpc"}, false, false},
		{"no such peer", []string{"-peers", "bind"}, false, false},
		{"no rounds", []string{"-rounds", "0"}, false, false},
		{"an argument", []string{"udp"}, false, false},
		{"no such flag", []string{"-x"}, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, err := parseOptions(tt.args, io.Discard)
			if (err == nil) != tt.ok || err == nil && o.complete() != tt.complete {
				t.Errorf("parseOptions(%q) = %+v, %v", tt.args, o, err)
			}
		})
	}
}

// Every name that something refers to exists.
func TestNames(t *testing.T) {
	var names []string
	for _, w := range workloads() {
		if slices.Contains(names, w.Name) {
			t.Errorf("workload %s twice", w.Name)
		}
		names = append(names, w.Name)
	}
	for _, p := range peers() {
		for _, w := range p.Workloads {
			if !slices.Contains(names, w) {
				t.Errorf("%s has the workload %s, which does not exist", p.Name, w)
			}
		}
		if color(p.Name) == "" {
			t.Errorf("%s has no color", p.Name)
		}
	}
	for _, w := range charted() {
		if !slices.Contains(names, w) {
			t.Errorf("the chart has the workload %s, which does not exist", w)
		}
	}
}

// A round begins with the next peer, and has all of them.
func TestChosen(t *testing.T) {
	b := &bench{o: &options{Peers: peerNames()}}
	first, second := b.chosen(0), b.chosen(1)
	if len(first) != len(peers()) || len(second) != len(first) || second[0].Name != first[1].Name || second[len(second)-1].Name != first[0].Name {
		t.Errorf("rounds begin with %s and %s", first[0].Name, second[0].Name)
	}
	b.o.Peers = []string{nsd, coreDNS}
	if list := b.chosen(5, kubeDNS, coreDNS); len(list) != 1 || list[0].Name != coreDNS {
		t.Errorf("chosen = %v", list)
	}
}

func TestParallel(t *testing.T) {
	var sum atomic.Int64
	if err := parallel(t.Context(), 4, 100, func(_ context.Context, i int) error { sum.Add(int64(i)); return nil }); err != nil || sum.Load() != 4950 {
		t.Errorf("parallel: %v, sum %d", err, sum.Load())
	}
	oops := errors.New("oops")
	if err := parallel(t.Context(), 4, 100, func(_ context.Context, i int) error {
		if i == 7 {
			return oops
		}
		return nil
	}); !errors.Is(err, oops) {
		t.Errorf("parallel returns %v, want %v", err, oops)
	}
}
