package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

var (
	target       = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	testFunction = regexp.MustCompile(`(?m)^func (Test[A-Z0-9]\w*)\(t \*testing\.T\)`)

	heading = regexp.MustCompile(`^#{1,6} +(.*?)\s*$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	span    = regexp.MustCompile("`([^`]+)`")
	// A path from the top of the work tree that is named, not linked.
	namedPath = regexp.MustCompile(`(?:^|[\s'"=(])((?:cmd|pkg|build|deploy|docs|hack|\.ci)/[\w./-]*\w)`)
	namedTest = regexp.MustCompile(`\b(Test[A-Z]\w*)\b`)
	testIn    = regexp.MustCompile("`(Test[A-Z]\\w*)` in `([\\w./-]+)`")
	// `go test ... -run '^TestX$' ./pkg/y`
	testCommand = regexp.MustCompile(`go test [^|;&]*-run '?\^?(Test[A-Z]\w*)\$?'? \./([\w./-]+)`)
	makeCommand = regexp.MustCompile(`(?:^|[\s;&])make ((?:[a-z][a-z0-9-]*\s?)+)`)
	citedPage   = regexp.MustCompile(`[\w./-]*\w\.md\b`)
)

// page is a Markdown file.
type page struct {
	lines   []line
	anchors map[string]bool
}

// line is one of a page; code says that it stands in a fenced block.
type line struct {
	text string
	code bool
}

func parsePage(text string) *page {
	p := &page{anchors: map[string]bool{}}
	code := false
	for text := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(text, "```") {
			code = !code
			text = "" // it has nothing to check
		}
		p.lines = append(p.lines, line{text, code})
		if m := heading.FindStringSubmatch(text); m != nil && !code {
			anchor := anchorOf(m[1])
			for i := 1; p.anchors[anchor]; i++ {
				anchor = fmt.Sprintf("%s-%d", anchorOf(m[1]), i)
			}
			p.anchors[anchor] = true
		}
	}
	return p
}

// anchorOf is what GitHub makes of a heading: lower case, dashes for blanks,
// and of the rest only letters, digits, dashes and underscores.
func anchorOf(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c == ' ':
			b.WriteByte('-')
		case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c):
			b.WriteRune(c)
		}
	}
	return b.String()
}

// checkReferences returns a line for each reference that leads nowhere.
func (r *repo) checkReferences() []string {
	var mistakes []string
	for _, name := range slices.Sorted(maps.Keys(r.pages)) {
		for i, l := range r.pages[name].lines {
			for _, m := range r.checkLine(name, l) {
				mistakes = append(mistakes, fmt.Sprintf("%s:%d: %s", name, i+1, m))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.code)) {
		if strings.HasPrefix(name, "hack/verifydocs/") {
			continue // its tests have mistakes on purpose
		}
		for i, text := range r.code[name] {
			for _, m := range r.checkComment(name, text) {
				mistakes = append(mistakes, fmt.Sprintf("%s:%d: %s", name, i+1, m))
			}
		}
	}
	return mistakes
}

// checkLine checks a line of the page.
func (r *repo) checkLine(name string, l line) (mistakes []string) {
	named := []string{l.text}
	if !l.code {
		named = nil
		for _, m := range span.FindAllStringSubmatch(l.text, -1) {
			named = append(named, m[1])
		}
		for _, m := range link.FindAllStringSubmatch(l.text, -1) {
			if why := r.checkLink(name, m[1]); why != "" {
				mistakes = append(mistakes, why)
			}
		}
		for _, m := range testIn.FindAllStringSubmatch(l.text, -1) {
			mistakes = append(mistakes, r.checkTest(m[1], m[2])...)
		}
	}
	for _, text := range named {
		for _, m := range namedPath.FindAllStringSubmatch(text, -1) {
			if !r.files[filepath.Clean(m[1])] {
				mistakes = append(mistakes, "no file "+m[1])
			}
		}
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(r.tests)), func(test string) bool { return strings.HasPrefix(test, m[1]) }) {
				mistakes = append(mistakes, "no test "+m[1])
			}
		}
		for _, m := range testCommand.FindAllStringSubmatch(text, -1) {
			mistakes = append(mistakes, r.checkTest(m[1], m[2])...)
		}
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			for word := range strings.FieldsSeq(m[1]) {
				if !slices.Contains(r.targets, word) {
					mistakes = append(mistakes, "no make target "+word)
				}
			}
		}
	}
	return mistakes
}

// checkLink says what is wrong with a link of the page, or nothing.
func (r *repo) checkLink(name, to string) string {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return ""
	}
	path, anchor, _ := strings.Cut(to, "#")
	file := name
	if path != "" {
		file = filepath.Join(filepath.Dir(name), path)
	}
	if !r.files[file] {
		return fmt.Sprintf("link to %s: no such file", to)
	}
	if anchor == "" {
		return ""
	}
	if p := r.pages[file]; p == nil || !p.anchors[anchor] {
		return fmt.Sprintf("link to %s: no such heading", to)
	}
	return ""
}

// checkTest wants the test in the folder.
func (r *repo) checkTest(test, folder string) []string {
	if slices.Contains(r.tests[test], filepath.Clean(folder)) {
		return nil
	}
	return []string{fmt.Sprintf("no test %s in %s", test, folder)}
}

// checkComment wants pages that a comment cites to be there. A path is from the
// top of the work tree; a bare name is a page beside the file.
func (r *repo) checkComment(name, text string) (mistakes []string) {
	_, comment, ok := strings.Cut(text, "//")
	if strings.HasSuffix(name, ".sh") {
		_, comment, ok = strings.Cut(text, "#")
	}
	if !ok {
		return nil
	}
	for _, cited := range citedPage.FindAllString(comment, -1) {
		if r.pages[cited] == nil && r.pages[filepath.Join(filepath.Dir(name), cited)] == nil {
			mistakes = append(mistakes, "no page "+cited)
		}
	}
	return mistakes
}
