package app

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/golang/glog"
	"k8s.io/klog/v2"
)

// clientVerbosity is the highest verbosity that client-go gets. From 9 on it times
// the steps of each request, with a data race where a request goes out over
// another connection than the one that is being opened for it.
const clientVerbosity = 8

// logToGlog sends client-go's messages to glog, at the same verbosity up to
// clientVerbosity.
func logToGlog() error {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	for _, name := range []string{"v", "vmodule"} {
		f := flag.CommandLine.Lookup(name)
		if f == nil {
			continue
		}
		value := f.Value.String()
		if v, err := strconv.Atoi(value); err == nil && name == "v" {
			value = strconv.Itoa(min(v, clientVerbosity))
		}
		if err := fs.Set(name, value); err != nil {
			return fmt.Errorf("setting klog's -%s: %w", name, err)
		}
	}
	klog.SetLogger(logr.New(glogSink{}))
	return nil
}

// glogSink is a logr.LogSink that writes to glog, in 50 lines. The formatter of
// logr's own funcr would write the level and the message as pairs as well, where
// kube-dns's log has plain text: client-go: watching resource="services".
type glogSink struct {
	name   string
	values []any
	depth  int
}

func (s glogSink) Init(info logr.RuntimeInfo) { _ = info }

// Enabled leaves the verbosity to klog, which has asked before.
func (glogSink) Enabled(int) bool { return true }

func (s glogSink) Info(_ int, msg string, kv ...any) {
	glog.InfoDepth(s.depth+2, s.line(msg, kv))
}

func (s glogSink) Error(err error, msg string, kv ...any) {
	if err != nil {
		kv = append(kv[:len(kv):len(kv)], "err", err)
	}
	glog.ErrorDepth(s.depth+2, s.line(msg, kv))
}

func (s glogSink) WithValues(kv ...any) logr.LogSink {
	s.values = append(s.values[:len(s.values):len(s.values)], kv...)
	return s
}

func (s glogSink) WithName(name string) logr.LogSink {
	if s.name != "" {
		name = s.name + "." + name
	}
	s.name = name
	return s
}

// WithCallDepth implements logr.CallDepthLogSink.
func (s glogSink) WithCallDepth(depth int) logr.LogSink {
	s.depth += depth
	return s
}

func (s glogSink) line(msg string, kv []any) string {
	var b strings.Builder
	b.WriteString("client-go: ")
	b.WriteString(strings.TrimSpace(msg))
	for _, kvs := range [][]any{s.values, kv} {
		for i := 0; i+1 < len(kvs); i += 2 {
			fmt.Fprintf(&b, " %v=%q", kvs[i], fmt.Sprint(kvs[i+1]))
		}
	}
	return b.String()
}
