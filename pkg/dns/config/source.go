package config

import (
	"context"
	"time"
)

// Update is what a source saw: a new configuration, or why there is none. It is
// not changed once reported.
type Update struct {
	Config   *Config   // nil when refused
	Err      error     // why it was refused, in one line; the running configuration stays
	Warnings []string  // what the configuration has that means nothing, one line each
	Origin   string    // "flags", "directory /kube-dns-config", "ConfigMap kube-system/kube-dns"
	Version  string    // the ConfigMap's resourceVersion, a checksum of the directory, ""
	Time     time.Time // when the source saw it
}

// Source is where configurations come from. Run reports first what it finds at
// start, then each change. It blocks until ctx is done and then returns nil; an
// error means that it cannot go on. report is called by one goroutine at a
// time, and not after Run has returned; it may block, which holds up the source
// alone. Run is called once.
type Source interface {
	Run(ctx context.Context, report func(Update)) error
}

// Fixed is the source of a configuration that does not change, the flags':
// cfg is reported once. Nil is the default configuration.
func Fixed(cfg *Config) Source {
	if cfg == nil {
		cfg = &Config{}
	}
	return fixed{cfg}
}

type fixed struct{ cfg *Config }

func (f fixed) Run(ctx context.Context, report func(Update)) error {
	report(Update{Config: f.cfg, Origin: "flags", Time: time.Now()})
	<-ctx.Done()
	return nil
}
