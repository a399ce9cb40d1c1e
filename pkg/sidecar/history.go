package sidecar

import (
	"maps"
	"slices"
	"sync"
	"time"

	"kubedns/pkg/dnsmasq/counters"
)

// recentOutcomes is how many outcomes of a probe the status page shows.
const recentOutcomes = 20

// outcomes keeps the last outcomes of a probe. The zero value is empty.
type outcomes struct {
	mu   sync.Mutex
	kept []outcome // the latest last
}

func (o *outcomes) add(next outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.kept) == recentOutcomes {
		o.kept = slices.Delete(o.kept, 0, 1)
	}
	o.kept = append(o.kept, next)
}

// latestFirst returns a copy.
func (o *outcomes) latestFirst() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.kept)
	slices.Reverse(all)
	return all
}

const (
	// cacheInterval and cacheTime are how often, and for how long, hits and
	// misses are kept for the recent hit ratio.
	cacheInterval = 5 * time.Second
	cacheTime     = 10 * time.Minute
)

// seen is what polls have found. It is immutable once stored.
type seen struct {
	polled, answered time.Time
	up               bool
	err              string
	restarts         uint64
	values           map[string]uint64 // latest value by dnsmasq's name of it
	servers          []counters.ServerStats
	cache            []cacheSample // oldest first; the last is now
}

// cacheSample is hits and misses, restarts included, up to a moment.
type cacheSample struct {
	at           time.Time
	hits, misses float64
}

// see returns the seen that follows before (nil for the first poll) when a poll has
// got these answers.
func see(before *seen, got answers, restarted bool, hits, misses float64, now time.Time) *seen {
	next := &seen{polled: now, up: got.answered(), values: map[string]uint64{}}
	latest := cacheSample{now, hits, misses}
	if before == nil {
		next.cache = []cacheSample{latest}
	} else {
		next.answered, next.restarts, next.servers = before.answered, before.restarts, before.servers
		maps.Copy(next.values, before.values)
		next.cache = keepSamples(before.cache, latest)
	}
	if restarted {
		next.restarts++
	}
	if next.up {
		next.answered = now
	}
	maps.Copy(next.values, got.values)
	if got.hasServers {
		next.servers = got.servers
	}
	if got.err != nil {
		next.err = got.err.Error()
	}
	return next
}

// keepSamples returns a copy of all with latest at its end. The last one is
// replaced while it is less than cacheInterval after its predecessor; those older
// than cacheTime are dropped.
func keepSamples(all []cacheSample, latest cacheSample) []cacheSample {
	kept := slices.Clone(all)
	if n := len(kept); n > 1 && kept[n-1].at.Sub(kept[n-2].at) < cacheInterval {
		kept = kept[:n-1]
	}
	kept = append(kept, latest)
	old := 0
	for old < len(kept)-1 && latest.at.Sub(kept[old].at) > cacheTime {
		old++
	}
	return kept[old:]
}
