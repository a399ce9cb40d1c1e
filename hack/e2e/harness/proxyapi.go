package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// An APIProxy stands between kube-dns and the API server and speaks HTTPS with
// both, so that a test can have the API server fail in ways that a TCP proxy
// cannot. Its certificate and the token that it takes are its own; to the API
// server it is the admin. Its methods are safe for concurrent use.
type APIProxy struct {
	// Addr is the host:port, URL the URL to connect to.
	Addr, URL string

	server *http.Server

	mu          sync.Mutex
	authority   *Authority
	certificate *tls.Certificate
	token       string // the only one that is taken; "" for any
	fault       func(APIRequest) *Fault
	pageSize    int
	cut         map[string]bool // resources whose watch is cut in the next event
	conns       map[net.Conn]struct{}
	requests    []*APIRequest
}

// An APIRequest is a list or watch that came through an APIProxy.
type APIRequest struct {
	Watch bool
	// Resource is "services", "endpointslices" or "configmaps".
	Resource string
	// Continue tells that it is not the first page of a list.
	Continue bool
	// Limit is that of a list; 0 is none.
	Limit int
	// Token is the bearer token.
	Token string
	// Begun is when it came. Ended is when the reply was complete; zero for a
	// watch that goes on.
	Begun, Ended time.Time
	// Status is that of the reply.
	Status int
}

// A Fault is what an APIProxy answers in place of the API server.
type Fault struct {
	// Status is the HTTP status.
	Status int
	// Reason is that of the Status object in the body; the body is none of the
	// API where it is empty.
	Reason metav1.StatusReason
	// RetryAfter is the header's value in seconds, unless 0.
	RetryAfter int
	// Event has a watch begin, and end with the Status object as an event.
	Event bool
}

// StartAPIProxy starts a proxy to the API server of c.
func StartAPIProxy(t testing.TB, c *ControlPlane) *APIProxy {
	t.Helper()
	target, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a bind does not wait
	if err != nil {
		t.Fatal(err)
	}
	p := &APIProxy{
		Addr: l.Addr().String(), URL: "https://" + l.Addr().String(),
		cut: map[string]bool{}, conns: map[net.Conn]struct{}{},
	}
	p.RotateCertificate(t, true)
	quiet := log.New(io.Discard, "", 0) // connections that end are what the tests are about
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization")
			p.page(r.Out)
		},
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
	}
	p.server = &http.Server{
		Handler:           p.handler(reverse),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          quiet,
		TLSConfig: &tls.Config{
			NextProtos: []string{"h2", "http/1.1"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				p.mu.Lock()
				defer p.mu.Unlock()
				return &tls.Config{Certificates: []tls.Certificate{*p.certificate}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}, nil
			},
			MinVersion: tls.VersionTLS12,
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch state {
			case http.StateNew:
				p.conns[conn] = struct{}{}
			case http.StateClosed:
				delete(p.conns, conn)
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.server.ServeTLS(l, "", "") // until it is closed
	}()
	t.Cleanup(func() {
		_ = p.server.Close() // its connections are of no interest any more
		p.Disconnect()
		<-done
	})
	return p
}

// WriteKubeconfig writes a kubeconfig to file whose user is user and whose
// server is at addr, the proxy's or one that leads to it. The proxy's CA is
// named by file where caFile is not empty.
func (p *APIProxy) WriteKubeconfig(t testing.TB, file, addr, caFile string, user *clientcmdapi.AuthInfo) {
	t.Helper()
	cluster := &clientcmdapi.Cluster{Server: "https://" + addr, CertificateAuthority: caFile}
	if caFile == "" {
		cluster.CertificateAuthorityData = p.CA()
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["e2e"], cfg.AuthInfos["e2e"] = cluster, user
	cfg.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	cfg.CurrentContext = "e2e"
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
}

// CA is the certificate of the authority that has signed the proxy's, in PEM.
func (p *APIProxy) CA() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.authority.pem
}

// RotateCertificate gives the proxy another certificate, of a new authority
// where newCA, and ends its connections.
func (p *APIProxy) RotateCertificate(t testing.TB, newCA bool) {
	t.Helper()
	p.mu.Lock()
	a := p.authority
	p.mu.Unlock()
	if newCA {
		var err error
		if a, err = NewAuthority(); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := a.Sign()
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.authority, p.certificate = a, certificate
	p.mu.Unlock()
	p.Disconnect()
}

// SetToken has every request refused with 401 whose token is another; "" takes
// all.
func (p *APIProxy) SetToken(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.token = token
}

// SetFault has requests answered as f says, nil being as the API server does. f
// must not call the proxy.
func (p *APIProxy) SetFault(f func(APIRequest) *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// SetPageSize has the API server be asked for pages of n objects at the most.
func (p *APIProxy) SetPageSize(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pageSize = n
}

// CutWatch ends the connection in the middle of the next event that a watch of
// the resource has.
func (p *APIProxy) CutWatch(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[resource] = true
}

// Cut reports whether such a connection was cut.
func (p *APIProxy) Cut(resource string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.cut[resource]
}

// Disconnect ends every connection there is.
func (p *APIProxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// Requests are those that came since then, in their order.
func (p *APIProxy) Requests(since time.Time) []APIRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []APIRequest
	for _, r := range p.requests {
		if !r.Begun.Before(since) {
			all = append(all, *r)
		}
	}
	return all
}

// Listed is when the first list of the resource that began since then was
// complete; zero when none is.
func (p *APIProxy) Listed(resource string, since time.Time) time.Time {
	var last time.Time
	for _, r := range p.Requests(since) {
		switch {
		case r.Resource != resource || r.Status != 0 && r.Status != http.StatusOK:
		case r.Watch && !last.IsZero(): // what follows a complete list
			return last
		case !r.Watch && r.Limit != 1: // 1 asks only for the resource version
			last = r.Ended
		}
	}
	return time.Time{}
}

// page makes the pages of lists smaller.
func (p *APIProxy) page(r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := r.URL.Query()
	if limit, err := strconv.Atoi(q.Get("limit")); err != nil || p.pageSize == 0 || limit <= p.pageSize {
		return
	}
	q.Set("limit", strconv.Itoa(p.pageSize))
	r.URL.RawQuery = q.Encode()
}

// handler answers as the test wants, else lets next.
func (p *APIProxy) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		limit, _ := strconv.Atoi(q.Get("limit")) // 0 where there is none
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		request := &APIRequest{
			Watch: q.Get("watch") == "true" || q.Get("watch") == "1", Resource: path.Base(r.URL.Path),
			Continue: q.Get("continue") != "", Limit: limit, Token: token, Begun: time.Now(),
		}
		p.mu.Lock()
		p.requests = append(p.requests, request)
		fault := p.decide(*request)
		p.mu.Unlock()
		recorder := &recorder{ResponseWriter: w, proxy: p, request: request}
		defer func() {
			p.mu.Lock()
			request.Ended = time.Now()
			p.mu.Unlock()
		}()
		if fault != nil {
			fault.write(recorder)
			return
		}
		next.ServeHTTP(recorder, r)
	})
}

// decide is the fault for the request, nil for none; p.mu is held.
func (p *APIProxy) decide(r APIRequest) *Fault {
	if p.token != "" && r.Token != p.token {
		return &Fault{Status: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized}
	}
	if p.fault != nil {
		return p.fault(r)
	}
	return nil
}

func (f *Fault) write(w http.ResponseWriter) {
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	if f.Reason == "" {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, "<html>no healthy upstream</html>\n") // whoever asked may be gone
		return
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(f.Status), Reason: f.Reason, Message: fmt.Sprintf("the test says %d", f.Status),
	}
	if f.RetryAfter > 0 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(f.RetryAfter)}
	}
	var body any = status
	w.Header().Set("Content-Type", "application/json")
	if f.Event {
		w.WriteHeader(http.StatusOK)
		body = map[string]any{"type": "ERROR", "object": status}
	} else {
		w.WriteHeader(f.Status)
	}
	_ = json.NewEncoder(w).Encode(body) // whoever asked may be gone
}

// recorder notes the reply's status, and cuts it where it is to be.
type recorder struct {
	http.ResponseWriter
	proxy   *APIProxy
	request *APIRequest
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	w.proxy.mu.Lock()
	w.request.Status = status
	w.proxy.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	w.proxy.mu.Lock()
	cut := w.request.Watch && w.proxy.cut[w.request.Resource] && len(b) > 8
	if cut {
		delete(w.proxy.cut, w.request.Resource)
	}
	w.proxy.mu.Unlock()
	if !cut {
		return w.ResponseWriter.Write(b)
	}
	if _, err := w.ResponseWriter.Write(b[:len(b)/2]); err != nil {
		return 0, err
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	w.proxy.Disconnect()
	panic(http.ErrAbortHandler)
}

// An Authority is a certificate authority. It is for one goroutine at a time.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
	serial      int64
}

// NewAuthority makes one that is good for a day.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA: %w", err)
	}
	return &Authority{certificate: certificate, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), serial: 1}, nil
}

// Sign makes a new certificate for 127.0.0.1, of a server or a client.
func (a *Authority) Sign() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: "e2e"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// EncodeCertificate is the certificate and its key in PEM.
func EncodeCertificate(c *tls.Certificate) (certificate, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
