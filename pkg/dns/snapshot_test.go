package dns

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
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/treecache"
)

// snapshotObjects are a Service of each kind and the slices of one.
func snapshotObjects() ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	created := metav1.NewTime(time.Unix(1700000000, 0))
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "7", CreationTimestamp: created}
	}
	ready, not, host, port, name := true, false, "db-0", int32(5432), "pg"
	return []*corev1.Service{
			{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
				ClusterIP: "192.0.2.7", ClusterIPs: []string{"192.0.2.7", "2001:db8::7"},
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 53, Protocol: corev1.ProtocolUDP}},
			}},
			{ObjectMeta: meta("db"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true}},
			{ObjectMeta: meta("out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.org"}},
		}, []*discoveryv1.EndpointSlice{{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}, {Name: new(string)}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"198.51.100.1"}, Hostname: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0"}},
				{Addresses: []string{"198.51.100.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &not}},
			},
		}}
}

// trimmed are the objects as they are kept.
func trimmed() (services []*service, all []*slice) {
	s, l := snapshotObjects()
	for _, o := range s {
		services = append(services, trimService(o))
	}
	for _, o := range l {
		all = append(all, trimSlice(o))
	}
	return services, all
}

// recordsOf are the Services' records, by Service.
func recordsOf(o *objects) map[treecache.Key]*treecache.Records {
	all := map[treecache.Key]*treecache.Records{}
	for key, s := range o.services {
		all[key] = buildRecords(s, o.slices[key])
	}
	return all
}

func TestSnapshotKeepsWhatRecordsAreMadeOf(t *testing.T) {
	services, all := trimmed()
	taken := time.Unix(1700000123, 45)
	b, err := encodeSnapshot(services, all, taken)
	if err != nil {
		t.Fatal(err)
	}
	got, when, err := decodeSnapshot(b)
	if err != nil {
		t.Fatal(err)
	}
	if !when.Equal(taken) {
		t.Errorf("taken at %v, want %v", when, taken)
	}
	want := newObjects()
	for _, s := range services {
		want.services[treecache.Key{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, s := range all {
		key := treecache.Key{Namespace: s.Namespace, Name: s.service}
		want.slices[key] = append(want.slices[key], s)
	}
	if diff := cmp.Diff(recordsOf(want), recordsOf(got), cmp.AllowUnexported(treecache.Records{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("records after a snapshot (-want +got):\n%s", diff)
	}
}

func TestDecodeSnapshotRefuses(t *testing.T) {
	services, all := trimmed()
	good, err := encodeSnapshot(services, all, time.Unix(1, 0))
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
		{"only the version", good[:len(snapshotMagic)], "cut short"},
		{"half", good[:len(good)/2], "damaged"},
		{"one octet short", good[:len(good)-1], "damaged"},
		{"one bit of the checksum", edit(func(b []byte) []byte { b[len(snapshotMagic)] ^= 1; return b }), "damaged"},
		{"one bit of a Service", edit(func(b []byte) []byte { b[len(snapshotMagic)+80] ^= 1; return b }), "damaged"},
		{"more behind", append(slices.Clone(good), 0), "damaged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshot")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := readSnapshot(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			// kube-dns starts all the same, as without a file.
			f := newFake(nil, nil)
			f.begin = func(*KubeDNS) {}
			kd := newKubeDNS(Options{Zone: testZone, TTL: 30, SnapshotFile: path}, f, newMetrics())
			stop := start(t, kd)
			if kd.HasSynced() {
				t.Error("complete with nothing known")
			}
			stop()
		})
	}
	if _, _, err := readSnapshot(filepath.Join(t.TempDir(), "none")); !errors.Is(err, errNoSnapshot) {
		t.Errorf("without a file: %v, want %v", err, errNoSnapshot)
	}
}

// The snapshot is served until the API server has been listed; then nothing
// that only it knew remains, and a list that is half there takes nothing away.
func TestSnapshotIsServedUntilTheList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	services, all := trimmed()
	b, err := encodeSnapshot(services, all, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(path, b); err != nil {
		t.Fatal(err)
	}
	apiServices, _ := snapshotObjects()
	f := newFake(apiServices[1:2], nil) // db is known, its slices are not yet
	f.why = "endpointslices not listed yet"
	list := make(chan struct{})
	listed := make(chan struct{})
	f.begin = func(kd *KubeDNS) {
		kd.touch(treecache.Key{Namespace: "default", Name: "db"})
		<-list
		kd.listed()
		close(listed)
	}
	kd := newKubeDNS(Options{Zone: testZone, TTL: 30, SnapshotFile: path}, f, newMetrics())
	start(t, kd)
	eventually(t, "the snapshot is served", kd.HasSynced)
	has := func(name string) bool {
		r, _ := kd.tree.Service([]byte("default"), []byte(name))
		return r != nil
	}
	for _, name := range []string{"web", "db", "out"} {
		if !has(name) {
			t.Errorf("%s of the snapshot is not served", name)
		}
	}
	if kd.Missing() != "" || kd.Incomplete() != f.why {
		t.Errorf("Missing() = %q, Incomplete() = %q; want ready, and %q", kd.Missing(), kd.Incomplete(), f.why)
	}
	_, apiSlices := snapshotObjects()
	f.mu.Lock()
	f.slices["default/db-1"] = trimSlice(apiSlices[0])
	f.mu.Unlock()
	close(list)
	<-listed
	eventually(t, "what only the snapshot knew is gone", func() bool { return !has("web") && !has("out") })
	if !has("db") {
		t.Error("db is gone, which the API server has")
	}
	eventually(t, "it is complete", func() bool { return kd.Incomplete() == "" })
}

// A stop before the API server has been listed takes nothing away: questions
// that still come are answered from the snapshot.
func TestSnapshotIsServedToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	services, all := trimmed()
	b, err := encodeSnapshot(services, all, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(path, b); err != nil {
		t.Fatal(err)
	}
	f := newFake(nil, nil)
	f.begin = func(*KubeDNS) {} // never listed
	kd := newKubeDNS(Options{Zone: testZone, TTL: 30, SnapshotFile: path}, f, newMetrics())
	stop := start(t, kd)
	eventually(t, "the snapshot is served", kd.HasSynced)
	stop()
	if r, _ := kd.tree.Service([]byte("default"), []byte("web")); r == nil {
		t.Error("web of the snapshot is gone at the end")
	}
}

// A snapshot is written once the records are complete and after changes, and
// it has what the source has.
func TestSnapshotFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	apiServices, apiSlices := snapshotObjects()
	f := newFake(apiServices, apiSlices)
	kd := newKubeDNS(Options{Zone: testZone, TTL: 30, SnapshotFile: path}, f, newMetrics())
	start(t, kd)
	eventually(t, "a snapshot is there", func() bool {
		o, _, err := readSnapshot(path)
		return err == nil && len(o.services) == 3 && o.sliceCount == 1
	})
	eventually(t, "the time of the snapshot is told", func() bool {
		return testutil.ToFloat64(kd.metrics.snapshotTime) > float64(time.Now().Add(-time.Minute).Unix())
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
			_, _, err := readSnapshot(path)
			failed <- err
		}()
		select {
		case err := <-failed:
			if err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("readSnapshot(%s): error %v, want one that it is not a regular file", path, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("readSnapshot(%s) does not return", path)
		}
	}
}

// A snapshot that cannot be written is counted, changes no answer, and is
// tried again.
func TestSnapshotCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no-such-folder", "snapshot")
	apiServices, apiSlices := snapshotObjects()
	kd := newKubeDNS(Options{Zone: testZone, TTL: 30, SnapshotFile: path}, newFake(apiServices, apiSlices), newMetrics())
	start(t, kd)
	eventually(t, "the failure is counted", func() bool { return testutil.ToFloat64(kd.metrics.snapshotErrors) > 0 })
	if r, _ := kd.tree.Service([]byte("default"), []byte("web")); r == nil || !kd.HasSynced() {
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
	if err := writeSnapshot(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(path, make([]byte, 1<<20)); !errors.Is(err, syscall.ENOSPC) {
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
		var services []*service
		for i := range n % 50 {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s%d-%d", n%50, i)}}
			services = append(services, trimService(s))
		}
		b, err := encodeSnapshot(services, nil, time.Unix(int64(n%50), 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := writeSnapshot(path, b); err != nil {
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
		eventually(t, "the writer writes", func() bool {
			now, err := os.Stat(path)
			return err == nil && (before == nil || !os.SameFile(before, now))
		})
		timer := time.NewTimer(time.Duration(rand.IntN(2000)) * time.Microsecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		o, taken, err := readSnapshot(path)
		if err != nil {
			t.Fatalf("after kill %d: %v\n%s", i, err, output.String())
		}
		n := int(taken.Unix())
		if len(o.services) != n {
			t.Fatalf("after kill %d: %d Services in the snapshot that had %d", i, len(o.services), n)
		}
		for key := range o.services {
			if !strings.HasPrefix(key.Name, fmt.Sprintf("s%d-", n)) {
				t.Fatalf("after kill %d: %v in the snapshot of %d", i, key, n)
			}
		}
		seen[n] = true
		removeLeftovers(path)
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
	b, err := encodeSnapshot(services, all, time.Unix(1, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[len(snapshotMagic)+32:])
	f.Fuzz(func(t *testing.T, payload []byte) {
		// The checksum is made right, so that what is behind it is reached.
		file := append([]byte(snapshotMagic), make([]byte, 32)...)
		file = append(file, payload...)
		sum := sha256.Sum256(payload)
		copy(file[len(snapshotMagic):], sum[:])
		o, _, err := decodeSnapshot(file)
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
