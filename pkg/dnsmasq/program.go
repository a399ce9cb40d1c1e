package dnsmasq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/golang/glog"
	"golang.org/x/sys/unix"
)

// testTimeout bounds `dnsmasq --test`, which takes some milliseconds.
const testTimeout = 5 * time.Second

// retryArgument makes dnsmasq ask again what has no answer after 500 ms, then
// after twice as long and so on. Without it dnsmasq never does. dnsmasq's own
// default of 1 s is as long as some clients wait at all; a healthy upstream that
// is slower than half a second is rare, and costs a second question.
const retryArgument = "--fast-dns-retry=500"

// transientError is a fault of the machine and not of a configuration, such as
// a full disk or a process that cannot be started. A later try may succeed.
type transientError struct{ error }

func (e transientError) Unwrap() error { return e.error }

// program is the path of a dnsmasq executable.
type program string

// test runs dnsmasq --test on args. The error has dnsmasq's own words when it
// refuses them, and is a transientError when it could not be asked.
func (p program) test(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, string(p), slices.Concat([]string{"--test"}, args)...).CombinedOutput()
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return transientError{fmt.Errorf("running %s --test: %w", p, err)}
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	reason := strings.TrimPrefix(lines[len(lines)-1], "dnsmasq: ")
	if reason == "" {
		return fmt.Errorf("running %s --test: %w", p, err)
	}
	return fmt.Errorf("refused by dnsmasq: %s", reason)
}

// capabilities are what dnsmasq and the machine allow. They decide how dnsmasq
// is started, whatever the configuration says.
type capabilities struct {
	rootUser    bool   // dnsmasq runs as root, because it cannot change its user
	fastRetry   bool   // dnsmasq knows --fast-dns-retry, and the operator has not set it
	serversFile string // dnsmasq reads its servers from this file; "": they are arguments
}

// findCapabilities tries what this dnsmasq and this machine can do. state is nil
// when there is no folder to write to.
func findCapabilities(ctx context.Context, p program, a arguments, state *stateDir) capabilities {
	c := capabilities{fastRetry: !a.fastRetry}
	if c.fastRetry && p.test(ctx, []string{retryArgument}) != nil {
		glog.Warningf("nanny: this dnsmasq has no --fast-dns-retry (2.87 has): queries in flight are lost when their server is removed")
		c.fastRetry = false
	}
	if os.Geteuid() == 0 && !a.user && !canChangeUser() {
		glog.Infof("nanny: dnsmasq runs as root: the capabilities SETUID (to change user) and KILL (to stop it afterwards) are missing")
		c.rootUser = true
	}
	switch {
	case state == nil:
	case a.serversFile:
		glog.Infof("nanny: dnsmasq's own arguments have --servers-file: every change of servers restarts dnsmasq")
	default:
		c.serversFile = state.serversFile()
	}
	return c
}

// canChangeUser reports whether a dnsmasq that root starts can become another
// user and still be sent signals.
func canChangeUser() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true
	}
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_KILL
	return data[0].Effective&needed == needed
}

// nannyArguments are those that dnsmasq gets before the operator's own: what
// the nanny depends on and the operator has not set. Of the configuration, only
// the servers and whether there are upstreams change them.
func nannyArguments(a arguments, c capabilities, upstreams bool, servers []domainServer) []string {
	var list []string
	add := func(wanted bool, arg string) {
		if wanted {
			list = append(list, arg)
		}
	}
	add(!a.foreground, "--keep-in-foreground")
	add(!a.logFacility, "--log-facility=-")
	add(!a.pidFile, "--pid-file=") // none: the nanny knows the PID, and the file system may be read-only
	add(c.rootUser, "--user=root")
	add(c.fastRetry, retryArgument)
	add(!a.noResolv && (!a.resolvFile || upstreams), "--no-resolv")
	if c.serversFile == "" {
		for _, s := range servers {
			list = append(list, "--server="+s.String())
		}
		return list
	}
	// See markerName.
	return append(list, "--servers-file="+c.serversFile, "--address=/"+markerDomain+"/127.0.0.1")
}
