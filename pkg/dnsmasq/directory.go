package dnsmasq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubedns/pkg/dns/config"
)

// directory is the ConfigMap's directory. Beyond config.DirSource it refuses a
// configuration key that is a folder, and warns when the directory is missing:
// for config.DirSource both are the same as no configuration.
type directory struct {
	path    string
	period  time.Duration
	source  *config.DirSource
	folders []string // keys that are folders, as last read
}

func newDirectory(path string, period time.Duration) *directory {
	return &directory{path: path, period: period, source: config.Dir(path, period)}
}

// read reads the directory once. It must not be called while Run runs.
func (d *directory) read() config.Update {
	return d.check(d.source.Read())
}

// Run reports the directory's content, and then each change of it, until ctx is
// done.
func (d *directory) Run(ctx context.Context, report func(config.Update)) error {
	updates := make(chan config.Update)
	return run(ctx,
		func(ctx context.Context) error {
			return d.source.Run(ctx, func(u config.Update) { send(ctx, updates, u) })
		},
		func(ctx context.Context) error { return d.follow(ctx, updates, report) },
	)
}

// follow reports updates, and what config.DirSource does not see: folders that
// come and go.
func (d *directory) follow(ctx context.Context, updates <-chan config.Update, report func(config.Update)) error {
	ticker := time.NewTicker(d.period)
	defer ticker.Stop()
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-updates:
			first = false
			report(d.check(u))
		case <-ticker.C:
			if !first && !slices.Equal(folderKeys(d.path), d.folders) {
				report(d.read())
			}
		}
	}
}

func (d *directory) check(u config.Update) config.Update {
	if _, err := os.Stat(d.path); errors.Is(err, fs.ErrNotExist) {
		u.Warnings = append(slices.Clip(u.Warnings), u.Origin+" does not exist: using the default configuration")
	}
	d.folders = folderKeys(d.path)
	if len(d.folders) > 0 && u.Err == nil {
		u.Config, u.Err = nil, fmt.Errorf("%s: a folder in place of a file", strings.Join(d.folders, ", "))
	}
	return u
}

// folderKeys returns which of the configuration's keys are folders in dir.
func folderKeys(dir string) []string {
	var folders []string
	for _, key := range config.Keys() {
		if info, err := os.Stat(filepath.Join(dir, key)); err == nil && info.IsDir() {
			folders = append(folders, key)
		}
	}
	return folders
}

func send[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	case <-ctx.Done():
	}
}
