package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/proc"
)

func TestSpreadOf(t *testing.T) {
	id := func(v float64) float64 { return v }
	tests := []struct {
		name string
		runs []float64
		want Spread
	}{
		{"none", nil, Spread{}},
		{"one", []float64{3}, Spread{3, 3, 3}},
		{"odd", []float64{9, 1, 2}, Spread{2, 1, 9}},
		{"even", []float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := spreadOf(tt.runs, id); got != tt.want {
				t.Errorf("spreadOf(%v) = %v, want %v", tt.runs, got, tt.want)
			}
		})
	}
}

func TestCell(t *testing.T) {
	for want, s := range map[string]Spread{
		"5.41 (5.30–5.62)":          {5.414, 5.296, 5.62},
		"7.0":                       {7, 7, 7},
		"1,234,567 (999–1,234,568)": {1234567, 999, 1234568},
	} {
		digits := map[bool]int{true: 2, false: 0}[strings.Contains(want, "5.41")]
		if want == "7.0" {
			digits = 1
		}
		if got := s.cell(digits); got != want {
			t.Errorf("cell of %v = %q, want %q", s, got, want)
		}
	}
}

// sample has something of every part; ours takes half of NSD's time and a
// tenth of CoreDNS's.
func sample() *Results {
	r := &Results{
		Date: time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC), Machine: proc.Machine{Processor: "CPU <x> | y", Cores: 2, Memory: 8e9, Kernel: "Linux 6"},
		Versions: map[string]string{"NSD": "4", "CoreDNS": "1"}, Rounds: 3, Seconds: 5, Shape: loaded(),
	}
	for _, w := range workloads() {
		for i := range 3 {
			d := float64(i) / 10
			r.addThroughput(kubeDNS, w.Name, ThroughputRun{CPU: 5 + d, QPS: 90000, Answered: 1000, RSS: 40e6})
			r.addThroughput(nsd, w.Name, ThroughputRun{CPU: 10.2, QPS: 91000, Answered: 1000})
			r.addThroughput(coreDNS, w.Name, ThroughputRun{CPU: 51, QPS: 20000, Answered: 1000, Lost: i})
		}
	}
	r.addLatency(nsd, LatencyRun{P50: 50, P99: 1234, P999: 5000, Lost: 3, Failed: 4})
	r.addStart(kubeDNS, StartRun{FirstAnswer: 300, RSS: 40e6, Highest: 44e6})
	r.addStart(coreDNS, StartRun{FirstAnswer: 400, RSS: 100e6, Highest: 104e6})
	r.addListEnd(kubeDNS, ListEndRun{FirstAnswer: 200, AfterList: 20})
	before := ChangeRun{LatencyRun: LatencyRun{QPS: 120000, P99: 800}, CPU: 6}
	after := ChangeRun{LatencyRun: LatencyRun{QPS: 80000, P99: 1200}, CPU: 6}
	for _, s := range r.situationTitles() {
		run := ChangeRun{LatencyRun: LatencyRun{QPS: 100000, P99: 1000}, CPU: 6}
		if s[0] == situationBig {
			run.QPS, run.P99 = 95000, 1600
		}
		if s[0] != situationQuiet {
			run.compare(before, after)
		}
		r.addChange(kubeDNS, s[0], run)
	}
	r.Memory = []MemoryRow{
		{Peer: kubeDNS, Shape: cluster.Large, RSS: 131e6, Highest: 160e6, After: 140e6},
		{Peer: coreDNS, Shape: cluster.Large, RSS: 300e6, Highest: 500e6, After: 400e6},
	}
	return r
}

// The goals are computed from the rows.
func TestGoals(t *testing.T) {
	want := map[string]struct {
		value float64
		met   bool
	}{
		"processor time, mixed: ours / NSD's":                                         {0.5, true},
		"processor time, A over TCP: ours / CoreDNS's":                                {0.1, true},
		"first right answer after exec: ours / CoreDNS's":                             {0.75, false},
		"first right answer after the end of the list, ms":                            {20, true},
		"200 changes a second over 500 Services: throughput / without":                {1, true},
		"10 changes a second in a Service with 1,500 endpoints: p99 / without":        {1.6, false},
		"10 changes a second in a Service with 1,500 endpoints: throughput / without": {0.95, true},
		"10,000 Services: RSS after sync, MB":                                         {131, false},
		"10,000 Services: highest while all is listed again, MB":                      {160, true},
		"10,000 Services: RSS after sync: ours / CoreDNS's":                           {131.0 / 300, true},
	}
	found := 0
	for _, g := range sample().goals() {
		w, ok := want[g.what]
		if !ok {
			continue
		}
		found++
		if d := g.value - w.value; d > 1e-9 || d < -1e-9 || g.met() != w.met {
			t.Errorf("%s: %v, met %t; want %v, %t", g.what, g.value, g.met(), w.value, w.met)
		}
	}
	if found != len(want) {
		t.Errorf("%d goals of %d: %v", found, len(want), sample().goals())
	}
	if g := (&Results{}).goals(); len(g) != 0 {
		t.Errorf("goals of nothing: %v", g)
	}
}

// Rows of the report, each column in its place.
func TestReport(t *testing.T) {
	report := sample().report()
	for _, want := range []string{
		"Measured on 4 March 2026",
		`CPU &lt;x> \| y`,
		"| mixed | 5.10 (5.00–5.20) | 10.20 | 51.00 |\n",
		"| mixed | 90.0 | 91.0 | 20.0 |\n",
		"coredns mixed 3",
		"| NSD | 50 | 1,234 | 5,000 | 7 |\n",
		"| coredns | 400 | 100.0 | 104.0 |\n",
		"| kube-dns | 200 | 20 |\n",
		"| kube-dns: nothing changes | 100.0 |  | 1,000 |  | 0 | 6.00 |\n",
		"endpoints | 95.0 | 0.95 | 1,600 | 1.60 | 0 | 6.00 |\n",
		"| kube-dns: 10,000 Services, 100,000 endpoints in 1,000 slices | 131.0 | 0.0 | 160.0 | 140.0 |\n",
		"| 10,000 Services: RSS after sync, MB | 131.0 | ≤ 130 | **no** |\n",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in:\n%s", want, report)
		}
	}
}

func TestInsert(t *testing.T) {
	got, err := insert([]byte("a\n"+beginMark+"\nold\n"+endMark+"\nz\n"), "new\n")
	if want := "a\n" + beginMark + "\nnew\n" + endMark + "\nz\n"; err != nil || string(got) != want {
		t.Errorf("insert = %q, %v; want %q", got, err, want)
	}
	if _, err := insert([]byte(endMark+beginMark), ""); err == nil {
		t.Error("insert took marks in the wrong order")
	}
}

// The chart is well-formed XML, with a bar for each peer and workload.
func TestChart(t *testing.T) {
	for name, r := range map[string]*Results{"full": sample(), "empty": {}} {
		d := xml.NewDecoder(strings.NewReader(string(r.chart())))
		bars := 0
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "title" {
				bars++
			}
		}
		want := 0
		if name == "full" {
			want = 3 * len(charted())
		}
		if bars != want {
			t.Errorf("%s: %d bars, want %d", name, bars, want)
		}
	}
}

func TestNiceStep(t *testing.T) {
	for v, want := range map[float64]float64{0.01: 0.1, 0.3: 0.5, 1: 1, 1.1: 2, 4: 5, 7: 10, 11: 20, 300: 500} {
		if got := niceStep(v); got != want {
			t.Errorf("niceStep(%g) = %g, want %g", v, got, want)
		}
	}
}
