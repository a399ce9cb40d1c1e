package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
)

// readmeCommand is a command on a page and what it is said to print; nothing
// where the page leaves it out.
type readmeCommand struct{ line, output string }

// readPage reads a page at its path from the top of the work tree.
func readPage(t *testing.T, page string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// commandBlock is the first block of commands behind a heading of the page.
func commandBlock(t *testing.T, page, heading string) string {
	t.Helper()
	_, section, found := strings.Cut(readPage(t, page), "\n## "+heading+"\n")
	_, block, opens := strings.Cut(section, "\n```\n")
	block, _, closes := strings.Cut(block, "\n```\n")
	if !found || !opens || !closes {
		t.Fatalf("%s: no block of commands behind %q", page, heading)
	}
	return block
}

// readmeCommands are those of the block behind a heading of the page.
func readmeCommands(t *testing.T, page, heading string) []readmeCommand {
	t.Helper()
	block := commandBlock(t, page, heading)
	var commands []readmeCommand
	for line := range strings.SplitSeq(block, "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, readmeCommand{line: command})
		} else if n := len(commands); n > 0 {
			commands[n-1].output += line + "\n"
		}
	}
	if len(commands) == 0 {
		t.Fatalf("%s: no command behind %q", page, heading)
	}
	return commands
}

// TestReadme does what README.md says: make run; and while that runs, the
// commands of docs/try.md, each of which prints what it says there.
// docs/metrics.md has each metric that the programs export meanwhile. At the
// end an interrupt ends everything.
func TestReadme(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"make", "dig", "curl", "dnsmasq"} {
		if _, err := exec.LookPath(name); err != nil {
			harness.Require(t, fmt.Errorf("%s is missing: %w", name, err))
		}
	}
	ports := []string{"DNS_PORT=10053", "HEALTH_PORT=8081", "METRICS_PORT=10055", "UPSTREAM_PORT=10153", "DNSMASQ_PORT=5353", "SIDECAR_PORT=10054"}
	free, err := harness.FreePorts(len(ports))
	if err != nil {
		t.Fatal(err)
	}
	env := os.Environ()
	var replace []string
	for i, p := range ports {
		name, port, _ := strings.Cut(p, "=")
		own := strconv.Itoa(free[i])
		env = append(env, name+"="+own)
		replace = append(replace, ":"+port+"/", ":"+own+"/", "-p "+port+" ", "-p "+own+" ", ":"+port+"\n", ":"+own+"\n")
	}
	onOwnPorts := strings.NewReplacer(replace...)

	words := strings.Fields(commandBlock(t, "README.md", "Run it, test it"))
	if !slices.Equal(words, []string{"make", "run", "make", "test"}) {
		t.Errorf("README.md has the commands %q, want make run and make test", words)
	}
	run := exec.CommandContext(t.Context(), "make", "-C", "../..", "run")
	env = append(env, "KUBECONFIG=", "MAKEFLAGS=")
	run.Env = env
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	run.Stderr = os.Stderr
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	group := -run.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(group, syscall.SIGKILL) })
	said := make(chan string, 1)
	go func() {
		var text strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			text.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "The logs are") {
				said <- text.String()
			}
		}
		close(said)
	}()
	select {
	case text := <-said:
		for _, want := range []string{"10.96.0.1", "NXDOMAIN", "wiki.corp.example", `"IsOk":true`, "until you press ctrl-C"} {
			if !strings.Contains(text, want) {
				t.Errorf("make run does not say %q:\n%s", want, text)
			}
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("make run has not shown everything")
	}

	for _, c := range readmeCommands(t, "docs/try.md", "Ask it") {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", onOwnPorts.Replace(c.line+"\n"))
		cmd.Dir = "../.."
		out, err := cmd.Output()
		if err != nil || len(out) == 0 || c.output != "" && string(out) != c.output {
			t.Errorf("%s\nprints %q, %v; the page has %q", c.line, out, err, c.output)
		}
	}
	checkMetricsPage(t, onOwnPorts.Replace("http://127.0.0.1:10055/metrics"), onOwnPorts.Replace("http://127.0.0.1:10054/metrics"))

	if err := syscall.Kill(group, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	select {
	case err := <-ended:
		t.Logf("make run ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("an interrupt does not end it")
	}
	harness.Eventually(t, 10*time.Second, func() error {
		if err := syscall.Kill(group, 0); err == nil {
			return fmt.Errorf("something of its process group lives")
		}
		return nil
	})
}

var (
	exportedMetric = regexp.MustCompile(`(?m)^# TYPE ((?:kubedns|skydns)_\w+) `)
	pageMetric     = regexp.MustCompile("`((?:kubedns|skydns)_[a-z_<>]+)[`{]")
	probeMetric    = regexp.MustCompile(`^(kubedns_probe)_(?:kubedns|dnsmasq|through)_(latency_ms|errors)$`)
)

// checkMetricsPage wants each metric that is exported at the URLs on
// docs/metrics.md, and no other there but those that the nanny has, which
// `make run` starts without metrics, or that have no value yet.
func checkMetricsPage(t *testing.T, urls ...string) {
	t.Helper()
	documented, exported := map[string]bool{}, map[string]bool{}
	for _, m := range pageMetric.FindAllStringSubmatch(readPage(t, "docs/metrics.md"), -1) {
		documented[m[1]] = true
	}
	for _, url := range urls {
		out, err := exec.CommandContext(t.Context(), "curl", "-sf", url).Output()
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		for _, m := range exportedMetric.FindAllSubmatch(out, -1) {
			exported[probeMetric.ReplaceAllString(string(m[1]), "${1}_<label>_$2")] = true
		}
	}
	if len(exported) < 30 {
		t.Errorf("only %d metrics are exported", len(exported))
	}
	for name := range exported {
		if !documented[name] {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	source := programSource(t)
	for name := range documented {
		if !exported[name] && !strings.Contains(source, `"`+name+`"`) {
			t.Errorf("docs/metrics.md has %s, which no program exports", name)
		}
	}
}
