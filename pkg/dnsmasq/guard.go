package dnsmasq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/golang/glog"
)

// guard is a process that ends dnsmasq when the nanny is gone, however it ended.
// The parent-death signal is not enough: the kernel clears it when dnsmasq changes
// its user, and it does not reach dnsmasq's children. The guard reads the process
// group to end from a pipe whose other end only the nanny has.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// startGuard starts command, which must call RunGuard on its standard input.
func startGuard(command []string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// It ends when the pipe does, which is when the nanny has ended.
	g := &guard{cmd: exec.Command(command[0], command[1:]...), pipe: w} //nolint:noctx // see above
	g.cmd.Stdin = r
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no SIGINT from a terminal
	err = g.cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	return g, nil
}

// watch makes pgid the process group to end, 0 for none. A nil guard does nothing.
func (g *guard) watch(pgid int) {
	if g == nil {
		return
	}
	if _, err := fmt.Fprintln(g.pipe, pgid); err != nil {
		glog.Errorf("nanny: dnsmasq would be orphaned if the nanny were killed: writing to the guard: %v", err)
	}
}

// close ends the guard and the group that it watches.
func (g *guard) close() {
	if g == nil {
		return
	}
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

// RunGuard is what the guard process does: it reads process group numbers from in,
// one a line, and at the end of in ends the group of the last line, 0 for none.
func RunGuard(in io.Reader) error {
	pgid := 0
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		n, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil || n < 0 || n == 1 {
			return fmt.Errorf("not a process group: %q", lines.Text())
		}
		pgid = n
	}
	if pgid == 0 {
		return lines.Err()
	}
	// Given time, dnsmasq ends its children itself.
	_ = syscall.Kill(-pgid, syscall.SIGTERM)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for range 200 {
		if errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) {
			return nil
		}
		<-ticker.C
	}
	return syscall.Kill(-pgid, syscall.SIGKILL)
}
