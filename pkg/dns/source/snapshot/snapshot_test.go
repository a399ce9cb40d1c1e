package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns"
	"kubedns/pkg/dns/internal/clustertest"
	"kubedns/pkg/dns/internal/sourcetest"
	"kubedns/pkg/dns/objects"
	"kubedns/pkg/dns/records"
	"kubedns/pkg/dns/source"
	"kubedns/pkg/dns/source/snapshot"
	"kubedns/pkg/dns/treecache"
)

func TestMain(m *testing.M) { clustertest.Main(m) }

// trimmed are the objects of EachKind.
func trimmed() (services []*objects.Service, all []*objects.EndpointSlice) {
	s, l := clustertest.EachKind()
	for _, o := range s {
		services = append(services, objects.TrimService(o))
	}
	for _, o := range l {
		all = append(all, objects.TrimSlice(o))
	}
	return services, all
}

// recordsOf are the Services' records, by Service.
func recordsOf(set *objects.Set) map[treecache.Key]*treecache.Records {
	all := map[treecache.Key]*treecache.Records{}
	for _, key := range set.Services() {
		all[key] = records.Build(set.Service(key), set.Slices(key))
	}
	return all
}

func registryOf(t *testing.T, c prometheus.Collector) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	return registry
}

func TestSnapshotKeepsWhatRecordsAreMadeOf(t *testing.T) {
	services, all := trimmed()
	taken := time.Unix(1700000123, 45)
	b, err := snapshot.Encode(services, all, taken)
	if err != nil {
		t.Fatal(err)
	}
	got, when, err := snapshot.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !when.Equal(taken) {
		t.Errorf("taken at %v, want %v", when, taken)
	}
	apiServices, apiSlices := clustertest.EachKind()
	want := objects.NewSet(apiServices, apiSlices, nil)
	if diff := cmp.Diff(recordsOf(want), recordsOf(got), cmp.AllowUnexported(treecache.Records{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("records after a snapshot (-want +got):\n%s", diff)
	}
}

func TestDecodeSnapshotRefuses(t *testing.T) {
	services, all := trimmed()
	good, err := snapshot.Encode(services, all, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	edit := func(f func(b []byte) []byte) []byte { return f(slices.Clone(good)) }
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "not a snapshot of kube-dns"},
		{"another program's", []byte("SQLite format 3\x00"), "not a snapshot of kube-dns"},
		{"a newer version", edit(func(b []byte) []byte { b[len("kube-dns snapshot ")] = '2'; return b }), "of another version"},
		{"only the version", good[:len(snapshot.Magic)], "cut short"},
		{"half", good[:len(good)/2], "damaged"},
		{"one octet short", good[:len(good)-1], "damaged"},
		{"one bit of the checksum", edit(func(b []byte) []byte { b[len(snapshot.Magic)] ^= 1; return b }), "damaged"},
		{"one bit of a Service", edit(func(b []byte) []byte { b[len(snapshot.Magic)+80] ^= 1; return b }), "damaged"},
		{"more behind", append(slices.Clone(good), 0), "damaged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshot")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := snapshot.Read(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			// kube-dns starts all the same, as without a file.
			f := sourcetest.New(nil, nil)
			f.Begin = func(source.Events) {}
			kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30, SnapshotFile: path}, f)
			stop := clustertest.Start(t, kd.Run)
			if kd.HasSynced() {
				t.Error("complete with nothing known")
			}
			stop()
		})
	}
	if _, _, err := snapshot.Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, snapshot.ErrNone) {
		t.Errorf("without a file: %v, want %v", err, snapshot.ErrNone)
	}
}

// The snapshot is served until the API server has been listed; then nothing
// that only it knew remains, and a list that is half there takes nothing away.
func TestSnapshotIsServedUntilTheList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	services, all := trimmed()
	b, err := snapshot.Encode(services, all, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Write(path, b); err != nil {
		t.Fatal(err)
	}
	apiServices, _ := clustertest.EachKind()
	f := sourcetest.New(apiServices[1:2], nil) // db is known, its slices are not yet
	const missing = "endpointslices not listed yet"
	f.SetMissing(missing)
	list := make(chan struct{})
	listed := make(chan struct{})
	f.Begin = func(events source.Events) {
		events.Changed(treecache.Key{Namespace: "default", Name: "db"}, time.Time{})
		<-list
		events.Listed()
		close(listed)
	}
	kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30, SnapshotFile: path}, f)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the snapshot is served", kd.HasSynced)
	has := func(name string) bool {
		r, _ := kd.Tree().Service([]byte("default"), []byte(name))
		return r != nil
	}
	for _, name := range []string{"web", "db", "out"} {
		if !has(name) {
			t.Errorf("%s of the snapshot is not served", name)
		}
	}
	if kd.Missing() != "" || kd.Incomplete() != missing {
		t.Errorf("Missing() = %q, Incomplete() = %q; want ready, and %q", kd.Missing(), kd.Incomplete(), missing)
	}
	_, apiSlices := clustertest.EachKind()
	f.Put(clustertest.Change{Slice: apiSlices[0]})
	f.SetMissing("")
	close(list)
	<-listed
	clustertest.Eventually(t, "what only the snapshot knew is gone", func() bool { return !has("web") && !has("out") })
	if !has("db") {
		t.Error("db is gone, which the API server has")
	}
	clustertest.Eventually(t, "it is complete", func() bool { return kd.Incomplete() == "" })
}

// A stop before the API server has been listed takes nothing away: questions
// that still come are answered from the snapshot.
func TestSnapshotIsServedToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	services, all := trimmed()
	b, err := snapshot.Encode(services, all, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Write(path, b); err != nil {
		t.Fatal(err)
	}
	f := sourcetest.New(nil, nil)
	f.Begin = func(source.Events) {} // never listed
	kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30, SnapshotFile: path}, f)
	stop := clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the snapshot is served", kd.HasSynced)
	stop()
	if r, _ := kd.Tree().Service([]byte("default"), []byte("web")); r == nil {
		t.Error("web of the snapshot is gone at the end")
	}
}

// A snapshot is written once the records are complete and after changes, and
// it has what the source has.
func TestSnapshotFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	apiServices, apiSlices := clustertest.EachKind()
	f := sourcetest.New(apiServices, apiSlices)
	kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30, SnapshotFile: path}, f)
	registry := registryOf(t, kd)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "a snapshot is there", func() bool {
		o, _, err := snapshot.Read(path)
		if err != nil {
			return false
		}
		services, slices := o.Len()
		return services == 3 && slices == 1
	})
	clustertest.Eventually(t, "the time of the snapshot is in the metrics", func() bool {
		return clustertest.Metric(t, registry, "kubedns_snapshot_last_success_timestamp_seconds") > float64(time.Now().Add(-time.Minute).Unix())
	})
}

// What is no file is refused at once: a pipe without a writer would be waited
// for, a device read without end.
func TestReadSnapshotThatIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), os.DevNull} {
		failed := make(chan error, 1)
		go func() {
			_, _, err := snapshot.Read(path)
			failed <- err
		}()
		select {
		case err := <-failed:
			if err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("snapshot.Read(%s): error %v, want one that it is not a regular file", path, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("snapshot.Read(%s) does not return", path)
		}
	}
}

// A snapshot that cannot be written is counted, changes no answer, and is
// tried again.
func TestSnapshotCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no-such-folder", "snapshot")
	apiServices, apiSlices := clustertest.EachKind()
	kd := dns.New(dns.Options{Zone: clustertest.Zone, TTL: 30, SnapshotFile: path}, sourcetest.New(apiServices, apiSlices))
	registry := registryOf(t, kd)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the failure is counted", func() bool { return clustertest.Metric(t, registry, "kubedns_snapshot_errors_total") > 0 })
	if r, _ := kd.Tree().Service([]byte("default"), []byte("web")); r == nil || !kd.HasSynced() {
		t.Error("answers suffer from a snapshot that cannot be written")
	}
}

// On a full disk the old snapshot stays, and nothing is left beside it.
func TestSnapshotOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "snapshot")
	if err := snapshot.Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Write(path, make([]byte, 1<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want %v", err, syscall.ENOSPC)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "old" {
		t.Errorf("the old snapshot is %q, %v", got, err)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

var (
	snapshotKills  = flag.Int("snapshot-kills", 100, "how often TestSnapshotKilled kills a writer")
	snapshotWriter = flag.String("snapshot-writer", "", "write snapshots at this path until killed; TestSnapshotKilled starts it")
)

// writeForever writes one snapshot after another: the n-th has n Services.
func writeForever(t *testing.T, path string) {
	t.Helper()
	for n := 0; ; n++ {
		var services []*objects.Service
		for i := range n % 50 {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%d-%d", n%50, i)}}
			services = append(services, objects.TrimService(s))
		}
		b, err := snapshot.Encode(services, nil, time.Unix(int64(n%50), 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Write(path, b); err != nil {
			t.Fatal(err)
		}
	}
}

// Killed at any moment, the writer leaves a snapshot that is one of those it
// wrote, whole.
func TestSnapshotKilled(t *testing.T) {
	if *snapshotWriter != "" {
		writeForever(t, *snapshotWriter)
	}
	path := filepath.Join(t.TempDir(), "snapshot")
	seen := map[int]bool{}
	for i := range *snapshotKills {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSnapshotKilled$", "-snapshot-writer="+path)
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		before, _ := os.Stat(path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Once it writes, it is killed within the time of a few snapshots.
		clustertest.Eventually(t, "the writer writes", func() bool {
			now, err := os.Stat(path)
			return err == nil && (before == nil || !os.SameFile(before, now))
		})
		timer := time.NewTimer(time.Duration(rand.IntN(2000)) * time.Microsecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		o, taken, err := snapshot.Read(path)
		if err != nil {
			t.Fatalf("after kill %d: %v\n%s", i, err, output.String())
		}
		n := int(taken.Unix())
		if len(o.Services()) != n {
			t.Fatalf("after kill %d: %d Services in the snapshot that had %d", i, len(o.Services()), n)
		}
		for _, key := range o.Services() {
			if !strings.HasPrefix(key.Name, fmt.Sprintf("s%d-", n)) {
				t.Fatalf("after kill %d: %v in the snapshot of %d", i, key, n)
			}
		}
		seen[n] = true
		snapshot.RemoveLeftovers(path)
		if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
			t.Fatalf("left behind: %q", left)
		}
	}
	if len(seen) < 2 {
		t.Errorf("every kill left the same snapshot, %v: the test kills too early", seen)
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	services, all := trimmed()
	b, err := snapshot.Encode(services, all, time.Unix(1, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[len(snapshot.Magic)+32:])
	f.Fuzz(func(t *testing.T, payload []byte) {
		// The checksum is made right, so that what is behind it is reached.
		file := append([]byte(snapshot.Magic), make([]byte, 32)...)
		file = append(file, payload...)
		sum := sha256.Sum256(payload)
		copy(file[len(snapshot.Magic):], sum[:])
		o, _, err := snapshot.Decode(file)
		if err != nil {
			return
		}
		for key, r := range recordsOf(o) {
			if r.Key != key {
				t.Errorf("records of %v under %v", r.Key, key)
			}
		}
	})
}
