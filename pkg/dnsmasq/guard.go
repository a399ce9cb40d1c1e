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

// guard is a process that ends dnsmasq when the nanny is gone, in whatever way.
// The parent-death signal alone does not do: the kernel forgets it when dnsmasq
// changes its user, and it does not reach dnsmasq's children. The guard reads a
// pipe whose other end only the nanny has, on which it is told what to end.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// startGuard starts command as the guard, which calls RunGuard on its standard
// input.
func startGuard(command []string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// It ends when the pipe does, which is when the nanny has ended in whatever way.
	g := &guard{cmd: exec.Command(command[0], command[1:]...), pipe: w} //nolint:noctx // see above
	g.cmd.Stdin = r
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not to be interrupted from a terminal
	err = g.cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	return g, nil
}

// watch tells what to end: the process group pgid, 0 being nothing. A nil guard
// does nothing.
func (g *guard) watch(pgid int) {
	if g == nil {
		return
	}
	if _, err := fmt.Fprintln(g.pipe, pgid); err != nil {
		glog.Errorf("dnsmasq: nobody would end dnsmasq if the nanny were killed: telling the guard: %v", err)
	}
}

// close ends the guard, and with it what it watches.
func (g *guard) close() {
	if g == nil {
		return
	}
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

// RunGuard is the guard's whole life: it reads numbers of process groups from
// in, the last one counting, and ends that group once in is at its end.
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
	// dnsmasq ends its children itself when it has the time.
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
