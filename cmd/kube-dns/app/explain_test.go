package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"kubedns/pkg/dns/explain"
	"kubedns/pkg/page"
)

// TestExplain asks /explain of a running kube-dns, and `kube-dns explain` of
// the same.
func TestExplain(t *testing.T) {
	r := start(t)
	code, body := r.get("/explain?name=web.default.svc.cluster.local")
	var e explain.Explanation
	if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil || e.Reason != explain.Answered || !e.Resolves {
		t.Errorf("%d, %v, %s", code, err, body)
	}
	if code, body = r.get("/explain?name=wbe.default.svc.cluster.local&format=html"); code != http.StatusOK || !strings.Contains(body, "<code>no-such-service</code>") ||
		!strings.Contains(body, `<a class="name" href="explain?name=web.default.svc.cluster.local.&amp;type=A">`) {
		t.Errorf("%d, %s", code, body)
	}
	if code, body = r.get("/explain?format=html"); code != http.StatusBadRequest || !strings.Contains(body, "no name") {
		t.Errorf("%d, %s", code, body)
	}
	server := "--server=" + strings.TrimPrefix(r.health, "http://")
	for _, tt := range []struct {
		args   []string
		exit   int
		stdout string
		stderr string
	}{
		{[]string{"web.default.svc.cluster.local", server}, 0, "resolves (answered)", ""},
		{[]string{"web", server, "--search", "default"}, 0, "* 1. web.default.svc.cluster.local.", ""},
		{[]string{"wbe.default.svc.cluster.local", server}, 1, "web.default.svc.cluster.local.", ""},
		{[]string{"192.0.2.7", server, "-ojson"}, 0, `"type": "PTR"`, ""},
		{[]string{"web", "--server=127.0.0.1:1"}, 2, "", "127.0.0.1:1: "},
		{[]string{"a..b", server}, 2, "", "empty label"},
		{nil, 2, "", "NAME"},
		{[]string{server, "web.default.svc.cluster.local", "aaaa"}, 1, "no-such-type", ""},
		{[]string{"web.default.svc.cluster.local", "--server=nobody"}, 2, "", "not host:port"},
		{[]string{"a", "A", "b", server}, 2, "", "NAME [TYPE]"},
		{[]string{"a", "--nosuch", server}, 2, "", "nosuch"},
		{[]string{"a", "-oyaml", server}, 2, "", "text or json"},
		{[]string{"a", "QUUX", server}, 2, "", "unknown type"},
		{[]string{"a", "--server=" + strings.TrimSuffix(strings.TrimPrefix(r.metrics, "http://"), "/metrics")}, 2, "", "404"},
		{[]string{"-h"}, 0, "Usage", ""},
	} {
		var stdout, stderr bytes.Buffer
		if exit := ExplainCommand(t.Context(), tt.args, &stdout, &stderr); exit != tt.exit ||
			!strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) || (tt.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%q: exit %d, want %d\n%s%s", tt.args, exit, tt.exit, &stdout, &stderr)
		}
	}
}

// TestExplainCommandDistrusts has a server that answers anything: what it says
// does not reach the terminal as it is.
func TestExplainCommandDistrusts(t *testing.T) {
	const escape = "\x1b]0;owned\x07"
	for _, tt := range []struct {
		name   string
		status int
		body   any
		exit   int
	}{
		{"an error", http.StatusBadRequest, map[string]string{"error": "bad " + escape + "\nsecond"}, 2},
		{"another body", http.StatusInternalServerError, escape, 2},
		{"no explanation", http.StatusOK, map[string]string{"x": "y"}, 2},
		{"an explanation", http.StatusOK, explain.Explanation{Question: explain.Question{Name: "a." + escape}, Summary: escape, Steps: []string{escape}}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { page.WriteJSON(w, tt.status, tt.body) }))
			defer srv.Close()
			var stdout, stderr bytes.Buffer
			exit := ExplainCommand(t.Context(), []string{"a", "--server=" + strings.TrimPrefix(srv.URL, "http://")}, &stdout, &stderr)
			if out := stdout.String() + stderr.String(); exit != tt.exit || strings.ContainsAny(out, "\x1b\x07") || strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("exit %d, want %d: %q", exit, tt.exit, out)
			}
		})
	}
}

// TestExplainHTTP has what the handler refuses, and what is on every reply.
func TestExplainHTTP(t *testing.T) {
	r := start(t)
	do := func(method, path string, header http.Header) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.health+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Header.Get("Content-Security-Policy") != page.Policy() || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %v", method, path, resp.Header)
		}
		return resp
	}
	browser := http.Header{"Accept": {"text/html"}}
	markup := url.QueryEscape(`"><script>alert(1)</script>`)
	for _, tt := range []struct {
		method, path string
		header       http.Header
		status       int
		contentType  string
	}{
		{"GET", "/explain", nil, 400, "application/json"},
		{"GET", "/explain", browser, 200, "text/html; charset=utf-8"}, // an empty form
		{"GET", "/explain?name=", browser, 400, "text/html; charset=utf-8"},
		{"GET", "/explain?name=web.default.svc.cluster.local&type=&search=", browser, 200, "text/html; charset=utf-8"},
		{"GET", "/explain?name=web.default.svc.cluster.local", nil, 200, "application/json"},
		{"HEAD", "/explain?name=web.default.svc.cluster.local", nil, 200, "application/json"},
		{"POST", "/explain?name=web.default.svc.cluster.local", nil, 405, "application/json"},
		{"GET", "/explain?name=web.default.svc.cluster.local&format=text", nil, 400, "application/json"},
		{"GET", "/explain?name=" + markup, browser, 400, "text/html; charset=utf-8"},
	} {
		resp := do(tt.method, tt.path, tt.header) //nolint:bodyclose // do has closed it
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != tt.status || got != tt.contentType {
			t.Errorf("%s %s %v: %d %s, want %d %s", tt.method, tt.path, tt.header, resp.StatusCode, got, tt.status, tt.contentType)
		}
	}
	for _, parameter := range []string{"name", "type", "search", "format"} {
		for _, format := range []string{"", "&format=html"} {
			_, body := r.get(fmt.Sprintf("/explain?name=a&%s=%s%s", parameter, markup, format))
			if strings.Contains(body, "alert(1)") {
				t.Errorf("%s%s: %s", parameter, format, body)
			}
		}
	}
}
