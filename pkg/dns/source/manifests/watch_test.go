package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// report is one call of Watch's function.
type report struct {
	objects  *Objects
	problems []string
	err      error
}

func (r report) String() string {
	return fmt.Sprintf("%q %q %v", summary(r.objects), r.problems, r.err)
}

// reports gathers the reports of one Watch.
type reports struct {
	t  *testing.T
	ch chan report
}

// next waits for a report that is wanted; others may come before, as what is
// done in several steps may be seen in between.
func (r *reports) next(what string, wanted func(report) bool) report {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	last := "none"
	for {
		select {
		case got := <-r.ch:
			if wanted(got) {
				return got
			}
			last = got.String()
		case <-deadline:
			r.t.Fatalf("%s: not reported; the last report was %s", what, last)
		}
	}
}

// objects waits for a report without an error, with these objects.
func (r *reports) objects(what string, want ...string) report {
	r.t.Helper()
	return r.next(what, func(got report) bool { return got.err == nil && slices.Equal(summary(got.objects), want) })
}

// failure waits for a report with an error that names part.
func (r *reports) failure(what, part string) {
	r.t.Helper()
	r.next(what, func(got report) bool {
		return got.err != nil && got.objects == nil && strings.Contains(got.err.Error(), part)
	})
}

// bothWays runs test with a directory that is followed by events alone, then by
// polling alone. start starts to follow, until the test ends.
func bothWays(t *testing.T, test func(t *testing.T, start func(dir string) *reports)) {
	t.Helper()
	for _, way := range []string{"events", "polling"} {
		t.Run(way, func(t *testing.T) {
			test(t, func(dir string) *reports {
				r := &reports{t: t, ch: make(chan report, 100)}
				f := &follower{
					dir:    dir,
					report: func(o *Objects, problems []string, err error) { r.ch <- report{o, problems, err} },
					poll:   10 * time.Millisecond,
				}
				if way == "events" {
					f.poll = time.Hour
					fsw, err := fsnotify.NewWatcher()
					if err != nil {
						t.Skip("no events here: ", err)
					}
					t.Cleanup(func() { _ = fsw.Close() })
					f.watch = &dirWatch{dir: dir, fsw: fsw}
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					f.run(ctx)
				}()
				t.Cleanup(func() {
					cancel()
					<-done
				})
				return r
			})
		})
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchFiles(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		dir := t.TempDir()
		path := filepath.Join(dir, "web.yaml")
		r := start(dir)
		r.objects("start")

		writeFile(t, path, webYAML)
		r.objects("new file", webLine)

		// Same size, and likely the same tick of the clock.
		writeFile(t, path, strings.Replace(webYAML, "192.0.2.7", "192.0.2.8", 1))
		r.objects("changed file", strings.Replace(webLine, "192.0.2.7", "192.0.2.8", 1))

		writeFile(t, filepath.Join(dir, "tmp"), dbYAML)
		must(t, os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "db.yml")))
		r.objects("file moved in", dbLine, strings.Replace(webLine, "192.0.2.7", "192.0.2.8", 1))

		writeFile(t, filepath.Join(dir, "other.yaml"), "kind: X\napiVersion: v1\n")
		r.next("a problem", func(got report) bool { return len(got.problems) == 1 && got.err == nil })

		must(t, os.Remove(path))
		r.objects("file removed", dbLine)
	})
}

func TestWatchBroken(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		dir := write(t, map[string]string{"web.yaml": webYAML, "db.yaml": dbYAML})
		past := time.Now().Add(-time.Hour).Truncate(time.Second)
		web := filepath.Join(dir, "web.yaml")
		must(t, os.Chtimes(web, past, past))
		r := start(dir)
		first := r.objects("start", dbLine, webLine)

		writeFile(t, web, webYAML+"---\nkind: [\n")
		r.failure("broken file", "web.yaml, document 2")

		writeFile(t, filepath.Join(dir, "more.yaml"), "{")
		r.failure("second broken file", "more.yaml")

		// Mended: reported, although the objects are what they were.
		must(t, os.Remove(filepath.Join(dir, "more.yaml")))
		writeFile(t, web, webYAML)
		must(t, os.Chtimes(web, past, past))
		last := r.next("mended file", func(got report) bool {
			return got.err == nil && len(got.objects.Services) == 2 && got.objects.Services[1].CreationTimestamp.Time.Equal(past)
		})
		if first.objects.Services[1].ResourceVersion != last.objects.Services[1].ResourceVersion {
			t.Errorf("before %v, after %v, want the same", first, last)
		}
	})
}

// TestReported: each reading is reported when it differs from the one before,
// and only then.
func TestReported(t *testing.T) {
	dir := write(t, map[string]string{"web.yaml": webYAML})
	path := filepath.Join(dir, "web.yaml")
	past := time.Now().Add(-time.Hour)
	put := func(path, text string) func() {
		return func() {
			writeFile(t, path, text)
			must(t, os.Chtimes(path, past, past))
		}
	}
	put(path, webYAML)()
	count := 0
	f := follower{dir: dir, report: func(*Objects, []string, error) { count++ }}
	for _, tc := range []struct {
		name   string
		change func()
		want   bool
	}{
		{"start", func() {}, true},
		{"nothing", func() {}, false},
		{"hidden file", put(filepath.Join(dir, ".hidden.yaml"), "{"), false},
		{"other file", put(filepath.Join(dir, "README"), "{"), false},
		{"folder", func() { must(t, os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755)) }, false},
		{"file without objects", put(filepath.Join(dir, "empty.yaml"), "# nothing\n"), false},
		{"mode", func() { must(t, os.Chmod(path, 0o600)) }, false},
		{"comment", put(path, "# comment\n"+webYAML), false},
		{"port", put(path, strings.Replace(webYAML, "80", "81", 1)), true},
		{"modification time, and so creation time", func() { writeFile(t, path, strings.Replace(webYAML, "80", "81", 1)) }, true},
		{"broken", put(path, "{"), true},
		{"still broken", func() {}, false},
		{"broken otherwise", put(path, "[]"), true},
		{"mended", put(path, webYAML), true},
		{"broken again", put(path, "{"), true},
		{"mended again, as it was", put(path, webYAML), true},
		{"problem", put(filepath.Join(dir, "x.yaml"), "kind: X\napiVersion: v1\n"), true},
		{"another problem", put(filepath.Join(dir, "x.yaml"), "kind: Y\napiVersion: v1\n"), true},
		{"the same problem", func() {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.change()
			count = 0
			f.read()
			if got := count == 1; got != tc.want || count > 1 {
				t.Errorf("reported %d times, want a report: %v", count, tc.want)
			}
		})
	}
}

func TestRelevantEvents(t *testing.T) {
	for _, tc := range []struct {
		name string
		want bool
	}{
		{"/top/dir", true},
		{"/top/dir/a.yaml", true},
		{"/top/dir/a.yml", true},
		{"/top/dir/a.json", true},
		{"/top/dir/..data", true},
		{"/top/dir/..data_tmp", false},
		{"/top/dir/.a.yaml.swp", false},
		{"/top/dir/.a.yaml", false},
		{"/top/dir/a.yaml~", false},
		{"/top/dir2", false},
		{"/top/a.yaml", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := dirWatch{dir: "/top/dir"}
			if got := w.relevant(fsnotify.Event{Name: tc.name, Op: fsnotify.Write}); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWatchSwappedLink(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		one, two := write(t, map[string]string{"a.yaml": webYAML}), write(t, map[string]string{"a.yaml": dbYAML})
		top := t.TempDir()
		dir, next := filepath.Join(top, "dir"), filepath.Join(top, "next")
		must(t, os.Symlink(one, dir))
		r := start(dir)
		r.objects("start", webLine)

		must(t, os.Symlink(two, next), os.Rename(next, dir))
		r.objects("swapped link", dbLine)

		writeFile(t, filepath.Join(two, "b.yaml"), webYAML)
		r.objects("file behind the swapped link", dbLine, webLine)
	})
}

func TestWatchSwappedDirectory(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		top := t.TempDir()
		dir, old, next := filepath.Join(top, "dir"), filepath.Join(top, "old"), filepath.Join(top, "next")
		must(t, os.Mkdir(dir, 0o755), os.Mkdir(next, 0o755))
		writeFile(t, filepath.Join(dir, "a.yaml"), webYAML)
		writeFile(t, filepath.Join(next, "a.yaml"), dbYAML)
		r := start(dir)
		r.objects("start", webLine)

		must(t, os.Rename(dir, old))
		r.failure("moved away", dir)

		must(t, os.Rename(next, dir))
		r.objects("another in its place", dbLine)
		writeFile(t, filepath.Join(dir, "b.yaml"), webYAML)
		r.objects("file in the other", dbLine, webLine)

		must(t, os.RemoveAll(dir))
		r.failure("removed", dir)

		must(t, os.Rename(old, dir))
		r.objects("back again", webLine)
		writeFile(t, filepath.Join(dir, "b.yaml"), dbYAML)
		r.objects("file in the first, back again", webLine, dbLine)
	})
}

// TestWatchMovedAndBack: the kernel's watch is gone, although the directory is
// the same when it is looked at again.
func TestWatchMovedAndBack(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		top := t.TempDir()
		dir, aside := filepath.Join(top, "dir"), filepath.Join(top, "aside")
		must(t, os.Mkdir(dir, 0o755))
		r := start(dir)
		r.objects("start")
		must(t, os.Rename(dir, aside), os.Rename(aside, dir))
		writeFile(t, filepath.Join(dir, "a.yaml"), webYAML)
		r.objects("file written at once", webLine)
		writeFile(t, filepath.Join(dir, "b.yaml"), dbYAML)
		r.objects("file written later", webLine, dbLine)
	})
}

// TestWatchMountedConfigMap has a directory as the kubelet writes it: the files
// are links through ..data, which is swapped.
func TestWatchMountedConfigMap(t *testing.T) {
	bothWays(t, func(t *testing.T, start func(string) *reports) {
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, "..1"), 0o755), os.Mkdir(filepath.Join(dir, "..2"), 0o755))
		writeFile(t, filepath.Join(dir, "..1", "a.yaml"), webYAML)
		writeFile(t, filepath.Join(dir, "..2", "a.yaml"), dbYAML)
		must(t, os.Symlink("..1", filepath.Join(dir, "..data")), os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
		r := start(dir)
		r.objects("start", webLine)

		must(t, os.Symlink("..2", filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		r.objects("swapped", dbLine)
	})
}

// TestWatch is the whole, as its callers have it.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	ctx, cancel := context.WithCancel(context.Background())
	r := &reports{t: t, ch: make(chan report, 100)}
	done := make(chan error)
	go func() {
		done <- Watch(ctx, dir, func(o *Objects, problems []string, err error) { r.ch <- report{o, problems, err} })
	}()
	r.failure("no directory yet", dir)
	must(t, os.Mkdir(dir, 0o755))
	writeFile(t, filepath.Join(dir, "a.yaml"), webYAML)
	r.objects("directory made", webLine)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v when stopped, want nil", err)
	}
	if err := Watch(ctx, "", nil); err == nil {
		t.Error("no error for no directory")
	}
}

func TestState(t *testing.T) {
	past := time.Now().Add(-time.Hour)
	dir := write(t, map[string]string{"a.yaml": webYAML})
	path := filepath.Join(dir, "a.yaml")
	must(t, os.Chtimes(path, past, past))
	old := look(dir)
	if !look(dir).same(old) {
		t.Fatal("nothing changed, but not the same")
	}
	for _, tc := range []struct {
		name   string
		change func() error
	}{
		{"size", func() error { return os.Truncate(path, 3) }},
		{"another file, same size and time", func() error {
			next := filepath.Join(dir, "next")
			writeFile(t, next, webYAML[:3])
			return os.Rename(next, path)
		}},
		{"mode", func() error { return os.Chmod(path, 0o600) }},
		{"name", func() error { return os.Rename(path, filepath.Join(dir, "b.yaml")) }},
		{"none", func() error { return os.Remove(filepath.Join(dir, "b.yaml")) }},
		{"no directory", func() error { return os.Remove(dir) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must(t, tc.change())
			for _, p := range []string{path, filepath.Join(dir, "b.yaml")} {
				if err := os.Chtimes(p, past, past); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			got := look(dir)
			if got.same(old) {
				t.Errorf("changed, but the same: %q", got.text)
			}
			if !look(dir).same(got) {
				t.Errorf("nothing changed, but not the same: %q", got.text)
			}
			old = got
		})
	}
	t.Run("changed just now", func(t *testing.T) {
		got := look(write(t, map[string]string{"a.yaml": webYAML}))
		if got.same(got) {
			t.Error("fresh, but the same")
		}
	})
}
