package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

// startOn starts kube-dns on a fake API server, or on one that is away where
// api is nil, with the snapshot file.
func startOn(t *testing.T, binary string, api *fakeAPI, snapshot string, noWait bool) *harness.KubeDNS {
	t.Helper()
	url := "http://127.0.0.1:9" // discard: nobody is there
	if api != nil {
		url = api.URL
	}
	return harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: binary, NoWait: noWait,
		Args: []string{"--kube-master-url=" + url, "--snapshot-file=" + snapshot},
	})
}

// awaitSnapshot waits until there is one newer than old, which may be nil.
func awaitSnapshot(t *testing.T, file string, old os.FileInfo) os.FileInfo {
	t.Helper()
	var info os.FileInfo
	harness.Eventually(t, 30*time.Second, func() (err error) {
		if info, err = os.Stat(file); err == nil && old != nil && os.SameFile(old, info) {
			return errors.New("no new snapshot")
		}
		return err
	})
	return info
}

// scheduled is how long the threads of a process have run so far, and how long
// they have waited for a processor while they could have run.
func scheduled(pid int) (ran, waited time.Duration) {
	for _, thread := range harness.Schedstats(pid) {
		b, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread has ended
		}
		r, w, _ := harness.ParseSchedstat(b)
		ran += r
		waited += w
	}
	return ran, waited
}

// TestSnapshotAtStart starts kube-dns with a snapshot of 5,500 Services while
// the API server is away: it answers within 300 ms of its start, and once the
// API server is back nothing remains that only the snapshot knew.
func TestSnapshotAtStart(t *testing.T) {
	const n = 5500
	file := filepath.Join(t.TempDir(), "snapshot")
	api := newFakeAPI(t, manyServices(n, 96))
	first := startOn(t, fastKubeDNS(t), api, file, false)
	info := awaitSnapshot(t, file, nil)
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the snapshot has mode %v, want -rw-------", mode)
	}
	if err := first.Stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d Services are a snapshot of %d octets", n, info.Size())

	api.fail(http.StatusServiceUnavailable)
	const bound = 300 * time.Millisecond
	best := time.Hour
	var k *harness.KubeDNS
	for try := range 5 {
		if k != nil {
			if err := k.Stop(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		k = startOn(t, fastKubeDNS(t), api, file, true)
		askUntilRight(t, k.Addr, fmt.Sprintf("s%d.default.svc.%s", n-1, zone), manyAddress(n-1, 96))
		took := time.Since(begun)
		ran, waited := scheduled(k.PID())
		t.Logf("start %d: the first right answer after %v; its threads ran for %v and waited for a processor for %v, together", try,
			took.Round(time.Millisecond), ran.Round(time.Millisecond), waited.Round(time.Millisecond))
		// That others have the processor is excused, but not what it does itself.
		best = min(best, max(took-waited, min(took, ran)))
		if took < bound {
			break
		}
	}
	if best > bound {
		t.Errorf("the first right answer came %v after the start, without waiting for a processor; want %v", best, bound)
	}
	if status, body := k.Readiness(t); status != http.StatusOK {
		t.Errorf("/readiness answers %d %q, want 200", status, body)
	}

	// Of what it knew, s0 is left, elsewhere.
	api.hold(manyServices(1, 97))
	api.fail(0)
	awaitAddress(t, k.Addr, "s0.default.svc."+zone, manyAddress(0, 97), 20*time.Second)
	if got := k.Log.String(); !strings.Contains(got, "serving the snapshot of") {
		t.Error("the log does not tell of the snapshot")
	}
	var left []string
	harness.Eventually(t, 10*time.Second, func() error {
		left = left[:0]
		for i := 1; i < n; i += 7 {
			name := fmt.Sprintf("s%d.default.svc.%s", i, zone)
			reply, err := harness.Ask(t.Context(), harness.Question{Server: k.Addr, Name: name, Type: dns.TypeA})
			if err != nil || reply.Rcode != dns.RcodeNameError {
				left = append(left, name)
			}
			reverse, _ := dns.ReverseAddr(manyAddress(i, 96)) // an address
			// What is not the zone's is forwarded, and nobody answers.
			if reply, err = harness.Ask(t.Context(), harness.Question{Server: k.Addr, Name: reverse, Type: dns.TypePTR}); err != nil || len(reply.Answer) > 0 {
				left = append(left, reverse)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%d names are left, the first %s", len(left), left[0])
		}
		return nil
	})
	if v, _ := k.ScrapeMetrics(t).Value("kubedns_services"); v != 1 {
		t.Errorf("kubedns_services is %v, want 1", v)
	}
}

// askUntilRight asks for the address of name, every 2 ms while nobody listens
// and else once a reply has come.
func askUntilRight(t *testing.T, server, name, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		reply, err := harness.Ask(ctx, harness.Question{Server: server, Name: name, Type: dns.TypeA, Timeout: 100 * time.Millisecond})
		if err == nil && len(reply.Answer) == 1 && reply.Answer[0].(*dns.A).A.String() == address {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is not answered after 30s: %v", name, err)
		case <-ticker.C:
		}
	}
}

// TestSnapshotCannotBeWritten has a folder that is read-only, and a disk that
// is full: a warning, a metric, and no effect on answers.
func TestSnapshotCannotBeWritten(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	const n = 200
	for _, tt := range []struct {
		name, options string
		flags         uintptr
		want          string
	}{
		{"read-only", "size=1m", syscall.MS_RDONLY, "read-only file system"},
		{"full", "size=4k", 0, "no space left on device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", tt.flags, tt.options); err != nil {
				t.Skipf("mounting a small file system: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			k := startOn(t, kubeDNS(t), newFakeAPI(t, manyServices(n, 96)), filepath.Join(dir, "snapshot"), false)
			watch := watchName(t, k.Addr, "s0.default.svc."+zone)
			harness.Eventually(t, 20*time.Second, func() error {
				if v, _ := k.ScrapeMetrics(t).Value("kubedns_snapshot_errors_total"); v == 0 {
					return errors.New("kubedns_snapshot_errors_total is 0")
				}
				return nil
			})
			if got := k.Log.String(); !strings.Contains(got, tt.want) || !strings.Contains(got, "writing snapshot") {
				t.Errorf("no warning of %q", tt.want)
			}
			for i := range n {
				awaitAddress(t, k.Addr, fmt.Sprintf("s%d.default.svc.%s", i, zone), manyAddress(i, 96), time.Second)
			}
			if status, body := k.Readiness(t); status != http.StatusOK {
				t.Errorf("/readiness answers %d %q, want 200", status, body)
			}
			watch.stop(t)
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left in the folder: %v, %v", left, err)
			}
		})
	}
}

var programKills = flag.Int("program-kills", 10, "how often TestSnapshotKill9 kills kube-dns while it writes")

// TestSnapshotKill9 kills kube-dns at random moments of its writing of a
// snapshot: the next one serves what was there before, or the new one, whole.
func TestSnapshotKill9(t *testing.T) {
	const n = 2000
	file := filepath.Join(t.TempDir(), "snapshot")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	second := 96 // of the addresses in the snapshot that is there
	api := newFakeAPI(t, manyServices(n, second))
	k := startOn(t, fastKubeDNS(t), api, file, false)
	awaitSnapshot(t, file, nil)
	if err := k.Stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var kept, replaced, half int
	for i := range *programKills {
		next := second + 1
		if next > 110 {
			next = 96
		}
		api.hold(manyServices(n, next))
		awaitWriting := watchWriting(t, file)
		killed := harness.StartKubeDNS(t, harness.KubeDNSOptions{
			Binary: fastKubeDNS(t), NoWait: true, NoCheckExit: true,
			Args: []string{"--kube-master-url=" + api.URL, "--snapshot-file=" + file},
		})
		awaitWriting()
		<-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond)
		if err := killed.Stop(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(file + ".new-*"); len(left) > 0 { // the pattern is good
			half++
		}
		k := startOn(t, fastKubeDNS(t), nil, file, false)
		got, _ := addresses(t, k.Addr, "s0.default.svc."+zone)
		switch {
		case len(got) == 1 && got[0] == manyAddress(0, next):
			second = next
			replaced++
		case len(got) == 1 && got[0] == manyAddress(0, second):
			kept++
		default:
			t.Fatalf("after kill %d: s0 has %q", i, got)
		}
		for j := 0; j < n; j += 37 {
			name := fmt.Sprintf("s%d.default.svc.%s", j, zone)
			if got, _ := addresses(t, k.Addr, name); len(got) != 1 || got[0] != manyAddress(j, second) {
				t.Fatalf("after kill %d: %s has %q, and s0 is that of %d", i, name, got, second)
			}
		}
		if err := k.Stop(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(file + ".*"); len(left) > 0 { // the pattern is good
			t.Fatalf("left behind: %q", left)
		}
	}
	t.Logf("%d kills: %d left the old snapshot, %d the new one; %d left a file half written", *programKills, kept, replaced, half)
}

// watchWriting returns what waits until a new snapshot is being written beside
// file from now on.
func watchWriting(t *testing.T, file string) (await func()) {
	t.Helper()
	// Where reads do not block, closing ends them.
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := syscall.InotifyAddWatch(fd, filepath.Dir(file), syscall.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer events.Close()
		if err := events.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := events.Read(make([]byte, 4096)); err != nil {
			t.Fatalf("no snapshot is written: %v", err)
		}
	}
}
