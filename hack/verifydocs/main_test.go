package main

import (
	"slices"
	"strings"
	"testing"
)

// a repository with one page to be checked, and what it can refer to.
func repoWith(pageText string) *repo {
	r := newRepo()
	r.add("Makefile", []byte("build: ## Build\nrun: build\n"))
	r.add("pkg/dns/name.go", []byte("// Package dns follows docs/records.md.\npackage dns\n"))
	r.add("pkg/dns/name_test.go", []byte("func TestName(t *testing.T) {}\n"))
	r.add("docs/records.md", []byte("# Records\n\n## A, AAAA & `ns.dns`\n\n## Twice\n\n## Twice\n\n```\n## not a heading\n```\n"))
	r.add("docs/page.md", []byte(pageText))
	return r
}

func TestReferences(t *testing.T) {
	for _, tt := range []struct {
		name, page string
		want       []string // after "docs/page.md:1: "
	}{
		{"link to a file", "[x](records.md) [y](../pkg/dns/name.go)", nil},
		{"link to a folder", "[x](../pkg/dns)", nil},
		{"link elsewhere", "[x](https://example.org/nothing.md)", nil},
		{"link to nothing", "[x](record.md)", []string{"link to record.md: no such file"}},
		{"link out of the repository", "[x](../../pkg)", []string{"link to ../../pkg: no such file"}},
		{"anchor", "[x](records.md#a-aaaa--nsdns) [y](records.md#twice) [z](records.md#twice-1)", nil},
		{"no such anchor", "[x](records.md#twice-2)", []string{"link to records.md#twice-2: no such heading"}},
		{"a heading in a block", "[x](records.md#not-a-heading)", []string{"link to records.md#not-a-heading: no such heading"}},
		{"anchor of a file that is no page", "[x](../Makefile#run)", []string{"link to ../Makefile#run: no such heading"}},
		{"own anchor", "[x](#nothing)", []string{"link to #nothing: no such heading"}},
		{"named path", "`pkg/dns/name.go`, `pkg/dns`", nil},
		{"named path to nothing", "`pkg/dns/names.go`", []string{"no file pkg/dns/names.go"}},
		{"path in plain text", "pkg/dns/names.go", nil},
		{"test", "`TestName` in `pkg/dns`", nil},
		{"no such test", "`TestNames`", []string{"no test TestNames"}},
		{"test elsewhere", "`TestName` in `docs`", []string{"no test TestName in docs"}},
		{"test in a command", "`go test -run '^TestName$' ./docs`", []string{"no test TestName in docs"}},
		{"make", "`make build run`, `make run X=1`, to make sure", nil},
		{"no such target", "`make build bild`", []string{"no make target bild"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, w := range tt.want {
				want = append(want, "docs/page.md:1: "+w)
			}
			if got := repoWith(tt.page).checkReferences(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", tt.page, got, want)
			}
		})
	}
}

func TestReferencesInBlocksAndComments(t *testing.T) {
	r := repoWith("```\nmake biuld\nbin/kube-dns --manifests=deploy/nothing\n```\n")
	r.add("pkg/dns/other.go", []byte("// See records.md.\n"))
	r.add("hack/run.sh", []byte("# See docs/none.md.\n"))
	want := []string{
		"docs/page.md:2: no make target biuld", "docs/page.md:3: no file deploy/nothing",
		"hack/run.sh:1: no page docs/none.md", "pkg/dns/other.go:1: no page records.md",
	}
	if got := r.checkReferences(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

const flagsMD = "## kube-dns\n\n| `--dns-port` | `53` | Port. |\n| `--config-dir` | | Directory. |\n| `--sockets` | `0` | Sockets. |\n\n" +
	"| `PROMETHEUS_PATH` | `/metrics` | Path. |\n\n## Log\n\n`--v`, `--log-dir`\n"

const help = `Usage: kube-dns [flags]

      --config-dir string   directory
      --dns-port int        port (default 53)
      --log_dir string      directory
      --sockets int         sockets
  -v, --v Level             level
`

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		name, old, replace string // in the page
		want               []string
	}{
		{"alike", "", "", nil},
		{"another default", "`53`", "`54`", []string{`the default of dns-port is "53", not "54"`}},
		{"a default that is none", "`--config-dir` | |", "`--config-dir` | `x` |", []string{`the default of config-dir is "", not "x"`}},
		{"missing", "`--config-dir`", "config-dir", []string{"config-dir is missing"}},
		{"one too many", "`--sockets`", "`--socket`", []string{"sockets is missing", "there is no socket"}},
		{"a log flag is missing", ", `--log-dir`", "", []string{"log-dir is missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := flagsMD
			if tt.old != "" {
				text = replaceOnce(t, text, tt.old, tt.replace)
			}
			p, err := parseFlagPage(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := compareFlags(parseHelp(help), p.programs["kube-dns"], p.log); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if p.variables["PROMETHEUS_PATH"] != "/metrics" {
				t.Errorf("variables %q", p.variables)
			}
		})
	}
}

// TestHelpOfPackageFlag has the form of Go's own flags, as the nanny has them.
func TestHelpOfPackageFlag(t *testing.T) {
	got := parseHelp("Usage: dnsmasq-nanny [flags]\n  -configDir directory\n    \tdirectory (default \"/etc/k8s\")\n  -version\n    \tprint it\n")
	if len(got) != 2 || got["configDir"] != "/etc/k8s" || got["version"] != "" {
		t.Errorf("%q", got)
	}
}

func TestFlagTwice(t *testing.T) {
	if _, err := parseFlagPage(flagsMD + "\n## kube-dns\n| `--dns_port` | | |\n"); err == nil {
		t.Error("a flag that stands there twice is no error")
	}
}

func TestEnvironment(t *testing.T) {
	if got := environment(); got["PROMETHEUS_PATH"] != "/metrics" || len(got) < 4 {
		t.Errorf("%q", got)
	}
}

func replaceOnce(t *testing.T, text, old, replacement string) string {
	t.Helper()
	before, after, found := strings.Cut(text, old)
	if !found {
		t.Fatalf("%q is not in the page", old)
	}
	return before + replacement + after
}
