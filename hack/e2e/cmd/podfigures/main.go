// Command podfigures makes the figures of deploy/ that the documentation has. It
// needs root, podman and the control plane, as the tests of pods do; `make
// podfigures` calls it.
//
//	podfigures layouts FILE   measures base and direct, and adds two tables to FILE; needs dnsperf
//	podfigures size FILE      measures memory by the number of objects, and adds a table to FILE
//	podfigures picture FILE   draws the dashboard's panels into FILE, an SVG; needs prometheus
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// figures are what can be made; isolated ones want a network of their own.
var figures = map[string]struct {
	isolated bool
	make     func(t *testing.T, file string)
}{
	"layouts": {true, layouts},
	"size":    {false, size},
	"picture": {true, picture},
}

func main() {
	if len(os.Args) != 3 || figures[os.Args[1]].make == nil {
		fmt.Fprintln(os.Stderr, "usage: podfigures layouts|size|picture FILE")
		os.Exit(2)
	}
	name, figure := os.Args[1], figures[os.Args[1]]
	file, err := filepath.Abs(os.Args[2])
	if err == nil {
		err = harness.Chdir("hack/e2e")
	}
	if err == nil && figure.isolated && !pods.Isolated() {
		err = isolate(name, file)
	} else if err == nil {
		// What runs pods reports to a test, so this is one.
		os.Args = []string{os.Args[0], "-test.v", "-test.timeout=30m"}
		testing.Main(func(string, string) (bool, error) { return true, nil },
			[]testing.InternalTest{{Name: name, F: func(t *testing.T) { figure.make(t, file) }}}, nil, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "podfigures:", err)
		os.Exit(1)
	}
}

// isolate builds the images, which needs the machine's network, and runs this
// program once more in a network of its own.
func isolate(name, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if _, err := pods.BuildImages(); err != nil {
		return err
	}
	cmd, err := pods.IsolatedCommand(ctx, name, file)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// startCluster starts a control plane until the end.
func startCluster(t *testing.T) *harness.ControlPlane {
	t.Helper()
	c, err := harness.StartControlPlane(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}
