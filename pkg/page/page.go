// Package page writes what people and scripts read at the programs' HTTP
// ports: pages of HTML that have one look, need no script and nothing from
// elsewhere, and the same as JSON.
//
// It starts no goroutine, and knows nothing of what is on a page.
//
// It is net/http and html/template with about 220 lines around them. A web
// framework could take over some 50, those that set headers and encode JSON;
// templates, formats of times and the Content-Security-Policy would stay.
// Reading the Accept header is here (accept.go, 45 lines) because net/http does
// not do it. The style sheet has 7 KB and stands in each page, so that a page is
// one request, which a port-forward or the API server's proxy can serve.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the layout and its style sheet
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

//go:embed layout.html
var layout string

//go:embed style.css
var style string

// A Link leads to another page of the same program.
type Link struct {
	// Path is relative, so that it holds behind a proxy that serves the
	// program below a path of its own, such as the API server's: "./" is the
	// status page, "config" is /config.
	Path string
	Text string // as the title of that page
}

// Site is the pages of one program. It is safe for concurrent use.
type Site struct {
	base    *template.Template // the layout, without "body"
	failure *template.Template
}

// New returns the site of a program, whose pages all have the links on top.
func New(program string, links ...Link) (*Site, error) {
	base, err := template.New("layout").Funcs(template.FuncMap{
		"program":  func() string { return program },
		"links":    func() []Link { return links },
		"style":    func() template.HTML { return template.HTML("<style>" + style + "</style>") },
		"time":     formatTime,
		"duration": formatDuration,
		"ago":      formatAgo,
	}).Parse(layout)
	if err != nil {
		return nil, fmt.Errorf("the pages' layout: %w", err)
	}
	s := &Site{base: base}
	s.failure, err = s.Parse(`{{define "body"}}<p class="error" role="alert">{{.}}</p>{{end}}`)
	return s, err
}

// Parse returns the template of a page for Write. The texts define templates,
// of which "body" is what stands below the page's heading, executed with
// Write's data. Beside html/template's functions there are time (a time.Time
// as a time element, "never" where it is zero), ago (the same with how long
// that is ago) and duration (a time.Duration to three digits).
func (s *Site) Parse(texts ...string) (*template.Template, error) {
	t, err := s.base.Clone()
	for _, text := range texts {
		if err == nil {
			_, err = t.Parse(text)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the template of a page: %w", err)
	}
	return t, nil
}

// Write answers a request with a page that Site.Parse made the template of.
// An error in the template becomes status 500, and nothing of the page is sent.
func Write(w http.ResponseWriter, status int, title string, body *template.Template, data any) {
	var b bytes.Buffer
	err := body.Execute(&b, struct {
		Title string
		Data  any
	}{title, data})
	write(w, status, "text/html; charset=utf-8", b.Bytes(), err)
}

// WriteJSON answers a request with v as JSON, indented with two blanks, its
// markup escaped. An error becomes status 500.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	write(w, status, "application/json", b.Bytes(), err)
}

// Error answers a request with a line that says what is wrong with it, or why
// it cannot be answered: a page, or {"error":message} where WantsHTML says no
// or fails.
func (s *Site) Error(w http.ResponseWriter, r *http.Request, status int, message string) {
	if html, err := WantsHTML(r); err == nil && html {
		Write(w, status, http.StatusText(status), s.failure, message)
		return
	}
	WriteJSON(w, status, map[string]string{"error": message})
}

func write(w http.ResponseWriter, status int, contentType string, body []byte, err error) {
	h := w.Header()
	h.Set("Content-Security-Policy", Policy())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	if err != nil {
		status, contentType, body = http.StatusInternalServerError, "text/plain; charset=utf-8", fmt.Appendf(nil, "writing this page: %v\n", err)
	}
	h.Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // whoever asked has gone
}

// Policy is the Content-Security-Policy of every reply: nothing but the style
// sheet inside the page, and forms to the same server.
func Policy() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// formatTime is t in UTC, to the second.
func formatTime(t time.Time) template.HTML {
	if t.IsZero() {
		return "never"
	}
	t = t.UTC() // formatted as digits, dashes, colons and letters
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `">` + t.Format("2006-01-02 15:04:05 UTC") + `</time>`)
}

// formatAgo is t and how long ago that is, to the second.
func formatAgo(t time.Time) template.HTML {
	if t.IsZero() {
		return "never"
	}
	return formatTime(t) + template.HTML(` <span class="muted">(`+time.Since(t).Round(time.Second).String()+` ago)</span>`)
}

// formatDuration is d to about three digits: "1.23ms", "2h3m0s".
func formatDuration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d.Abs() >= 100*unit {
			return d.Round(unit).String()
		}
		if d.Abs() >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
