package apiclient

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// authority is a certificate authority of its own: its certificate in PEM, and
// a certificate for 127.0.0.1 that it has signed.
func authority(t *testing.T) (ca []byte, server *tls.Certificate) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	caKey, key := newKey(), newKey()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sign(root, root, &caKey.PublicKey, caKey)}),
		&tls.Certificate{Certificate: [][]byte{sign(leaf, root, &key.PublicKey, caKey)}, PrivateKey: key}
}

// TestCAFileIsFollowed: an API server with a certificate of another CA is not
// trusted until the file has that CA, and is then, without a restart.
func TestCAFileIsFollowed(t *testing.T) {
	oldCA, oldCertificate := authority(t)
	newCA, newCertificate := authority(t)
	var certificate atomic.Pointer[tls.Certificate]
	certificate.Store(oldCertificate)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*certificate.Load()}}, nil
	}}
	server.StartTLS()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(oldCA)
	client, err := Core(&rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: file}})
	if err != nil {
		t.Fatal(err)
	}
	list := func() error {
		_, err := client.Get().Resource("services").VersionedParams(&metav1.ListOptions{}, metav1.ParameterCodec).MaxRetries(0).Do(t.Context()).Get()
		return err
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	certificate.Store(newCertificate)
	server.CloseClientConnections()
	fails := func(when string) {
		t.Helper()
		if list() == nil {
			t.Errorf("%s: a server of a CA that is not trusted is", when)
		}
	}
	for range 3 {
		fails("before the file was changed")
	}
	// What is no certificate changes nothing; each is looked at after a failure.
	for _, bad := range []string{"", "no PEM"} {
		write([]byte(bad))
		fails("with a bad file")
		fails("with a bad file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	fails("without a file")
	write(newCA)
	_ = list() // fails, and has the file read
	if err := list(); err != nil {
		t.Errorf("once the file has the new CA: %v", err)
	}
	certificate.Store(oldCertificate)
	server.CloseClientConnections()
	fails("the old CA")
}
