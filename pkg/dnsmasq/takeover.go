package dnsmasq

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// hupRepeat is after how long SIGHUP is sent again: dnsmasq ignores one that
// comes before it is ready.
const hupRepeat = 500 * time.Millisecond

// errOldServers is the error of a dnsmasq that is well and keeps its old servers.
var errOldServers = errors.New("it answers with its old servers")

// takeover waits for the running dnsmasq to have its new servers. They come with
// a marker, the name that serversText returns; where it is "", or dnsmasq has
// never answered, there is no way to see them, and a running dnsmasq counts as
// one that has them.
type takeover struct {
	super  *supervisor
	limits limits
}

// hangUp sends SIGHUP and returns nil once dnsmasq has the servers.
func (t takeover) hangUp(ctx context.Context, marker string) error {
	return t.await(ctx, nil, marker, true)
}

// awaitNew returns nil once a dnsmasq other than old has the servers. old may be
// nil.
func (t takeover) awaitNew(ctx context.Context, old *process, marker string) error {
	return t.await(ctx, old, marker, false)
}

// await returns errOldServers when dnsmasq goes on answering with its old
// servers for longer than limits.hup, and why it could not see them when
// limits.takeover ends.
func (t takeover) await(ctx context.Context, old *process, marker string, hup bool) error {
	ctx, cancel := context.WithTimeout(ctx, t.limits.takeover)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	err := errors.New("it is not running")
	var sent, answered time.Time // answered: first, with the old servers
	for {
		if p := t.super.running(); p != nil && p != old {
			if hup && time.Since(sent) >= hupRepeat {
				if err := p.signal(syscall.SIGHUP); err != nil {
					return err
				}
				sent = time.Now()
			}
			if marker == "" || !t.super.wasHeard() {
				return nil
			}
			ok, askErr := t.hasLoaded(ctx, marker)
			switch {
			case ok:
				return nil
			case askErr == nil && answered.IsZero():
				answered = time.Now()
				err = errOldServers
			case answered.IsZero() && ctx.Err() == nil:
				err = askErr
			case !answered.IsZero() && time.Since(answered) > t.limits.hup:
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// hasLoaded asks dnsmasq whether it has loaded the servers that come with marker.
func (t takeover) hasLoaded(ctx context.Context, marker string) (bool, error) {
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(marker), dns.TypeA)
	reply, _, err := (&dns.Client{Timeout: hupRepeat}).ExchangeContext(ctx, question, t.super.client.Addr)
	return err == nil && reply.Rcode == dns.RcodeNameError, err
}

// missing returns which of servers dnsmasq does not have, although it has loaded
// them; none where that cannot be seen.
func (t takeover) missing(ctx context.Context, servers []domainServer) ([]netip.AddrPort, error) {
	if !t.super.wasHeard() {
		return nil, nil
	}
	stats, err := t.super.client.Servers(ctx)
	if err != nil {
		return nil, err
	}
	var have []string
	for _, s := range stats {
		have = append(have, s.Addr)
	}
	return missingServers(servers, have), nil
}
