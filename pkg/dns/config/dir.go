package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/golang/glog"
)

const (
	// defaultPeriod is how often a directory is polled where nothing else
	// was said, as --config-period has it.
	defaultPeriod = 10 * time.Second
	// settle is how long after the first sign of a change the directory is
	// read: kubelet needs several steps for one update.
	settle = 50 * time.Millisecond
	// maxFileSize is the largest value a ConfigMap can hold.
	maxFileSize = 1 << 20
	// maxDirSize bounds what is kept of a directory that is no ConfigMap's.
	maxDirSize = 8 << 20
	// maxReads is how often in a row Read tries to see a directory at rest.
	maxReads = 5
)

// errUnsteady is why there is no configuration when the directory was changed
// each time while it was read.
var errUnsteady = errors.New("changed while it was read")

// DirSource is the source that reads a directory where a ConfigMap is mounted:
// a file's name is a key, its text the value. Symbolic links are followed, those
// to files as well as the directory's own path. Hidden files (their name begins
// with a dot), whatever is not a regular file, and links that lead nowhere are
// not there for it.
//
// A directory that does not exist is the same as an empty one, as kube-dns has
// it: it is the default configuration, also when the directory goes away later.
// A ConfigMap that is mounted as optional and gets deleted leaves it empty. A
// directory that cannot be read, and a file that is too large, is not UTF-8 or
// does not parse, refuse the whole update.
//
// What is read is one state of the directory, never half of one and half of the
// next, as long as it is changed the way kubelet does it, which is by swapping
// the link "..data" that all files lead through.
type DirSource struct {
	path   string
	period time.Duration
	// newWatcher is fsnotify.NewWatcher but in tests.
	newWatcher func() (*fsnotify.Watcher, error)
}

// Dir is the source that reads the directory path. It looks at once when
// inotify reports a change, and once a period in any case: inotify does not
// work on every file system, can run out of watches, and knows nothing of links
// that change further up in the path. A period of 0 or less is 10 s.
func Dir(path string, period time.Duration) *DirSource {
	if period <= 0 {
		period = defaultPeriod
	}
	return &DirSource{path: path, period: period, newWatcher: fsnotify.NewWatcher}
}

// Read reads the directory once. It may be called at any time, also while Run
// is running.
func (d *DirSource) Read() Update {
	u := Update{Origin: "directory " + d.path, Time: time.Now()}
	data, err := d.readSteady()
	if err != nil {
		u.Err = err
		return u
	}
	u.Version = checksum(data)
	u.Config, u.Warnings, u.Err = Parse(data)
	return u
}

// Run reports what the directory has now, and from then on each change of its
// content: a change of times or links alone is none, and an update that is
// refused is reported once. While it lasts it has one descriptor for inotify,
// and watches for the directory and for those where the links to it are.
func (d *DirSource) Run(ctx context.Context, report func(Update)) error {
	w := dirWatch{d: d}
	defer w.close()
	ticker := time.NewTicker(d.period)
	defer ticker.Stop()
	timer := time.NewTimer(0) // the first look
	defer timer.Stop()
	var (
		armed = true // timer is running
		seen  string // what was reported last
	)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-w.events():
			if !open {
				w.close()
			} else if !w.concerns(event) {
				continue
			}
			if !armed {
				armed = true
				timer.Reset(settle)
			}
			continue
		case err, open := <-w.errors():
			// An overflow has lost events, so that there is reason to look.
			glog.Warningf("config: watching directory %s: %v", d.path, err)
			if !open {
				w.close()
			}
		case <-ticker.C:
		case <-timer.C:
			armed = false
		}
		w.update() // before reading, so that no change falls between the two
		u := d.Read()
		if errors.Is(u.Err, errUnsteady) {
			glog.V(2).Infof("config: %v, trying again", u.Err)
			armed = true
			timer.Reset(settle)
			continue
		}
		if now := contentOf(u); now != seen {
			seen = now
			report(u)
		}
	}
}

// contentOf is the same for two updates of the directory that say the same.
// It is never "".
func contentOf(u Update) string {
	if u.Err != nil {
		return u.Version + " " + u.Err.Error()
	}
	return u.Version
}

// checksum is over names and texts, so that it is the same for the same files.
func checksum(data map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%d %s %d %s\n", len(name), name, len(data[name]), data[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// readSteady returns the files by name as they were at one moment.
func (d *DirSource) readSteady() (map[string]string, error) {
	for range maxReads {
		before, err := d.list()
		if err != nil {
			return nil, err
		}
		data, err := d.readFiles(before)
		after, listErr := d.list()
		if listErr != nil {
			return nil, listErr
		}
		if !before.equal(after) {
			continue // an error may come of that too
		}
		return data, err
	}
	return nil, fmt.Errorf("directory %s %w, %d times in a row", d.path, errUnsteady, maxReads)
}

// listing is what can be seen of a directory without reading its files. Two
// listings differ when the files behind them are not the same.
type listing struct {
	link  string // where "..data" leads to, "" without such a link
	files []file // by name
}

type file struct {
	name string
	info fs.FileInfo // of the file, not of links to it
}

func (l listing) equal(other listing) bool {
	return l.link == other.link && slices.EqualFunc(l.files, other.files, func(a, b file) bool {
		return a.name == b.name && os.SameFile(a.info, b.info) &&
			a.info.Size() == b.info.Size() && a.info.ModTime().Equal(b.info.ModTime())
	})
}

// list returns the files that count. Errors name the path.
func (d *DirSource) list() (listing, error) {
	var l listing
	entries, err := os.ReadDir(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil
	case errors.Is(err, syscall.ENOTDIR):
		return l, fmt.Errorf("%s is not a directory", d.path)
	case err != nil:
		return l, fmt.Errorf("reading directory: %w", err)
	}
	if link, err := os.Readlink(filepath.Join(d.path, "..data")); err == nil {
		l.link = link
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(d.path, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, or a link to what was: kubelet removes those last
		}
		if err != nil {
			return l, fmt.Errorf("reading file: %w", err)
		}
		if info.Mode().IsRegular() {
			l.files = append(l.files, file{entry.Name(), info})
		}
	}
	return l, nil
}

// readFiles reads the files of l.
func (d *DirSource) readFiles(l listing) (map[string]string, error) {
	data := make(map[string]string, len(l.files))
	total := 0
	for _, f := range l.files {
		text, err := readFile(filepath.Join(d.path, f.name))
		if err != nil {
			return nil, err
		}
		if total += len(text); total > maxDirSize {
			return nil, fmt.Errorf("directory %s has more than %d bytes", d.path, maxDirSize)
		}
		data[f.name] = text
	}
	return data, nil
}

// readFile reads a file that is not too large.
func readFile(path string) (string, error) {
	// Not blocking, in case that a pipe has come in the file's place.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("reading file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return "", fmt.Errorf("reading file: %w", err)
	}
	if len(text) > maxFileSize {
		return "", fmt.Errorf("file %s has more than %d bytes", path, maxFileSize)
	}
	return string(text), nil
}

// dirWatch is the watch of a directory through inotify. It can be missing,
// which is when events and errors never come; update then tries to get it.
type dirWatch struct {
	d       *DirSource
	watcher *fsnotify.Watcher // nil when missing
	failed  bool              // that it is missing was logged
	dirs    map[string]fs.FileInfo
	places  places
}

// places is what has to be watched to see all that can change what is in a
// directory.
type places struct {
	dir   string              // the directory, without links; "" when there is none
	links map[string]struct{} // paths of the directory and of links to it, whose parents are watched
}

func (w *dirWatch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *dirWatch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

func (w *dirWatch) close() {
	if w.watcher != nil {
		if err := w.watcher.Close(); err != nil {
			glog.Warningf("config: closing the watch of directory %s: %v", w.d.path, err)
		}
	}
	w.watcher, w.dirs = nil, nil
}

// concerns reports whether event is about the directory. Those beside it in its
// parent are not, of which there may be many.
func (w *dirWatch) concerns(event fsnotify.Event) bool {
	name := filepath.Clean(event.Name)
	if _, ok := w.places.links[name]; ok {
		return true
	}
	return w.places.dir != "" && (name == w.places.dir || filepath.Dir(name) == w.places.dir)
}

// update makes the watches those that the directory needs as it is now.
func (w *dirWatch) update() {
	if w.watcher == nil {
		watcher, err := w.d.newWatcher()
		if err != nil {
			w.logOnce(err)
			return
		}
		w.watcher, w.dirs = watcher, map[string]fs.FileInfo{}
	}
	w.places = findPlaces(w.d.path)
	needed := map[string]struct{}{}
	if w.places.dir != "" {
		needed[w.places.dir] = struct{}{}
	}
	for link := range w.places.links {
		needed[filepath.Dir(link)] = struct{}{}
	}
	active := w.watcher.WatchList()
	for dir, info := range w.dirs {
		// A path may have got another directory since, which has no watch yet.
		now, err := os.Stat(dir)
		_, ok := needed[dir]
		if ok && err == nil && os.SameFile(info, now) && slices.Contains(active, dir) {
			continue
		}
		delete(w.dirs, dir)
		// It fails when the kernel has dropped the watch with the directory.
		if err := w.watcher.Remove(dir); err != nil && glog.V(4) {
			glog.Infof("config: no longer watching %s: %v", dir, err)
		}
	}
	var failure error
	for dir := range needed {
		if _, ok := w.dirs[dir]; ok {
			continue
		}
		info, err := os.Stat(dir)
		if err == nil {
			err = w.watcher.Add(dir)
		}
		switch {
		case err == nil:
			w.dirs[dir] = info
		case !errors.Is(err, fs.ErrNotExist):
			failure = fmt.Errorf("watching %s: %w", dir, err)
		}
	}
	w.logOnce(failure)
}

// logOnce logs that watching fails when it begins to.
func (w *dirWatch) logOnce(err error) {
	if err != nil && !w.failed {
		glog.Warningf("config: inotify unavailable for %s, polling every %v: %v", w.d.path, w.d.period, err)
	}
	w.failed = err != nil
}

// findPlaces follows path, which may be a link to a link, to the directory.
func findPlaces(path string) places {
	const maxLinks = 40 // as the kernel has it
	p := places{links: map[string]struct{}{}}
	for range maxLinks {
		parent, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return p
		}
		path = filepath.Join(parent, filepath.Base(path))
		p.links[path] = struct{}{}
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return p
		case info.IsDir():
			p.dir = path
			return p
		case info.Mode()&fs.ModeSymlink == 0:
			return p
		}
		target, err := os.Readlink(path)
		if err != nil {
			return p
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(parent, target)
		}
		path = target
	}
	return p
}
