// Package process starts programs that end with this one, and keeps what they
// say.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A Process is a program that was started here. It is killed when this process
// ends, however that ends. Its methods are safe for concurrent use.
type Process struct {
	// Log has what the program wrote to its standard output and error.
	Log *Log
	// Started is the moment before the program was executed.
	Started time.Time

	cmd    *exec.Cmd
	exited chan struct{} // closed once the program has been reaped
}

// Options say how Start starts a program; the zero value is good.
type Options struct {
	// Log is added to; a new one where nil.
	Log *Log
	// Env is added to this process's environment.
	Env []string
	// Group gives the program a process group of its own: a ctrl-C is not for
	// it, and what it leaves behind can be killed with KillGroup.
	Group bool
}

// Start starts the program path with args.
func Start(o Options, path string, args ...string) (*Process, error) {
	log := o.Log
	if log == nil {
		log = &Log{}
	}
	cmd := exec.Command(path, args...) //nolint:noctx // it outlives the call; whoever started it stops it
	cmd.Env = append(cmd.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: o.Group}
	p := &Process{Log: log, cmd: cmd, exited: make(chan struct{})}

	started := make(chan error)
	go func() {
		// PR_SET_PDEATHSIG, prctl(2): the "parent" is the thread that made
		// the child, so that thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.Started = time.Now()
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

// ExitCode is the code that the program exited with, -1 while it runs and when
// a signal ended it.
func (p *Process) ExitCode() int {
	if p.running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// KillGroup kills what is left of the group of a process that was started with
// one, and waits for the process itself.
func (p *Process) KillGroup() error {
	err := syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.exited
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process group %d: %w", p.PID(), err)
	}
	return nil
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
	// Max is how many of the last bytes are kept at the least, and half of what
	// is kept at the most; 0 is all.
	Max int

	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Max > 0 && l.buf.Len()+len(b) > 2*l.Max {
		l.buf.Next(l.buf.Len() - l.Max)
	}
	return l.buf.Write(b)
}

// String is what was kept so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Tail is the last n bytes of it.
func (l *Log) Tail(n int) string {
	s := l.String()
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
