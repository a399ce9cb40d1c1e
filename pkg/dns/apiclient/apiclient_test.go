package apiclient

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"kubedns/pkg/version"
)

const kubeconfig = `
apiVersion: v1
kind: Config
clusters:
- {name: c, cluster: {server: "https://192.0.2.1:6443", insecure-skip-tls-verify: true}}
- {name: other, cluster: {server: "https://192.0.2.2:6443"}}
users:
- {name: u, user: {token: secret}}
contexts:
- {name: x, context: {cluster: c, user: u}}
current-context: x
`

// A long list is not to wait between its pages.
func TestRequestsAreNotHeldBack(t *testing.T) {
	cfg, err := Config("", "http://192.0.2.9:8080")
	if err != nil {
		t.Fatal(err)
	}
	for name, newClient := range map[string]func(*rest.Config) (rest.Interface, error){"core": Core, "discovery": Discovery} {
		c, err := newClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := c.GetRateLimiter()
		if l == nil {
			t.Fatalf("%s: nothing bounds requests", name)
		}
		n := 0
		for n < 1000 && l.TryAccept() {
			n++
		}
		if n < 100 || n == 1000 {
			t.Errorf("%s: request %d waits, want one after the hundredth", name, n+1)
		}
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("config", kubeconfig)
	// Neither the user's own kubeconfig nor a pod's environment counts.
	t.Setenv("HOME", filepath.Dir(filepath.Dir(write("home/.kube/config", strings.ReplaceAll(kubeconfig, "192.0.2", "198.51.100")))))
	t.Setenv("KUBECONFIG", filepath.Join(dir, "home/.kube/config"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")

	for _, tt := range []struct {
		name, kubeconfig, url string
		host, token           string
		err                   string // what the error says
	}{
		{name: "kubeconfig", kubeconfig: good, host: "https://192.0.2.1:6443", token: "secret"},
		{name: "URL alone", url: "http://192.0.2.9:8080", host: "http://192.0.2.9:8080"},
		{name: "URL over the kubeconfig's", kubeconfig: good, url: "https://192.0.2.9", host: "https://192.0.2.9", token: "secret"},
		{name: "neither", err: "no service account: not in a pod, and neither --kubecfg-file nor --kube-master-url is given"},
		{name: "no such file", kubeconfig: filepath.Join(dir, "gone"), err: filepath.Join(dir, "gone")},
		{name: "no YAML", kubeconfig: write("bad", "{"), err: filepath.Join(dir, "bad")},
		{name: "a context that is not there", kubeconfig: write("context", strings.Replace(kubeconfig, "current-context: x", "current-context: gone", 1)), err: "specified context: gone"},
		{name: "empty file", kubeconfig: write("empty", ""), err: "no configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := Config(tt.kubeconfig, tt.url)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "configuring the API server's client: ") {
					t.Errorf("Config(%q, %q) = %v, %v, want an error with %q", tt.kubeconfig, tt.url, cfg, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Host != tt.host || cfg.BearerToken != tt.token || cfg.UserAgent != UserAgent() {
				t.Errorf("host %q, token %q, user agent %q; want %q, %q, %q", cfg.Host, cfg.BearerToken, cfg.UserAgent, tt.host, tt.token, UserAgent())
			}
		})
	}
}

func TestUserAgent(t *testing.T) {
	want := "kube-dns/" + version.Version + " (" + runtime.GOOS + "/" + runtime.GOARCH + ") "
	if got := UserAgent(); !strings.HasPrefix(got, want) {
		t.Errorf("UserAgent() = %q, want %q and the revision", got, want)
	}
	if got := UserAgent(); !regexp.MustCompile(`^kube-dns/\S+ \([a-z0-9]+/[a-z0-9]+\) \S+$`).MatchString(got) {
		t.Errorf("UserAgent() = %q, want product, platform and revision", got)
	}
}

// recorder answers every list in protobuf and keeps the requests.
type recorder struct {
	mu       sync.Mutex
	requests []*http.Request
	body     []byte
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, req)
	w.Header().Set("Content-Type", apiruntime.ContentTypeProtobuf)
	_, _ = w.Write(r.body)
}

// TestClients: both groups' clients speak protobuf, say who they are, and
// leave the configuration as it was.
func TestClients(t *testing.T) {
	for _, tt := range []struct {
		name     string
		make     func(*rest.Config) (rest.Interface, error)
		add      func(*apiruntime.Scheme) error
		resource string
		path     string
		list     apiruntime.Object
	}{
		{"core", Core, corev1.AddToScheme, "services", "/api/v1/services", &corev1.ServiceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"},
			Items:    []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "192.0.2.1"}}},
		}},
		{"discovery", Discovery, discoveryv1.AddToScheme, "endpointslices", "/apis/discovery.k8s.io/v1/endpointslices", &discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"},
			Items: []discoveryv1.EndpointSlice{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
			}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scheme := apiruntime.NewScheme()
			if err := tt.add(scheme); err != nil {
				t.Fatal(err)
			}
			body, err := apiruntime.Encode(protobuf.NewSerializer(scheme, scheme), tt.list)
			if err != nil {
				t.Fatal(err)
			}
			h := &recorder{body: body}
			s := httptest.NewServer(h)
			defer s.Close()
			cfg := &rest.Config{Host: s.URL, UserAgent: UserAgent(), BearerToken: "secret"}
			before := rest.CopyConfig(cfg)
			c, err := tt.make(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(before, cfg) {
				t.Errorf("the configuration has become %+v", cfg)
			}
			got, err := c.Get().Resource(tt.resource).Do(t.Context()).Get()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, stripped(tt.list)) {
				t.Errorf("listed %+v, want %+v", got, tt.list)
			}
			w, err := c.Get().Resource(tt.resource).VersionedParams(&metav1.ListOptions{Watch: true}, metav1.ParameterCodec).Watch(t.Context())
			if err == nil {
				w.Stop()
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.requests) < 2 {
				t.Fatalf("%d requests, want a list and a watch", len(h.requests))
			}
			for _, req := range h.requests {
				accept := req.Header.Get("Accept")
				if first, rest, _ := strings.Cut(accept, ","); !strings.HasPrefix(first, apiruntime.ContentTypeProtobuf) || rest == "" {
					t.Errorf("%s: Accept: %s, want protobuf first and then another", req.URL, accept)
				}
				if got := req.Header.Get("User-Agent"); got != UserAgent() {
					t.Errorf("%s: User-Agent: %s, want %s", req.URL, got, UserAgent())
				}
				if got := req.Header.Get("Authorization"); got != "Bearer secret" {
					t.Errorf("%s: Authorization: %s", req.URL, got)
				}
				if req.URL.Path != tt.path {
					t.Errorf("path %s, want %s", req.URL.Path, tt.path)
				}
			}
		})
	}
}

// stripped is a list as a client has it: without its type, which the decoder
// leaves out.
func stripped(list apiruntime.Object) apiruntime.Object {
	list = list.DeepCopyObject()
	switch l := list.(type) {
	case *corev1.ServiceList:
		l.TypeMeta = metav1.TypeMeta{}
	case *discoveryv1.EndpointSliceList:
		l.TypeMeta = metav1.TypeMeta{}
	}
	return list
}

// TestClientRefuses: a configuration that cannot be used is an error that
// names the group.
func TestClientRefuses(t *testing.T) {
	cfg := &rest.Config{Host: "http://192.0.2.1:port:port"}
	if _, err := Core(cfg); err == nil || !strings.Contains(err.Error(), "making a client for v1: ") {
		t.Errorf("Core() = %v", err)
	}
	if _, err := Discovery(cfg); err == nil || !strings.Contains(err.Error(), "making a client for discovery.k8s.io/v1: ") {
		t.Errorf("Discovery() = %v", err)
	}
}
