package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/fakeapi"
	"kubedns/hack/bench/proc"
)

// bench is one run.
type bench struct {
	o       *options
	dir     string // for what does not outlive the run
	cache   string // for what does
	top     string // of the repository
	bins    binaries
	results *Results

	// What the loads are about, and the API server that has it.
	cluster    *cluster.Cluster
	api        *fakeapi.Server
	kubeconfig string // of api
	zoneFile   string
	files      map[fileKey]questionFile
}

// loaded is the cluster that questions are asked about.
func loaded() cluster.Shape {
	s := cluster.Small
	s.Big = 1500
	return s
}

// newBench builds what is to be measured and makes what is asked about it.
func newBench(ctx context.Context, o *options) (_ *bench, err error) {
	b := &bench{o: o, files: map[fileKey]questionFile{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.top, err = topDir(); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir() // $XDG_CACHE_HOME or $HOME/.cache
	if err != nil {
		return nil, err
	}
	b.cache = filepath.Join(cache, "kubedns", "bench")
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "kubedns-bench-"); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	machine, err := proc.ReadMachine()
	if err != nil {
		return nil, err
	}
	b.results = &Results{
		Date: time.Now().UTC().Truncate(time.Second), Machine: machine, Go: runtime.Version(),
		Rounds: o.Rounds, Seconds: o.Seconds, Shape: loaded(), Parts: o.Parts,
	}
	b.results.Versions, err = b.versions(ctx)
	return b, err
}

// topDir is the repository's: the directory above with hack/bench in it.
func topDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack", "bench", "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("not within kube-dns's repository")
		}
		dir = filepath.Dir(dir)
	}
}

// prepare builds the binaries, the cluster and its API server.
func (b *bench) prepare(ctx context.Context) error {
	if err := needTools(ctx); err != nil {
		return err
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	b.cluster = cluster.New(loaded())
	var err error
	if b.api, err = fakeapi.New(b.cluster); err != nil {
		return fmt.Errorf("starting the fake API server: %w", err)
	}
	if b.kubeconfig, err = b.api.WriteKubeconfig(b.dir); err != nil {
		return err
	}
	b.zoneFile = filepath.Join(b.dir, "cluster.local.zone")
	f, err := os.Create(b.zoneFile)
	if err != nil {
		return err
	}
	return errors.Join(b.cluster.WriteZone(f), f.Close())
}

func (b *bench) close() error {
	var err error
	if b.api != nil {
		err = b.api.Close()
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	return err
}

// measure measures all parts that were asked for.
func (b *bench) measure(ctx context.Context) error {
	start := time.Now()
	if b.o.has(partUDP) || b.o.has(partTCP) || b.o.has(partLatency) {
		if err := b.measureServing(ctx); err != nil {
			return err
		}
	}
	if b.o.has(partChange) {
		if err := b.measureChange(ctx); err != nil {
			return err
		}
	}
	if b.o.has(partStart) || b.o.has(partMemory) {
		if err := b.measureCluster(ctx); err != nil {
			return err
		}
	}
	b.results.Took = time.Since(start).Round(time.Second)
	return nil
}

// say tells the user what goes on.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// sleep waits for d, or until ctx is done, whose error it returns then.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
