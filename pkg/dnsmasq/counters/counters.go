// Package counters reads the counters of a running dnsmasq, which are TXT records
// of class CHAOS under "bind." (dnsmasq(8), section NOTES; dnsmasq 2.76 and
// later). It starts no goroutines and keeps no connections.
package counters

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// The names of dnsmasq's counters, as Client.Counter takes them.
const (
	CacheSize  = "cachesize.bind"  // entries that the cache can hold
	Insertions = "insertions.bind" // entries put into the cache
	Evictions  = "evictions.bind"  // entries evicted before their TTL ended, as the cache was full
	Misses     = "misses.bind"     // queries forwarded
	Hits       = "hits.bind"       // queries answered without forwarding, those for counters included
	Auth       = "auth.bind"       // queries answered from dnsmasq's authoritative zones

	serversName = "servers.bind"
	versionName = "version.bind"
)

// DefaultTimeout is the timeout of a Client whose Timeout is zero.
const DefaultTimeout = 2 * time.Second

// ErrNoCounter is the error of a dnsmasq that answers and has no counter of that
// name: it is older than 2.76, or was built or started without them.
var ErrNoCounter = errors.New("no such counter")

// ErrNoIdent is the ErrNoCounter of a dnsmasq that was started with --no-ident.
// It is alive.
var ErrNoIdent = fmt.Errorf("%w, as with --no-ident", ErrNoCounter)

// Client queries one dnsmasq. It is safe for concurrent use while its fields do
// not change.
type Client struct {
	// Addr is dnsmasq's host:port, "127.0.0.1:53".
	Addr string
	// Timeout bounds each query, and separately a second one over TCP; zero
	// means DefaultTimeout. An earlier deadline of the context counts.
	Timeout time.Duration
}

// ServerStats is what dnsmasq counts for one upstream server, summed over the
// domains that it serves.
type ServerStats struct {
	Addr     string // "192.0.2.1:53", "[2001:db8::1]:53"
	Queries  uint64 // queries sent to it, retries included
	Failures uint64 // queries that it did not answer, or answered with an error
}

// Counter returns the value of one counter, named as "hits.bind" or, with the
// final dot, "hits.bind.". The error is ErrNoCounter where dnsmasq does not
// know the name.
func (c *Client) Counter(ctx context.Context, name string) (uint64, error) {
	texts, err := c.texts(ctx, name)
	if err != nil {
		return 0, err
	}
	return parseCounter(name, texts)
}

// Servers returns dnsmasq's upstream servers in its own order, each once however
// many domains it serves. Empty when it has none.
func (c *Client) Servers(ctx context.Context) ([]ServerStats, error) {
	texts, err := c.texts(ctx, serversName)
	if err != nil {
		return nil, err
	}
	return parseServers(texts)
}

// Version returns dnsmasq's name and version: "dnsmasq-2.90". It is the cheapest
// query there is, and so also the probe whether dnsmasq is alive.
func (c *Client) Version(ctx context.Context) (string, error) {
	texts, err := c.texts(ctx, versionName)
	if err != nil {
		return "", err
	}
	return strings.Join(texts, ""), nil
}

// texts returns the character-strings of all TXT records of class CHAOS that
// name has. After a truncated answer it asks again over TCP.
func (c *Client) texts(ctx context.Context, name string) ([]string, error) {
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	question.Question[0].Qclass = dns.ClassCHAOS
	reply, _, err := (&dns.Client{Timeout: timeout}).ExchangeContext(ctx, question, c.Addr)
	if err == nil && reply.Truncated {
		reply, _, err = (&dns.Client{Net: "tcp", Timeout: timeout}).ExchangeContext(ctx, question, c.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s for %s: %w", c.Addr, name, err)
	}
	var texts []string
	found := false
	for _, rr := range reply.Answer {
		if txt, ok := rr.(*dns.TXT); ok && txt.Hdr.Class == dns.ClassCHAOS {
			texts = append(texts, txt.Txt...)
			found = true
		}
	}
	if !found {
		missing := ErrNoCounter
		if reply.Rcode == dns.RcodeNotImplemented {
			missing = ErrNoIdent
		}
		return nil, fmt.Errorf("asking %s for %s: %w (%s)", c.Addr, name, missing, dns.RcodeToString[reply.Rcode])
	}
	return texts, nil
}

// parseCounter reads a counter's only string, a decimal number.
func parseCounter(name string, texts []string) (uint64, error) {
	if len(texts) != 1 {
		return 0, fmt.Errorf("parsing %s: %d strings in place of one", name, len(texts))
	}
	n, err := strconv.ParseUint(texts[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parsing %s: %w", name, err)
	}
	return n, nil
}

// parseServers reads one string for each server, "192.0.2.1#53 17 2". A
// dnsmasq without servers has one empty string.
func parseServers(texts []string) ([]ServerStats, error) {
	var servers []ServerStats
	for _, text := range texts {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		s, err := parseServer(fields)
		if err != nil {
			return nil, fmt.Errorf("parsing %s: %q: %w", serversName, text, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

func parseServer(fields []string) (ServerStats, error) {
	if len(fields) != 3 {
		return ServerStats{}, fmt.Errorf("%d fields in place of 3", len(fields))
	}
	host, port, found := strings.Cut(fields[0], "#")
	if !found {
		return ServerStats{}, errors.New("no port")
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return ServerStats{}, err
	}
	portNumber, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return ServerStats{}, err
	}
	queries, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return ServerStats{}, err
	}
	failures, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil {
		return ServerStats{}, err
	}
	return ServerStats{
		Addr:     netip.AddrPortFrom(addr, uint16(portNumber)).String(),
		Queries:  queries,
		Failures: failures,
	}, nil
}
