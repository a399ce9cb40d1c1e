package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// dnsmasq runs the real one on a free port of 127.0.0.1 until the test ends.
func dnsmasq(t *testing.T, args ...string) netip.AddrPort {
	t.Helper()
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("needs dnsmasq: ", err)
	}
	for range 10 {
		if addr, ok := startDnsmasq(t, path, args); ok {
			return addr
		}
	}
	t.Fatal("every port that was free was taken when dnsmasq came")
	return netip.AddrPort{}
}

// startDnsmasq returns false where somebody took the port in between.
func startDnsmasq(t *testing.T, path string, args []string) (netip.AddrPort, bool) {
	t.Helper()
	packets, listener := bothFree(t)
	addr := packets.LocalAddr().(*net.UDPAddr).AddrPort()
	packets.Close()
	listener.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, append([]string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=", "--group=", "--pid-file=",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--log-facility=-", fmt.Sprintf("--port=%d", addr.Port()),
	}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("dnsmasq said:\n%s", &output)
		}
	})
	client := &dns.Client{Timeout: 200 * time.Millisecond}
	taken := false
	eventually(t, "dnsmasq answers", func() bool {
		select {
		case <-ended:
			if strings.Contains(output.String(), "Address already in use") {
				taken = true
				return true
			}
			t.Fatalf("dnsmasq ended:\n%s", &output)
		default:
		}
		_, _, err := client.Exchange(question("started.example.org.", dns.TypeA), addr.String())
		return err == nil
	})
	return addr, !taken
}

func TestDnsmasq(t *testing.T) {
	args := []string{"--address=/fixed.example.org/192.0.2.9", "--local=/example.org/", "--local-ttl=42"}
	for i := range 12 {
		args = append(args, fmt.Sprintf("--txt-record=big.example.org,%d%s", i, strings.Repeat("x", 240)))
	}
	addr := dnsmasq(t, args...)
	f := New(Options{Timeout: 20 * time.Second})
	f.SetNameservers([]netip.AddrPort{addr})
	ask := func(name string, qtype uint16) *dns.Msg {
		t.Helper()
		got, from, err := f.Exchange(t.Context(), question(name, qtype), false)
		if err != nil || from != addr {
			t.Fatalf("%s: from %v, error %v", name, from, err)
		}
		return got
	}
	if got := ask("Fixed.example.org.", dns.TypeA); addresses(got) != "192.0.2.9" || got.Answer[0].Header().Ttl != 42 || got.Question[0].Name != "Fixed.example.org." || !got.RecursionAvailable {
		t.Errorf("A:\n%v", got)
	}
	if got := ask("big.example.org.", dns.TypeTXT); got.Truncated || len(got.Answer) != 12 {
		t.Errorf("3 KB of TXT, over TCP: truncated %v, %d records", got.Truncated, len(got.Answer))
	}
	if got := ask("none.example.org.", dns.TypeA); got.Rcode != dns.RcodeNameError {
		t.Errorf("NXDOMAIN:\n%v", got)
	}
	if h := f.Health()[0]; h.Failing || h.Failures != 0 || h.Questions != 3 {
		t.Errorf("health %+v", h)
	}
	// It has no upstream for other domains.
	if got := ask("example.net.", dns.TypeA); got.Rcode != dns.RcodeRefused {
		t.Errorf("REFUSED:\n%v", got)
	}
	if h := f.Health()[0]; !h.Failing || h.LastError != "rcode REFUSED" {
		t.Errorf("health %+v", h)
	}

	// Another one that was stopped: its port is closed, and the first one answers.
	t.Run("stopped", func(t *testing.T) {
		var second netip.AddrPort
		t.Run("up", func(t *testing.T) { second = dnsmasq(t, args...) })
		f.SetNameservers([]netip.AddrPort{second})
		if _, _, err := f.Exchange(t.Context(), question("fixed.example.org.", dns.TypeA), false); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("stopped dnsmasq: error %v", err)
		}
		f.SetNameservers([]netip.AddrPort{second, addr})
		if got := ask("fixed.example.org.", dns.TypeA); addresses(got) != "192.0.2.9" {
			t.Errorf("from the other:\n%v", got)
		}
	})
}
