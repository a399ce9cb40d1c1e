package page

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

func site(t *testing.T) *Site {
	t.Helper()
	s, err := New("a <program>", Link{"./", "Status"}, Link{"config", "Configuration"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWantsHTML(t *testing.T) {
	const chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
	tests := []struct {
		name, query string
		accept      []string
		html        bool
		err         string
	}{
		{name: "nothing asked for"},
		{name: "curl", accept: []string{"*/*"}},
		{name: "browser", accept: []string{chromium}, html: true},
		{name: "JSON", accept: []string{"application/json"}},
		{name: "JSON preferred", accept: []string{"text/html;q=0.8, application/json"}},
		{name: "HTML preferred", accept: []string{"application/json;q=0.8, text/html; q=0.9"}, html: true},
		{name: "two headers", accept: []string{"application/json;q=0.8", "text/html"}, html: true},
		{name: "both alike", accept: []string{"text/html, application/json"}},
		{name: "text of any kind", accept: []string{"text/*"}, html: true},
		{name: "the narrowest range counts", accept: []string{"text/html;q=0.1, text/*, */*;q=0.5"}},
		{name: "anything but HTML", accept: []string{"text/html;q=0, */*;q=0.1"}},
		{name: "upper case", accept: []string{"TEXT/HTML;Q=1.0"}, html: true},
		{name: "weight that is none", accept: []string{"text/html;q=x"}},
		{name: "weight over 1", accept: []string{"text/html;q=7"}},
		{name: "neither", accept: []string{"image/png"}},
		{name: "format comes first", query: "?format=json", accept: []string{chromium}},
		{name: "format of a page", query: "?format=html", accept: []string{"application/json"}, html: true},
		{name: "unknown format", query: "?format=xml", err: `format="xml" is neither json nor html`},
		{name: "empty format", query: "?format=", err: `format="" is neither json nor html`},
		{name: "two formats", query: "?format=json&format=html", err: `format="json,html" is neither json nor html`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/"+test.query, nil)
			r.Header["Accept"] = test.accept
			html, err := WantsHTML(r)
			if html != test.html || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("WantsHTML: %v, %v, want %v, %q", html, err, test.html, test.err)
			}
		})
	}
}

func checkHeader(t *testing.T, h http.Header, contentType string) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Type": contentType, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cache-Control": "no-store", "Vary": "Accept", "Content-Security-Policy": Policy(),
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestWrite(t *testing.T) {
	const hostile = `<script>alert("1")</script>'&`
	body, err := site(t).Parse(`{{define "body"}}<p title="{{.}}">{{template "part" .}}</p>{{end}}`, `{{define "part"}}<b>{{.}}</b>{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	Write(w, http.StatusTeapot, "Status", body, hostile)
	if w.Code != http.StatusTeapot {
		t.Errorf("status %d", w.Code)
	}
	checkHeader(t, w.Header(), "text/html; charset=utf-8")
	got := w.Body.String()
	const escaped = `&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&#39;&amp;`
	for _, want := range []string{
		"<title>Status – a &lt;program&gt;</title>", "<h1>Status</h1>", `<p title="` + escaped + `"><b>` + escaped + `</b></p>`,
		`<a href="./" aria-current="page">Status</a>`, `<a href="config">Configuration</a>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	// The policy allows the style sheet as it stands in the page.
	m := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(got)
	if m == nil || m[1] == "" {
		t.Fatalf("no style sheet in\n%s", got)
	}
	sum := sha256.Sum256([]byte(m[1]))
	if hash := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(Policy(), "style-src "+hash+";") {
		t.Errorf("policy %q, but the style sheet's hash is %s", Policy(), hash)
	}
	if bad := regexp.MustCompile(`(?i)style=|<script|@import|url\(|https?:`).FindString(got); bad != "" {
		t.Errorf("%q in\n%s", bad, got)
	}
}

// Of a page that cannot be made nothing is sent.
func TestWriteFails(t *testing.T) {
	body, err := site(t).Parse(`{{define "body"}}<p>half a page {{.Missing}}</p>{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	Write(w, http.StatusOK, "Status", body, struct{}{})
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "half a page") {
		t.Errorf("%d, %q", w.Code, w.Body)
	}
	checkHeader(t, w.Header(), "text/plain; charset=utf-8")
	w = httptest.NewRecorder()
	WriteJSON(w, http.StatusOK, func() {})
	if w.Code != http.StatusInternalServerError {
		t.Errorf("%d, %q", w.Code, w.Body)
	}
}

func TestWriteJSON(t *testing.T) {
	w := httptest.NewRecorder()
	WriteJSON(w, http.StatusOK, map[string]string{"a": "</script>"})
	if want := "{\n  \"a\": \"\\u003c/script\\u003e\"\n}\n"; w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("%d, %q, want %q", w.Code, w.Body, want)
	}
	checkHeader(t, w.Header(), "application/json")
}

func TestError(t *testing.T) {
	const message = `type "<b>" is unknown`
	s := site(t)
	w := httptest.NewRecorder()
	s.Error(w, httptest.NewRequest(http.MethodGet, "/?format=html", nil), http.StatusBadRequest, message)
	if want := `<p class="error" role="alert">type &#34;&lt;b&gt;&#34; is unknown</p>`; w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
		t.Errorf("%d, no %s in\n%s", w.Code, want, w.Body)
	}
	checkHeader(t, w.Header(), "text/html; charset=utf-8")
	for _, query := range []string{"", "?format=json", "?format=xml"} {
		w := httptest.NewRecorder()
		s.Error(w, httptest.NewRequest(http.MethodGet, "/"+query, nil), http.StatusBadRequest, message)
		var got map[string]string
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got) != 1 || got["error"] != message || w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d, %q, %v", query, w.Code, w.Body, err)
		}
		checkHeader(t, w.Header(), "application/json")
	}
}

func TestFormat(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.FixedZone("", 3600))
	if got, want := formatTime(at), `<time datetime="2026-03-04T04:06:07Z">2026-03-04 04:06:07 UTC</time>`; string(got) != want {
		t.Errorf("time %s, want %s", got, want)
	}
	if got, want := formatAgo(time.Now().Add(-90*time.Second)), ` <span class="muted">(1m30s ago)</span>`; !strings.HasSuffix(string(got), "</time>"+want) {
		t.Errorf("ago %s, want %s", got, want)
	}
	if got := formatAgo(time.Time{}); got != "never" {
		t.Errorf("no time: %s", got)
	}
	if got := formatTime(time.Time{}); got != "never" {
		t.Errorf("no time: %s", got)
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 12: "12ns", 1234567: "1.23ms", 123456789: "123ms", 12345678901: "12.35s", 7384_567_000_000: "2h3m5s", -1500 * time.Millisecond: "-1.5s",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("duration %d: %s, want %s", d, got, want)
		}
	}
}
