package manifests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/golang/glog"
)

const (
	// pollInterval is how often the directory is looked at when no event tells
	// of a change: events are missing on some file systems, for the targets of
	// symbolic links, and where the kernel's watches are used up.
	pollInterval = 2 * time.Second
	// quietPeriod is how long no event may come before the files are read:
	// whoever copies ten files into the directory means them together.
	quietPeriod = 100 * time.Millisecond
	// maxDelay bounds the wait for a quiet period.
	maxDelay = time.Second
)

// Watch calls report with what dir holds, as Read returns it, at start and
// after each change of that, until ctx is done; then it returns nil. It calls
// report from the caller's goroutine, one call at a time. An error is returned
// at once when dir is not a name to work with; no other is.
//
// After a report with an error, what was reported before it stays what counts:
// a file is half written, or somebody has mistyped. A report without one
// follows when that is mended, even when the objects are what they were.
//
// dir may be a symbolic link. It may be swapped for another, vanish, which is
// an error, and come back.
func Watch(ctx context.Context, dir string, report func(*Objects, []string, error)) error {
	if dir == "" {
		return errors.New("watching manifests: no directory given")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("watching manifests: %w", err)
	}
	f := follower{dir: dir, report: report, poll: pollInterval}
	fsw, err := fsnotify.NewWatcher()
	if err != nil {
		glog.Warningf("manifests: inotify unavailable for %s, polling every %v: %v", dir, pollInterval, err)
	} else {
		defer func() { _ = fsw.Close() }() // ends its goroutine; nothing to be done about an error
		f.watch = &dirWatch{dir: dir, fsw: fsw}
	}
	f.run(ctx)
	return nil
}

// follower is the state of one Watch.
type follower struct {
	dir    string // absolute and clean
	report func(*Objects, []string, error)
	poll   time.Duration
	watch  *dirWatch // nil: no events

	seen     state // of the directory, before it was last read
	reported bool
	objects  *Objects // as last reported, with the two below
	problems []string
	err      error
}

// run reports until ctx is done.
func (f *follower) run(ctx context.Context) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if f.watch != nil {
		events, errs = f.watch.fsw.Events, f.watch.fsw.Errors
	}
	f.watch.renew()
	f.read()

	poll := time.NewTicker(f.poll)
	defer poll.Stop()
	quiet := time.NewTimer(0)
	quiet.Stop()
	defer quiet.Stop()
	var latest time.Time // when to read at the latest; zero when no event is waiting
	touch := func() {
		now := time.Now()
		if latest.IsZero() {
			latest = now.Add(maxDelay)
		}
		quiet.Reset(min(quietPeriod, latest.Sub(now)))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if f.watch.relevant(e) {
				touch()
			}
		case err := <-errs: // events are lost, probably
			glog.V(2).Infof("manifests: events of %s: %v", f.dir, err)
			touch()
		case <-quiet.C:
			latest = time.Time{}
			f.watch.renew()
			f.read()
		case <-poll.C:
			renewed := f.watch.renew()
			if latest.IsZero() && (renewed || !look(f.dir).same(f.seen)) {
				f.read()
			}
		}
	}
}

// read reads the directory and reports it when something has changed.
func (f *follower) read() {
	f.seen = look(f.dir) // before it is read: a change meanwhile is seen next time
	o, problems, err := Read(f.dir)
	if f.reported && sameError(err, f.err) && slices.Equal(problems, f.problems) && reflect.DeepEqual(o, f.objects) {
		return
	}
	f.reported, f.objects, f.problems, f.err = true, o, problems, err
	f.report(o, slices.Clone(problems), err)
}

func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.Error() == b.Error()
}

// state is what can be seen of a directory without reading its files.
type state struct {
	text string
	// fresh: a file changed so recently that it could change again without
	// another size or modification time, which have the grain of a clock tick.
	fresh bool
}

// same reports whether nothing can have changed from old to s.
func (s state) same(old state) bool {
	return !s.fresh && !old.fresh && s.text == old.text
}

// look returns the state of dir.
func look(dir string) state {
	names, err := fileNames(dir)
	if err != nil {
		return state{text: err.Error()}
	}
	var text strings.Builder
	fresh := false
	now := time.Now()
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			fmt.Fprintf(&text, "%q %v\n", name, err)
			continue
		}
		var inode uint64
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = sys.Ino
		}
		modified := info.ModTime()
		fmt.Fprintf(&text, "%q %v %d %d %d\n", name, info.Mode(), inode, info.Size(), modified.UnixNano())
		if now.Sub(modified).Abs() < pollInterval {
			fresh = true
		}
	}
	return state{text: text.String(), fresh: fresh}
}

// dirWatch asks the kernel for the events of a directory, and of its parent,
// which tell that it was swapped. nil does nothing.
type dirWatch struct {
	dir     string
	fsw     *fsnotify.Watcher
	watched os.FileInfo // the directory whose events come; nil: none
	parent  bool        // the parent's come
	warned  bool
}

// renew sees to it that the events are those of the directory that w.dir leads
// to now, and reports whether they were not.
func (w *dirWatch) renew() bool {
	if w == nil {
		return false
	}
	if parent := filepath.Dir(w.dir); !w.parent && parent != w.dir {
		w.parent = w.fsw.Add(parent) == nil // else polling does
	}
	info, err := os.Stat(w.dir)
	if err != nil {
		w.forget()
		return false
	}
	if w.watched != nil && os.SameFile(w.watched, info) {
		return false
	}
	w.forget()
	if err := w.fsw.Add(w.dir); err != nil {
		if !w.warned {
			w.warned = true
			glog.Warningf("manifests: inotify unavailable for %s, polling every %v: %v", w.dir, pollInterval, err)
		}
		return false
	}
	w.watched = info
	return true
}

// forget ends the watch of the directory.
func (w *dirWatch) forget() {
	w.watched = nil
	_ = w.fsw.Remove(w.dir) // an error says that there was none
}

// relevant reports whether e may change what is read.
func (w *dirWatch) relevant(e fsnotify.Event) bool {
	if e.Name == w.dir {
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			w.watched = nil // another directory may come with the same inode
		}
		return true
	}
	if filepath.Dir(e.Name) != w.dir {
		return false // the parent's other children
	}
	name := filepath.Base(e.Name)
	// A mounted ConfigMap's files are links that lead through ..data, which
	// is swapped.
	return isManifest(name) || name == "..data"
}
