package site_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"kubedns/cmd/kube-dns/app/apptest"
	"kubedns/pkg/dns/explain"
	"kubedns/pkg/page"
)

func TestExplain(t *testing.T) {
	r := apptest.Start(t)
	code, body := r.Get("/explain?name=web.default.svc.cluster.local")
	var e explain.Explanation
	if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil || e.Reason != explain.Answered || !e.Resolves {
		t.Errorf("%d, %v, %s", code, err, body)
	}
	if code, body = r.Get("/explain?name=wbe.default.svc.cluster.local&format=html"); code != http.StatusOK || !strings.Contains(body, "<code>no-such-service</code>") ||
		!strings.Contains(body, `<a class="name" href="explain?name=web.default.svc.cluster.local.&amp;type=A">`) {
		t.Errorf("%d, %s", code, body)
	}
	if code, body = r.Get("/explain?format=html"); code != http.StatusBadRequest || !strings.Contains(body, "no name") {
		t.Errorf("%d, %s", code, body)
	}
}

// TestExplainHTTP has what the handler refuses, and what is on every reply.
func TestExplainHTTP(t *testing.T) {
	r := apptest.Start(t)
	browser := accept("text/html")
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
		status, header, _ := r.Fetch(tt.method, tt.path, tt.header)
		if got := header.Get("Content-Type"); status != tt.status || got != tt.contentType {
			t.Errorf("%s %s %v: %d %s, want %d %s", tt.method, tt.path, tt.header, status, got, tt.status, tt.contentType)
		}
		if header.Get("Content-Security-Policy") != page.Policy() || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %v", tt.method, tt.path, header)
		}
	}
	for _, parameter := range []string{"name", "type", "search", "format"} {
		for _, format := range []string{"", "&format=html"} {
			_, body := r.Get(fmt.Sprintf("/explain?name=a&%s=%s%s", parameter, markup, format))
			if strings.Contains(body, "alert(1)") {
				t.Errorf("%s%s: %s", parameter, format, body)
			}
		}
	}
}
