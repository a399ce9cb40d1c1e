package apiclient

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/golang/glog"
	"k8s.io/client-go/rest"
)

// caFile is a transport that trusts the certificate authorities in a file as
// they are now. client-go looks at the file once in five minutes; this one does
// when a certificate could not be verified, so that the next attempt succeeds
// where the file has been replaced. It is safe for concurrent use.
type caFile struct {
	cfg  *rest.Config // with CAFile, and without CAData
	file string

	mu    sync.Mutex
	pem   []byte
	trust http.RoundTripper // trusts pem
}

// newCAFile makes one for cfg, which has a CAFile and no CAData.
func newCAFile(cfg *rest.Config) (*caFile, error) {
	t := &caFile{cfg: cfg, file: cfg.CAFile}
	if _, err := t.reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// reload reads the file; changed reports whether it was another. In case of an
// error what was trusted before still is.
func (t *caFile) reload() (changed bool, err error) {
	t.mu.Lock() // also over the reading: of two at a time the later has the newer file
	defer t.mu.Unlock()
	pem, err := os.ReadFile(t.file)
	if err != nil {
		return false, fmt.Errorf("reading the certificate authorities: %w", err)
	}
	if t.trust != nil && bytes.Equal(pem, t.pem) {
		return false, nil
	}
	cfg := rest.CopyConfig(t.cfg)
	cfg.CAFile, cfg.CAData = "", pem
	trust, err := rest.TransportFor(cfg)
	if err != nil {
		return false, fmt.Errorf("certificate authorities of %s: %w", t.file, err)
	}
	t.pem, t.trust = pem, trust
	return true, nil
}

// RoundTrip implements http.RoundTripper.
func (t *caFile) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	trust := t.trust
	t.mu.Unlock()
	resp, err := trust.RoundTrip(r)
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) {
		switch changed, readErr := t.reload(); {
		case readErr != nil:
			glog.Warningf("apiclient: %v", readErr)
		case changed:
			glog.Infof("apiclient: %s has changed; its certificate authorities are trusted from now on", t.file)
		}
	}
	return resp, err
}
