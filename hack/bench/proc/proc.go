// Package proc starts programs and reads what they use: processor time and
// memory of a program and all its descendants, from /proc.
package proc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"kubedns/hack/e2e/process"
)

// A Process is a program that was started here, in a process group of its own.
// It is killed when this process ends, however that ends. Its methods are safe
// for concurrent use.
type Process struct{ *process.Process }

// Start starts the program path with args, and with env added to this
// process's environment. Of what it says the last megabyte is kept.
func Start(env []string, path string, args ...string) (*Process, error) {
	p, err := process.Start(process.Options{Log: &process.Log{Max: 1 << 20}, Env: env, Group: true}, path, args...)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Stop sends SIGTERM and waits for the end; what still runs after grace is
// killed, and all of its process group with it, as a child that its parent left
// behind is in there as well.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_, _ = p.Wait(grace) // whatever is left is killed
	return p.KillGroup()
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
