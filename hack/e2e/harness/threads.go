package harness

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Schedstats are the files that tell how long each thread of a process has run
// and waited; ParseSchedstat reads one. There are none where the process has
// ended, or the kernel does not tell.
func Schedstats(pid int) []string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well formed
	return files
}

// ParseSchedstat is how long a thread has run so far, and how long it has
// waited for a processor while it could have run (the kernel's
// Documentation/scheduler/sched-stats.rst). ok is false where b is no such
// file's content.
func ParseSchedstat(b []byte) (ran, waited time.Duration, ok bool) {
	fields := strings.Fields(string(b))
	if len(fields) != 3 {
		return 0, 0, false
	}
	r, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	w, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	return time.Duration(r), time.Duration(w), true
}
