// Package await has tests wait for what other goroutines and programs do.
package await

import (
	"testing"
	"time"
)

// Until waits until ok, which says whether what is so, and fails the test if
// that takes longer than within. ok may take as long as it likes; it is called
// from the test's goroutine.
func Until(tb testing.TB, within time.Duration, what string, ok func() bool) {
	tb.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(within); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", within, what)
		}
	}
}
