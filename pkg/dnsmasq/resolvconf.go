package dnsmasq

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/golang/glog"
)

// defaultResolvConf is resolv.conf(5).
const defaultResolvConf = "/etc/resolv.conf"

// resolvPeriod is how often resolv.conf is looked at, which is as often as
// dnsmasq would without inotify.
const resolvPeriod = time.Second

// parseResolvConf returns the nameservers of a resolv.conf(5), in its order,
// without those that are no addresses.
func parseResolvConf(text []byte) []netip.AddrPort {
	var nameservers []netip.AddrPort
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil && !addr.IsUnspecified() && !addr.IsMulticast() {
			nameservers = append(nameservers, netip.AddrPortFrom(addr.Unmap(), 53))
		}
	}
	return nameservers
}

// resolvConf follows a resolv.conf.
type resolvConf struct {
	path   string
	period time.Duration
	text   []byte
	last   []netip.AddrPort
	warned bool
}

// read returns the nameservers that count. A file that cannot be read or has
// none leaves those that were: somebody may be about to write it, as dnsmasq
// also thinks.
func (r *resolvConf) read() []netip.AddrPort {
	text, err := os.ReadFile(r.path)
	if err == nil && r.text != nil && bytes.Equal(text, r.text) {
		return r.last
	}
	all := parseResolvConf(text)
	nameservers := slices.DeleteFunc(slices.Clone(all), hasUnknownZone)
	if err != nil || len(nameservers) == 0 {
		if !r.warned {
			r.warned = true
			glog.Warningf("dnsmasq: %s has no nameservers (%v), those known before are kept: %v", r.path, err, r.last)
		}
		return r.last
	}
	r.warned = false
	if len(nameservers) < len(all) {
		// The interface may come, so that the same text has to be read again.
		if !slices.Equal(nameservers, r.last) {
			glog.Warningf("dnsmasq: %s has nameservers %v, of which those at interfaces that are not there are left out", r.path, all)
		}
		r.text, r.last = nil, nameservers
		return nameservers
	}
	r.text, r.last = text, nameservers
	return nameservers
}

// hasUnknownZone tells whether a link-local address names an interface that is
// not there, which dnsmasq takes for a bad command line.
func hasUnknownZone(addr netip.AddrPort) bool {
	zone := addr.Addr().Zone()
	if zone == "" {
		return false
	}
	_, err := net.InterfaceByName(zone)
	return err != nil
}

// Run reports the nameservers each time that they change, until ctx is done.
// read must not be called meanwhile.
func (r *resolvConf) Run(ctx context.Context, report func([]netip.AddrPort)) error {
	ticker := time.NewTicker(r.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		before := r.last
		if now := r.read(); !slices.Equal(before, now) {
			report(now)
		}
	}
}
