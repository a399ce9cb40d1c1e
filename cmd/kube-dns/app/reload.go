package app

import (
	"sync"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dns/config"
)

// reload puts updates of the configuration into force, and remembers what
// became of them.
type reload struct {
	apply func(*config.Config) error

	mu      sync.Mutex // held while an update is put into force
	inForce config.Update
	refused config.Update // Err is why

	successful, timestamp prometheus.Gauge
}

func newReload(apply func(*config.Config) error) *reload {
	r := &reload{
		apply:   apply,
		inForce: config.Update{Config: &config.Config{}, Origin: "default"},
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_config_last_reload_successful",
			Help: "1 where the last update of the configuration is in force, 0 where it was refused.",
		}),
		timestamp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubedns_config_last_reload_success_timestamp_seconds",
			Help: "When the configuration in force was read.",
		}),
	}
	r.successful.Set(1) // the default configuration is in force
	return r
}

// Describe implements prometheus.Collector.
func (r *reload) Describe(ch chan<- *prometheus.Desc) {
	r.successful.Describe(ch)
	r.timestamp.Describe(ch)
}

// Collect implements prometheus.Collector.
func (r *reload) Collect(ch chan<- prometheus.Metric) {
	r.successful.Collect(ch)
	r.timestamp.Collect(ch)
}

// last shows look the update in force, whose Time is zero while it is the default
// and nothing was read, and the one refused last, whose Time is zero where
// none was. Until look returns nothing is put into force.
func (r *reload) last(look func(inForce, refused config.Update)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	look(r.inForce, r.refused)
}

// report takes what the source saw. What is refused changes nothing.
func (r *reload) report(u config.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range u.Warnings {
		glog.Warningf("config: %s: %s", u.Origin, w)
	}
	if u.Err == nil {
		u.Err = r.apply(u.Config)
	}
	if u.Err != nil {
		r.refused = u
		r.successful.Set(0)
		glog.Errorf("config: %s refused, keeping the running configuration: %v", u.Origin, u.Err)
		return
	}
	r.inForce = u
	r.successful.Set(1)
	r.timestamp.Set(float64(u.Time.UnixNano()) / float64(time.Second))
	glog.Infof("config: %s is in force: %v", u.Origin, u.Config.Data())
}
