package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one document of a file, as JSON.
type document struct {
	json []byte
	// where names it: "web.yaml", or "web.yaml, document 2 from line 14".
	where string
}

// documents takes a file apart. Its errors name the file and the document, and
// fit on one line. Documents without content are left out.
func documents(file string, data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // a byte order mark, which JSON does not allow
	if filepath.Ext(file) == ".json" {
		return jsonDocuments(file, data, 1, 1)
	}
	return yamlDocuments(file, data)
}

// where names document number n, from 1, of a file, which begins at line.
func where(file string, n, line int) string {
	if n == 1 {
		return file
	}
	return fmt.Sprintf("%s, document %d from line %d", file, n, line)
}

// jsonDocuments takes apart a sequence of JSON values, the first of which is
// document number n of the file; data begins at line.
func jsonDocuments(file string, data []byte, n, line int) ([]document, error) {
	var docs []document
	dec := json.NewDecoder(bytes.NewReader(data))
	counted := 0 // line is that of the octet at counted
	for ; ; n++ {
		start := int(dec.InputOffset())
		start += len(data[start:]) - len(bytes.TrimLeft(data[start:], " \t\r\n"))
		line += bytes.Count(data[counted:start], []byte("\n"))
		counted = start
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		at := where(file, n, line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		docs = append(docs, document{json: raw, where: at})
	}
}

// yamlDocuments takes apart a YAML stream.
func yamlDocuments(file string, data []byte) ([]document, error) {
	var docs []document
	n := 0
	for _, part := range splitYAML(data) {
		if part.empty() {
			continue
		}
		if part.flow() {
			// JSON is YAML, and kubectl takes a sequence of JSON values for
			// several documents, whatever the file is called.
			if values, err := jsonDocuments(file, part.content(), n+1, part.line); err == nil {
				docs = append(docs, values...)
				n += len(values)
				continue
			}
		}
		n++
		at := where(file, n, part.line)
		doc, err := part.json()
		if err != nil {
			return nil, fmt.Errorf("%s: %s", at, oneLine(err.Error()))
		}
		if string(doc) == "null" {
			continue
		}
		docs = append(docs, document{json: doc, where: at})
	}
	return docs, nil
}

// yamlPart is one document of a YAML stream, the line that begins it included.
type yamlPart struct {
	text []byte
	line int // of its first line in the file, from 1
}

// empty reports whether p has blank lines, comments, directives and separators
// only, such as what stands before the first separator.
func (p yamlPart) empty() bool {
	for line := range bytes.Lines(p.text) {
		if isSeparator(line, "---") {
			line = line[len("---"):]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// content returns the text of p without the separator that begins it, which
// becomes blanks.
func (p yamlPart) content() []byte {
	if isSeparator(p.text, "---") {
		return slices.Concat([]byte("   "), p.text[len("---"):])
	}
	return p.text
}

// flow reports whether p begins with a brace: "{kind: Service}".
func (p yamlPart) flow() bool {
	for line := range bytes.Lines(p.content()) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return line[0] == '{'
		}
	}
	return false
}

// json returns p as JSON. It is strict: a key that comes twice is an error, for
// YAML and for an API server; else the last one would win without a word.
func (p yamlPart) json() ([]byte, error) {
	if !p.flow() {
		return yaml.YAMLToJSONStrict(p.text)
	}
	// The parser stops behind the closing brace, and what follows it would get
	// lost without a word; within brackets it has to be a comment.
	data, err := yaml.YAMLToJSONStrict(slices.Concat([]byte("["), p.content(), []byte("\n]")))
	if err != nil {
		return nil, err
	}
	var docs []json.RawMessage
	if err := json.Unmarshal(data, &docs); err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, errors.New("not one object")
	}
	return docs[0], nil
}

// splitYAML splits a stream before each line that begins a document ("---",
// maybe with content behind it) and at each that ends one ("..."). Such a
// line cannot be part of anything else, not even of a quoted text: YAML 1.2
// section 9.1.2. (apimachinery's reader of documents does not know "...", and
// what follows it would get lost without a word.)
func splitYAML(data []byte) []yamlPart {
	var parts []yamlPart
	start, startLine := 0, 1
	pos, n := 0, 0
	cut := func() {
		if pos > start {
			parts = append(parts, yamlPart{text: data[start:pos], line: startLine})
		}
	}
	for line := range bytes.Lines(data) {
		n++
		switch {
		case isSeparator(line, "---"):
			cut()
			start, startLine = pos, n
		case isSeparator(line, "..."):
			cut()
			start, startLine = pos+len(line), n+1
		}
		pos += len(line)
	}
	cut()
	return parts
}

// isSeparator reports whether line is mark, alone or with a blank behind it.
func isSeparator(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// oneLine makes one line of the text of an error.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}
