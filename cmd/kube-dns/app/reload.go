package app

import (
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"

	"kubedns/pkg/dns/config"
)

// reload puts updates of the configuration into force.
type reload struct {
	apply   func(*config.Config) error
	inForce atomic.Pointer[config.Config] // nil before the first

	successful, timestamp prometheus.Gauge
}

func newReload(apply func(*config.Config) error) *reload {
	r := &reload{
		apply: apply,
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

// report takes what the source saw. What is refused changes nothing.
func (r *reload) report(u config.Update) {
	for _, w := range u.Warnings {
		glog.Warningf("config: %s: %s", u.Origin, w)
	}
	err := u.Err
	if err == nil {
		err = r.apply(u.Config)
	}
	if err != nil {
		r.successful.Set(0)
		glog.Errorf("config: %s refused, the running configuration stays: %v", u.Origin, err)
		return
	}
	r.inForce.Store(u.Config)
	r.successful.Set(1)
	r.timestamp.Set(float64(u.Time.UnixNano()) / float64(time.Second))
	glog.Infof("config: %s is in force: %v", u.Origin, u.Config.Data())
}
