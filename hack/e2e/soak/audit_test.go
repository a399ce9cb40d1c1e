package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestAuditLog has events of one watch after the other, and looks at when the
// resource counts as cut off.
func TestAuditLog(t *testing.T) {
	h := NewHistory()
	a := &AuditLog{Log: filepath.Join(t.TempDir(), "audit.log"), History: h}
	if err := a.Read(); err != nil {
		t.Errorf("before there is one: %v", err)
	}
	f, err := os.Create(a.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(text string) {
		t.Helper()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	event := func(id, verb, stage string, code int, received, at time.Time) string {
		return fmt.Sprintf(`{"kind":"Event","auditID":%q,"verb":%q,"stage":%q,"objectRef":{"resource":"services"},"responseStatus":{"code":%d},"requestReceivedTimestamp":%q,"stageTimestamp":%q}`+"\n",
			id, verb, stage, code, received.Format(time.RFC3339Nano), at.Format(time.RFC3339Nano))
	}
	cut := func(want bool) {
		t.Helper()
		if err := a.Read(); err != nil {
			t.Fatal(err)
		}
		if got := !h.CutSince(Services).IsZero(); got != want {
			t.Errorf("cut off is %v, want %v", got, want)
		}
	}
	now := time.Now
	before := now()
	if err := a.Fault(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	cut(true)
	write(event("old", "watch", "ResponseStarted", 200, before, now())) // of a request from before
	cut(true)
	write(event("l1", "list", "ResponseComplete", 500, now(), now()))
	cut(true)
	write(event("l2", "list", "ResponseComplete", 200, now(), now()))
	cut(false)
	write(event("w1", "watch", "ResponseComplete", 429, now(), now())) // it listed, and cannot watch
	cut(true)
	write(event("l3", "list", "ResponseComplete", 200, now(), now()))
	write(event("w2", "watch", "ResponseStarted", 200, now(), now()))
	cut(false)
	write(event("w2", "watch", "ResponseComplete", 200, now(), now()))
	cut(true)
	whole := event("w3", "watch", "ResponseStarted", 200, now(), now())
	write(whole[:20])
	cut(true) // half a line
	write(whole[20:])
	cut(false)
	write(`{"kind":"Event","auditID":"killed"`) // the API server was killed while it wrote
	if err := a.Fault(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	write(event("w4", "watch", "ResponseStarted", 200, now(), now()))
	cut(false)
	if lists, watches := a.Requests(); lists != 2 || watches != 3 {
		t.Errorf("%d lists and %d watches, want 2 and 3", lists, watches)
	}
}
