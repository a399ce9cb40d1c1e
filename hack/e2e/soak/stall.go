package soak

import (
	"context"
	"os"
	"sort"
	"sync"
	"time"

	"kubedns/hack/e2e/harness"
)

// Stall measures how long programs wait for a processor. Its methods are safe
// for concurrent use.
type Stall struct {
	mu      sync.Mutex
	pids    []int
	threads map[string]time.Duration // by file, what schedstat said last
	at      []time.Time
	sum     []time.Duration // what had been waited at that time, since Run
}

// Watch sets the processes that are measured from now on.
func (s *Stall) Watch(pids ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids = pids
}

// Run measures until ctx is done.
func (s *Stall) Run(ctx context.Context) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		s.sample()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sample adds, for each process, the longest that one of its threads has waited
// since the last sample: what passes from process to process waits in each.
func (s *Stall) sample() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waited time.Duration
	threads := map[string]time.Duration{}
	for _, pid := range s.pids {
		var longest time.Duration
		for _, file := range harness.Schedstats(pid) {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			_, n, ok := harness.ParseSchedstat(data)
			if !ok {
				continue
			}
			threads[file] = n
			if last, ok := s.threads[file]; ok && n > last {
				longest = max(longest, n-last)
			}
		}
		waited += longest
	}
	s.threads = threads
	if n := len(s.sum); n > 0 {
		waited += s.sum[n-1]
	}
	s.at, s.sum = append(s.at, time.Now()), append(s.sum, waited)
}

// Waited is what was waited between two moments, as far as it was measured,
// rounded to whole samples upwards.
func (s *Stall) Waited(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.at)
	if n == 0 {
		return 0
	}
	first := max(0, sort.Search(n, func(i int) bool { return s.at[i].After(from) })-1)
	last := min(n-1, sort.Search(n, func(i int) bool { return !s.at[i].Before(to) }))
	return max(0, s.sum[last]-s.sum[first])
}
