package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubedns/hack/bench/cluster"
)

// The report stands between these in README.md.
const (
	beginMark = "<!-- begin: written by make bench -->"
	endMark   = "<!-- end: written by make bench -->"
)

// write writes README.md's report, chart.svg and results.json: beside the
// source after a complete run, so that no part there is of another run; else
// below bin.
func (b *bench) write() error {
	source := filepath.Join(b.top, "hack", "bench")
	dir := b.o.Out
	if dir == "" {
		if dir = source; !b.o.complete() {
			dir = filepath.Join(b.top, "bin", "bench")
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	report := b.results.report()
	fmt.Println(report)
	data, err := json.MarshalIndent(b.results, "", "  ")
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(source, "README.md"))
	if err != nil {
		return err
	}
	if readme, err = insert(readme, report); err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "results.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "chart.svg"), b.results.chart(), 0o644),
		os.WriteFile(filepath.Join(dir, "README.md"), readme, 0o644),
	)
	if err == nil {
		say("took %v; see %s", b.results.Took, dir)
	}
	return err
}

// insert puts the report between the marks.
func insert(readme []byte, report string) ([]byte, error) {
	begin, end := bytes.Index(readme, []byte(beginMark)), bytes.Index(readme, []byte(endMark))
	if begin < 0 || end < begin {
		return nil, errors.New("README.md has no marks for the report")
	}
	return slices.Concat(readme[:begin+len(beginMark)], []byte("\n"+report), readme[end:]), nil
}

// report is what README.md says of the run.
func (r *Results) report() string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured on %s in %v, on %d cores of %s with %.0f GB, %s, built with %s; %d rounds of %d s.",
		r.Date.Format("2 January 2006"), r.Took, r.Machine.Cores, escape(r.Machine.Processor), float64(r.Machine.Memory)/1e9, r.Machine.Kernel, r.Go, r.Rounds, r.Seconds)
	var versions []string
	for name, v := range r.Versions {
		versions = append(versions, name+" "+v)
	}
	slices.Sort(versions)
	fmt.Fprintf(&w, " Versions: %s. Figures are medians, with the lowest and the highest round in parentheses.\n\n", strings.Join(versions, ", "))
	r.reportGoals(&w)
	r.reportThroughput(&w)
	r.reportLatency(&w)
	r.reportStart(&w)
	r.reportChange(&w)
	r.reportMemory(&w)
	return w.String()
}

// escape keeps what comes from outside from being read as a table or HTML.
func escape(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(s)
}

// cell is a spread in a table's cell, with so many digits behind the point.
func (s Spread) cell(digits int) string {
	f := func(v float64) string { return thousands(fmt.Sprintf("%.*f", digits, v)) }
	if s.Min == s.Max {
		return f(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", f(s.Median), f(s.Min), f(s.Max))
}

// thousands puts commas into a number: "12345.6" is "12,345.6".
func thousands(number string) string {
	whole, rest, _ := strings.Cut(number, ".")
	var out []byte
	for i := range len(whole) {
		if i > 0 && (len(whole)-i)%3 == 0 && whole[i-1] != '-' {
			out = append(out, ',')
		}
		out = append(out, whole[i])
	}
	if rest != "" {
		return string(out) + "." + rest
	}
	return string(out)
}

// table writes a table, whose first column is text and whose others are
// numbers; rows without any number are left out.
func table(w *strings.Builder, header []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	line(header)
	rule := make([]string, len(header))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	line(rule)
	for _, row := range rows {
		if slices.ContainsFunc(row[1:], func(s string) bool { return s != "" }) {
			line(row)
		}
	}
	w.WriteByte('\n')
}

// seen are the peers that some row has, in their usual order.
func seen(has func(name string) bool) []peer {
	return slices.DeleteFunc(peers(), func(p peer) bool { return !has(p.Name) })
}

func (r *Results) reportThroughput(w *strings.Builder) {
	list := seen(func(name string) bool {
		return slices.ContainsFunc(r.Throughput, func(row ThroughputRow) bool { return row.Peer == name })
	})
	if len(list) == 0 {
		return
	}
	header := []string{""}
	for _, p := range list {
		header = append(header, p.Title)
	}
	cells := func(value func(ThroughputRun) float64, digits int) [][]string {
		var rows [][]string
		for _, load := range workloads() {
			row := []string{load.Title}
			for _, p := range list {
				text := ""
				if t := r.throughput(p.Name, load.Name); t != nil {
					text = spreadOf(t.Runs, value).cell(digits)
				}
				row = append(row, text)
			}
			rows = append(rows, row)
		}
		return rows
	}
	w.WriteString("### Processor time for each question, in µs\n\n")
	table(w, header, cells(func(t ThroughputRun) float64 { return t.CPU }, 2))
	w.WriteString("### Questions answered in a second, in thousands\n\n")
	w.WriteString("The load and the server share the cores, so this says less than the processor time.\n\n")
	table(w, header, cells(func(t ThroughputRun) float64 { return t.QPS / 1000 }, 1))
	r.reportLost(w)

	w.WriteString("### Resident memory under load, in MB\n\n")
	table(w, header, [][]string{slices.Concat([]string{"highest of all loads"}, r.loadedMemory(list))})
}

// reportLost says which questions were not answered.
func (r *Results) reportLost(w *strings.Builder) {
	var lost []string
	asked := 0
	for _, t := range r.Throughput {
		n := 0
		for _, run := range t.Runs {
			n += run.Lost
			asked += run.Lost + run.Answered
		}
		if n > 0 {
			lost = append(lost, fmt.Sprintf("%s %s %d", t.Peer, t.Workload, n))
		}
	}
	if len(lost) == 0 {
		fmt.Fprintf(w, "Of %s questions none was lost.\n\n", thousands(fmt.Sprint(asked)))
		return
	}
	fmt.Fprintf(w, "Of %s questions these were not answered: %s.\n\n", thousands(fmt.Sprint(asked)), strings.Join(lost, ", "))
}

func (r *Results) loadedMemory(list []peer) []string {
	var cells []string
	for _, p := range list {
		var most int64
		for _, t := range r.Throughput {
			for _, run := range t.Runs {
				if t.Peer == p.Name {
					most = max(most, run.RSS)
				}
			}
		}
		cells = append(cells, fmt.Sprintf("%.1f", mb(most)))
	}
	return cells
}

func (r *Results) reportLatency(w *strings.Builder) {
	if len(r.Latency) == 0 {
		return
	}
	fmt.Fprintf(w, "### Latency at %s mixed questions a second, in µs\n\n", thousands(fmt.Sprint(latencyRate)))
	var rows [][]string
	for _, p := range peers() {
		i := slices.IndexFunc(r.Latency, func(row LatencyRow) bool { return row.Peer == p.Name })
		if i < 0 {
			continue
		}
		runs := r.Latency[i].Runs
		lost := spreadOf(runs, func(l LatencyRun) float64 { return float64(l.Lost + l.Failed) })
		rows = append(rows, []string{
			p.Title,
			spreadOf(runs, func(l LatencyRun) float64 { return l.P50 }).cell(0),
			spreadOf(runs, func(l LatencyRun) float64 { return l.P99 }).cell(0),
			spreadOf(runs, func(l LatencyRun) float64 { return l.P999 }).cell(0),
			lost.cell(0),
		})
	}
	table(w, []string{"", "p50", "p99", "p99.9", "lost or refused"}, rows)
}

func (r *Results) reportStart(w *strings.Builder) {
	if len(r.Start) > 0 {
		fmt.Fprintf(w, "### Start, with %s from a real API server\n\n", cluster.Small)
		var rows [][]string
		for _, s := range starters() {
			if row := r.start(s.name); row != nil {
				rows = append(rows, []string{
					s.name,
					spreadOf(row.Runs, func(s StartRun) float64 { return s.FirstAnswer }).cell(0),
					spreadOf(row.Runs, func(s StartRun) float64 { return mb(s.RSS) }).cell(1),
					spreadOf(row.Runs, func(s StartRun) float64 { return mb(s.Highest) }).cell(1),
				})
			}
		}
		table(w, []string{"", "first right answer, ms after exec", "RSS after sync, MB", "highest RSS, MB"}, rows)
	}
	if len(r.ListEnd) > 0 {
		w.WriteString("### Start, from the API server of this benchmark, which knows when its list ends\n\n")
		var rows [][]string
		for _, s := range starters() {
			if row := r.listEnd(s.name); row != nil {
				rows = append(rows, []string{
					s.name,
					spreadOf(row.Runs, func(s ListEndRun) float64 { return s.FirstAnswer }).cell(0),
					spreadOf(row.Runs, func(s ListEndRun) float64 { return s.AfterList }).cell(0),
				})
			}
		}
		table(w, []string{"", "first right answer, ms after exec", "ms after the end of the list"}, rows)
	}
}

// situationTitles are the rows of the table of changes.
func (r *Results) situationTitles() [][2]string {
	return [][2]string{
		{situationQuiet, "nothing changes"},
		{situationSpread, fmt.Sprintf("200 changes a second over %d Services", r.Shape.Headless)},
		{situationBig, fmt.Sprintf("10 changes a second in a Service with %s endpoints", thousands(fmt.Sprint(r.Shape.Big)))},
	}
}

func (r *Results) reportChange(w *strings.Builder) {
	if len(r.Change) == 0 {
		return
	}
	w.WriteString("### Change, mixed questions at full speed\n\n")
	var rows [][]string
	for _, p := range peers() {
		for _, s := range r.situationTitles() {
			row := r.change(p.Name, s[0])
			if row == nil {
				continue
			}
			throughput, tail := "", ""
			if s[0] != situationQuiet {
				throughput = spreadOf(row.Runs, func(c ChangeRun) float64 { return c.Throughput }).cell(2)
				tail = spreadOf(row.Runs, func(c ChangeRun) float64 { return c.Tail }).cell(2)
			}
			rows = append(rows, []string{
				p.Title + ": " + s[1],
				spreadOf(row.Runs, func(c ChangeRun) float64 { return c.QPS / 1000 }).cell(1), throughput,
				spreadOf(row.Runs, func(c ChangeRun) float64 { return c.P99 }).cell(0), tail,
				spreadOf(row.Runs, func(c ChangeRun) float64 { return c.P50 }).cell(0),
				spreadOf(row.Runs, func(c ChangeRun) float64 { return c.CPU }).cell(2),
			})
		}
	}
	table(w, []string{"", "thousand questions a second", "of those without", "p99, µs", "of that without", "p50, µs", "processor time, µs a question"}, rows)
}

func (r *Results) reportMemory(w *strings.Builder) {
	if len(r.Memory) == 0 {
		return
	}
	w.WriteString("### Memory, with a real API server, in MB\n\n")
	var rows [][]string
	for _, shape := range []cluster.Shape{cluster.Small, cluster.Large} {
		for _, p := range peers() {
			if m := r.memory(p.Name, shape); m != nil {
				rows = append(rows, []string{
					fmt.Sprintf("%s: %s Services, %s endpoints in %s slices", p.Title, thousands(fmt.Sprint(shape.Services())),
						thousands(fmt.Sprint(shape.Headless*shape.Endpoints)), thousands(fmt.Sprint(shape.Slices()))),
					fmt.Sprintf("%.1f", mb(m.RSS)), fmt.Sprintf("%.1f", mb(m.HighestStart)),
					fmt.Sprintf("%.1f", mb(m.Highest)), fmt.Sprintf("%.1f", mb(m.After)),
				})
			}
		}
	}
	table(w, []string{"", "RSS after sync", "highest until then", "highest while all is listed again", "RSS after that"}, rows)
}

// A goal is what kube-dns is to reach, and what the run has of it.
type goal struct {
	what    string
	value   float64
	format  string  // of value
	at      string  // the bound in words
	bound   float64 // value is at most that, or at the least where atLeast
	atLeast bool
}

// goals are those that the run can say something of.
func (r *Results) goals() []goal {
	var list []goal
	cpu := func(t ThroughputRun) float64 { return t.CPU }
	for _, w := range workloads() {
		ours := r.throughput(kubeDNS, w.Name)
		for _, peer := range []struct {
			name, title, at string
			bound           float64
		}{{nsd, "NSD", "≤ 1.3", 1.3}, {coreDNS, "CoreDNS", "≤ 1/3", 1.0 / 3}} {
			if theirs := r.throughput(peer.name, w.Name); ours != nil && theirs != nil {
				list = append(list, goal{"processor time, " + w.Title + ": ours / " + peer.title + "'s",
					spreadOf(ours.Runs, cpu).Median / spreadOf(theirs.Runs, cpu).Median, "%.3g", peer.at, peer.bound, false})
			}
		}
	}
	if ours, theirs := r.start(kubeDNS), r.start(coreDNS); ours != nil && theirs != nil {
		first := func(s StartRun) float64 { return s.FirstAnswer }
		list = append(list, goal{"first right answer after exec: ours / CoreDNS's",
			spreadOf(ours.Runs, first).Median / spreadOf(theirs.Runs, first).Median, "%.2f", "≤ 0.6", 0.6, false})
	}
	if ours := r.listEnd(kubeDNS); ours != nil {
		list = append(list, goal{"first right answer after the end of the list, ms",
			spreadOf(ours.Runs, func(l ListEndRun) float64 { return l.AfterList }).Median, "%.0f", "≤ 50", 50, false})
	}
	list = append(list, r.changeGoals()...)
	return append(list, r.memoryGoals()...)
}

func (r *Results) changeGoals() []goal {
	var list []goal
	for _, s := range r.situationTitles()[1:] {
		during := r.change(kubeDNS, s[0])
		if during == nil {
			continue
		}
		list = append(list,
			goal{s[1] + ": throughput / without", spreadOf(during.Runs, func(c ChangeRun) float64 { return c.Throughput }).Median, "%.2f", "≥ 0.9", 0.9, true},
			goal{s[1] + ": p99 / without", spreadOf(during.Runs, func(c ChangeRun) float64 { return c.Tail }).Median, "%.2f", "≤ 1.5", 1.5, false})
	}
	return list
}

func (r *Results) memoryGoals() []goal {
	var list []goal
	for _, m := range []struct {
		shape cluster.Shape
		bound float64
	}{{cluster.Small, 45}, {cluster.Large, 130}} {
		services := thousands(fmt.Sprint(m.shape.Services())) + " Services"
		ours, theirs := r.memory(kubeDNS, m.shape), r.memory(coreDNS, m.shape)
		if ours == nil {
			continue
		}
		list = append(list,
			goal{services + ": RSS after sync, MB", mb(ours.RSS), "%.1f", fmt.Sprintf("≤ %.0f", m.bound), m.bound, false})
		if m.shape == cluster.Large {
			list = append(list, goal{services + ": highest while all is listed again, MB", mb(ours.Highest), "%.1f", fmt.Sprintf("≤ %.0f", 1.3*m.bound), 1.3 * m.bound, false})
		}
		if theirs != nil {
			list = append(list, goal{services + ": RSS after sync: ours / CoreDNS's", float64(ours.RSS) / float64(theirs.RSS), "%.2f", "≤ 0.5", 0.5, false})
		}
	}
	return list
}

func (g goal) met() bool {
	if g.atLeast {
		return g.value >= g.bound
	}
	return g.value <= g.bound
}

func (r *Results) reportGoals(w *strings.Builder) {
	list := r.goals()
	if len(list) == 0 {
		return
	}
	w.WriteString("### Goals\n\n")
	var rows [][]string
	for _, g := range list {
		met := "yes"
		if !g.met() {
			met = "**no**"
		}
		rows = append(rows, []string{g.what, fmt.Sprintf(g.format, g.value), g.at, met})
	}
	table(w, []string{"", "measured", "goal", "met"}, rows)
}
