package dnsmasq

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/golang/glog"
)

const (
	// maxLine is where longer lines of dnsmasq are split.
	maxLine = 4096
	// keptLines is how many of dnsmasq's last lines go into an error.
	keptLines = 10
)

// severity is the level at which a line of dnsmasq is logged.
type severity int

const (
	detail  severity = iota // caused by the nanny's own queries
	info                    // normal operation
	warning                 // may need attention
	failure                 // needs action
)

// lineLog logs dnsmasq's lines and keeps the last ones.
type lineLog struct {
	verbose bool // log lines of severity info at any -v

	mu   sync.Mutex
	last []string
}

// copyFrom logs the lines of r until its end.
func (l *lineLog) copyFrom(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, _, err := lines.ReadLine()
		if len(line) > 0 {
			l.add(strings.ToValidUTF8(string(line), "?"))
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				glog.V(2).Infof("nanny: reading dnsmasq's output: %v", err)
			}
			return
		}
	}
}

func (l *lineLog) add(line string) {
	switch severityOf(line) {
	case failure:
		glog.Error(line)
	case warning:
		glog.Warning(line)
	case info:
		if l.verbose || bool(glog.V(1)) {
			glog.Info(line)
		}
	case detail:
		glog.V(4).Info(line)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == keptLines {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, line)
}

// lastLines returns dnsmasq's last lines, the oldest first, as one text.
func (l *lineLog) lastLines() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "\n")
}

// severityOf guesses a line's severity from its words, those of dnsmasq 2.90:
// dnsmasq passes the level to syslog, but does not print it on standard error.
// Lines of --log-queries contain names that clients choose, so they are
// recognized by how they begin.
func severityOf(line string) severity {
	if strings.Contains(line, markerDomain) {
		return detail
	}
	_, text, found := strings.Cut(line, ": ")
	if !found {
		text = line
	}
	if isQueryLine(text) {
		return info
	}
	text = strings.ToLower(text)
	for _, words := range []string{"failed to", "cannot ", "bad option", "bad command line", "illegal", "out of memory", "error at line", "dbus error",
		"setting capabilities failed", "unknown user", "unknown interface", "missing required capability", "address already in use"} {
		if strings.Contains(text, words) {
			return failure
		}
	}
	for _, words := range []string{"warning", "ignoring", "not using", "maximum number of", "possible dns-rebind", "reducing dns packet size",
		"insecure ds", "unable to", "not giving name", "refused", "timed out", "too many", "bad ", "nameserver error", "no servers found", "exceeded"} {
		if strings.Contains(text, words) {
			return warning
		}
	}
	return info
}

// isQueryLine reports whether a line is of --log-queries, which may begin with a
// number and the client's address.
func isQueryLine(text string) bool {
	for _, word := range []string{"query[", "forwarded ", "reply ", "cached ", "config ", "special ", "validation ", "auth ", "rpz ", "dnssec-"} {
		if strings.HasPrefix(text, word) || strings.HasPrefix(text, "/") && strings.Contains(text, " "+word) {
			return true
		}
	}
	// "17 192.0.2.1/40000 query[A] …" with --log-queries=extra.
	fields := strings.SplitN(text, " ", 3)
	return len(fields) == 3 && strings.Contains(fields[1], "/") && strings.Trim(fields[0], "0123456789") == ""
}
