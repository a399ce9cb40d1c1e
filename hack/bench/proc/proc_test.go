package proc

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 7 100 100 0 -1 4194560 1 2 3 4 250 50 20 5 20 0 9 0 12345 1 2"
	tests := []struct {
		name, in string
		want     Stat
		err      bool
	}{
		{"plain", "42 (nsd)" + rest, Stat{PID: 42, Parent: 7, CPU: 3250 * time.Millisecond}, false},
		{"name with blanks and parentheses", "42 (nsd: main) (x)" + rest, Stat{PID: 42, Parent: 7, CPU: 3250 * time.Millisecond}, false},
		{"no name", "42 nsd" + rest, Stat{}, true},
		{"cut short", "42 (nsd) S 7 100 100 0 -1 4194560 1 2 3 4 250", Stat{}, true},
		{"no number", "42 (nsd) S 7 100 100 0 -1 4194560 1 2 3 4 a 50 20 5", Stat{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseStat([]byte(tt.in))
			if got != tt.want || (err != nil) != tt.err {
				t.Errorf("ParseStat(%q) = %+v, %v; want %+v, error %t", tt.in, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestField(t *testing.T) {
	const status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	for name, want := range map[string]int64{"VmRSS:": 1 << 20, "VmHWM:": 2 << 20} {
		if got, err := field([]byte(status), name); got != want || err != nil {
			t.Errorf("field(%s) = %d, %v; want %d", name, got, err, want)
		}
	}
	if _, err := field([]byte(status), "Pss:"); err == nil {
		t.Error("field(Pss:) found what is not there")
	}
}

func TestParseCPUInfo(t *testing.T) {
	const amd = "processor\t: 0\nmodel name\t: Example CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Example CPU @ 2 GHz\n"
	if name, n := parseCPUInfo([]byte(amd)); name != "Example CPU @ 2 GHz" || n != 2 {
		t.Errorf("parseCPUInfo = %q, %d", name, n)
	}
	if name, n := parseCPUInfo([]byte("processor : 0\n")); name != "unknown" || n != 1 {
		t.Errorf("parseCPUInfo without a name = %q, %d", name, n)
	}
}

// A shell that burns time in a child that ends, and then has one that stays:
// both belong to the tree, and the time of the one that ended is not lost.
func TestUsageOfTree(t *testing.T) {
	sh, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	p, err := Start(nil, sh, "-c", `( i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done ) ; sleep 60 & echo ready; wait`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(time.Second); err != nil {
			t.Error(err)
		}
	})
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(p.Log.String(), "ready") {
		if time.Now().After(deadline) {
			t.Fatalf("the shell is not ready; it says %q", p.Log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	tree, err := Tree(p.PID())
	if err != nil || len(tree) != 2 || tree[0] != p.PID() {
		t.Errorf("Tree = %v, %v; want %d and its child", tree, err, p.PID())
	}
	u, err := p.Usage()
	if err != nil || u.CPU < clockTick || u.RSS < 100<<10 {
		t.Errorf("Usage = %+v, %v; want some of both", u, err)
	}
	rss, highest, err := p.Memory()
	if err != nil || rss <= 0 || highest < rss {
		t.Errorf("Memory = %d, %d, %v", rss, highest, err)
	}
	if err := p.ResetHighest(); err != nil {
		t.Error(err)
	}
}

func TestStopEndsTheGroup(t *testing.T) {
	sh, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	p, err := Start(nil, sh, "-c", `trap "" TERM; sleep 60 & echo $!; wait; sleep 60`)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for p.Log.String() == "" && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	child := strings.TrimSpace(p.Log.String())
	if err := p.Stop(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	// The child is killed with its group, and reaped by init.
	for time.Now().Before(deadline) {
		data, err := os.ReadFile("/proc/" + child + "/stat")
		if err != nil || slices.Contains(strings.Fields(string(data)), "Z") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s outlived the one that started it", child)
}

func TestReadMachine(t *testing.T) {
	m, err := ReadMachine()
	if err != nil || m.Cores < 1 || m.Memory == 0 || !strings.HasPrefix(m.Kernel, "Linux ") {
		t.Errorf("ReadMachine = %+v, %v", m, err)
	}
}
