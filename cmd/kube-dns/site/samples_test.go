package site

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubedns/pkg/dns/server"
)

// TestSamples: the ring holds ten minutes, and the last sample is of now.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := samples{totals: func() server.Totals {
			n := uint64(time.Since(began) / time.Second) // a question a second, each fourth NXDOMAIN
			return server.Totals{Questions: n, NXDomain: n / 4}
		}}
		go func() {
			if err := s.run(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(30*time.Minute + 3*time.Second)
		all := s.until(time.Now())
		if n := len(all); n != 122 {
			t.Errorf("%d samples, want 122: 121 kept, and one of now", n)
		}
		if first, last := time.Since(all[0].at), time.Since(all[len(all)-1].at); first != 10*time.Minute+3*time.Second || last != 0 {
			t.Errorf("samples from %v to %v ago", first, last)
		}
		w := windows(all)
		if len(w) != 3 {
			t.Fatalf("windows %+v", w)
		}
		for i, want := range []time.Duration{58 * time.Second, 298 * time.Second, 598 * time.Second} {
			if w[i].Span() != want || w[i].PerSecond() != 1 || w[i].Share(w[i].NXDomain) < 24 || w[i].Share(w[i].NXDomain) > 26 {
				t.Errorf("window %+v, want %v of a question a second, a quarter NXDOMAIN", w[i], want)
			}
		}
		m := minutes(all)
		if len(m) != 11 || m[0].Span() != 58*time.Second || m[1].Span() != time.Minute || m[1].Questions != 60 {
			t.Errorf("minutes %+v", m)
		}
	})
}

func TestUntilReplacesAYoungSample(t *testing.T) {
	now := time.Unix(1000, 0)
	s := samples{totals: func() server.Totals { return server.Totals{} }}
	s.take(now)
	s.take(now.Add(5 * time.Second))
	for after, want := range map[time.Duration]int{5*time.Second + time.Millisecond: 2, 8 * time.Second: 3} {
		if got := s.until(now.Add(after)); len(got) != want || !got[want-1].at.Equal(now.Add(after)) {
			t.Errorf("after %v: %v, want %d", after, got, want)
		}
	}
	if len(s.kept) != 2 {
		t.Errorf("%d kept, want 2", len(s.kept))
	}
}

// The counters are read one after another, so that the parts may be more than
// the whole.
func TestBetween(t *testing.T) {
	at := time.Unix(1000, 0)
	q := between(sample{at, server.Totals{}}, sample{at.Add(2 * time.Second), server.Totals{Questions: 10, NXDomain: 3, Refused: 2, ServFail: 1, NoData: 1, Truncated: 2}})
	if want := (questions{Seconds: 2, At: at.Add(2 * time.Second), Questions: 10, NoError: 4, NXDomain: 3, Refused: 2, ServFail: 1, NoData: 1, Truncated: 2}); q != want {
		t.Errorf("%+v, want %+v", q, want)
	}
	q = between(sample{at, server.Totals{}}, sample{at, server.Totals{Questions: 1, NXDomain: 2}})
	if q.NoError != 0 || q.Questions != 2 || q.PerSecond() != 2 {
		t.Errorf("%+v at %v a second, want 2 NXDOMAIN of 2, as of one second", q, q.PerSecond())
	}
	if got := percent(questions{}, 0); got != "–" {
		t.Errorf("a share of nothing is %q", got)
	}
}

// TestChart: every path is of numbers within the picture, and the areas are as
// large as the counts.
func TestChart(t *testing.T) {
	now := time.Unix(100_000, 0)
	var all []questions
	for i := range 120 {
		n := uint64(5 * i)
		all = append(all, questions{
			Seconds: 5, At: now.Add(time.Duration(i-119) * 5 * time.Second), Questions: n + 30, NoError: n, NXDomain: 10, Refused: 10, ServFail: 10,
		})
	}
	c := newChart(all, now)
	if c.Top != "200" || !strings.Contains(c.Description, "at most 125 questions a second") {
		t.Errorf("top %s, %q", c.Top, c.Description)
	}
	upper := map[float64]float64{} // of what is drawn so far, by the left edge
	rectangle := regexp.MustCompile(`M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H([\d.]+)Z`)
	for i, want := range []uint64{5 * 119 * 120 / 2, 1200, 1200, 1200} {
		b := c.Bands[i]
		if rest := rectangle.ReplaceAllString(b.Path, ""); rest != "" {
			t.Errorf("%s: %q in the path", b.Rcode, rest)
		}
		area := 0.0
		for _, m := range rectangle.FindAllStringSubmatch(b.Path, -1) {
			var v [5]float64
			for j := range v {
				v[j], _ = strconv.ParseFloat(m[j+1], 64)
			}
			if v[0] < 0 || v[2] > chartWidth || v[1] < 0 || v[3] > chartHeight || v[0] != v[4] || v[2] < v[0] || v[3] < v[1] {
				t.Errorf("%s: %v is not in the picture", b.Rcode, v)
			}
			// A band stands on the one below it.
			if below, ok := upper[v[0]]; v[3] != below && (ok || v[3] != chartHeight) {
				t.Errorf("%s: %v stands at %v", b.Rcode, v, below)
			}
			upper[v[0]] = v[1]
			area += (v[2] - v[0]) * (v[3] - v[1])
		}
		// An area of one is a sixth of a second's questions by two a second.
		if got := area * samplesTime.Seconds() / chartWidth * 200 / chartHeight; got < 0.98*float64(want) || got > 1.02*float64(want) {
			t.Errorf("%s: the area is %v questions, want %d", b.Rcode, got, want)
		}
		if share := fmt.Sprintf("%s %%", number(100*float64(want)/float64(5*119*120/2+3600))); b.Share != share {
			t.Errorf("%s: share %s, want %s", b.Rcode, b.Share, share)
		}
	}
	for _, none := range [][]questions{nil, {{Seconds: 5, At: now}}} {
		if c := newChart(none, now); c.Top != "1" || c.Bands[0].Path != "" {
			t.Errorf("a chart of nothing: %+v", c)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, 0.3: 1, 1: 1, 1.1: 2, 2: 2, 3: 5, 5: 5, 6: 10, 10: 10, 11: 20, 4999: 5000, 50_001: 100_000} {
		if got := roundUp(v); got != want {
			t.Errorf("roundUp(%v) = %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.126: "0.13", 1: "1", 12.34: "12.3", 99.96: "100", 12345.6: "12346"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
