package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kubedns/cmd/kube-dns/app/apptest"
	"kubedns/pkg/dns/explain"
	"kubedns/pkg/page"
)

// TestExplainCommand has `kube-dns explain` ask a running kube-dns.
func TestExplainCommand(t *testing.T) {
	r := apptest.Start(t)
	server := "--server=" + strings.TrimPrefix(r.Health, "http://")
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
		{[]string{"a", "--server=" + strings.TrimSuffix(strings.TrimPrefix(r.Metrics, "http://"), "/metrics")}, 2, "", "404"},
		{[]string{"-h"}, 0, "Usage", ""},
	} {
		var stdout, stderr bytes.Buffer
		if exit := explainCommand(t.Context(), tt.args, &stdout, &stderr); exit != tt.exit ||
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
			exit := explainCommand(t.Context(), []string{"a", "--server=" + strings.TrimPrefix(srv.URL, "http://")}, &stdout, &stderr)
			if out := stdout.String() + stderr.String(); exit != tt.exit || strings.ContainsAny(out, "\x1b\x07") || strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("exit %d, want %d: %q", exit, tt.exit, out)
			}
		})
	}
}
