package app

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/cmd/kube-dns/app/options"
	kubedns "kubedns/pkg/dns"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/page"
)

// hostile is what a ConfigMap or an error can have in it.
const hostile = `</dd><script>alert("1")</script>'&`

// fetch asks for a path of the health port with an Accept header.
func (r *running) fetch(method, path, accept string) (status int, header http.Header, body string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.health+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

const browserAccept = "text/html,application/xhtml+xml,*/*;q=0.8"

func TestRunPages(t *testing.T) {
	r := start(t)
	r.ask("web.default.svc.cluster.local.", dns.TypeA)
	r.ask("gone.default.svc.cluster.local.", dns.TypeA)
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
		{"GET", "/config", "*/*", 200, "application/json", `"origin": "directory ` + r.configFolder},
		{"GET", "/config", browserAccept, 200, "text/html; charset=utf-8", "<title>Configuration – kube-dns</title>"},
		{"POST", "/config", browserAccept, 405, "text/plain; charset=utf-8", ""},
		{"GET", "/readiness", browserAccept, 200, "text/plain; charset=utf-8", "ok\n"},
	} {
		status, header, body := r.fetch(tc.method, tc.path, tc.accept)
		if status != tc.status || header.Get("Content-Type") != tc.contentType || !strings.Contains(body, tc.part) {
			t.Errorf("%s %s, Accept %s: %d %q, want %d %q with %s:\n%s", tc.method, tc.path, tc.accept,
				status, header.Get("Content-Type"), tc.status, tc.contentType, tc.part, body)
		}
		if tc.status == 200 && tc.path != "/readiness" && header.Get("Content-Security-Policy") != page.Policy() {
			t.Errorf("%s: policy %q", tc.path, header.Get("Content-Security-Policy"))
		}
	}
	var s status
	_, _, body := r.fetch("GET", "/", "*/*")
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
	_, _, body = r.fetch("GET", "/", browserAccept)
	for _, part := range []string{"svg", "nav"} {
		if err := wellFormed(body, "<"+part+" ", "</"+part+">"); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// TestRunConfigPage: where values are from, what was refused, and markup in it.
func TestRunConfigPage(t *testing.T) {
	r := start(t)
	write := func(key, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.configFolder, key), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (c configuration) {
		t.Helper()
		_, _, body := r.fetch("GET", "/config", "application/json")
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	r.await("read", func() bool { return !look().InForce.Read.IsZero() })
	c := look()
	if got, want := c.Nameservers.From, (origin{Kind: "flag", Name: "--nameservers"}); got != want {
		t.Errorf("nameservers from %+v, want %+v", got, want)
	}
	if c.Refused != nil || c.Values[2].Key != "upstreamNameservers" || c.Values[2].From.Kind != "default" {
		t.Errorf("configuration %+v", c)
	}

	write("upstreamNameservers", `["192.0.2.54"]`)
	write("stubDomains", `{"corp.example": ["192.0.2.55"]}`)
	r.await("in force", func() bool { return look().Values[1].From.Kind == "file" && look().Values[2].From.Kind == "file" })
	c = look()
	file := origin{Kind: "file", Name: filepath.Join(r.configFolder, "upstreamNameservers"), Version: c.InForce.Version}
	if c.Nameservers.From != file || c.Values[2].From != file || file.Version == "" || len(c.Nameservers.Addrs) != 1 || c.Nameservers.Addrs[0].String() != "192.0.2.54:53" {
		t.Errorf("configuration %+v, want one from %+v", c, file)
	}

	write("upstreamNameservers", `["`+strings.ReplaceAll(hostile, `"`, `\"`)+`"]`)
	r.await("refused", func() bool { return look().Refused != nil })
	c = look()
	if !c.Refused.Stands || !strings.Contains(c.Refused.Reason, "<script>") || time.Since(c.Refused.Time) > time.Minute || c.Nameservers.From != file {
		t.Errorf("configuration %+v, want it refused", c)
	}
	for _, path := range []string{"/", "/config"} {
		if _, _, body := r.fetch("GET", path, browserAccept); strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;") {
			t.Errorf("%s has markup that came from the configuration:\n%s", path, body)
		}
		if _, _, body := r.fetch("GET", path, "application/json"); strings.Contains(body, "<script") {
			t.Errorf("%s has markup that came from the configuration:\n%s", path, body)
		}
	}
	write("upstreamNameservers", `["192.0.2.56"]`)
	r.await("in force again", func() bool { return !look().Refused.Stands })
	var s status
	_, _, body := r.fetch("GET", "/", "*/*")
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Configuration.Refused != "" || s.Configuration.Version != look().InForce.Version {
		t.Errorf("/ says of the configuration %+v, %v", s.Configuration, err)
	}
	for _, f := range look().Flags {
		if f.Name == "nameservers" && (!f.Set || f.Value != "192.0.2.53") {
			t.Errorf("flag %+v", f)
		}
	}
}

// A ConfigMap's failure is over once an update of it came; nobody tells so of
// itself.
func TestFailures(t *testing.T) {
	failed := time.Unix(1000, 0)
	known := kubedns.Status{LastContact: failed, Failures: []kubedns.WatchFailure{
		{Resource: "configmaps", Err: "forbidden", Time: failed}, {Resource: "services", Err: "no route", Time: failed},
	}}
	for configured, want := range map[time.Time]int{{}: 2, failed.Add(-time.Second): 2, failed.Add(time.Second): 1} {
		got := apiServerOf(known, configured)
		if len(got.Failures) != want || got.Failures[want-1] != (watchFailure{"services", "no route", failed}) || got.LastContact != failed {
			t.Errorf("configured at %v: %+v, want %d failures", configured, got, want)
		}
	}
}

// TestPagesBeforeAnythingIsKnown: the pages are there from the first moment,
// whatever the Origin and the error are.
func TestPagesBeforeAnythingIsKnown(t *testing.T) {
	a := &app{options: &options.Options{Domain: "cluster.local.", ConfigMap: "kube-dns", ConfigMapNamespace: "kube-system"}}
	a.reload = newReload(func(*config.Config) error { return nil })
	a.nameservers.Store(&nameservers{Addrs: []netip.AddrPort{}, LeftOut: []netip.AddrPort{}, Error: hostile})
	c := a.configuration()
	if c.InForce.Origin != "default" || !c.InForce.Read.IsZero() || c.Refused != nil {
		t.Errorf("configuration %+v, want the default, never read", c)
	}
	read := time.Unix(1_000_000, 0)
	a.reload.report(config.Update{Config: &config.Config{Federations: map[string]string{"a": "b.example"}}, Origin: "ConfigMap kube-system/" + hostile, Version: "42", Time: read, Warnings: []string{hostile}})
	a.reload.report(config.Update{Err: errors.New(hostile), Origin: hostile, Version: hostile, Time: read.Add(time.Second)})
	c = a.configuration()
	if want := (origin{Kind: "configMap", Name: "kube-system/kube-dns", Version: "42"}); c.Values[0].From != want || c.Values[0].Lines[0] != "a=b.example" {
		t.Errorf("federations %+v, want them from %+v", c.Values[0], want)
	}
	site, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	body, err := parsePage(site, configTemplate)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := body.Execute(&b, map[string]any{"Title": "Configuration", "Data": c}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "&lt;script&gt;"); strings.Contains(b.String(), "<script") || n < 6 {
		t.Errorf("%d texts escaped, want 6 and no markup:\n%s", n, b.String())
	}
}
