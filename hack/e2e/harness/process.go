package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Process is a program that the harness has started. It is killed when the
// test binary ends, however that ends. Its methods are safe for concurrent
// use.
type Process struct {
	// Log has what the program wrote to its standard output and error.
	Log *Log

	cmd    *exec.Cmd
	exited chan struct{} // closed once the program has been reaped
}

// start starts the program path with args and with env added to this
// process's environment.
func start(log *Log, env []string, path string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...) //nolint:noctx // it outlives the call; whoever started it stops it
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{Log: log, cmd: cmd, exited: make(chan struct{})}

	started := make(chan error)
	go func() {
		// PR_SET_PDEATHSIG, prctl(2): the "parent" is the thread that made
		// the child, so that thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // its ProcessState says the same
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	return p, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed once the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

func (p *Process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Signal sends sig to the program. One that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := syscall.Kill(p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Wait waits until the program has ended and returns its exit code, which is
// -1 when a signal ended it. It is an error when it still runs after timeout.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		if p.running() {
			return 0, fmt.Errorf("process %d still runs after %v", p.PID(), timeout)
		}
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// Stop sends sig and waits; what does not end within 20 s is killed, which is
// an error.
func (p *Process) Stop(sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	if _, err := p.Wait(20 * time.Second); err != nil {
		_ = p.Signal(syscall.SIGKILL) // err is the one to return
		<-p.exited
		return fmt.Errorf("after %v: %w", sig, err)
	}
	return nil
}

// A Log keeps what a program writes. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// String is all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Tail is the last n bytes that were written.
func (l *Log) Tail(n int) string {
	s := l.String()
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

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
	p, err := start(&Log{}, []string{"GORACE=atexit_sleep_ms=50"}, path, args...)
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
