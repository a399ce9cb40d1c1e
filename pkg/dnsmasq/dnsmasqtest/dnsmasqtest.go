// Package dnsmasqtest has what tests need that run the real dnsmasq.
package dnsmasqtest

import (
	"os"
	"os/exec"
	"testing"
)

// Path is dnsmasq's. Where it is not installed the test is skipped, or fails if
// CI is "true".
func Path(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		path = "/usr/sbin/dnsmasq"
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("dnsmasq is needed: %v", err)
		}
		t.Skipf("dnsmasq is not installed: %v", err)
	}
	return path
}

// Dir is a temporary folder that every user can read: dnsmasq becomes another
// one.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nanny-test-") //nolint:usetesting // t.TempDir lies in folders that others cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
