// Verifydocs checks what the pages of this repository refer to: links and
// their anchors, files, tests and make targets that are named, pages that
// comments cite, and that docs/flags.md has exactly the programs' flags. It
// prints a line for each mistake and exits with status 1 if there is one.
//
// `make verify` runs it at the top of the work tree.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() { os.Exit(run()) }

func run() int {
	mistakes, err := check(context.Background(), ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "verifydocs:", err)
		return 1
	}
	for _, m := range mistakes {
		fmt.Fprintln(os.Stderr, m)
	}
	if len(mistakes) > 0 {
		return 1
	}
	return 0
}

// check returns the mistakes in the work tree at root, each a line that begins
// with the file's name.
func check(ctx context.Context, root string) ([]string, error) {
	repo, err := readRepo(ctx, root)
	if err != nil {
		return nil, err
	}
	mistakes := repo.checkReferences()
	flags, err := checkFlags(ctx, root)
	return append(mistakes, flags...), err
}

// repo is what pages can refer to.
type repo struct {
	files   map[string]bool     // "docs/flags.md"; folders too
	pages   map[string]*page    // Markdown by file name
	code    map[string][]string // lines of Go files and scripts by file name
	tests   map[string][]string // folders of a test function by its name
	targets []string            // of the Makefile
}

// readRepo reads what git knows, and new files that it does not ignore.
func readRepo(ctx context.Context, root string) (*repo, error) {
	git := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = root
	git.Stderr = os.Stderr
	out, err := git.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	r := newRepo()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed, and git has not been told
		}
		if err != nil {
			return nil, err
		}
		r.add(name, text)
	}
	return r, nil
}

func newRepo() *repo {
	return &repo{
		files: map[string]bool{".": true}, pages: map[string]*page{},
		code: map[string][]string{}, tests: map[string][]string{},
	}
}

// add enters a file and the folders that it is in.
func (r *repo) add(name string, text []byte) {
	for path := name; path != "."; path = filepath.Dir(path) {
		r.files[path] = true
	}
	switch {
	case name == "Makefile":
		for _, m := range target.FindAllSubmatch(text, -1) {
			r.targets = append(r.targets, string(m[1]))
		}
	case strings.HasSuffix(name, ".md"):
		r.pages[name] = parsePage(string(text))
	case strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".sh"):
		r.code[name] = strings.Split(string(text), "\n")
	}
	if strings.HasSuffix(name, "_test.go") {
		for _, m := range testFunction.FindAllSubmatch(text, -1) {
			r.tests[string(m[1])] = append(r.tests[string(m[1])], filepath.Dir(name))
		}
	}
}

// checkFlags builds the programs and holds docs/flags.md against their --help.
func checkFlags(ctx context.Context, root string) ([]string, error) {
	const name = "docs/flags.md"
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return nil, err
	}
	documented, err := parseFlagPage(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dir, err := os.MkdirTemp("", "verifydocs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	build := exec.CommandContext(ctx, "go", "build", "-o", dir, "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the programs: %w: %s", err, out)
	}
	var mistakes []string
	for _, program := range []string{"kube-dns", "dnsmasq-nanny", "sidecar"} {
		var help bytes.Buffer
		cmd := exec.CommandContext(ctx, filepath.Join(dir, program), "--help")
		cmd.Stdout, cmd.Stderr = &help, &help
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s --help: %w", program, err)
		}
		for _, m := range compareFlags(parseHelp(help.String()), documented.programs[program], documented.log) {
			mistakes = append(mistakes, fmt.Sprintf("%s: %s: %s", name, program, m))
		}
	}
	for _, m := range compareFlags(environment(), documented.variables, nil) {
		mistakes = append(mistakes, fmt.Sprintf("%s: environment: %s", name, m))
	}
	slices.Sort(mistakes)
	return mistakes, nil
}
