package site

import (
	"testing"
	"time"

	"kubedns/pkg/dns"
)

// A ConfigMap's failure is over once an update of it came; nobody tells so of
// itself.
func TestFailures(t *testing.T) {
	failed := time.Unix(1000, 0)
	known := dns.Status{LastContact: failed, Failures: []dns.WatchFailure{
		{Resource: "configmaps", Err: "forbidden", Time: failed}, {Resource: "services", Err: "no route", Time: failed},
	}}
	for configured, want := range map[time.Time]int{{}: 2, failed.Add(-time.Second): 2, failed.Add(time.Second): 1} {
		got := apiServerOf(known, configured)
		if len(got.Failures) != want || got.Failures[want-1] != (watchFailure{"services", "no route", failed}) || got.LastContact != failed {
			t.Errorf("configured at %v: %+v, want %d failures", configured, got, want)
		}
	}
}
