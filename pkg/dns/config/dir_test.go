package config

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

// TestMain keeps glog from writing files, and looks for goroutines at the end.
func TestMain(m *testing.M) {
	if err := flag.Set("logtostderr", "true"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// volume is a directory that is written the way kubelet's atomic writer does
// it: files are links through "..data", which is a link that a rename swaps.
type volume struct {
	t    *testing.T
	path string
	n    int // to name the directories
}

func newVolume(t *testing.T, path string) *volume {
	t.Helper()
	v := &volume{t: t, path: path}
	must(t, os.MkdirAll(path, 0o755))
	return v
}

// set makes data what the volume holds.
func (v *volume) set(data map[string]string) {
	v.t.Helper()
	v.n++
	next := fmt.Sprintf("..2006_01_02_15_04_05.%09d", v.n)
	must(v.t, os.Mkdir(v.join(next), 0o755))
	for key, value := range data {
		must(v.t, os.WriteFile(v.join(next, key), []byte(value), 0o644))
	}
	old, _ := os.Readlink(v.join("..data"))
	_ = os.Remove(v.join("..data_tmp"))
	must(v.t, os.Symlink(next, v.join("..data_tmp")))
	must(v.t, os.Rename(v.join("..data_tmp"), v.join("..data")))
	for key := range data {
		if err := os.Symlink(filepath.Join("..data", key), v.join(key)); err != nil && !errors.Is(err, os.ErrExist) {
			v.t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(v.path)
	must(v.t, err)
	for _, entry := range entries {
		if _, ok := data[entry.Name()]; !ok && !strings.HasPrefix(entry.Name(), "..") {
			must(v.t, os.Remove(v.join(entry.Name())))
		}
	}
	if old != "" {
		must(v.t, os.RemoveAll(v.join(old)))
	}
}

func (v *volume) join(names ...string) string {
	return filepath.Join(append([]string{v.path}, names...)...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// upstream is the data with one nameserver, by which a test tells updates apart.
func upstream(n int) map[string]string {
	return map[string]string{"upstreamNameservers": fmt.Sprintf(`["192.0.2.%d"]`, n)}
}

// is tells whether u has upstream(n)'s nameserver alone.
func is(u Update, n int) bool {
	return u.Err == nil && u.Config.Equal(&Config{UpstreamNameservers: []netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 53),
	}})
}

func isDefault(u Update) bool { return u.Err == nil && u.Config.Equal(&Config{}) }

// follower collects what a source reports.
type follower struct {
	t       *testing.T
	mu      sync.Mutex
	updates []Update
	more    chan struct{} // has one when updates has grown
	next    int           // the first one that wait has not seen; the test's goroutine alone
}

// follow runs d until the test ends, and fails the test if it leaves a
// goroutine or a descriptor.
func follow(t *testing.T, d *DirSource) *follower {
	t.Helper()
	f := &follower{t: t, more: make(chan struct{}, 1)}
	ignore := goleak.IgnoreCurrent()
	files := descriptors(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- d.Run(ctx, func(u Update) {
			f.mu.Lock()
			f.updates = append(f.updates, u)
			f.mu.Unlock()
			select {
			case f.more <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := goleak.Find(ignore); err != nil {
			t.Error(err)
		}
		if now := descriptors(t); now > files {
			t.Errorf("%d descriptors, %d before", now, files)
		}
	})
	return f
}

// descriptors counts this process's, without epoll's and what wakes it, which
// the runtime keeps once it has them.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}
	n := 0
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && !strings.Contains(target, "[eventpoll]") && !strings.Contains(target, "[eventfd]") {
			n++
		}
	}
	return n
}

// watches counts the inotify watches of this process.
func watches(t *testing.T) int {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	must(t, err)
	n := 0
	for _, info := range infos {
		text, err := os.ReadFile(info)
		if err == nil {
			n += strings.Count("\n"+string(text), "\ninotify wd:")
		}
	}
	return n
}

// wait returns the next update, which has to satisfy ok.
func (f *follower) wait(what string, ok func(Update) bool) Update {
	f.t.Helper()
	u := f.take(what)
	if !ok(u) {
		f.t.Fatalf("%s: got %+v, error %v", what, u.Config, u.Err)
	}
	return u
}

// eventually returns the first update that satisfies ok.
func (f *follower) eventually(what string, ok func(Update) bool) Update {
	f.t.Helper()
	for {
		if u := f.take(what); ok(u) {
			return u
		}
	}
}

func (f *follower) take(what string) Update {
	f.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		f.mu.Lock()
		if f.next < len(f.updates) {
			u := f.updates[f.next]
			f.next++
			f.mu.Unlock()
			return u
		}
		f.mu.Unlock()
		select {
		case <-f.more:
		case <-deadline:
			f.t.Fatalf("%s: no update within 10 s", what)
		}
	}
}

// drained fails the test if there are updates that no wait has seen.
func (f *follower) drained() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.updates[f.next:] {
		f.t.Errorf("one update too many: %+v, error %v", u.Config, u.Err)
	}
}

// The two ways to notice a change. A test of inotify alone has a period that
// never comes, one of the period alone no inotify.
var ways = []struct {
	name string
	dir  func(path string) *DirSource
}{
	{"inotify", func(path string) *DirSource { return Dir(path, time.Hour) }},
	{"period", func(path string) *DirSource {
		d := Dir(path, 20*time.Millisecond)
		d.newWatcher = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
		return d
	}},
}

func TestDirFollowsSwaps(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			v := newVolume(t, filepath.Join(t.TempDir(), "config"))
			v.set(upstream(1))
			f := follow(t, way.dir(v.path))
			u := f.wait("at start", func(u Update) bool { return is(u, 1) })
			if want := "directory " + v.path; u.Origin != want || u.Version == "" || u.Time.IsZero() {
				t.Errorf("update %+v, want origin %q, a version and a time", u, want)
			}
			first := u.Version
			v.set(upstream(2))
			if u := f.wait("after a swap", func(u Update) bool { return is(u, 2) }); u.Version == first {
				t.Errorf("version %q for other content too", first)
			}
			v.set(map[string]string{"upstreamNameservers": "{"})
			f.wait("mistake", func(u Update) bool { return u.Config == nil && u.Err != nil })
			v.set(map[string]string{})
			f.wait("emptied", isDefault)
			v.set(upstream(1))
			if u := f.wait("as at first", func(u Update) bool { return is(u, 1) }); u.Version != first {
				t.Errorf("version %q, and %q for the same content", u.Version, first)
			}
			f.drained()
		})
	}
}

// TestDirReportsContentOnce: swaps without a change of content and looks
// without a swap report nothing, refused or not.
func TestDirReportsContentOnce(t *testing.T) {
	tests := []struct {
		name string
		data map[string]string
	}{
		{"valid", upstream(1)},
		{"default", map[string]string{}},
		{"refused", map[string]string{"upstreamNameservers": "{"}},
		{"not UTF-8", map[string]string{"upstreamNameservers": "\xff"}},
		{"too large", map[string]string{"upstreamNameservers": strings.Repeat(" ", maxFileSize+1)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newVolume(t, filepath.Join(t.TempDir(), "config"))
			v.set(tt.data)
			d := Dir(v.path, 5*time.Millisecond)
			var looks atomic.Int64 // one is begun by trying to get a watcher
			d.newWatcher = func() (*fsnotify.Watcher, error) {
				looks.Add(1)
				return nil, syscall.EMFILE
			}
			f := follow(t, d)
			f.take("at start")
			for range 10 {
				v.set(tt.data)
				// With the second look begun, one has ended that saw this swap.
				for before, deadline := looks.Load(), time.Now().Add(10*time.Second); looks.Load() < before+2; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("no look at the directory within 10 s")
					}
				}
			}
			v.set(upstream(2))
			f.wait("other content", func(u Update) bool { return is(u, 2) })
			f.drained()
		})
	}
}

func TestDirComesAndGoes(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config")
			f := follow(t, way.dir(path))
			f.wait("absent", isDefault)
			for n := 1; n <= 5; n++ {
				newVolume(t, path).set(upstream(n))
				f.eventually("created", func(u Update) bool { return is(u, n) })
				must(t, os.RemoveAll(path))
				f.eventually("removed", isDefault)
			}
			newVolume(t, path).set(upstream(6))
			f.eventually("created again", func(u Update) bool { return is(u, 6) })

			// Another directory in its place.
			other := newVolume(t, path+".new")
			other.set(upstream(7))
			must(t, os.Rename(path, path+".old"))
			must(t, os.Rename(path+".new", path))
			f.eventually("replaced", func(u Update) bool { return is(u, 7) })
			other.path = path
			other.set(upstream(8))
			f.eventually("after that", func(u Update) bool { return is(u, 8) })
			// What was moved away is none of ours any more.
			must(t, os.WriteFile(path+".old/federations", []byte("a=example.org"), 0o644))
			other.set(upstream(9))
			f.eventually("after a change elsewhere", func(u Update) bool { return is(u, 9) })
			f.drained()
		})
	}
}

func TestDirBehindLinks(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			root := t.TempDir()
			a, b := newVolume(t, filepath.Join(root, "real", "a")), newVolume(t, filepath.Join(root, "real", "b"))
			a.set(upstream(1))
			b.set(upstream(2))
			must(t, os.MkdirAll(filepath.Join(root, "links"), 0o755))
			path, middle := filepath.Join(root, "config"), filepath.Join(root, "links", "middle")
			must(t, os.Symlink("links/middle", path))
			must(t, os.Symlink("../real/a", middle))
			f := follow(t, way.dir(path))
			f.wait("first directory", func(u Update) bool { return is(u, 1) })
			a.set(upstream(3))
			f.wait("behind both links", func(u Update) bool { return is(u, 3) })
			must(t, os.Symlink("../real/b", middle+".new"))
			must(t, os.Rename(middle+".new", middle))
			f.wait("link in the middle swapped", func(u Update) bool { return is(u, 2) })
			b.set(upstream(4))
			f.wait("behind the swapped link", func(u Update) bool { return is(u, 4) })
			must(t, os.Symlink(a.path, path+".new"))
			must(t, os.Rename(path+".new", path))
			f.wait("first link swapped", func(u Update) bool { return is(u, 3) })
			must(t, os.Remove(path))
			f.wait("link removed", isDefault)
			f.drained()
		})
	}
}

// TestDirManySwaps: thousands of updates leave neither watches nor descriptors,
// and none is seen by half. Each has the same number in both keys.
func TestDirManySwaps(t *testing.T) {
	v := newVolume(t, filepath.Join(t.TempDir(), "config"))
	both := func(n int) map[string]string {
		return map[string]string{
			"federations":         fmt.Sprintf("fed=n%d.example.org", n),
			"upstreamNameservers": fmt.Sprintf(`["192.0.%d.%d"]`, n>>8, n&255),
		}
	}
	check := func(u Update) {
		t.Helper()
		if errors.Is(u.Err, errUnsteady) {
			return // Read may say so, as nothing else is there to say
		}
		if u.Err != nil {
			t.Errorf("refused: %v", u.Err)
			return
		}
		ip := u.Config.UpstreamNameservers[0].Addr().As4()
		if want := fmt.Sprintf("n%d.example.org", int(ip[2])<<8|int(ip[3])); u.Config.Federations["fed"] != want {
			t.Errorf("seen by half: %+v", u.Config)
		}
	}
	v.set(both(1))
	d := Dir(v.path, 5*time.Millisecond)
	f := follow(t, d)
	check(f.take("at start"))
	before, files := watches(t), descriptors(t)
	if before == 0 {
		t.Error("no inotify watch")
	}
	for range 100 { // the least, as looks come and go
		files = min(files, descriptors(t))
	}
	stop := make(chan struct{})
	reader := make(chan int)
	go func() { // reads more often than Run does
		n := 0
		defer func() { reader <- n }()
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				check(d.Read())
				n++
			}
		}
	}()
	const swaps = 2000
	for n := 2; n <= swaps; n++ {
		v.set(both(n))
	}
	close(stop)
	t.Logf("%d reads beside %d swaps", <-reader, swaps)
	want := fmt.Sprintf("n%d.example.org", swaps)
	f.eventually("the last one", func(u Update) bool {
		check(u)
		return u.Err == nil && u.Config.Federations["fed"] == want
	})
	// A look that is under way has a descriptor for a moment.
	for deadline := time.Now().Add(10 * time.Second); watches(t) != before || descriptors(t) != files; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d inotify watches, %d descriptors, %d and %d before", watches(t), descriptors(t), before, files)
		}
	}
}

// TestDirWatchComesBack: inotify that is not to be had at start is used once it
// is.
func TestDirWatchComesBack(t *testing.T) {
	v := newVolume(t, filepath.Join(t.TempDir(), "config"))
	d := Dir(v.path, 10*time.Millisecond)
	var attempts int
	d.newWatcher = func() (*fsnotify.Watcher, error) {
		if attempts++; attempts < 3 {
			return nil, syscall.EMFILE
		}
		return fsnotify.NewWatcher()
	}
	before := watches(t)
	f := follow(t, d)
	f.wait("at start", isDefault)
	for deadline := time.Now().Add(10 * time.Second); watches(t) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no inotify watch within 10 s")
		}
	}
	v.set(upstream(1))
	f.wait("a swap", func(u Update) bool { return is(u, 1) })
}

func TestDirRead(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, path string)
		want  string // Config.Data as text, or the error with PATH for the path
		warn  []string
	}{
		{"absent", func(*testing.T, string) {}, "map[]", nil},
		{"empty", func(t *testing.T, path string) { newVolume(t, path) }, "map[]", nil},
		{"optional ConfigMap that is absent", func(t *testing.T, path string) { newVolume(t, path).set(nil) }, "map[]", nil},
		{"kubelet's", func(t *testing.T, path string) {
			newVolume(t, path).set(map[string]string{"federations": "a=example.org\n", "stubDomains": `{"example.org": ["192.0.2.1"]}`})
		}, `map[federations:a=example.org stubDomains:{"example.org":["192.0.2.1:53"]}]`, nil},
		{"plain files", func(t *testing.T, path string) {
			must(t, os.Mkdir(path, 0o755))
			must(t, os.WriteFile(filepath.Join(path, "federations"), []byte("a=example.org"), 0o644))
		}, "map[federations:a=example.org]", nil},
		{"unknown file", func(t *testing.T, path string) {
			newVolume(t, path).set(map[string]string{"federations": "a=example.org", "README": "hello"})
		}, "map[federations:a=example.org]", []string{`unknown key "README"`}},
		{"hidden files, folders, pipes and dangling links", func(t *testing.T, path string) {
			v := newVolume(t, path)
			v.set(map[string]string{"federations": "a=example.org"})
			must(t, os.WriteFile(v.join(".hidden"), []byte("\xff"), 0o644))
			must(t, os.Mkdir(v.join("stubDomains"), 0o755))
			must(t, os.Symlink("stubDomains", v.join("folder")))
			must(t, os.Symlink("nowhere", v.join("upstreamNameservers")))
			must(t, syscall.Mkfifo(v.join("pipe"), 0o644))
		}, "map[federations:a=example.org]", nil},
		{"path is a link", func(t *testing.T, path string) {
			newVolume(t, path+".real").set(upstream(1))
			must(t, os.Symlink(path+".real", path))
		}, `map[upstreamNameservers:["192.0.2.1:53"]]`, nil},
		{"link that leads nowhere", func(t *testing.T, path string) {
			must(t, os.Symlink(path+".real", path))
		}, "map[]", nil},
		{"not UTF-8", func(t *testing.T, path string) {
			newVolume(t, path).set(map[string]string{"federations": "a=example.org", "image": "\x89PNG"})
		}, `"image": "\x89PNG" is not UTF-8`, nil},
		{"largest file", func(t *testing.T, path string) {
			newVolume(t, path).set(map[string]string{"federations": "a=example.org" + strings.Repeat(" ", maxFileSize-len("a=example.org"))})
		}, "map[federations:a=example.org]", nil},
		{"file too large", func(t *testing.T, path string) {
			newVolume(t, path).set(map[string]string{"federations": "a=example.org" + strings.Repeat(" ", maxFileSize)})
		}, "file PATH/federations has more than 1048576 bytes", nil},
		{"directory too large", func(t *testing.T, path string) {
			data := map[string]string{}
			for n := range 9 {
				data[fmt.Sprint(n)] = strings.Repeat(" ", maxFileSize)
			}
			newVolume(t, path).set(data)
		}, "directory PATH has more than 8388608 bytes", nil},
		{"file for a directory", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, nil, 0o644))
		}, "PATH is not a directory", nil},
		{"link to itself", func(t *testing.T, path string) {
			must(t, os.Symlink(path, path))
		}, "reading directory: open PATH: too many levels of symbolic links", nil},
		{"file that is a link to itself", func(t *testing.T, path string) {
			newVolume(t, path)
			must(t, os.Symlink("federations", filepath.Join(path, "federations")))
		}, "reading file: stat PATH/federations: too many levels of symbolic links", nil},
		{"directory of another user", func(t *testing.T, path string) {
			unlessRoot(t)
			must(t, os.Mkdir(path, 0))
		}, "reading directory: open PATH: permission denied", nil},
		{"file of another user", func(t *testing.T, path string) {
			unlessRoot(t)
			must(t, os.Mkdir(path, 0o755))
			must(t, os.WriteFile(filepath.Join(path, "federations"), nil, 0))
		}, "reading file: open PATH/federations: permission denied", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config")
			tt.setup(t, path)
			u := Dir(path, 0).Read()
			got := ""
			switch {
			case u.Err != nil && u.Config == nil:
				got = strings.ReplaceAll(u.Err.Error(), path, "PATH")
			case u.Config != nil && u.Err == nil:
				got = fmt.Sprint(u.Config.Data())
			default:
				t.Errorf("configuration %+v with error %v", u.Config, u.Err)
			}
			if got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if fmt.Sprint(u.Warnings) != fmt.Sprint(tt.warn) {
				t.Errorf("warnings %q, want %q", u.Warnings, tt.warn)
			}
		})
	}
}

func unlessRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
}
