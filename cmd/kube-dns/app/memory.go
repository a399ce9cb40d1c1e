package app

import (
	"context"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/golang/glog"
)

// memory owns the settings of the garbage collector, which are the process's.
// What follows the API server tells it what takes much memory for a while, see
// apiserver.Memory. Its methods are safe for concurrent use.
type memory struct {
	dropped chan struct{} // wakes run; one token

	mu      sync.Mutex
	relists int // under way
	percent int // GOGC without them
}

func newMemory() *memory { return &memory{dropped: make(chan struct{}, 1)} }

// setLimit has the collector work harder before the container's limit is
// reached. The environment's GOMEMLIMIT comes first.
func (*memory) setLimit() {
	if limit, err := memlimit.Set(); err != nil {
		glog.V(2).Infof("kube-dns: no memory limit from the cgroup: %v", err)
	} else if limit != math.MaxInt64 {
		glog.Infof("kube-dns: memory limit %d MiB, from GOMEMLIMIT or nine tenths of the cgroup's", limit>>20)
	}
}

// relistPercent is GOGC during a relist: there is about as much garbage as there
// are objects, and with the usual 100 the heap would double and stay so.
const relistPercent = 25

// RelistBegins implements apiserver.Memory: it keeps the heap small until
// RelistEnds was called as often.
func (m *memory) RelistBegins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.relists++; m.relists == 1 {
		m.percent = debug.SetGCPercent(relistPercent)
	}
}

// RelistEnds implements apiserver.Memory.
func (m *memory) RelistEnds() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.relists--; m.relists == 0 {
		debug.SetGCPercent(m.percent)
	}
}

// ListDropped implements apiserver.Memory: run returns what the list took to the
// system.
func (m *memory) ListDropped() {
	select {
	case m.dropped <- struct{}{}:
	default:
	}
}

// releaseAfter is how long after a list memory is released: other lists, and
// making records, are done by then.
const releaseAfter = 2 * time.Second

// run releases memory after lists until ctx is done. The collector alone would
// keep it for the next list.
func (m *memory) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.dropped:
		}
		pause := time.NewTimer(releaseAfter)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
			debug.FreeOSMemory()
		}
	}
}
