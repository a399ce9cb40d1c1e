package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubedns/hack/e2e/harness"
)

const (
	// imageVersion is the tag of the images that tests build.
	imageVersion = "e2e"
	imagePrefix  = "localhost/kubedns"

	// podPrefix, a process number and "-" begin the name of a pod.
	podPrefix = "kube-dns-e2e-"

	// networkEnv is set for the process that has a network of its own.
	networkEnv = "KUBEDNS_E2E_NETWORK"
)

// inOwnNetwork tells whether this process has a network namespace of its own,
// which has nothing but loopback. Where it has not, the test is run again in a
// process that does, and its result is this test's: the caller returns. All
// that the process starts is in the namespace too, and can have port 53. Tests
// that call it are parallel, as is the waiting for the other process.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(networkEnv) != "" {
		return true
	}
	t.Parallel()
	requireTools(t, "podman", "runc", "catatonit", "ip")
	images(t) // which needs the machine's network
	oldPods.Do(func() { removeOldPods(t) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Each part of -test.run matches a part of the name.
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	parts := strings.Split(flag.Lookup("test.run").Value.String(), "/")
	if depth := strings.Count(pattern, "/") + 1; len(parts) > depth {
		pattern += "/" + strings.Join(parts[depth:], "/")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run="+pattern, "-test.v", "-test.count=1",
		"-test.timeout="+flag.Lookup("test.timeout").Value.String())
	cmd.Env = append(os.Environ(), networkEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	// It has pods to remove.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Errorf("in a network of its own: %v", err)
	} else if !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Error("no test was run in a network of its own")
	}
	return false
}

// oldPods has removeOldPods run once: two at a time would be in each other's way.
var oldPods sync.Once

// removeOldPods removes the pods of tests that were killed.
func removeOldPods(t testing.TB) {
	t.Helper()
	p := &pod{dir: t.TempDir()}
	out, err := p.podman(t.Context(), "pod", "ps", "--format", "{{.Name}}")
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
		if out, err := p.podman(t.Context(), "pod", "rm", "--force", "--time", "0", name); err != nil {
			t.Errorf("removing %s: %v: %s", name, err, out)
		}
	}
}

// prepareNetwork brings loopback up and sets the sysctls that kubelet would set
// for the pod.
func prepareNetwork(t testing.TB, sysctls []corev1.Sysctl) {
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

// requireTools skips the test where a program is missing or this is not root,
// or fails it where CI=true.
func requireTools(t testing.TB, programs ...string) {
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

// images builds the images once, and returns what the build said.
func images(t testing.TB) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if !built.done {
		built.done = true
		built.out, built.err = makeImages()
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.out
}

// makeImages runs `make images` for both architectures.
func makeImages() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", "../..", "images", "VERSION="+imageVersion)
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

// A pod is a pod of deploy/ that podman runs.
type pod struct {
	name    string
	dir     string
	conf    string // CONTAINERS_CONF
	volumes []configVolume
	cluster *harness.ControlPlane
	http    *http.Client
}

// A configVolume is a mounted ConfigMap.
type configVolume struct {
	dir   string
	items []corev1.KeyToPath // empty: all
}

// containersConf has what podman needs where the limits of processes may not
// be raised or cgroups of both versions are mounted.
const containersConf = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
`

// startPod applies the kustomization in dir to the cluster and starts one pod
// of the Deployment that is there then, without waiting for it.
func startPod(t testing.TB, c *harness.ControlPlane, dir string) *pod {
	t.Helper()
	newApplier(t, c).applyAll(t, kustomize(t, dir))
	deployment, err := c.Client.AppsV1().Deployments(kubeSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{
		name: fmt.Sprintf("%s%d-%s", podPrefix, os.Getpid(), filepath.Base(dir)), dir: t.TempDir(), cluster: c,
		http: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	p.conf = filepath.Join(p.dir, "containers.conf")
	if err := os.WriteFile(p.conf, []byte(containersConf), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := p.spec(t, deployment)
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(p.dir, "pod.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, container := range spec.Spec.Containers {
				out, err := p.podman(context.Background(), "logs", "--tail", "60", p.container(container.Name))
				t.Logf("%s said (%v):\n%s", container.Name, err, out)
			}
		}
		if out, err := p.podman(context.Background(), "pod", "rm", "--force", "--time", "0", p.name); err != nil {
			t.Errorf("removing the pod: %v: %s", err, out)
		}
	})
	if out, err := p.podman(t.Context(), "kube", "play", file); err != nil {
		t.Fatalf("starting the pod: %v: %s", err, out)
	}
	return p
}

// spec makes of the Deployment's template a pod that podman can play in a
// network that is there already, with what kubelet would do for it done: its
// volumes filled, its sysctls set, its service account's variables. What the
// scheduler and the probes need is left out: tests ask the probes' paths.
func (p *pod) spec(t testing.TB, d *appsv1.Deployment) *corev1.Pod {
	t.Helper()
	from := d.Spec.Template.Spec
	prepareNetwork(t, from.SecurityContext.Sysctls)
	security := from.SecurityContext.DeepCopy()
	security.Sysctls = nil
	spec := corev1.PodSpec{
		HostNetwork: true, SecurityContext: security, RestartPolicy: corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: from.TerminationGracePeriodSeconds,
	}
	for _, container := range from.Containers {
		name, _, _ := strings.Cut(filepath.Base(container.Image), ":")
		container.Image = imagePrefix + "/" + name + ":" + imageVersion + "-" + goArch()
		container.ImagePullPolicy = corev1.PullNever
		container.Ports = nil
		container.ReadinessProbe, container.LivenessProbe, container.StartupProbe = nil, nil, nil
		container.Env = append(container.Env,
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "127.0.0.1"},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: p.cluster.URL[strings.LastIndex(p.cluster.URL, ":")+1:]})
		spec.Containers = append(spec.Containers, container)
	}
	for _, v := range from.Volumes {
		dir := filepath.Join(p.dir, "volume-"+v.Name)
		mode := os.FileMode(0o755)
		if v.EmptyDir != nil {
			mode = 0o2777 // kubelet's, with the pod's fsGroup
		}
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, -1, int(*security.FSGroup)), os.Chmod(dir, mode|os.ModeSetgid)); err != nil {
			t.Fatal(err)
		}
		switch {
		case v.ConfigMap != nil:
			p.volumes = append(p.volumes, configVolume{dir: dir, items: v.ConfigMap.Items})
		case v.Projected != nil:
			p.writeToken(t, dir)
		case v.EmptyDir != nil:
		default:
			t.Fatalf("volume %s is of a kind that is not known here", v.Name)
		}
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: ptr(corev1.HostPathDirectory)},
		}})
	}
	if from.AutomountServiceAccountToken == nil || *from.AutomountServiceAccountToken {
		p.mountToken(t, &spec)
	}
	p.syncConfig(t)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: d.Spec.Template.Labels},
		Spec:       spec,
	}
}

// mountToken mounts the token into all containers, as the API server does where
// a pod does not say that it wants none.
func (p *pod) mountToken(t testing.TB, spec *corev1.PodSpec) {
	t.Helper()
	dir := filepath.Join(p.dir, "volume-token")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.writeToken(t, dir)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: ptr(corev1.HostPathDirectory)},
	}})
	for i := range spec.Containers {
		spec.Containers[i].VolumeMounts = append(spec.Containers[i].VolumeMounts,
			corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	}
}

// writeToken writes what a pod finds of its ServiceAccount.
func (p *pod) writeToken(t testing.TB, dir string) {
	t.Helper()
	token, err := p.cluster.Client.CoreV1().ServiceAccounts(kubeSystem).CreateToken(t.Context(), "kube-dns", &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"token": []byte(token.Status.Token), "ca.crt": p.cluster.Admin.CAData, "namespace": []byte(kubeSystem),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o444); err != nil {
			t.Fatal(err)
		}
	}
}

// setConfig makes data the ConfigMap's and its volumes'.
func (p *pod) setConfig(t testing.TB, data map[string]string) {
	t.Helper()
	configMaps := p.cluster.Client.CoreV1().ConfigMaps(kubeSystem)
	configMap, err := configMaps.Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMap.Data = data
	if _, err := configMaps.Update(t.Context(), configMap, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.syncConfig(t)
}

// syncConfig writes the ConfigMap into its volumes as kubelet does: a new
// folder, to which the symbolic link ..data is then moved, and a link through
// that for each file.
func (p *pod) syncConfig(t testing.TB) {
	t.Helper()
	configMap, err := p.cluster.Client.CoreV1().ConfigMaps(kubeSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range p.volumes {
		files := map[string]string{}
		for key, value := range configMap.Data {
			if len(v.items) == 0 {
				files[key] = value
			}
			for _, item := range v.items {
				if item.Key == key {
					files[item.Path] = value
				}
			}
		}
		if err := writeVolume(v.dir, files); err != nil {
			t.Fatal(err)
		}
	}
}

func writeVolume(dir string, files map[string]string) error {
	now, err := os.MkdirTemp(dir, "..data-")
	if err != nil {
		return err
	}
	if err := os.Chmod(now, 0o755); err != nil {
		return err
	}
	for name, value := range files {
		if err := os.WriteFile(filepath.Join(now, name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data")) // none the first time
	next := filepath.Join(dir, "..data_tmp")
	if err := errors.Join(os.Symlink(filepath.Base(now), next), os.Rename(next, filepath.Join(dir, "..data"))); err != nil {
		return err
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, "..") {
			if _, ok := files[name]; !ok {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	if before != "" {
		return os.RemoveAll(filepath.Join(dir, before))
	}
	return nil
}

func (p *pod) container(name string) string { return p.name + "-" + name }

// podman runs podman in an empty folder: it takes one that is named like an
// image for a context to build that from.
func (p *pod) podman(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	empty := filepath.Join(p.dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "podman", args...)
	cmd.Dir = empty
	cmd.Env = os.Environ()
	if p.conf != "" {
		cmd.Env = append(cmd.Env, "CONTAINERS_CONF="+p.conf)
	}
	cmd.WaitDelay = time.Second // what it leaves in the background has its output too
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return string(out), err
}

// pid is the number of a container's first process.
func (p *pod) pid(t testing.TB, container string) int {
	t.Helper()
	out, err := p.podman(t.Context(), "inspect", "--format", "{{.State.Pid}}", p.container(container))
	if err != nil {
		t.Fatalf("looking for %s: %v: %s", container, err, out)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || pid <= 0 {
		t.Fatalf("%s has no process: %q", container, out)
	}
	return pid
}

// dnsmasqPID is the number of dnsmasq, the nanny's child.
func (p *pod) dnsmasqPID(t testing.TB) int {
	t.Helper()
	nanny := p.pid(t, "dnsmasq")
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", nanny))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		for _, field := range strings.Fields(string(text)) {
			comm, err := os.ReadFile("/proc/" + field + "/comm")
			if err != nil || strings.TrimSpace(string(comm)) != "dnsmasq" {
				continue
			}
			if pid, err := strconv.Atoi(field); err == nil {
				return pid
			}
		}
	}
	t.Fatalf("the nanny, process %d, has no dnsmasq", nanny)
	return 0
}

// get returns what a path of the pod answers, port and path being "8081/readiness".
func (p *pod) get(t testing.TB, path string) (int, string) {
	t.Helper()
	status, body, err := harness.Get(t.Context(), p.http, "http://127.0.0.1:"+path)
	if err != nil {
		return 0, err.Error()
	}
	return status, body
}

// awaitHealthy waits until what the probes ask answers 200.
func (p *pod) awaitHealthy(t testing.TB) {
	t.Helper()
	for _, path := range []string{"8081/readiness", "10054/healthcheck/kubedns", "10054/healthcheck/dnsmasq"} {
		harness.Eventually(t, time.Minute, func() error {
			if status, body := p.get(t, path); status != http.StatusOK {
				return fmt.Errorf("%s answers %d %s", path, status, body)
			}
			return nil
		})
	}
}
