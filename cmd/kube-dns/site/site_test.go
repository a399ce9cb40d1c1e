package site_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/cmd/kube-dns/app/apptest"
	"kubedns/cmd/kube-dns/site"
	"kubedns/pkg/page"
)

// accept is a request's header.
func accept(types string) http.Header { return http.Header{"Accept": {types}} }

const browserAccept = "text/html,application/xhtml+xml,*/*;q=0.8"

func TestRunPages(t *testing.T) {
	r := apptest.Start(t)
	r.Ask("web.default.svc.cluster.local.", dns.TypeA)
	r.Ask("gone.default.svc.cluster.local.", dns.TypeA)
	for _, tc := range []struct {
		method, path, accept string
		status               int
		contentType, part    string
	}{
		{"GET", "/", "*/*", 200, "application/json", `"program": "kube-dns"`},
		{"GET", "/", browserAccept, 200, "text/html; charset=utf-8", "<title>Status – kube-dns</title>"},
		{"GET", "/?format=json", browserAccept, 200, "application/json", `"ready": true`},
		{"GET", "/?format=html", "*/*", 200, "text/html; charset=utf-8", `<form action="explain" method="get"`},
		{"GET", "/?format=xml", "*/*", 400, "application/json", `"error": "format=\"xml\" is neither json nor html"`},
		{"HEAD", "/", browserAccept, 200, "text/html; charset=utf-8", ""},
		{"POST", "/", browserAccept, 405, "text/plain; charset=utf-8", ""},
		{"GET", "/nosuch", browserAccept, 404, "text/plain; charset=utf-8", ""},
		{"GET", "/index.html", browserAccept, 404, "text/plain; charset=utf-8", ""},
		{"GET", "/config/", browserAccept, 404, "text/plain; charset=utf-8", ""},
		{"GET", "/config", "*/*", 200, "application/json", `"origin": "directory ` + r.ConfigDir},
		{"GET", "/config", browserAccept, 200, "text/html; charset=utf-8", "<title>Configuration – kube-dns</title>"},
		{"POST", "/config", browserAccept, 405, "text/plain; charset=utf-8", ""},
		{"GET", "/readiness", browserAccept, 200, "text/plain; charset=utf-8", "ok\n"},
	} {
		status, header, body := r.Fetch(tc.method, tc.path, accept(tc.accept))
		if status != tc.status || header.Get("Content-Type") != tc.contentType || !strings.Contains(body, tc.part) {
			t.Errorf("%s %s, Accept %s: %d %q, want %d %q with %s:\n%s", tc.method, tc.path, tc.accept,
				status, header.Get("Content-Type"), tc.status, tc.contentType, tc.part, body)
		}
		if tc.status == 200 && tc.path != "/readiness" && header.Get("Content-Security-Policy") != page.Policy() {
			t.Errorf("%s: policy %q", tc.path, header.Get("Content-Security-Policy"))
		}
	}
	var s site.StatusPage
	_, _, body := r.Fetch("GET", "/", accept("*/*"))
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if !s.Ready || s.Reason != "" || s.Domain != "cluster.local." || s.UptimeSeconds <= 0 || s.APIServer != nil ||
		s.Records.Source != "manifests" || s.Records.Services != 1 || s.Records.ServicesServed != 1 || s.Records.ByType.A != 1 || s.Records.ByType.SRV != 1 {
		t.Errorf("status %+v", s)
	}
	if w := s.Questions.Windows; len(w) != 1 || w[0].Questions != 2 || w[0].NoError != 1 || w[0].NXDomain != 1 {
		t.Errorf("questions %+v, want 2, one of them NXDOMAIN", w)
	}
	if len(s.Upstreams) != 1 || s.Upstreams[0].Addr != "192.0.2.53:53" || s.Upstreams[0].State != "unknown" {
		t.Errorf("upstreams %+v", s.Upstreams)
	}
	_, _, body = r.Fetch("GET", "/", accept(browserAccept))
	for _, part := range []string{"svg", "nav"} {
		if err := wellFormed(body, "<"+part+" ", "</"+part+">"); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// TestRunConfigPage: where values are from, what was refused, and markup in it.
func TestRunConfigPage(t *testing.T) {
	r := apptest.Start(t)
	write := func(key, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.ConfigDir, key), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (c site.ConfigPage) {
		t.Helper()
		_, _, body := r.Fetch("GET", "/config", accept("application/json"))
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	r.Await("read", func() bool { return !look().InForce.Read.IsZero() })
	c := look()
	if got, want := c.Nameservers.From, (site.Origin{Kind: "flag", Name: "--nameservers"}); got != want {
		t.Errorf("nameservers from %+v, want %+v", got, want)
	}
	if c.Refused != nil || c.Values[2].Key != "upstreamNameservers" || c.Values[2].From.Kind != "default" {
		t.Errorf("configuration %+v", c)
	}

	write("upstreamNameservers", `["192.0.2.54"]`)
	write("stubDomains", `{"corp.example": ["192.0.2.55"]}`)
	r.Await("in force", func() bool { return look().Values[1].From.Kind == "file" && look().Values[2].From.Kind == "file" })
	c = look()
	file := site.Origin{Kind: "file", Name: filepath.Join(r.ConfigDir, "upstreamNameservers"), Version: c.InForce.Version}
	if c.Nameservers.From != file || c.Values[2].From != file || file.Version == "" || len(c.Nameservers.Addrs) != 1 || c.Nameservers.Addrs[0].String() != "192.0.2.54:53" {
		t.Errorf("configuration %+v, want one from %+v", c, file)
	}

	write("upstreamNameservers", `["`+strings.ReplaceAll(site.Hostile, `"`, `\"`)+`"]`)
	r.Await("refused", func() bool { return look().Refused != nil })
	c = look()
	if !c.Refused.Stands || !strings.Contains(c.Refused.Reason, "<script>") || time.Since(c.Refused.Time) > time.Minute || c.Nameservers.From != file {
		t.Errorf("configuration %+v, want it refused", c)
	}
	for _, path := range []string{"/", "/config"} {
		if _, _, body := r.Fetch("GET", path, accept(browserAccept)); strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;") {
			t.Errorf("%s has markup that came from the configuration:\n%s", path, body)
		}
		if _, _, body := r.Fetch("GET", path, accept("application/json")); strings.Contains(body, "<script") {
			t.Errorf("%s has markup that came from the configuration:\n%s", path, body)
		}
	}
	write("upstreamNameservers", `["192.0.2.56"]`)
	r.Await("in force again", func() bool { return !look().Refused.Stands })
	var s site.StatusPage
	_, _, body := r.Fetch("GET", "/", accept("*/*"))
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Configuration.Refused != "" || s.Configuration.Version != look().InForce.Version {
		t.Errorf("/ says of the configuration %+v, %v", s.Configuration, err)
	}
	for _, f := range look().Flags {
		if f.Name == "nameservers" && (!f.Set || f.Value != "192.0.2.53") {
			t.Errorf("flag %+v", f)
		}
	}
}

// wellFormed parses what is between two marks as XML, which these pages' parts
// are as well.
func wellFormed(body, from, to string) error {
	_, rest, ok := strings.Cut(body, from)
	part, _, ended := strings.Cut(rest, to)
	if !ok || !ended {
		return fmt.Errorf("no %s…%s", from, to)
	}
	return xml.Unmarshal([]byte(from+part+to), new(struct{}))
}
