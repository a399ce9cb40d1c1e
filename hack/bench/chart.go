package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// charted are the workloads that the chart has.
func charted() []string { return []string{"a", "aaaa", "nxdomain", "headless", "srv", "mixed"} }

// color of each peer: ours stands out.
func color(peer string) string {
	return map[string]string{
		kubeDNS: "#1a56c4", nsd: "#e08a1e", coreDNS: "#8c8c8c", coreDNSCache: "#bdbdbd",
		dnsmasqCache: "#3d9970", dnsmasqForward: "#8fd0b5", echo: "#222222",
	}[peer]
}

const (
	chartWidth = 900
	labelWidth = 150
	barHeight  = 14
	groupGap   = 18
	chartTop   = 92
)

// chart draws the processor time for each question: a group of bars for each
// workload, a bar for each peer, a line from the lowest to the highest round.
func (r *Results) chart() []byte {
	type bar struct {
		peer peer
		Spread
	}
	var groups [][]bar
	var titles []string
	most := 1.0
	for _, w := range workloads() {
		var bars []bar
		for _, name := range charted() {
			if name != w.Name {
				continue
			}
			for _, p := range peers() {
				if t := r.throughput(p.Name, w.Name); t != nil {
					s := spreadOf(t.Runs, func(t ThroughputRun) float64 { return t.CPU })
					bars = append(bars, bar{p, s})
					most = max(most, s.Max)
				}
			}
		}
		if len(bars) > 0 {
			groups, titles = append(groups, bars), append(titles, w.Title)
		}
	}
	height := chartTop + 30
	for _, g := range groups {
		height += len(g)*barHeight + groupGap
	}
	step := niceStep(most / 6)
	scale := float64(chartWidth-labelWidth-70) / (math.Ceil(most/step) * step)

	var w bytes.Buffer
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height, chartWidth, height)
	fmt.Fprintf(&w, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height)
	fmt.Fprintf(&w, `<text x="10" y="24" font-size="16" font-weight="bold">Processor time for each question, µs (less is better)</text>`+"\n")
	fmt.Fprintf(&w, `<text x="10" y="44" fill="#555555">%s, %d cores of %s; medians of %d rounds, the line from the lowest to the highest</text>`+"\n",
		r.Date.Format("2 January 2006"), r.Machine.Cores, html.EscapeString(r.Machine.Processor), r.Rounds)
	x := 10
	for _, p := range peers() {
		fmt.Fprintf(&w, `<rect x="%d" y="58" width="12" height="12" fill="%s"/><text x="%d" y="69">%s</text>`+"\n", x, color(p.Name), x+16, html.EscapeString(p.Title))
		x += 34 + 7*len(p.Title)
	}
	for v := 0.0; v <= math.Ceil(most/step)*step+step/2; v += step {
		at := labelWidth + v*scale
		fmt.Fprintf(&w, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e4e4e4"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555555">%g</text>`+"\n",
			at, chartTop-8, at, height-24, at, height-8, v)
	}
	y := chartTop
	for i, g := range groups {
		fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-8, y+len(g)*barHeight/2+4, html.EscapeString(titles[i]))
		for _, b := range g {
			fmt.Fprintf(&w, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`, labelWidth, y+1, b.Median*scale, barHeight-2, color(b.peer.Name), html.EscapeString(b.peer.Title+": "+b.cell(2)))
			mid := float64(y) + barHeight/2
			fmt.Fprintf(&w, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#d02020" stroke-width="2"/>`, labelWidth+b.Min*scale, mid, labelWidth+b.Max*scale, mid)
			fmt.Fprintf(&w, `<text x="%.1f" y="%d" font-size="10">%.1f</text>`+"\n", labelWidth+b.Max*scale+4, y+barHeight-3, b.Median)
			y += barHeight
		}
		y += groupGap
	}
	w.WriteString("</svg>\n")
	return w.Bytes()
}

// niceStep is the next of 1, 2, 5, 10, 20, … that is not less than v.
func niceStep(v float64) float64 {
	for unit := 0.1; ; unit *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if step := math.Round(unit*f*10) / 10; step >= v {
				return step
			}
		}
	}
}
