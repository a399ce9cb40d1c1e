package main

import (
	"slices"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/proc"
)

// Results is all that a run found; it is results.json.
type Results struct {
	Date     time.Time         `json:"date"`
	Took     time.Duration     `json:"tookNanoseconds"`
	Machine  proc.Machine      `json:"machine"`
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"`
	Rounds   int               `json:"rounds"`
	Seconds  int               `json:"seconds"`
	Parts    []string          `json:"parts"`
	Shape    cluster.Shape     `json:"shape"` // what the questions were about

	Throughput []ThroughputRow `json:"throughput,omitempty"`
	Latency    []LatencyRow    `json:"latency,omitempty"`
	Start      []StartRow      `json:"start,omitempty"`
	ListEnd    []ListEndRow    `json:"listEnd,omitempty"`
	Change     []ChangeRow     `json:"change,omitempty"`
	Memory     []MemoryRow     `json:"memory,omitempty"`
}

// ThroughputRow has a peer's rounds under one workload.
type ThroughputRow struct {
	Peer     string          `json:"peer"`
	Workload string          `json:"workload"`
	Runs     []ThroughputRun `json:"runs"`
}

// ThroughputRun is one round.
type ThroughputRun struct {
	CPU       float64 `json:"cpuMicrosPerQuestion"`
	CPUBehind float64 `json:"cpuMicrosPerQuestionBehind,omitempty"` // of the kube-dns that dnsmasq forwards to
	QPS       float64 `json:"questionsPerSecond"`
	Answered  int     `json:"answered"`
	Lost      int     `json:"lost"`
	RSS       int64   `json:"rssBytes"`
}

// LatencyRow has a peer's rounds at a fixed rate.
type LatencyRow struct {
	Peer string       `json:"peer"`
	Runs []LatencyRun `json:"runs"`
}

// LatencyRun is one round; its times are microseconds.
type LatencyRun struct {
	QPS      float64 `json:"questionsPerSecond"`
	Answered int     `json:"answered"`
	Lost     int     `json:"lost"`
	Failed   int     `json:"failed"` // of those answered: neither NOERROR nor NXDOMAIN
	P50      float64 `json:"p50Micros"`
	P99      float64 `json:"p99Micros"`
	P999     float64 `json:"p999Micros"`
	Max      float64 `json:"maxMicros"`
}

// ChangeRow has a peer's rounds in one situation.
type ChangeRow struct {
	Peer      string      `json:"peer"`
	Situation string      `json:"situation"`
	Runs      []ChangeRun `json:"runs"`
}

// ChangeRun is one round.
type ChangeRun struct {
	LatencyRun
	CPU     float64 `json:"cpuMicrosPerQuestion"`
	Changes int     `json:"changes"`
	// Questions a second and p99 in proportion to those right before and after,
	// while nothing changed; 0 where nothing changes here.
	Throughput float64 `json:"throughputRatio,omitempty"`
	Tail       float64 `json:"p99Ratio,omitempty"`
}

// StartRow has a peer's starts against a real API server.
type StartRow struct {
	Peer string     `json:"peer"`
	Runs []StartRun `json:"runs"`
}

// StartRun is one start.
type StartRun struct {
	FirstAnswer float64 `json:"firstAnswerMillis"`
	RSS         int64   `json:"rssBytes"`
	Highest     int64   `json:"highestRSSBytes"`
}

// ListEndRow has a peer's starts against the API server that says when its
// list ends.
type ListEndRow struct {
	Peer string       `json:"peer"`
	Runs []ListEndRun `json:"runs"`
}

// ListEndRun is one start.
type ListEndRun struct {
	FirstAnswer float64 `json:"firstAnswerMillis"`
	AfterList   float64 `json:"afterListMillis"`
}

// MemoryRow is a peer's memory with one cluster.
type MemoryRow struct {
	Peer         string        `json:"peer"`
	Shape        cluster.Shape `json:"shape"`
	RSS          int64         `json:"rssBytes"`
	HighestStart int64         `json:"highestRSSAtStartBytes"`
	Highest      int64         `json:"highestRSSWhileListedAgainBytes"`
	After        int64         `json:"rssAfterBytes"`
}

func (r *Results) addThroughput(peer, workload string, run ThroughputRun) {
	i := slices.IndexFunc(r.Throughput, func(row ThroughputRow) bool { return row.Peer == peer && row.Workload == workload })
	if i < 0 {
		i = len(r.Throughput)
		r.Throughput = append(r.Throughput, ThroughputRow{Peer: peer, Workload: workload})
	}
	r.Throughput[i].Runs = append(r.Throughput[i].Runs, run)
}

func (r *Results) addLatency(peer string, run LatencyRun) {
	i := slices.IndexFunc(r.Latency, func(row LatencyRow) bool { return row.Peer == peer })
	if i < 0 {
		i = len(r.Latency)
		r.Latency = append(r.Latency, LatencyRow{Peer: peer})
	}
	r.Latency[i].Runs = append(r.Latency[i].Runs, run)
}

func (r *Results) addChange(peer, situation string, run ChangeRun) {
	i := slices.IndexFunc(r.Change, func(row ChangeRow) bool { return row.Peer == peer && row.Situation == situation })
	if i < 0 {
		i = len(r.Change)
		r.Change = append(r.Change, ChangeRow{Peer: peer, Situation: situation})
	}
	r.Change[i].Runs = append(r.Change[i].Runs, run)
}

func (r *Results) addStart(peer string, run StartRun) {
	i := slices.IndexFunc(r.Start, func(row StartRow) bool { return row.Peer == peer })
	if i < 0 {
		i = len(r.Start)
		r.Start = append(r.Start, StartRow{Peer: peer})
	}
	r.Start[i].Runs = append(r.Start[i].Runs, run)
}

func (r *Results) addListEnd(peer string, run ListEndRun) {
	i := slices.IndexFunc(r.ListEnd, func(row ListEndRow) bool { return row.Peer == peer })
	if i < 0 {
		i = len(r.ListEnd)
		r.ListEnd = append(r.ListEnd, ListEndRow{Peer: peer})
	}
	r.ListEnd[i].Runs = append(r.ListEnd[i].Runs, run)
}

// The rows below are nil where the run has none.

func (r *Results) throughput(peer, workload string) *ThroughputRow {
	for i := range r.Throughput {
		if row := &r.Throughput[i]; row.Peer == peer && row.Workload == workload {
			return row
		}
	}
	return nil
}

func (r *Results) change(peer, situation string) *ChangeRow {
	for i := range r.Change {
		if row := &r.Change[i]; row.Peer == peer && row.Situation == situation {
			return row
		}
	}
	return nil
}

func (r *Results) start(peer string) *StartRow {
	for i := range r.Start {
		if row := &r.Start[i]; row.Peer == peer {
			return row
		}
	}
	return nil
}

func (r *Results) listEnd(peer string) *ListEndRow {
	for i := range r.ListEnd {
		if row := &r.ListEnd[i]; row.Peer == peer {
			return row
		}
	}
	return nil
}

func (r *Results) memory(peer string, shape cluster.Shape) *MemoryRow {
	for i := range r.Memory {
		if row := &r.Memory[i]; row.Peer == peer && row.Shape == shape {
			return row
		}
	}
	return nil
}

// Spread is the median of some values and how far they lie apart.
type Spread struct{ Median, Min, Max float64 }

// spreadOf takes a value of each run. No runs have the zero Spread.
func spreadOf[T any](runs []T, value func(T) float64) Spread {
	if len(runs) == 0 {
		return Spread{}
	}
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = value(r)
	}
	slices.Sort(values)
	n := len(values)
	median := values[n/2]
	if n%2 == 0 {
		median = (values[n/2-1] + values[n/2]) / 2
	}
	return Spread{Median: median, Min: values[0], Max: values[n-1]}
}
