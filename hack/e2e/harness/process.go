package harness

import (
	"context"
	"syscall"
	"testing"
	"time"

	"kubedns/hack/e2e/process"
)

// A Process is a program that the harness has started.
type Process = process.Process

// A Log keeps what a program writes.
type Log = process.Log

// poll calls f every interval until it returns nil, and returns its last error
// when ctx is done first.
func poll(ctx context.Context, interval time.Duration, f func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// StartProgram starts the program path until the test's end, when it gets
// SIGTERM and must exit with 0.
func StartProgram(t testing.TB, path string, args ...string) *Process {
	t.Helper()
	p, err := process.Start(process.Options{Env: []string{"GORACE=atexit_sleep_ms=50"}}, path, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(syscall.SIGTERM); err != nil {
			t.Errorf("stopping %s: %v", path, err)
		} else if code, err := p.Wait(0); err != nil || code != 0 {
			t.Errorf("%s exited with %d (%v), want 0", path, code, err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", path, p.Log.Tail(4000))
		}
	})
	return p
}
