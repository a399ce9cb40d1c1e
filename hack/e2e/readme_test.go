package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
)

// readmeCommand is a command of the README and what it is said to print;
// nothing where the README leaves it out.
type readmeCommand struct{ line, output string }

// readmeCommands are those of the block behind a heading.
func readmeCommands(t *testing.T, heading string) []readmeCommand {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(b), "\n## "+heading+"\n")
	_, block, opens := strings.Cut(section, "\n```\n")
	block, _, closes := strings.Cut(block, "\n```\n")
	if !found || !opens || !closes {
		t.Fatalf("no block of commands behind %q", heading)
	}
	var commands []readmeCommand
	for line := range strings.SplitSeq(block, "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, readmeCommand{line: command})
		} else if n := len(commands); n > 0 {
			commands[n-1].output += line + "\n"
		}
	}
	if len(commands) == 0 {
		t.Fatalf("no command behind %q", heading)
	}
	return commands
}

// TestReadme does what the README says: make run, and while that runs the
// commands to look into a running one, each of which prints what it says. At
// the end an interrupt ends everything.
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
		replace = append(replace, ":"+port+"/", ":"+own+"/", "-p "+port+" ", "-p "+own+" ")
	}
	onOwnPorts := strings.NewReplacer(replace...)

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

	for _, c := range readmeCommands(t, "Look into a running one") {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", onOwnPorts.Replace(c.line)).Output()
		if err != nil || len(out) == 0 || c.output != "" && string(out) != c.output {
			t.Errorf("%s\nprints %q, %v; the README has %q", c.line, out, err, c.output)
		}
	}

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
