package harness

import (
	"os"
	"testing"
	"time"
)

func TestParseSchedstat(t *testing.T) {
	for _, tt := range []struct {
		in          string
		ran, waited time.Duration
		ok          bool
	}{
		{"2000 3000 4\n", 2000, 3000, true},
		{"", 0, 0, false},
		{"2000 3000", 0, 0, false},
		{"x 3000 4", 0, 0, false},
		{"2000 x 4", 0, 0, false},
	} {
		if ran, waited, ok := ParseSchedstat([]byte(tt.in)); ran != tt.ran || waited != tt.waited || ok != tt.ok {
			t.Errorf("ParseSchedstat(%q) = %v, %v, %v, want %v, %v, %v", tt.in, ran, waited, ok, tt.ran, tt.waited, tt.ok)
		}
	}
	for _, file := range Schedstats(os.Getpid()) {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		if _, _, ok := ParseSchedstat(b); !ok {
			t.Errorf("%s has %q", file, b)
		}
	}
}
