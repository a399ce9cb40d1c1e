package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

// gcPercent is GOGC as it is.
func gcPercent() int {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// TestMemoryDuringRelists: the heap is kept small from the first relist's
// beginning to the last one's end, and GOGC is what it was afterwards.
func TestMemoryDuringRelists(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(80))
	m := newMemory()
	for i, step := range []struct {
		do   func()
		want int
	}{
		{m.RelistBegins, relistPercent}, {m.RelistBegins, relistPercent},
		{m.RelistEnds, relistPercent}, {m.RelistEnds, 80},
		{m.RelistBegins, relistPercent}, {m.RelistEnds, 80},
	} {
		step.do()
		if got := gcPercent(); got != step.want {
			t.Errorf("step %d: GOGC is %d, want %d", i, got, step.want)
		}
	}
}

// TestMemoryReleased: memory is released once for the lists of 2 s.
func TestMemoryReleased(t *testing.T) {
	forced := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- m.run(ctx) }()
		before := forced()
		m.ListDropped()
		m.ListDropped() // before run has taken the first: one token
		time.Sleep(releaseAfter / 2)
		if n := forced() - before; n != 0 {
			t.Errorf("released %d times at once", n)
		}
		time.Sleep(releaseAfter)
		if n := forced() - before; n != 1 {
			t.Errorf("released %d times, want once", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run() = %v", err)
		}
	})
}
