package dnsmasq

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubedns/pkg/await"
	"kubedns/pkg/freeport"
)

func TestNextPause(t *testing.T) {
	l := defaultLimits()
	var got []string
	pause := time.Duration(0)
	for range 8 {
		got = append(got, pause.String())
		pause = l.nextPause(pause)
	}
	// The first one is within 100 ms of the death.
	if want := "0s 100ms 200ms 400ms 800ms 1.6s 3.2s 5s"; strings.Join(got, " ") != want {
		t.Errorf("pauses %v, want %s", got, want)
	}
}

func TestExitError(t *testing.T) {
	tests := []struct{ script, want string }{
		{"exit 0", "it exited with status 0"},
		{"exit 2", "it exited with status 2 (network access, as an address in use)"},
		{"exit 77", "it exited with status 77"},
		{"kill -9 $$", "it was ended by signal 9 (killed)"},
	}
	for _, test := range tests {
		t.Run(test.script, func(t *testing.T) {
			if got := exitError(exec.Command("/bin/sh", "-c", test.script).Run()).Error(); got != test.want {
				t.Errorf("exitError = %q, want %q", got, test.want)
			}
		})
	}
}

// TestKeepsDying has somebody else at dnsmasq's port.
func TestKeepsDying(t *testing.T) {
	t.Parallel()
	nt := prepareNanny(t, nil, func(nt *nannyTest) { nt.limits.maxPause = 20 * time.Millisecond })
	listener, err := net.Listen("tcp", nt.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = nt.Run(t.Context())
	if err == nil {
		t.Fatal("Run returned no error")
	}
	for _, want := range []string{"dnsmasq died 10 times in 1m0s", "it exited with status 2", "its last lines:\n", "failed to create listening socket"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
	if got := valueOf(t, nt.metrics.restarts.WithLabelValues("died")); got != 10 {
		t.Errorf("dnsmasq died %v times, want 10", got)
	}
}

// TestDeaf stops dnsmasq without ending it.
func TestDeaf(t *testing.T) {
	t.Parallel()
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.limits.probeTimeout, nt.limits.probePeriod = 100*time.Millisecond, 50*time.Millisecond
	})
	pid := nt.pid()
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nt.awaitCount(t, nt.metrics.restarts.WithLabelValues("deaf"), 1)
	nt.awaitAnswering(t)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("dnsmasq counts as deaf after %v, which is less than three questions take", took)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d is still there", pid)
	}
}

// TestNoIdent: a dnsmasq that does not tell its version is alive all the same,
// and the servers that it has can be seen.
func TestNoIdent(t *testing.T) {
	t.Parallel()
	a, b := startUpstream(t, "192.0.2.1"), startUpstream(t, "192.0.2.2")
	nt := startNanny(t, []string{"--no-ident"}, func(nt *nannyTest) { nt.writeJSON(t, "stubDomains", stub(a.addr)) })
	if !nt.super.wasHeard() {
		t.Error("dnsmasq's answer does not count")
	}
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.writeJSON(t, "stubDomains", stub(b.addr))
	nt.awaitLookup(t, "stub.example", "192.0.2.2")
}

// TestProbeAddrWrong has dnsmasq listen where the nanny cannot know, as a script
// sets its port: dnsmasq is not killed for that.
func TestProbeAddrWrong(t *testing.T) {
	t.Parallel()
	nt := prepareNanny(t, nil, func(nt *nannyTest) {
		nt.limits.start, nt.limits.probePeriod, nt.limits.probeTimeout = 100*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
		nt.addr = freeport.Addr(t)
		_, port, _ := net.SplitHostPort(nt.addr)
		script := filepath.Join(filepath.Dir(nt.dir), "script")
		if err := os.WriteFile(script, []byte("#!/bin/sh\necho port="+port+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		nt.opts.Args = append(nt.opts.Args, "--conf-script="+script)
	})
	nt.run(t)
	nt.awaitAnswering(t)
	await.Until(t, 5*time.Second, "dnsmasq counts as ready", func() bool { return nt.pid() != 0 })
	if nt.super.wasHeard() {
		t.Error("the nanny knows where dnsmasq listens")
	}
	pid := nt.pid()
	a := startUpstream(t, "192.0.2.1")
	nt.writeJSON(t, "stubDomains", stub(a.addr))
	nt.awaitLookup(t, "stub.example", "192.0.2.1")
	nt.awaitCount(t, nt.metrics.reloads.WithLabelValues(resultSuccess), 1)
	if got := nt.pid(); got != pid {
		t.Errorf("dnsmasq is process %d, was %d", got, pid)
	}
}

// TestDrain has dnsmasq answer until the drain period ends.
func TestDrain(t *testing.T) {
	t.Parallel()
	a := startUpstream(t, "192.0.2.1")
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.opts.DrainPeriod = 500 * time.Millisecond
		nt.writeJSON(t, "upstreamNameservers", []string{a.addr})
	})
	pid := nt.pid()
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- nt.stop() }()
	answered := time.Time{}
	for len(ended) == 0 {
		if nt.lookup(t, "other.example") == "192.0.2.1" {
			answered = time.Now()
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := answered.Sub(began); got < 400*time.Millisecond {
		t.Errorf("the last answer came %v after the stop, want 500ms", got)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("dnsmasq, process %d, is still there", pid)
	}
}

// TestAbort ends dnsmasq, which does not react, in the middle of the drain.
func TestAbort(t *testing.T) {
	t.Parallel()
	abort := make(chan struct{})
	nt := startNanny(t, nil, func(nt *nannyTest) {
		nt.opts.DrainPeriod = time.Minute
		nt.opts.Abort = abort
	})
	if err := syscall.Kill(nt.pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	close(abort)
	if err := nt.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestStopKillsTheStubborn waits five seconds for a dnsmasq that does not end.
func TestStopKillsTheStubborn(t *testing.T) {
	t.Parallel()
	nt := startNanny(t, nil, nil)
	p := nt.super.running()
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p.stop(100*time.Millisecond, nil)
	if took := time.Since(began); took < 100*time.Millisecond || took > 2*time.Second {
		t.Errorf("it took %v, want 100ms and a bit", took)
	}
}

// TestStatistics has dnsmasq log them.
func TestStatistics(t *testing.T) {
	t.Parallel()
	nt := startNanny(t, nil, func(nt *nannyTest) { nt.opts.LogInterval = 20 * time.Millisecond })
	await.Until(t, 5*time.Second, "dnsmasq logs its statistics", func() bool {
		return strings.Contains(nt.output.lastLines(), "queries forwarded")
	})
}

// TestChildrenOfTheKilled: dnsmasq's children for TCP clients survive its death
// by SIGKILL and hold its port, unless they are ended too.
func TestChildrenOfTheKilled(t *testing.T) {
	t.Parallel()
	nt := startNanny(t, nil, nil)
	idleClients(t, nt.addr, 5)
	pid := nt.pid()
	var children []int
	await.Until(t, 5*time.Second, "dnsmasq has a child for each client", func() bool {
		children = childrenOf(t, pid)
		return len(children) == 5
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	nt.awaitCount(t, nt.metrics.restarts.WithLabelValues("died"), 1)
	nt.awaitAnswering(t)
	for _, child := range children {
		if err := syscall.Kill(child, 0); err == nil {
			t.Errorf("child %d is still there", child)
		}
	}
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(files) == 0 {
		t.Skipf("the kernel does not tell a process's children: %v", err)
	}
	var children []int
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have ended
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

func TestRunGuard(t *testing.T) {
	start := func(t *testing.T) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("/bin/sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	t.Run("ends the last group", func(t *testing.T) {
		cmd := start(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		if err := RunGuard(strings.NewReader(fmt.Sprintf("0\n%d\n", cmd.Process.Pid))); err != nil {
			t.Errorf("RunGuard: %v", err)
		}
		select {
		case err := <-ended:
			t.Logf("the process ended: %v", err)
		case <-time.After(5 * time.Second):
			t.Error("the process lives")
		}
	})
	t.Run("ends nothing", func(t *testing.T) {
		cmd := start(t)
		if err := RunGuard(strings.NewReader(fmt.Sprintf("%d\n0\n", cmd.Process.Pid))); err != nil {
			t.Errorf("RunGuard: %v", err)
		}
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the process is gone: %v", err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, text := range []string{"x\n", "1\n", "-5\n"} {
		if err := RunGuard(strings.NewReader(text)); err == nil {
			t.Errorf("RunGuard(%q) has no error", text)
		}
	}
}

// TestGuardKnowsFirst: a process is not what it will be before the guard has
// been told of it, and never when the nanny has ended meanwhile.
func TestGuardKnowsFirst(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DNSMASQ_TEST", "guarded")
	isSleep := func(pid int) bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return err == nil && strings.TrimSpace(string(text)) == "sleep"
	}
	t.Run("told", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		// The guard can be told nothing as long as its pipe is full.
		full := make([]byte, 1<<20)
		if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := w.Write(full)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("filling the pipe: %d octets, %v", n, err)
		}
		if err := w.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		type result struct {
			p   *process
			err error
		}
		started := make(chan result, 1)
		go func() {
			p, err := startProcess("/bin/sleep", []string{"60"}, new(lineLog), &guard{pipe: w, guarded: []string{self}})
			started <- result{p, err}
		}()
		await.Until(t, 5*time.Second, "the process is there", func() bool { return len(childrenOf(t, os.Getpid())) == 1 })
		pid := childrenOf(t, os.Getpid())[0]
		for range 30 {
			time.Sleep(10 * time.Millisecond)
			if isSleep(pid) {
				t.Fatal("the process runs, and the guard does not know of it")
			}
		}
		if _, err := io.ReadFull(r, full[:n]); err != nil {
			t.Fatal(err)
		}
		got := <-started
		if got.err != nil {
			t.Fatal(got.err)
		}
		defer got.p.stop(time.Second, nil)
		line := make([]byte, 20)
		if n, err := r.Read(line); err != nil || string(line[:n]) != fmt.Sprintln(pid) {
			t.Errorf("the guard is told %q, %v, want process %d", line[:n], err, pid)
		}
		await.Until(t, 5*time.Second, "the process runs", func() bool { return isSleep(pid) })
	})
	t.Run("the nanny has ended", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "/bin/sleep", "60")
		cmd.ExtraFiles = []*os.File{r}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		_ = w.Close()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 127 {
			t.Errorf("the process ended with %v, want status 127", err)
		}
	})
}
