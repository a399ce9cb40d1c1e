// Command kube-dns answers DNS questions about a Kubernetes cluster's Services.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/golang/glog"
	"github.com/spf13/pflag"

	"kubedns/cmd/kube-dns/app"
	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/version"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) > 0 && args[0] == "explain" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return explainCommand(ctx, args[1:], os.Stdout, os.Stderr)
	}
	defer glog.Flush()
	// glog would write files to /tmp, and end the process where it cannot.
	if err := flag.Set("logtostderr", "true"); err != nil {
		fmt.Fprintln(os.Stderr, "kube-dns:", err)
		return 1
	}
	o, usage, err := options.Parse(args, os.Getenv, flag.CommandLine)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Print(usage)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "kube-dns:", err)
		return 2
	case o.Version:
		fmt.Printf("kube-dns %s (%s)\n", version.Version, version.Revision)
		return 0
	}
	// glog complains of a message before flag.Parse; pflag has parsed.
	if err := flag.CommandLine.Parse(nil); err != nil {
		fmt.Fprintln(os.Stderr, "kube-dns:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Once the first signal has come, the second one ends the process.
	context.AfterFunc(ctx, stop)
	if err := app.Run(ctx, o); err != nil {
		glog.Errorf("kube-dns: %v", err)
		return 1
	}
	return 0
}
