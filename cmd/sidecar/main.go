// Command sidecar reports the health of a kube-dns pod over HTTP: it probes the
// pod's DNS servers and exports dnsmasq's counters to Prometheus.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/golang/glog"
	"github.com/spf13/pflag"

	"kubedns/pkg/sidecar"
	"kubedns/pkg/version"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	defer glog.Flush()
	opts, err := parseFlags(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "sidecar:", oneLine(err))
		return 2
	case opts.version:
		fmt.Println("sidecar", version.Version, version.Revision)
		return 0
	}
	s, err := sidecar.New(opts.config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sidecar:", oneLine(err))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go flushLogs(ctx, opts.logFlushFrequency)
	if err := s.Run(ctx); err != nil {
		glog.Errorf("sidecar: %v", err)
		return 1
	}
	glog.Info("sidecar: stopped")
	return 0
}

// flushLogs flushes log files; standard error is not buffered.
func flushLogs(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			glog.Flush()
		}
	}
}

// oneLine returns err's text with line breaks written as \n: the name of an unknown
// flag may have some.
func oneLine(err error) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(err.Error())
}
