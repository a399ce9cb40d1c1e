package dnsmasq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/golang/glog"
	"golang.org/x/sys/unix"
)

// guard is a process that ends dnsmasq when the nanny is gone, however it ended.
// The parent-death signal is not enough: the kernel clears it when dnsmasq changes
// its user, and it does not reach dnsmasq's children. The guard reads the process
// group to end from a pipe whose other end only the nanny has.
//
// It knows of dnsmasq before dnsmasq runs, or a nanny killed in between would
// leave dnsmasq behind: the process is started with RunGuarded, which becomes
// dnsmasq when the guard has been told.
type guard struct {
	cmd     *exec.Cmd
	pipe    *os.File
	guarded []string // command that calls RunGuarded
}

// startGuard starts command, which must call RunGuard on its standard input.
// guarded is a command that calls RunGuarded.
func startGuard(command, guarded []string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// It ends when the pipe does, which is when the nanny has ended.
	g := &guard{cmd: exec.Command(command[0], command[1:]...), pipe: w, guarded: guarded} //nolint:noctx // see above
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

// start starts cmd, the leader of a process group, and watches that group. A nil
// guard starts cmd alone.
func (g *guard) start(cmd *exec.Cmd) error {
	if g == nil {
		return cmd.Start()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	cmd.Args = slices.Concat(g.guarded, []string{cmd.Path}, cmd.Args[1:])
	cmd.Path = g.guarded[0]
	cmd.ExtraFiles = []*os.File{r} // guardedFile
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		return err
	}
	g.watch(cmd.Process.Pid)
	// When cmd has ended already, the process's end tells it.
	_, _ = w.Write([]byte{0})
	return nil
}

// guardedFile is the file descriptor that RunGuarded reads from.
const guardedFile = 3

// RunGuarded makes this process run the program argv[0] with the arguments argv
// as soon as the guard knows of the process: when an octet comes from file
// descriptor 3. It returns only when that fails, as when the nanny has ended.
func RunGuarded(argv []string) error {
	// A parent-death signal is a thread's, and goes over to the program from the
	// thread that becomes it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("setting the parent-death signal: %w", err)
	}
	told := os.NewFile(guardedFile, "pipe from the nanny")
	_, err := io.ReadFull(told, make([]byte, 1))
	_ = told.Close()
	if err != nil {
		return fmt.Errorf("waiting for the guard: %w", err)
	}
	return fmt.Errorf("starting %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
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
