package site

import (
	"context"
	"slices"
	"sync"
	"time"

	"kubedns/pkg/dns/server"
)

const (
	sampleInterval = 5 * time.Second
	// samplesTime is how far back the samples go.
	samplesTime = 10 * time.Minute
)

// sample is the server's counters at a moment.
type sample struct {
	at     time.Time
	totals server.Totals
}

// samples keeps the server's counters of the last minutes. It reads what is
// counted anyway: an answer costs nothing more.
type samples struct {
	totals func() server.Totals

	mu   sync.Mutex
	kept []sample // oldest first
}

// run takes a sample at once and then at each interval until ctx is done.
func (s *samples) run(ctx context.Context) error {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		s.take(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *samples) take(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := 0
	for old < len(s.kept) && now.Sub(s.kept[old].at) > samplesTime {
		old++
	}
	s.kept = append(slices.Delete(s.kept, 0, old), sample{now, s.totals()})
}

// until returns the samples, oldest first, with one of now as the last: in
// place of the one before where that is not half an interval old.
func (s *samples) until(now time.Time) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.kept)
	if n := len(all); n > 1 && now.Sub(all[n-1].at) < sampleInterval/2 {
		all = all[:n-1]
	}
	return append(all, sample{now, s.totals()})
}

// questions is what was answered in a span of time, as / has it.
type questions struct {
	// Seconds is the length of the span, which ends at At.
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
	// Questions is the sum of the four that follow. NOERROR has FORMERR and
	// NOTIMP in it, which are not counted by themselves.
	Questions uint64 `json:"questions"`
	NoError   uint64 `json:"noerror"`
	NXDomain  uint64 `json:"nxdomain"`
	Refused   uint64 `json:"refused"`
	ServFail  uint64 `json:"servfail"`
	// NoData and Truncated are parts of NOERROR.
	NoData    uint64 `json:"nodata"`
	Truncated uint64 `json:"truncated"`
}

// between is what was answered from one sample to the other.
func between(from, to sample) questions {
	q := questions{
		Seconds: to.at.Sub(from.at).Seconds(), At: to.at,
		Questions: to.totals.Questions - from.totals.Questions,
		NXDomain:  to.totals.NXDomain - from.totals.NXDomain,
		Refused:   to.totals.Refused - from.totals.Refused,
		ServFail:  to.totals.ServFail - from.totals.ServFail,
		NoData:    to.totals.NoData - from.totals.NoData,
		Truncated: to.totals.Truncated - from.totals.Truncated,
	}
	// The counters are read one after another while questions are answered: a
	// cause is counted after its question, but may be read after it too.
	if others := q.NXDomain + q.Refused + q.ServFail; others < q.Questions {
		q.NoError = q.Questions - others
	} else {
		q.Questions = others
	}
	return q
}

// perSecond is a rate. Of less than a second it says nothing, and counts as
// one.
func (q questions) perSecond(n uint64) float64 { return float64(n) / max(q.Seconds, 1) }

// PerSecond is the rate of all questions.
func (q questions) PerSecond() float64 { return q.perSecond(q.Questions) }

// rcodes are in the order of byRcode.
var rcodes = [4]string{"NOERROR", "NXDOMAIN", "REFUSED", "SERVFAIL"}

// byRcode has the four that Questions is the sum of.
func (q questions) byRcode() [4]uint64 {
	return [4]uint64{q.NoError, q.NXDomain, q.Refused, q.ServFail}
}

// Share is n as a part of all questions, in percent.
func (q questions) Share(n uint64) float64 {
	if q.Questions == 0 {
		return 0
	}
	return 100 * float64(n) / float64(q.Questions)
}

// windows sums up the last minute, the last 5 and the last 10, those that are
// longer than what is known left out.
func windows(all []sample) []questions {
	var w []questions
	now := all[len(all)-1]
	for _, span := range []time.Duration{time.Minute, 5 * time.Minute, samplesTime} {
		i := slices.IndexFunc(all, func(s sample) bool { return now.at.Sub(s.at) <= span })
		q := between(all[i], now)
		if len(w) > 0 && w[len(w)-1].Seconds >= q.Seconds {
			break
		}
		w = append(w, q)
	}
	return w
}

// intervals has what was answered from each sample to the next.
func intervals(all []sample) []questions {
	q := make([]questions, 0, len(all))
	for i := 1; i < len(all); i++ {
		if all[i].at.After(all[i-1].at) {
			q = append(q, between(all[i-1], all[i]))
		}
	}
	return q
}

// minutes has what was answered in each whole minute before the last sample,
// and in what is left at the beginning, the latest first.
func minutes(all []sample) []questions {
	var q []questions
	for to := len(all) - 1; to > 0; {
		from := to - 1
		for from > 0 && all[to].at.Sub(all[from-1].at) <= time.Minute {
			from--
		}
		q = append(q, between(all[from], all[to]))
		to = from
	}
	return q
}
