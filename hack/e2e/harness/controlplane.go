package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubedns/hack/e2e/process"
)

// startTimeout is how long etcd and the API server may take to be ready; on an
// idle machine it is 3 s.
const startTimeout = 4 * time.Minute

// ErrNotBuilt is returned where the control plane's binaries are not in the
// cache.
var ErrNotBuilt = errors.New("the control plane is not built: run hack/e2e/controlplane.sh, or make e2e")

// A ControlPlane is a real etcd and kube-apiserver on loopback, and nothing
// else: no controller runs, so that only the test writes EndpointSlices, and a
// deleted Namespace is never finalized.
type ControlPlane struct {
	// Admin is the configuration of a client that may do everything.
	Admin *rest.Config
	// Client and Dynamic are clients made of Admin.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// URL is the API server's.
	URL string

	dir                   string
	apiArgs               []string
	etcdPath, apiPath     string
	etcdPort, etcdPeer    int
	apiPort               int
	adminToken            string
	caData                []byte
	etcdLog, apiserverLog *Log
	etcd, apiserver       *Process
}

// StartControlPlane starts etcd and kube-apiserver with their data in dir and
// returns once both are ready. The error is ErrNotBuilt where the binaries are
// missing. Call Stop, whatever comes. apiArgs are more flags of the API server.
func StartControlPlane(ctx context.Context, dir string, apiArgs ...string) (*ControlPlane, error) {
	etcdPath, apiPath, err := controlPlaneBinaries(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, err
	}
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails, since Go 1.24
	c := &ControlPlane{
		URL:      "https://127.0.0.1:" + strconv.Itoa(ports[2]),
		dir:      dir,
		apiArgs:  apiArgs,
		etcdPath: etcdPath, apiPath: apiPath,
		etcdPort: ports[0], etcdPeer: ports[1], apiPort: ports[2],
		adminToken: hex.EncodeToString(token),
		etcdLog:    &Log{}, apiserverLog: &Log{},
	}
	if err := c.writeKeys(); err != nil {
		return nil, err
	}
	if err := c.StartEtcd(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// controlPlaneBinaries asks controlplane.sh where etcd and kube-apiserver are.
func controlPlaneBinaries(ctx context.Context) (etcd, apiserver string, err error) {
	script, err := sourcePath("hack/e2e/controlplane.sh")
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "bash", script, "-n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("running %s: %w: %s", script, err, stderr.String())
	}
	paths := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if name, path, ok := strings.Cut(lines.Text(), "="); ok {
			paths[name] = path
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(paths[name]); err != nil {
			return "", "", fmt.Errorf("%w: %w", ErrNotBuilt, err)
		}
	}
	return paths["etcd"], paths["kube-apiserver"], nil
}

// writeKeys writes the key pair of ServiceAccount tokens and the file with the
// admin's token.
func (c *ControlPlane) writeKeys() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("making the ServiceAccount key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("encoding the ServiceAccount key: %w", err)
	}
	files := map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"sa.pub":     pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		"tokens.csv": []byte(c.adminToken + ",admin,admin,system:masters\n"),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// StartEtcd starts etcd, which must not be running, on the data and ports it
// had before, and waits until it is ready.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	client := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPeer)
	p, err := process.Start(process.Options{Log: c.etcdLog}, c.etcdPath,
		"--data-dir", filepath.Join(c.dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer,
		"--unsafe-no-fsync", "--log-level", "error")
	if err != nil {
		return err
	}
	c.etcd = p
	return c.await(ctx, p, "etcd", func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, client+"/health")
	})
}

// StartAPIServer starts the API server, which must not be running, on the data
// and port it had before, and waits until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	args := []string{
		"--etcd-servers", fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort),
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
		"--secure-port", strconv.Itoa(c.apiPort),
		"--service-cluster-ip-range", "10.96.0.0/12,fd00:10:96::/108",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", filepath.Join(c.dir, "sa.pub"),
		"--service-account-signing-key-file", filepath.Join(c.dir, "sa.key"),
		"--token-auth-file", filepath.Join(c.dir, "tokens.csv"),
		"--authorization-mode", "RBAC",
		"--cert-dir", filepath.Join(c.dir, "certs"),
		"--allow-privileged=true",
		"--endpoint-reconciler-type", "none",
		// Nothing here is to be throttled but by what is under test.
		"--enable-priority-and-fairness=false",
		// Watches end cleanly when it is stopped, and soon.
		"--shutdown-delay-duration", "0s",
		"--shutdown-send-retry-after",
		"--shutdown-watch-termination-grace-period", "1s",
	}
	p, err := process.Start(process.Options{Log: c.apiserverLog}, c.apiPath, append(args, c.apiArgs...)...)
	if err != nil {
		return err
	}
	c.apiserver = p
	return c.await(ctx, p, "kube-apiserver", func(ctx context.Context) error {
		if c.Client == nil {
			if err := c.makeClients(); err != nil {
				return err
			}
		}
		body, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("%w: %s", err, body)
		}
		// The built-in Namespaces are made after it says that it is ready.
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			if _, err := c.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeClients makes the admin's clients, once the API server has written its
// certificate.
func (c *ControlPlane) makeClients() error {
	ca, err := os.ReadFile(filepath.Join(c.dir, "certs", "apiserver.crt"))
	if err != nil {
		return err
	}
	c.caData = ca
	c.Admin = &rest.Config{
		Host:            c.URL,
		BearerToken:     c.adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS:             -1, // no limit on this side
		WarningHandler:  rest.NoWarnings{},
	}
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return fmt.Errorf("making the admin's client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(c.Admin)
	if err != nil {
		return fmt.Errorf("making the admin's client: %w", err)
	}
	c.Client, c.Dynamic = client, dynamicClient
	return nil
}

// await polls check until it is content, the process has ended or startTimeout
// has passed.
func (c *ControlPlane) await(ctx context.Context, p *Process, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	go func() {
		select {
		case <-p.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := poll(ctx, 50*time.Millisecond, check); err != nil {
		return fmt.Errorf("waiting for %s: %w; it says: %s", what, err, p.Log.Tail(4000))
	}
	return nil
}

// PIDs are the numbers of the processes that were started last.
func (c *ControlPlane) PIDs() []int { return []int{c.etcd.PID(), c.apiserver.PID()} }

// KillAPIServer ends the API server as kill -9 does.
func (c *ControlPlane) KillAPIServer() error { return c.apiserver.Stop(syscall.SIGKILL) }

// StopAPIServer ends the API server in an orderly way.
func (c *ControlPlane) StopAPIServer() error { return c.apiserver.Stop(syscall.SIGTERM) }

// KillEtcd ends etcd as kill -9 does.
func (c *ControlPlane) KillEtcd() error { return c.etcd.Stop(syscall.SIGKILL) }

// BackUpEtcd copies etcd's data into the folder dir, which must not exist. etcd
// is killed for that, and started again; the API server goes on.
func (c *ControlPlane) BackUpEtcd(ctx context.Context, dir string) error {
	if err := c.KillEtcd(); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.dir, "etcd"))); err != nil {
		return fmt.Errorf("copying etcd's data: %w", err)
	}
	return c.StartEtcd(ctx)
}

// RestoreEtcd puts what BackUpEtcd has copied in place of etcd's data. Neither
// etcd nor the API server may be running.
func (c *ControlPlane) RestoreEtcd(dir string) error {
	data := filepath.Join(c.dir, "etcd")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("removing etcd's data: %w", err)
	}
	if err := os.CopyFS(data, os.DirFS(dir)); err != nil {
		return fmt.Errorf("restoring etcd's data: %w", err)
	}
	return nil
}

// Stop ends both, at once: their data is not needed any more.
func (c *ControlPlane) Stop() {
	for _, p := range []*Process{c.apiserver, c.etcd} {
		if p != nil {
			_ = p.Stop(syscall.SIGKILL) // nobody waits for what it might say
		}
	}
}

// WriteKubeconfig writes a kubeconfig with the bearer token, the admin's where
// it is empty, to file.
func (c *ControlPlane) WriteKubeconfig(file, token string) error {
	return c.WriteKubeconfigTo(file, token, c.URL)
}

// WriteKubeconfigTo is WriteKubeconfig with another URL to reach the API server
// at.
func (c *ControlPlane) WriteKubeconfigTo(file, token, server string) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["e2e"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.caData}
	cfg.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{Token: cmp.Or(token, c.adminToken)}
	cfg.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	cfg.CurrentContext = "e2e"
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// ServiceAccountToken makes the ServiceAccount kube-system/name, gives it the
// rules, of which those of namespaced hold in kube-system alone, and returns a
// token of it.
func (c *ControlPlane) ServiceAccountToken(ctx context.Context, name string, clusterWide, namespaced []rbacv1.PolicyRule) (string, error) {
	const namespace = metav1.NamespaceSystem
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	create := metav1.CreateOptions{}
	accounts := c.Client.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, create); err != nil {
		return "", err
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}}
	rbac := c.Client.RbacV1()
	if len(clusterWide) > 0 {
		wide := metav1.ObjectMeta{Name: name}
		if _, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: wide, Rules: clusterWide}, create); err != nil {
			return "", err
		}
		if _, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: wide, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, create); err != nil {
			return "", err
		}
	}
	if len(namespaced) > 0 {
		if _, err := rbac.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: namespaced}, create); err != nil {
			return "", err
		}
		if _, err := rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		}, create); err != nil {
			return "", err
		}
	}
	token, err := accounts.CreateToken(ctx, name, &authv1.TokenRequest{}, create)
	if err != nil {
		return "", fmt.Errorf("asking for a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return token.Status.Token, nil
}

// EnsureNamespace makes the Namespace name unless it is there.
func (c *ControlPlane) EnsureNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Namespace %s: %w", name, err)
	}
	return nil
}
