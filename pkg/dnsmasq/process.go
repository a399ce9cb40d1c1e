package dnsmasq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/golang/glog"
)

// killGrace is how long dnsmasq has after SIGTERM.
const killGrace = 5 * time.Second

// process is one dnsmasq that was started. It is the leader of a process group,
// to which its children for TCP clients also belong.
type process struct {
	cmd   *exec.Cmd
	done  chan struct{} // closed when dnsmasq and its group are gone and its output is read
	err   error         // how it ended; to be read after done
	ready atomic.Bool   // it has answered, so SIGHUP and SIGUSR1 no longer kill it
}

// startProcess starts dnsmasq, which g watches; g may be nil. Its output goes to
// output line by line.
func startProcess(path string, args []string, output *lineLog, g *guard) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// stop ends its whole group; a context would kill this process alone.
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})} //nolint:noctx // see above
	// A file, not a writer: Wait must not wait for children that also hold it.
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		// The parent of the parent-death signal is a thread: it must not end
		// before dnsmasq does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.start(p.cmd)
		_ = w.Close()
		started <- err
		if err != nil {
			_ = r.Close()
			return
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			output.copyFrom(r)
		}()
		p.err = exitError(p.cmd.Wait())
		endGroup(p.cmd.Process.Pid)
		select {
		case <-read:
		case <-time.After(time.Second):
			// A process outside the group holds its standard error.
		}
		_ = r.Close()
		<-read
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting dnsmasq: %w", err)
	}
	return p, nil
}

// exitError describes how dnsmasq ended. It is never nil: with status 0, too,
// dnsmasq answers no more.
func exitError(err error) error {
	if err == nil {
		return errors.New("it exited with status 0")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Errorf("it was ended by signal %d (%v)", status.Signal(), status.Signal())
	}
	// dnsmasq(8), section EXIT CODES.
	meaning := map[int]string{1: "bad configuration", 2: "network access, as an address in use", 3: "file system access", 4: "out of memory", 5: "other"}
	if m, ok := meaning[exit.ExitCode()]; ok {
		return fmt.Errorf("it exited with status %d (%s)", exit.ExitCode(), m)
	}
	return fmt.Errorf("it exited with status %d", exit.ExitCode())
}

// signal sends sig to dnsmasq, not to its children. That it has ended is no error.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to dnsmasq: %w", sig, err)
	}
	return nil
}

// kill sends SIGKILL to dnsmasq and its children, and does not wait.
func (p *process) kill() {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		glog.Errorf("nanny: killing dnsmasq: %v", err)
	}
}

// stop sends SIGTERM, then SIGKILL after grace or when now is closed, and returns
// once dnsmasq is gone.
func (p *process) stop(grace time.Duration, now <-chan struct{}) {
	if err := p.signal(syscall.SIGTERM); err != nil {
		glog.Errorf("nanny: %v", err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
		glog.Warningf("nanny: dnsmasq still runs %v after SIGTERM, killing it", grace)
	case <-now:
	}
	p.kill()
	<-p.done
}

// endGroup kills what is left of a process group and returns once it is empty.
// dnsmasq's children for TCP clients hold its listening sockets: with one of them
// left, the next dnsmasq cannot bind.
func endGroup(pgid int) {
	ctx, cancel := context.WithTimeout(context.Background(), killGrace)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		for {
			// Orphans are ours to reap when we are process 1 or a subreaper.
			if pid, err := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		err := syscall.Kill(-pgid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return
		}
		if err != nil {
			glog.Errorf("nanny: killing dnsmasq's children: %v", err)
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			glog.Errorf("nanny: children of dnsmasq still run %v after SIGKILL", killGrace)
			return
		}
	}
}
