package pods

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubedns/hack/e2e/harness"
)

const (
	// ImageVersion is the tag of the images that tests build.
	ImageVersion = "e2e"
	// ImagePrefix is what their names begin with, without "/".
	ImagePrefix = "localhost/kubedns"

	// networkEnv is set for the process that has a network of its own.
	networkEnv = "KUBEDNS_E2E_NETWORK"
)

// InOwnNetwork reports whether this process has a network namespace of its own,
// which has nothing but loopback. Where it has not, the test is run again in a
// process that does, and its result is this test's: the caller returns. All
// that the process starts is in the namespace too, and can have port 53. Tests
// that call it are parallel, as is the waiting for the other process.
func InOwnNetwork(t *testing.T) bool {
	t.Helper()
	if Isolated() {
		return true
	}
	t.Parallel()
	RequireTools(t, "podman", "runc", "catatonit", "ip")
	Images(t) // which needs the machine's network
	oldPods.Do(func() { removeOldPods(t) })
	// Each part of -test.run matches a part of the name.
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	parts := strings.Split(flag.Lookup("test.run").Value.String(), "/")
	if depth := strings.Count(pattern, "/") + 1; len(parts) > depth {
		pattern += "/" + strings.Join(parts[depth:], "/")
	}
	cmd, err := IsolatedCommand(t.Context(), "-test.run="+pattern, "-test.v", "-test.count=1",
		"-test.timeout="+flag.Lookup("test.timeout").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Errorf("in a network of its own: %v", err)
	} else if !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Error("no test was run in a network of its own")
	}
	return false
}

// Isolated reports whether this process has a network namespace of its own.
func Isolated() bool { return os.Getenv(networkEnv) != "" }

// IsolatedCommand is this program with other arguments, in a network namespace
// of its own.
func IsolatedCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), networkEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	// It has pods to remove.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 30 * time.Second
	return cmd, nil
}

// oldPods has removeOldPods run once: two at a time would be in each other's way.
var oldPods sync.Once

// removeOldPods removes the pods of tests that were killed.
func removeOldPods(t testing.TB) {
	t.Helper()
	p := &Pod{dir: t.TempDir()}
	out, err := p.Podman(t.Context(), "pod", "ps", "--format", "{{.Name}}")
	if err != nil {
		t.Fatalf("listing pods: %v: %s", err, out)
	}
	for _, name := range strings.Fields(out) {
		rest, ours := strings.CutPrefix(name, podPrefix)
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if !ours || err != nil || syscall.Kill(pid, 0) == nil {
			continue
		}
		if out, err := p.Podman(t.Context(), "pod", "rm", "--force", "--time", "0", name); err != nil {
			t.Errorf("removing %s: %v: %s", name, err, out)
		}
	}
}

// PrepareNetwork brings loopback up and sets the sysctls that kubelet would set
// for the pod.
func PrepareNetwork(t testing.TB, sysctls []corev1.Sysctl) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("ip link set lo up: %v: %s", err, out)
	}
	for _, s := range sysctls {
		if !strings.HasPrefix(s.Name, "net.") {
			t.Fatalf("sysctl %s is not of the network namespace", s.Name)
		}
		file := "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/")
		if err := os.WriteFile(file, []byte(s.Value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// RequireTools skips the test where a program is missing or this is not root,
// or fails it where CI=true.
func RequireTools(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("a network namespace and a pod need root"))
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			harness.Require(t, fmt.Errorf("%s is not installed", name))
		}
	}
}

// built is set once the images are there.
var built struct {
	sync.Mutex
	done bool
	out  string
	err  error
}

// Images builds the images once, and returns what the build said.
func Images(t testing.TB) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if !built.done {
		built.done = true
		built.out, built.err = BuildImages()
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.out
}

// BuildImages runs `make images` for both architectures.
func BuildImages() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", "../..", "images", "VERSION="+ImageVersion)
	// As in a clean checkout: what the caller has set is for other images.
	cmd.Env = append(os.Environ(), "REGISTRY=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make images: %w: %s%s", err, out, stderr.String())
	}
	return string(out), nil
}
