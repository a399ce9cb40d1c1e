package harness

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockTick is USER_HZ, the unit of processor time in /proc, on every Linux.
const clockTick = time.Second / 100

// A Usage is what a process has used.
type Usage struct {
	CPU      time.Duration
	RSS, HWM int // kB; HWM is the highest RSS there was
}

// ProcessUsage reads what the process has used.
func ProcessUsage(t testing.TB, pid int) Usage {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may have blanks.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var u Usage
	for _, i := range []int{11, 12} { // utime, stime
		ticks, err := strconv.Atoi(fields[i])
		if err != nil {
			t.Fatal(err)
		}
		u.CPU += time.Duration(ticks) * clockTick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch n, _ := strconv.Atoi(fields[1]); fields[0] {
		case "VmRSS:":
			u.RSS = n
		case "VmHWM:":
			u.HWM = n
		}
	}
	return u
}
