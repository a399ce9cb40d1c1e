package clustertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"kubedns/pkg/await"
	"kubedns/pkg/dns/treecache"
)

// Main runs a package's tests and fails if they leave a goroutine.
func Main(m *testing.M) {
	// glog starts it when the program does, for good.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// Records is what a KubeDNS has.
type Records interface {
	Tree() *treecache.Tree
	HasSynced() bool
}

// Start calls run, which ends when its context is done, and stops it when the
// test ends or stop is called.
func Start(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// Eventually waits until what is so.
func Eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	await.Until(t, 30*time.Second, what, so)
}

// WaitForTree waits until kd is synced and has the tree wanted. It returns how they
// differ if that does not happen.
func WaitForTree(kd Records, want *treecache.Tree) (diff string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		diff = SameTree(kd.Tree(), want)
		if diff == "" && kd.HasSynced() {
			return ""
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Sprintf("synced: %v, %s", kd.HasSynced(), diff)
		}
	}
}

// Metric is the sum of a metric's samples whose labels have the values given.
func Metric(t *testing.T, g prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	samples:
		for _, m := range f.GetMetric() {
			for _, want := range labels {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetValue() == want
				}
				if !found {
					continue samples
				}
			}
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
