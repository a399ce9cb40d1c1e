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
	// maxLine is where longer lines of dnsmasq's are cut in two.
	maxLine = 4096
	// keptLines is how many of dnsmasq's last lines an error shows.
	keptLines = 10
)

// severity is how much a line of dnsmasq's matters.
type severity int

const (
	detail  severity = iota // what comes of the nanny's own doing
	info                    // what dnsmasq says when all is well
	warning                 // something to look at
	failure                 // someone should act
)

// lineLog puts dnsmasq's lines into the log and keeps the last ones.
type lineLog struct {
	verbose bool // lines of severity info are shown at any verbosity

	mu   sync.Mutex
	last []string
}

// copyFrom logs what r has, line by line, until it ends.
func (l *lineLog) copyFrom(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, _, err := lines.ReadLine()
		if len(line) > 0 {
			l.add(strings.ToValidUTF8(string(line), "?"))
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				glog.V(2).Infof("dnsmasq: reading dnsmasq's output: %v", err)
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

// severityOf guesses how much a line matters: dnsmasq has its messages' levels
// in syslog alone, on standard error they are missing. The words are those of
// dnsmasq 2.90. Lines of --log-queries contain names that clients choose, so
// those are known by how they begin.
func severityOf(line string) severity {
	if strings.Contains(line, inForceDomain) {
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

// isQueryLine tells whether a line is of --log-queries, which may come with a
// number and the client's address in front.
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
