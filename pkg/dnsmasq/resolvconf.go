package dnsmasq

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/resolvconf"
)

// resolvConf follows a resolv.conf.
type resolvConf struct {
	path   string
	period time.Duration
	text   []byte           // of last; nil when it has to be read again
	last   []netip.AddrPort // nameservers that count
	warned bool
}

// read returns the nameservers that count. It keeps the last ones when the file
// cannot be read or has none, as dnsmasq does: it may be about to be written.
func (r *resolvConf) read() []netip.AddrPort {
	text, err := os.ReadFile(r.path)
	if err == nil && r.text != nil && bytes.Equal(text, r.text) {
		return r.last
	}
	all, parseErr := parseNameservers(text)
	err = cmp.Or(err, parseErr)
	nameservers := slices.DeleteFunc(slices.Clone(all), hasUnknownZone)
	if err != nil || len(nameservers) == 0 {
		if !r.warned {
			r.warned = true
			glog.Warningf("nanny: keeping the previous nameservers %v: %v", r.last, cmp.Or(err, fmt.Errorf("%s has none", r.path)))
		}
		return r.last
	}
	r.warned = false
	if len(nameservers) < len(all) {
		// The interface may come, so that the same text has to be read again.
		if !slices.Equal(nameservers, r.last) {
			glog.Warningf("nanny: %s has nameservers %v, ignoring those on unknown interfaces", r.path, all)
		}
		r.text, r.last = nil, nameservers
		return nameservers
	}
	r.text, r.last = text, nameservers
	return nameservers
}

// parseNameservers returns the nameservers that can be asked, in the file's order.
func parseNameservers(text []byte) ([]netip.AddrPort, error) {
	nameservers, _, err := resolvconf.Parse(bytes.NewReader(text))
	return slices.DeleteFunc(nameservers, func(a netip.AddrPort) bool {
		return a.Addr().IsUnspecified() || a.Addr().IsMulticast()
	}), err
}

// hasUnknownZone reports whether a link-local address names an interface that
// does not exist, which dnsmasq takes for a bad command line.
func hasUnknownZone(addr netip.AddrPort) bool {
	zone := addr.Addr().Zone()
	if zone == "" {
		return false
	}
	_, err := net.InterfaceByName(zone)
	return err != nil
}

// Run reports the nameservers whenever they change, until ctx is done. read must
// not be called meanwhile.
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
