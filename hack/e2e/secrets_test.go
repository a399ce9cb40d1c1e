package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubedns/hack/e2e/harness"
)

// TestSecretsAreNotLogged runs kube-dns at the highest verbosity with every
// kind of credentials, accepted and refused, and looks for them in its log and
// in what it serves.
func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	api := newFakeAPI(t, manyServices(3, 96))
	a, err := harness.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Sign()
	if err != nil {
		t.Fatal(err)
	}
	client, err := a.Sign()
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := harness.EncodeCertificate(client)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// A line of the key's own, behind its first, which all keys have.
	secretLine := strings.Split(string(key), "\n")[2]
	basic := base64.StdEncoding.EncodeToString([]byte("admin:hunter2hunter2"))
	for _, tt := range []credentials{
		{
			name: "token", user: &clientcmdapi.AuthInfo{Token: "tok-in-kubeconfig-3141592653"},
			secrets: []string{"tok-in-kubeconfig-3141592653"}, sent: "Bearer tok-in-kubeconfig-3141592653",
		},
		{
			name: "token file", user: &clientcmdapi.AuthInfo{TokenFile: write("token", []byte("tok-in-file-2718281828"))},
			secrets: []string{"tok-in-file-2718281828"}, sent: "Bearer tok-in-file-2718281828",
		},
		{
			name: "password", user: &clientcmdapi.AuthInfo{Username: "admin", Password: "hunter2hunter2"},
			secrets: []string{"hunter2hunter2", basic}, sent: "Basic " + basic,
		},
		{
			name: "client key", user: &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key},
			secrets: []string{secretLine, base64.StdEncoding.EncodeToString(key)[:80], "PRIVATE KEY"},
		},
		{
			name: "client key in a file", user: &clientcmdapi.AuthInfo{ClientCertificate: write("tls.crt", certificate), ClientKey: write("tls.key", key)},
			secrets: []string{secretLine, "PRIVATE KEY"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.check(t, api, a, server)
		})
	}
}

// credentials are what kube-dns proves with who it is.
type credentials struct {
	name    string
	user    *clientcmdapi.AuthInfo
	secrets []string
	// sent is what the request must have, so that there is something to log.
	sent string
}

// check runs kube-dns with the credentials at an API server that has the
// certificate server, which a has signed, and refuses every second request.
func (c credentials) check(t *testing.T, api *fakeAPI, a *harness.Authority, server *tls.Certificate) {
	t.Helper()
	var accepted, refused, unlike atomic.Int64
	https := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.sent != "" && r.Header.Get("Authorization") != c.sent || c.sent == "" && len(r.TLS.PeerCertificates) == 0 {
			unlike.Add(1)
		}
		// Half of them are refused.
		if refused.Load() <= accepted.Load() {
			refused.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]any{ // whoever asked may be gone
				"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": http.StatusUnauthorized, "message": "Unauthorized",
			})
			return
		}
		accepted.Add(1)
		api.serve(w, r)
	}))
	https.TLS = &tls.Config{Certificates: []tls.Certificate{*server}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	https.EnableHTTP2 = true
	https.StartTLS()
	t.Cleanup(func() {
		https.CloseClientConnections()
		https.Close()
	})
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["e2e"] = &clientcmdapi.Cluster{Server: https.URL, CertificateAuthorityData: a.PEM()}
	cfg.AuthInfos["e2e"] = c.user
	cfg.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	cfg.CurrentContext = "e2e"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		t.Fatal(err)
	}
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Kubeconfig: kubeconfig,
		Args: []string{"--v=10", "--config-map=kube-dns"},
	})
	awaitAddress(t, k.Addr, "s2.default.svc."+zone, manyAddress(2, 96), 20*time.Second)
	harness.Eventually(t, 20*time.Second, func() error {
		if refused.Load() < 2 || !strings.Contains(k.Log.String(), "Unauthorized") {
			return errors.New("no request was refused and logged")
		}
		return nil
	})
	if unlike.Load() > 0 {
		t.Errorf("%d requests came without the credentials", unlike.Load())
	}
	served := k.Log.String()
	// That verbosity shows the requests, or the test would be of nothing.
	if !strings.Contains(served, "/api/v1/services") {
		t.Error("the log has no request")
	}
	for _, path := range []string{"/", "/config", "/cache", "/readiness"} {
		_, body := k.Get(t, path)
		served += body
	}
	for _, secret := range c.secrets {
		if at := strings.Index(served, secret); at >= 0 {
			t.Errorf("%q is shown: …%s…", secret, served[max(0, at-200):min(len(served), at+len(secret)+20)])
		}
	}
}
