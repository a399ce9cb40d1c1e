package dnsmasq

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// defaultConfFile is what dnsmasq reads when its arguments name no --conf-file.
const defaultConfFile = "/etc/dnsmasq.conf"

// maxConfFile bounds a configuration file. One that has a million domains to
// block is smaller.
const maxConfFile = 64 << 20

// confOption is an option of a configuration file, without its dashes. Special
// characters that are quoted in the file are hidden in value: see unhide.
type confOption struct{ name, value string }

// confFiles reads dnsmasq's configuration files as dnsmasq(8) describes them,
// sections --conf-file, --conf-dir and CONFIG FILE. Each file is read once,
// whatever its names: dnsmasq ignores it from the second time on.
type confFiles struct {
	root fs.FS // the root directory
	seen []seenFile
}

type seenFile struct {
	path string
	info fs.FileInfo
}

// rooted is the path that an fs.FS of the root directory has for a file.
func rooted(name string) (string, error) {
	abs, err := filepath.Abs(name) // dnsmasq reads them before it changes its directory
	if err != nil {
		return "", err
	}
	return cmp.Or(strings.TrimPrefix(abs, "/"), "."), nil
}

// read returns a file's options, not nil, or nil when there is nothing to read:
// the file was read before, is standard input, which the nanny gives dnsmasq
// none of, or does not exist, which dnsmasq refuses if it matters.
func (c *confFiles) read(name string) ([]confOption, error) {
	if name == "" || name == "-" {
		return nil, nil
	}
	at, err := rooted(name)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(c.root, at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, unreadable(name, err)
	case name == os.DevNull:
		return nil, nil
	case slices.ContainsFunc(c.seen, func(s seenFile) bool { return s.path == at || os.SameFile(s.info, info) }):
		return nil, nil
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s, which is not a regular file", name)
	case info.Size() > maxConfFile:
		return nil, fmt.Errorf("%s, which has more than %d MiB", name, maxConfFile>>20)
	}
	c.seen = append(c.seen, seenFile{at, info})
	text, err := fs.ReadFile(c.root, at)
	if err != nil {
		return nil, unreadable(name, err)
	}
	options := []confOption{}
	for line := range strings.Lines(string(text)) {
		if option, ok := parseConfLine(line); ok {
			options = append(options, option)
		}
	}
	return options, nil
}

// list returns the files that --conf-dir=value reads, in their order. value is a
// directory, and behind commas suffixes: "*.conf" for files that are read, ".bak"
// for those that are not. Without the former all files are read. Hidden files
// and those that editors leave behind never are.
func (c *confFiles) list(value string) ([]string, error) {
	fields := strings.Split(value, ",")
	dir := unhide(fields[0])
	if dir == "" {
		return nil, nil
	}
	var only, never []string
	for _, field := range fields[1:] {
		suffix, isOnly := strings.CutPrefix(unhide(field), "*")
		switch {
		case suffix == "":
		case isOnly:
			only = append(only, suffix)
		default:
			never = append(never, suffix)
		}
	}
	at, err := rooted(dir)
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(c.root, at)
	if err != nil {
		return nil, unreadable(dir, err)
	}
	var files []string
	for _, entry := range entries { // sorted by name
		name := entry.Name()
		endsIn := func(suffix string) bool { return len(name) > len(suffix) && strings.HasSuffix(name, suffix) }
		switch {
		case strings.HasPrefix(name, "."), strings.HasSuffix(name, "~"), strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#"):
			continue
		case len(only) > 0 && !slices.ContainsFunc(only, endsIn), slices.ContainsFunc(never, endsIn):
			continue
		}
		if info, err := fs.Stat(c.root, path.Join(at, name)); err == nil && info.Mode().IsRegular() {
			files = append(files, strings.TrimSuffix(dir, "/")+"/"+name)
		}
	}
	return files, nil
}

// unreadable wraps err, whose own path has no leading slash.
func unreadable(name string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// parseConfLine reads "option", "option=value" or a comment. Blanks around the
// line and around "=" do not count, nor does what follows a "#" at the beginning
// of a word.
func parseConfLine(line string) (option confOption, ok bool) {
	line = strings.Trim(unquote(strings.TrimRight(line, "\r\n")), " ")
	name, value, _ := strings.Cut(line, "=")
	option = confOption{strings.TrimRight(name, " "), strings.TrimLeft(value, " ")}
	return option, line != ""
}

const (
	// specialChars lose their meaning in quotes, hiddenChars stand for them until
	// a value has been split.
	specialChars = ",:.#"
	hiddenChars  = "\x01\x02\x03\x04"
)

// unquote removes a line's comment, makes all white space blanks, and resolves
// quotes: dnsmasq(8), section CONFIG FILE. A quote that is not closed, which
// dnsmasq refuses, goes to the end of the line.
func unquote(line string) string {
	var b strings.Builder
	quoted, white := false, true
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '"':
			quoted, white = !quoted, false
		case quoted && c == '\\' && i+1 < len(line) && strings.IndexByte(`"tnebr\`, line[i+1]) >= 0:
			i++
			b.WriteByte(map[byte]byte{'"': '"', 't': '\t', 'n': '\n', 'e': '\033', 'b': '\b', 'r': '\r', '\\': '\\'}[line[i]])
		case quoted:
			if at := strings.IndexByte(specialChars, c); at >= 0 {
				c = hiddenChars[at]
			}
			b.WriteByte(c)
		case c == '#' && white:
			return b.String()
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			white = true
			b.WriteByte(' ')
		default:
			white = false
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unhide puts back the special characters of a quoted value.
func unhide(value string) string {
	if !strings.ContainsAny(value, hiddenChars) {
		return value
	}
	return strings.Map(func(r rune) rune {
		if at := strings.IndexRune(hiddenChars, r); at >= 0 {
			return rune(specialChars[at])
		}
		return r
	}, value)
}
