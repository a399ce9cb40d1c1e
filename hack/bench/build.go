package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// binaries are the paths of the programs.
type binaries struct {
	kubeDNS, coreDNS, echo, self string
	coreDNSVersion               string
}

// tool is a program of the system, and the Debian package that has it.
type tool struct{ name, pkg string }

var tools = []tool{{"nsd", "nsd"}, {"dnsmasq", "dnsmasq-base"}, {"dnsperf", "dnsperf"}}

// find is the path of a program of the system, which may be where only root's
// PATH looks.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		if path, serr := exec.LookPath("/usr/sbin/" + name); serr == nil {
			return path, nil
		}
	}
	return path, err
}

// needTools installs the Debian packages that are missing, where that is
// possible, and says so.
func needTools(ctx context.Context) error {
	var missing []string
	for _, t := range tools {
		if _, err := find(t.name); err != nil {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	install := append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, missing...)
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%s missing; on Debian, as root: %s", strings.Join(missing, ", "), strings.Join(install, " "))
	}
	say("%s", strings.Join(install, " "))
	// RUNLEVEL=1 keeps the packages from starting their servers.
	_, err := command(ctx, "", []string{"DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"}, install...)
	return err
}

// command runs a program to its end and returns what it wrote to standard
// output.
func command(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// build builds kube-dns, the echo and CoreDNS, the last only where the cache
// does not have it.
func (b *bench) build(ctx context.Context) error {
	var err error
	if b.bins.self, err = os.Executable(); err != nil {
		return err
	}
	say("building kube-dns and the echo")
	version, revision := b.git(ctx)
	b.bins.kubeDNS = filepath.Join(b.dir, "kube-dns")
	ldflags := "-s -w -X kubedns/pkg/version.Version=" + version + " -X kubedns/pkg/version.Revision=" + revision
	if err := goBuild(ctx, b.top, b.bins.kubeDNS, ldflags, "./cmd/kube-dns"); err != nil {
		return err
	}
	b.bins.echo = filepath.Join(b.dir, "echo")
	if err := goBuild(ctx, filepath.Join(b.top, "hack/bench"), b.bins.echo, "-s -w", "./echo"); err != nil {
		return err
	}
	return b.buildCoreDNS(ctx)
}

func goBuild(ctx context.Context, dir, out, ldflags, pkg string) error {
	_, err := command(ctx, dir, []string{"CGO_ENABLED=0", "GOWORK=off"},
		"go", "build", "-mod=readonly", "-trimpath", "-ldflags", ldflags, "-o", out, pkg)
	return err
}

// git is the version of kube-dns's source, as the Makefile has it.
func (b *bench) git(ctx context.Context) (version, revision string) {
	version, revision = "dev", "unknown"
	if out, err := command(ctx, b.top, nil, "git", "describe", "--tags", "--always", "--dirty"); err == nil {
		version = strings.TrimSpace(out)
	}
	if out, err := command(ctx, b.top, nil, "git", "rev-parse", "HEAD"); err == nil {
		revision = strings.TrimSpace(out)
	}
	return version, revision
}

func (b *bench) buildCoreDNS(ctx context.Context) error {
	dir := filepath.Join(b.top, "hack/bench/coredns")
	out, err := command(ctx, dir, []string{"GOWORK=off"}, "go", "list", "-m", "-f", "{{.Version}}", "github.com/coredns/coredns")
	if err != nil {
		return err
	}
	b.bins.coreDNSVersion = strings.TrimSpace(out)
	b.bins.coreDNS = filepath.Join(b.cache, "coredns-"+b.bins.coreDNSVersion+"-"+runtime.Version(), "coredns")
	if _, err := os.Stat(b.bins.coreDNS); err == nil {
		return nil
	}
	say("building CoreDNS %s; the first time this takes minutes", b.bins.coreDNSVersion)
	tmp := b.bins.coreDNS + ".new"
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(tmp), 0o755),
		goBuild(ctx, dir, tmp, "-s -w", "."),
	); err != nil {
		return err
	}
	return os.Rename(tmp, b.bins.coreDNS)
}

// versions says of every program which it is.
func (b *bench) versions(ctx context.Context) (map[string]string, error) {
	v := map[string]string{"CoreDNS": strings.TrimPrefix(b.bins.coreDNSVersion, "v")}
	out, err := command(ctx, "", nil, b.bins.kubeDNS, "--version")
	if err != nil {
		return nil, err
	}
	if f := strings.Fields(out); len(f) > 1 { // "kube-dns v1.2.3 (0123abc)"
		v["kube-dns"] = f[1]
	}
	for _, t := range []struct{ title, name, flag string }{{"NSD", "nsd", "-v"}, {"dnsmasq", "dnsmasq", "--version"}, {"dnsperf", "dnsperf", "-h"}} {
		path, err := find(t.name)
		if err != nil {
			return nil, err
		}
		// Some write it to standard error, and some exit with 1 after it.
		text, err := exec.CommandContext(ctx, path, t.flag).CombinedOutput()
		if v[t.title] = parseVersion(string(text)); v[t.title] == "" {
			return nil, fmt.Errorf("no version in what %s %s says: %s (%w)", path, t.flag, text, err)
		}
	}
	return v, nil
}

// parseVersion is the word behind the first "version" in what a program says
// of itself; "" without.
func parseVersion(text string) string {
	words := strings.Fields(text)
	for i, w := range words[:max(len(words)-1, 0)] {
		if strings.EqualFold(w, "version") {
			return words[i+1]
		}
	}
	return ""
}
