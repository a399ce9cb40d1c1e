// Package proc starts programs and reads what they use: processor time and
// memory of a program and all its descendants, from /proc.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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

// Start starts the program path with args, and with env added to this
// process's environment.
func Start(env []string, path string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...) //nolint:noctx // it outlives the call; whoever started it stops it
	cmd.Env = append(cmd.Environ(), env...)
	log := &Log{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	// Its own process group: a ctrl-C is for us, who then stop what we started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
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

// ExitCode is the code that the program exited with, -1 while it runs and when
// a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Stop sends SIGTERM and waits for the end; what still runs after grace is
// killed, and all of its process group with it.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
	}
	// A child that its parent left behind is in the group as well.
	err := syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.exited
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process group %d: %w", p.PID(), err)
	}
	return nil
}

func (p *Process) signal(sig syscall.Signal) error {
	select {
	case <-p.exited:
		return nil
	default:
	}
	if err := syscall.Kill(p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Usage is what a process and its descendants use.
type Usage struct {
	CPU time.Duration // user and system time since they started
	// RSS is the resident memory in bytes. Of several processes it is the sum
	// of their proportional shares, as they have pages in common.
	RSS int64
}

// Usage reads what the process and its descendants use now.
func (p *Process) Usage() (Usage, error) {
	pids, err := Tree(p.PID())
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) && pid != p.PID() {
			continue // it has just ended; its parent's stat has its time
		}
		if err != nil {
			return Usage{}, err
		}
		s, err := ParseStat(data)
		if err != nil {
			return Usage{}, fmt.Errorf("reading the stat of process %d: %w", pid, err)
		}
		u.CPU += s.CPU
	}
	if len(pids) == 1 {
		u.RSS, _, err = p.Memory()
		return u, err
	}
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return Usage{}, err
		}
		pss, err := field(data, "Pss:")
		if err != nil {
			return Usage{}, fmt.Errorf("reading the memory of process %d: %w", pid, err)
		}
		u.RSS += pss
	}
	return u, nil
}

// Memory is the process's resident memory now and the highest since it started
// or since ResetHighest, in bytes.
func (p *Process) Memory() (rss, highest int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, 0, err
	}
	if rss, err = field(data, "VmRSS:"); err != nil {
		return 0, 0, err
	}
	highest, err = field(data, "VmHWM:")
	return rss, highest, err
}

// ResetHighest makes the highest resident memory the present one (proc(5),
// clear_refs).
func (p *Process) ResetHighest() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0)
}

// A Log keeps what a program writes, the last megabyte of it. It is safe for
// concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const maxLog = 1 << 20

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len()+len(b) > 2*maxLog {
		l.buf.Next(l.buf.Len() - maxLog)
	}
	return l.buf.Write(b)
}

// String is what was kept.
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
