package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// Stat is what is read of /proc/PID/stat.
type Stat struct {
	PID, Parent int
	// CPU is the time spent in user and kernel mode, by the process and by
	// those of its children that have ended and been waited for.
	CPU time.Duration
}

// ParseStat parses /proc/PID/stat, whose second field, the program's name in
// parentheses, may have blanks and parentheses in it.
func ParseStat(data []byte) (Stat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Stat{}, fmt.Errorf("no name in %q", data)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data[:open])))
	if err != nil {
		return Stat{}, fmt.Errorf("the number in %q: %w", data, err)
	}
	// Field 3, the state, is the first here (proc(5)).
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 15 {
		return Stat{}, fmt.Errorf("%d fields behind the name in %q, want 15", len(fields), data)
	}
	s := Stat{PID: pid}
	if s.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return Stat{}, fmt.Errorf("the parent in %q: %w", data, err)
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return Stat{}, fmt.Errorf("a time in %q: %w", data, err)
		}
		s.CPU += time.Duration(ticks) * clockTick
	}
	return s, nil
}

// Tree is the process pid and all its descendants that run now, pid first.
func Tree(pid int) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		if s, err := ParseStat(data); err == nil {
			children[s.Parent] = append(children[s.Parent], s.PID)
		}
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

// field is the size, in bytes, of a line "Name:   123 kB".
func field(data []byte, name string) (int64, error) {
	for line := range strings.Lines(string(data)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the size in %q: %w", line, err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("no %s", name)
}

// Machine is what the figures were measured on.
type Machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	Memory    int64  `json:"memoryBytes"`
	Kernel    string `json:"kernel"`
}

// ReadMachine describes this machine, from /proc.
func ReadMachine() (Machine, error) {
	cpuinfo, err1 := os.ReadFile("/proc/cpuinfo")
	meminfo, err2 := os.ReadFile("/proc/meminfo")
	release, err3 := os.ReadFile("/proc/sys/kernel/osrelease")
	if err := errors.Join(err1, err2, err3); err != nil {
		return Machine{}, err
	}
	m := Machine{Kernel: "Linux " + strings.TrimSpace(string(release))}
	m.Processor, m.Cores = parseCPUInfo(cpuinfo)
	var err error
	m.Memory, err = field(meminfo, "MemTotal:")
	return m, err
}

// parseCPUInfo is the processor's name, "unknown" where /proc/cpuinfo has
// none, as on some ARM machines, and how many there are.
func parseCPUInfo(data []byte) (name string, cores int) {
	name = "unknown"
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "processor":
			cores++
		case "model name":
			name = strings.TrimSpace(value)
		}
	}
	return name, cores
}
