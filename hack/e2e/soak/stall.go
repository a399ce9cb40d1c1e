package soak

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"
)

// Stall measures how long programs wait for a processor. Its methods are safe
// for concurrent use.
type Stall struct {
	mu      sync.Mutex
	pids    []int
	threads map[string]uint64 // by file, what schedstat said last, in ns
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
	threads := map[string]uint64{}
	for _, pid := range s.pids {
		var longest uint64
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well formed
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			// Documentation/scheduler/sched-stats.rst: time on the processor,
			// time waiting for it, and times it had one.
			fields := bytes.Fields(data)
			if len(fields) < 2 {
				continue
			}
			n, err := strconv.ParseUint(string(fields[1]), 10, 64)
			if err != nil {
				continue
			}
			threads[file] = n
			if last, ok := s.threads[file]; ok && n > last {
				longest = max(longest, n-last)
			}
		}
		waited += time.Duration(longest)
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
