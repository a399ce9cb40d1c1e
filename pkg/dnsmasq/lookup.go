package dnsmasq

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"
)

const (
	lookupTimeout = 5 * time.Second
	minTTL        = 5 * time.Second
	maxTTL        = 5 * time.Minute
	// unknownTTL is for answers without a visible TTL: from /etc/hosts, or
	// over TCP.
	unknownTTL = 30 * time.Second
)

// resolver resolves the names of servers: those in the cluster's domains at
// kube-dns, the others as the system does.
type resolver struct {
	kubedns        string   // host:port
	clusterDomains []string // lower case, without dots around them
}

// lookup returns a name's addresses, sorted, and their TTL.
func (r *resolver) lookup(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var ttl ttlRecorder
	inCluster := r.inCluster(host)
	system := net.Resolver{PreferGo: true, Dial: func(dialCtx context.Context, network, address string) (net.Conn, error) {
		if inCluster {
			address = r.kubedns
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		conn, err := (&net.Dialer{}).DialContext(dialCtx, network, address)
		if err != nil {
			return nil, err
		}
		// The resolver itself lets a query that is no longer wanted run into
		// its timeout.
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if udp, ok := conn.(*net.UDPConn); ok {
			return &ttlConn{UDPConn: udp, ttl: &ttl}, nil
		}
		return conn, nil
	}}
	if strings.Contains(host, ".") {
		host += "." // not to be completed by resolv.conf's search list
	}
	addrs, err := system.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, 0, err
	}
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), ttl.get(), nil
}

func (r *resolver) inCluster(host string) bool {
	for _, domain := range r.clusterDomains {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

// ttlRecorder keeps the smallest TTL of the answers recorded.
type ttlRecorder struct {
	mu   sync.Mutex
	seen bool
	ttl  time.Duration
}

func (t *ttlRecorder) record(packet []byte) {
	var m dns.Msg
	if m.Unpack(packet) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rr := range m.Answer {
		if ttl := time.Duration(rr.Header().Ttl) * time.Second; !t.seen || ttl < t.ttl {
			t.seen, t.ttl = true, ttl
		}
	}
}

func (t *ttlRecorder) get() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.seen {
		return unknownTTL
	}
	return min(max(t.ttl, minTTL), maxTTL)
}

// ttlConn is a connection of the system's resolver that records the TTLs of
// answers: package net returns addresses alone.
type ttlConn struct {
	*net.UDPConn
	ttl *ttlRecorder
}

func (c *ttlConn) Read(b []byte) (int, error) {
	n, err := c.UDPConn.Read(b)
	if err == nil {
		c.ttl.record(b[:n])
	}
	return n, err
}

// names keeps the addresses of the servers' names up to date.
type names struct {
	lookup  func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error)
	changed chan struct{} // buffered, one: new addresses, or fewer names pending

	wg      sync.WaitGroup
	mu      sync.Mutex
	entries map[string]*nameEntry
}

type nameEntry struct {
	cancel context.CancelFunc
	looked bool // the first lookup has ended
	addrs  []netip.Addr
	failed bool // the last lookup failed
}

func newNames(lookup func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error)) *names {
	return &names{lookup: lookup, changed: make(chan struct{}, 1), entries: map[string]*nameEntry{}}
}

// want makes hosts the names that are looked up, until ctx is done. Addresses of
// those that were wanted before stay known.
func (n *names) want(ctx context.Context, hosts []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for host, entry := range n.entries {
		if !slices.Contains(hosts, host) {
			entry.cancel()
			delete(n.entries, host)
		}
	}
	for _, host := range hosts {
		if _, ok := n.entries[host]; ok {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		entry := &nameEntry{cancel: cancel}
		n.entries[host] = entry
		n.wg.Go(func() { n.follow(ctx, host, entry) })
	}
}

// wait returns once all lookups have ended. Cancel the context given to want first.
func (n *names) wait() { n.wg.Wait() }

// follow looks one name up whenever its TTL has passed.
func (n *names) follow(ctx context.Context, host string, entry *nameEntry) {
	for {
		addrs, ttl, err := n.lookup(ctx, host)
		if ctx.Err() != nil {
			return
		}
		n.record(host, entry, addrs, err)
		if err != nil {
			ttl = minTTL
		}
		if !waitAtMost(ctx, nil, ttl) {
			return
		}
	}
}

// record stores the result of a lookup. A failed one keeps the old addresses.
func (n *names) record(host string, entry *nameEntry, addrs []netip.Addr, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	news := !entry.looked
	switch {
	case err != nil && !entry.failed && len(entry.addrs) > 0:
		glog.Warningf("nanny: server %q does not resolve, keeping its old addresses %v: %v", host, entry.addrs, err)
	case err != nil && !entry.failed:
		glog.Warningf("nanny: server %q does not resolve, leaving it out: %v", host, err)
	case err == nil && !slices.Equal(addrs, entry.addrs):
		glog.V(2).Infof("nanny: server %q has addresses %v", host, addrs)
		entry.addrs = addrs
		news = true
	}
	entry.looked, entry.failed = true, err != nil
	if news {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

// addrs returns the known addresses of each name, and whether the first lookup of
// any name is still pending.
func (n *names) addrs() (resolved map[string][]netip.Addr, pending bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	resolved = map[string][]netip.Addr{}
	for host, entry := range n.entries {
		resolved[host] = entry.addrs
		pending = pending || !entry.looked
	}
	return resolved, pending
}
