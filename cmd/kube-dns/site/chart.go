package site

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The chart's own units; the page stretches it. Its words stand beside it, as
// HTML, so that they keep their size.
const (
	chartWidth  = 600
	chartHeight = 100
)

// chart is questions a second over the last minutes, a band for each rcode.
type chart struct {
	Top         string // questions a second at the upper edge
	Bands       [4]band
	Description string
}

// band is an rcode's: its area, as an SVG path, and its share of all questions.
type band struct {
	Rcode, Class, Path, Share string

	count uint64
}

// ViewBox is the picture's size in its own units.
func (chart) ViewBox() string { return fmt.Sprintf("0 0 %d %d", chartWidth, chartHeight) }

// newChart draws what was answered in each interval of the time up to now.
func newChart(intervals []questions, now time.Time) chart {
	var c chart
	for i, class := range []string{"one", "two", "three", "four"} {
		c.Bands[i] = band{Rcode: rcodes[i], Class: class}
	}
	most, sum := 0.0, questions{}
	for _, q := range intervals {
		most = max(most, q.PerSecond())
		sum.Questions += q.Questions
		for i, n := range q.byRcode() {
			c.Bands[i].count += n
		}
	}
	for i := range c.Bands {
		c.Bands[i].Share = percent(sum, c.Bands[i].count)
	}
	top := roundUp(most)
	c.Top = number(top)
	c.Description = fmt.Sprintf("The last %v: at most %s questions a second, %s at last. The tables below have the numbers.",
		samplesTime, number(most), number(last(intervals).PerSecond()))
	if most == 0 {
		return c
	}

	x := func(t time.Time) float64 {
		return max(0, chartWidth*(1-now.Sub(t).Seconds()/samplesTime.Seconds()))
	}
	y := func(n uint64, q questions) float64 {
		return chartHeight * (1 - q.perSecond(n)/top)
	}
	// A rectangle for each interval and rcode, one on top of the other.
	var paths [4]strings.Builder
	for _, q := range intervals {
		left, right := x(q.At.Add(-time.Duration(q.Seconds*float64(time.Second)))), x(q.At)
		below := uint64(0)
		for i, n := range q.byRcode() {
			if n > 0 {
				fmt.Fprintf(&paths[i], "M%.1f %.2fH%.1fV%.2fH%.1fZ", left, y(below+n, q), right, y(below, q), left)
			}
			below += n
		}
	}
	for i := range paths {
		c.Bands[i].Path = paths[i].String()
	}
	return c
}

func last(all []questions) questions {
	if len(all) == 0 {
		return questions{}
	}
	return all[len(all)-1]
}

// roundUp is the next of 1, 2, 5, 10, 20, … that is not less than v.
func roundUp(v float64) float64 {
	if v <= 1 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*step {
			return f * step
		}
	}
	return 10 * step
}

// number is v as a person reads it: three digits at least, none behind the
// point where there are that many before it.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 100:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
