package forward

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// TestBackoff plays failures and answers at given seconds.
func TestBackoff(t *testing.T) {
	type step struct {
		at, started float64 // seconds
		what        string  // failed, silent, answered, claim
		failing     bool    // afterwards
		due         bool    // what claim returned
		backoff     time.Duration
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"fails and comes back", []step{
			{1, 0.9, "failed", true, false, time.Second},
			{1.5, 0, "claim", true, false, time.Second},
			{2, 0, "claim", true, true, time.Second},
			{2.01, 0, "claim", true, false, time.Second}, // one question only
			{2.1, 2, "answered", false, false, 0},
			{3, 0, "claim", false, false, 0},
			{4, 3.5, "failed", true, false, time.Second},
		}},
		{"a hundred at once are one failure", []step{
			{1, 0.2, "failed", true, false, time.Second},
			{1, 0.3, "failed", true, false, time.Second},
			{1.2, 0.4, "failed", true, false, time.Second},
			{2.2, 0, "claim", true, true, time.Second},
			{3, 0.9, "failed", true, false, time.Second}, // from before
			{3.1, 2.2, "failed", true, false, 2 * time.Second},
			{3.2, 2.3, "failed", true, false, 2 * time.Second},
		}},
		{"grows to 30 s", []step{
			{0, 0, "failed", true, false, time.Second},
			{10, 0, "claim", true, true, time.Second}, {10, 10, "failed", true, false, 2 * time.Second},
			{20, 0, "claim", true, true, 2 * time.Second}, {20, 20, "failed", true, false, 4 * time.Second},
			{30, 0, "claim", true, true, 4 * time.Second}, {30, 30, "failed", true, false, 8 * time.Second},
			{40, 0, "claim", true, true, 8 * time.Second}, {40, 40, "failed", true, false, 16 * time.Second},
			{60, 0, "claim", true, true, 16 * time.Second}, {60, 60, "failed", true, false, 30 * time.Second},
			{89, 0, "claim", true, false, 30 * time.Second},
			{90, 0, "claim", true, true, 30 * time.Second}, {90, 90, "failed", true, false, 30 * time.Second},
		}},
		{"silent to one name, answers others", []step{
			{1, 0.9, "answered", false, false, 0},
			{1.4, 0.8, "silent", false, false, 0},
			{1.4, 1.01, "silent", true, false, time.Second},
		}},
		{"SERVFAIL counts whatever was answered meanwhile", []step{
			{1, 0.9, "answered", false, false, 0},
			{1.1, 0.8, "failed", true, false, time.Second},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newNameserver(netip.MustParseAddrPort("192.0.2.1:53"), Options{}.withDefaults())
			start := time.Unix(1_700_000_000, 0)
			at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
			failures := uint64(0)
			for i, st := range tt.steps {
				var due bool
				switch st.what {
				case "failed":
					failures++
					s.failed(at(st.at), at(st.started), errors.New("test"))
				case "silent":
					failures++
					s.silent(at(st.at), at(st.started), errors.New("test"))
				case "answered":
					s.answered(at(st.at), time.Millisecond)
				case "claim":
					_, due = s.due(at(st.at), true)
				}
				if h := s.health(); h.Failing != st.failing || due != st.due || s.backoff != st.backoff || h.Failures != failures {
					t.Errorf("step %d, %v: due %v, back-off %v, health %+v", i, st, due, s.backoff, h)
				}
			}
		})
	}
}

func TestRTT(t *testing.T) {
	s := newNameserver(netip.MustParseAddrPort("192.0.2.1:53"), Options{}.withDefaults())
	if d := s.headStart(); d != 100*time.Millisecond {
		t.Errorf("head start %v while the RTT is unknown", d)
	}
	for _, step := range []struct{ rtt, want, headStart time.Duration }{
		{8 * time.Millisecond, 8 * time.Millisecond, 32 * time.Millisecond},
		{16 * time.Millisecond, 9 * time.Millisecond, 36 * time.Millisecond},
		{0, 9 * time.Millisecond, 36 * time.Millisecond},
		{time.Millisecond, 8 * time.Millisecond, 32 * time.Millisecond},
		{8 * time.Second, 1007 * time.Millisecond, 200 * time.Millisecond},
	} {
		s.answered(time.Now(), step.rtt)
		if got := s.health().RTT; got != step.want || s.headStart() != step.headStart {
			t.Errorf("after %v: RTT %v, want %v; head start %v, want %v", step.rtt, got, step.want, s.headStart(), step.headStart)
		}
	}
}
