// Package pods runs pods of deploy/ with podman, as root: in a network namespace
// that has nothing but loopback, on images built here, with what kubelet would
// do for them done. It fails the test that is given to it.
package pods

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubedns/hack/e2e/harness"
)

// podPrefix, a process number and "-" begin the name of a pod.
const podPrefix = "kube-dns-e2e-"

// A Pod is a pod of deploy/ that podman runs.
type Pod struct {
	Name    string
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

// Start applies the kustomization in dir to the cluster and starts one pod
// of the Deployment that is there then, without waiting for it.
func Start(t testing.TB, c *harness.ControlPlane, dir string) *Pod {
	t.Helper()
	NewApplier(t, c).ApplyAll(t, Kustomize(t, dir))
	deployment, err := c.Client.AppsV1().Deployments(metav1.NamespaceSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pod{
		Name: fmt.Sprintf("%s%d-%s", podPrefix, os.Getpid(), filepath.Base(dir)), dir: t.TempDir(), cluster: c,
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
				out, err := p.Podman(context.Background(), "logs", "--tail", "60", p.container(container.Name))
				t.Logf("%s said (%v):\n%s", container.Name, err, out)
			}
		}
		if out, err := p.Podman(context.Background(), "pod", "rm", "--force", "--time", "0", p.Name); err != nil {
			t.Errorf("removing the pod: %v: %s", err, out)
		}
	})
	if out, err := p.Podman(t.Context(), "kube", "play", file); err != nil {
		t.Fatalf("starting the pod: %v: %s", err, out)
	}
	return p
}

// spec makes of the Deployment's template a pod that podman can play in a
// network that is there already, with what kubelet would do for it done: its
// volumes filled, its sysctls set, its service account's variables. What the
// scheduler and the probes need is left out: tests ask the probes' paths.
func (p *Pod) spec(t testing.TB, d *appsv1.Deployment) *corev1.Pod {
	t.Helper()
	from := d.Spec.Template.Spec
	PrepareNetwork(t, from.SecurityContext.Sysctls)
	security := from.SecurityContext.DeepCopy()
	security.Sysctls = nil
	spec := corev1.PodSpec{
		HostNetwork: true, SecurityContext: security, RestartPolicy: corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: from.TerminationGracePeriodSeconds,
	}
	for _, container := range from.Containers {
		name, _, _ := strings.Cut(filepath.Base(container.Image), ":")
		container.Image = ImagePrefix + "/" + name + ":" + ImageVersion + "-" + runtime.GOARCH
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
			HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: new(corev1.HostPathDirectory)},
		}})
	}
	if from.AutomountServiceAccountToken == nil || *from.AutomountServiceAccountToken {
		p.mountToken(t, &spec)
	}
	p.syncConfig(t)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: d.Spec.Template.Labels},
		Spec:       spec,
	}
}

// mountToken mounts the token into all containers, as the API server does where
// a pod does not say that it wants none.
func (p *Pod) mountToken(t testing.TB, spec *corev1.PodSpec) {
	t.Helper()
	dir := filepath.Join(p.dir, "volume-token")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.writeToken(t, dir)
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: new(corev1.HostPathDirectory)},
	}})
	for i := range spec.Containers {
		spec.Containers[i].VolumeMounts = append(spec.Containers[i].VolumeMounts,
			corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	}
}

// writeToken writes what a pod finds of its ServiceAccount.
func (p *Pod) writeToken(t testing.TB, dir string) {
	t.Helper()
	token, err := p.cluster.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(t.Context(), "kube-dns", &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"token": []byte(token.Status.Token), "ca.crt": p.cluster.Admin.CAData, "namespace": []byte(metav1.NamespaceSystem),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o444); err != nil {
			t.Fatal(err)
		}
	}
}

// SetConfig makes data the ConfigMap's and its volumes'.
func (p *Pod) SetConfig(t testing.TB, data map[string]string) {
	t.Helper()
	configMaps := p.cluster.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
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
func (p *Pod) syncConfig(t testing.TB) {
	t.Helper()
	configMap, err := p.cluster.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
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

func (p *Pod) container(name string) string { return p.Name + "-" + name }

// Podman runs podman in an empty folder: it takes one that is named like an
// image for a context to build that from.
func (p *Pod) Podman(ctx context.Context, args ...string) (string, error) {
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

// PID is the number of a container's first process.
func (p *Pod) PID(t testing.TB, container string) int {
	t.Helper()
	out, err := p.Podman(t.Context(), "inspect", "--format", "{{.State.Pid}}", p.container(container))
	if err != nil {
		t.Fatalf("looking for %s: %v: %s", container, err, out)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || pid <= 0 {
		t.Fatalf("%s has no process: %q", container, out)
	}
	return pid
}

// DnsmasqPID is the number of dnsmasq, the nanny's child.
func (p *Pod) DnsmasqPID(t testing.TB) int {
	t.Helper()
	nanny := p.PID(t, "dnsmasq")
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

// Get returns what a path of the pod answers, port and path being "8081/readiness".
func (p *Pod) Get(t testing.TB, path string) (int, string) {
	t.Helper()
	status, body, err := harness.Get(t.Context(), p.http, "http://127.0.0.1:"+path)
	if err != nil {
		return 0, err.Error()
	}
	return status, body
}

// AwaitHealthy waits until what the probes ask answers 200.
func (p *Pod) AwaitHealthy(t testing.TB) {
	t.Helper()
	for _, path := range []string{"8081/readiness", "10054/healthcheck/kubedns", "10054/healthcheck/dnsmasq"} {
		harness.Eventually(t, time.Minute, func() error {
			if status, body := p.Get(t, path); status != http.StatusOK {
				return fmt.Errorf("%s answers %d %s", path, status, body)
			}
			return nil
		})
	}
}
