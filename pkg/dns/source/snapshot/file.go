package snapshot

import (
	"context"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dns/objects"
)

// interval is the shortest time between two snapshots.
const interval = 10 * time.Second

// File is a snapshot file. It is a prometheus.Collector of the writing. Its
// methods are safe for concurrent use.
type File struct {
	path   string
	due    chan struct{} // wakes Run; one token
	errors prometheus.Counter
	last   prometheus.Gauge
}

// New makes a File at path, which need not exist. Its folder must, for a
// snapshot to be written.
func New(path string) *File {
	return &File{
		path: path, due: make(chan struct{}, 1),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubedns_snapshot_errors_total",
			Help: "Snapshots that could not be written.",
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_snapshot_last_success_timestamp_seconds",
			Help: "When a snapshot was last written; 0 before the first.",
		}),
	}
}

// Load reads the file, and removes what writers left beside it that were
// killed. taken is when the snapshot was. The error is ErrNone where there is no
// file, and otherwise says what is wrong with it.
func (f *File) Load() (set *objects.Set, taken time.Time, err error) {
	removeLeftovers(f.path)
	return read(f.path)
}

// Due has a snapshot written soon.
func (f *File) Due() {
	select {
	case f.due <- struct{}{}:
	default:
	}
}

// Run writes a snapshot of all after Due was called, at most one in 10 s, until
// ctx is done. After a failure it tries again.
func (f *File) Run(ctx context.Context, all func() ([]*objects.Service, []*objects.EndpointSlice)) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.due:
		}
		err := f.write(all())
		switch {
		case err != nil && !failed:
			glog.Warningf("dns: %v; answers are not affected", err)
		case err == nil && failed:
			glog.Infof("dns: snapshots are written again")
		}
		failed = err != nil
		if err != nil {
			f.Due() // again after the pause
		}
		pause := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

func (f *File) write(services []*objects.Service, slices []*objects.EndpointSlice) error {
	b, err := encode(services, slices, time.Now())
	if err == nil {
		err = write(f.path, b)
	}
	if err != nil {
		f.errors.Inc()
		return err
	}
	f.last.Set(float64(time.Now().UnixNano()) / float64(time.Second))
	return nil
}

// Describe implements prometheus.Collector.
func (f *File) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *File) Collect(ch chan<- prometheus.Metric) {
	f.errors.Collect(ch)
	f.last.Collect(ch)
}
