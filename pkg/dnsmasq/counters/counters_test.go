package counters

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"kubedns/pkg/dnsmasq/dnsmasqtest"
	"kubedns/pkg/freeport"
)

func TestParseServers(t *testing.T) {
	tests := []struct {
		name  string
		texts []string
		want  []ServerStats
		err   string
	}{
		{name: "no server", texts: []string{""}},
		{name: "no string"},
		{
			name:  "IPv4 and IPv6",
			texts: []string{"192.0.2.1#53 17 2", "2001:db8::1#5353 0 0"},
			want:  []ServerStats{{"192.0.2.1:53", 17, 2}, {"[2001:db8::1]:5353", 0, 0}},
		},
		{
			name:  "link-local with its zone",
			texts: []string{"fe80::1%eth0#53 1 1"},
			want:  []ServerStats{{"[fe80::1%eth0]:53", 1, 1}},
		},
		{name: "no port", texts: []string{"192.0.2.1 17 2"}, err: `parsing servers.bind: "192.0.2.1 17 2": no port`},
		{name: "a field short", texts: []string{"192.0.2.1#53 17"}, err: `parsing servers.bind: "192.0.2.1#53 17": 2 fields in place of 3`},
		{name: "negative", texts: []string{"192.0.2.1#53 17 -2"}, err: "invalid syntax"},
		{name: "port too large", texts: []string{"192.0.2.1#65536 1 2"}, err: "out of range"},
		{name: "no address", texts: []string{"ns.example.org#53 1 2"}, err: `ParseAddr("ns.example.org")`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseServers(test.texts)
			checkError(t, err, test.err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("parseServers(%q) (-want +got):\n%s", test.texts, diff)
			}
		})
	}
}

func TestParseCounter(t *testing.T) {
	tests := []struct {
		name  string
		texts []string
		want  uint64
		err   string
	}{
		{name: "zero", texts: []string{"0"}, want: 0},
		{name: "beyond 32 bits", texts: []string{"4294967296"}, want: 1 << 32},
		{name: "two strings", texts: []string{"1", "2"}, err: "parsing hits.bind: 2 strings in place of one"},
		{name: "no number", texts: []string{"many"}, err: `parsing hits.bind: strconv.ParseUint: parsing "many": invalid syntax`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseCounter(Hits, test.texts)
			checkError(t, err, test.err)
			if got != test.want {
				t.Errorf("parseCounter(%q) = %d, want %d", test.texts, got, test.want)
			}
		})
	}
}

// TestDnsmasq reads the counters of a real dnsmasq, before and after one
// question that its cache answers, one that is forwarded to where nobody
// listens, and one that an upstream without the zone refuses.
func TestDnsmasq(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	upstream := strings.Replace(silent.LocalAddr().String(), ":", "#", 1)
	client := startDnsmasq(t, "--cache-size=17", "--address=/here.example/192.0.2.7",
		"--server=/one.example/"+upstream, "--server=/two.example/"+upstream, "--server=/three.example/::1#5399")
	ctx := t.Context()

	for name, want := range map[string]uint64{CacheSize: 17, Insertions: 0, Evictions: 0, Misses: 0, Auth: 0} {
		if got, err := client.Counter(ctx, name); err != nil || got != want {
			t.Errorf("Counter(%s) = %d, %v, want %d", name, got, err, want)
		}
	}
	ask(t, client.Addr, "www.here.example.")
	ask(t, client.Addr, "www.one.example.")
	ask(t, client.Addr, "www.two.example.")
	if got, err := client.Counter(ctx, Misses); err != nil || got != 2 {
		t.Errorf("Counter(misses.bind) = %d, %v, want 2", got, err)
	}
	if got, err := client.Counter(ctx, Hits); err != nil || got < 1 {
		t.Errorf("Counter(hits.bind) = %d, %v, want 1 at the least", got, err)
	}
	servers, err := client.Servers(ctx)
	want := []ServerStats{{silent.LocalAddr().String(), 2, 0}, {"[::1]:5399", 0, 0}}
	if diff := cmp.Diff(want, servers); err != nil || diff != "" {
		t.Errorf("Servers: error %v (-want +got):\n%s", err, diff)
	}
	if version, err := client.Version(ctx); err != nil || !strings.HasPrefix(version, "dnsmasq-") {
		t.Errorf("Version = %q, %v", version, err)
	}
	if _, err := client.Counter(ctx, "nonesuch.bind"); !errors.Is(err, ErrNoCounter) {
		t.Errorf("Counter(nonesuch.bind): error %v, want ErrNoCounter", err)
	}
}

// TestDnsmasqServersTruncated has more servers than fit into 512 bytes.
func TestDnsmasqServersTruncated(t *testing.T) {
	var args []string
	var want []ServerStats
	for i := range 60 {
		args = append(args, fmt.Sprintf("--server=/d%d.example/192.0.2.%d#%d", i, i, 5300+i))
		want = append(want, ServerStats{Addr: fmt.Sprintf("192.0.2.%d:%d", i, 5300+i)})
	}
	client := startDnsmasq(t, args...)
	servers, err := client.Servers(t.Context())
	if diff := cmp.Diff(want, servers); err != nil || diff != "" {
		t.Errorf("Servers: error %v (-want +got):\n%s", err, diff)
	}
}

func TestDnsmasqWithoutServers(t *testing.T) {
	client := startDnsmasq(t)
	servers, err := client.Servers(t.Context())
	if err != nil || len(servers) != 0 {
		t.Errorf("Servers = %v, %v, want none", servers, err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := &Client{Addr: silent.LocalAddr().String(), Timeout: 50 * time.Millisecond}
	start := time.Now()
	if _, err := client.Version(t.Context()); err == nil || time.Since(start) > 2*time.Second {
		t.Errorf("Version after %v: error %v, want a timeout after 50ms", time.Since(start), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	client.Timeout = time.Minute
	start = time.Now()
	if _, err := client.Version(ctx); err == nil || time.Since(start) > 2*time.Second {
		t.Errorf("Version after %v: error %v, want the context's deadline to count", time.Since(start), err)
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil {
		t.Errorf("error %v, want none", err)
	}
	if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// ask sends one question and waits a moment for an answer, if there is to be
// one.
func ask(t *testing.T, addr, name string) {
	t.Helper()
	question := new(dns.Msg)
	question.SetQuestion(name, dns.TypeA)
	_, _, _ = (&dns.Client{Timeout: 100 * time.Millisecond}).ExchangeContext(t.Context(), question, addr)
}

// startDnsmasq runs dnsmasq on a free port of 127.0.0.1 until the test ends.
func startDnsmasq(t *testing.T, args ...string) *Client {
	t.Helper()
	addr := freeport.Addr(t)
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(dnsmasqtest.Path(t), append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
		"--pid-file=", "--log-facility=-", "--listen-address=127.0.0.1", "--bind-interfaces", "--port=" + port}, args...)...)
	if os.Geteuid() == 0 {
		cmd.Args = append(cmd.Args, "--user=root")
	}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting dnsmasq: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dnsmasq wrote:\n%s", output.String())
		}
	})
	client := &Client{Addr: addr, Timeout: time.Second}
	for deadline := time.Now().Add(5 * time.Second); ; {
		_, err := client.Version(t.Context())
		if err == nil {
			return client
		}
		if time.Now().After(deadline) {
			t.Fatalf("dnsmasq does not answer: %v", err)
		}
	}
}
