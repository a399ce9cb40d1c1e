package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/e2e/process"
)

// Require skips the test because of missing, or fails it where CI=true: a
// machine that is to run all tests must be able to.
func Require(t testing.TB, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI=true, and %v", missing)
	}
	t.Skip(missing)
}

// FindDNSMasq returns dnsmasq's path; where there is none, Require decides.
func FindDNSMasq(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"dnsmasq", "/usr/sbin/dnsmasq", "/usr/local/sbin/dnsmasq"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Require(t, fmt.Errorf("dnsmasq is not installed"))
	return ""
}

// StartUpstream starts dnsmasq with the configuration in file as an upstream
// nameserver and returns its host:port. It ends with the test.
func StartUpstream(t testing.TB, file string) string {
	t.Helper()
	path := FindDNSMasq(t)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Options{}, path, "--keep-in-foreground", "--conf-file="+file,
		"--port="+strconv.Itoa(port), "--listen-address=127.0.0.1", "--bind-interfaces",
		"--user="+me.Username, "--pid-file=", "--log-facility=-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(syscall.SIGTERM); err != nil {
			t.Errorf("stopping the upstream dnsmasq: %v", err)
		}
	})
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	Eventually(t, 10*time.Second, func() error {
		select {
		case <-p.Exited():
			t.Fatalf("the upstream dnsmasq ended: %s", p.Log.Tail(1000))
		default:
		}
		_, err := Ask(t.Context(), Question{Server: addr, Name: "version.bind.", Type: dns.TypeTXT, Class: dns.ClassCHAOS})
		return err
	})
	return addr
}
