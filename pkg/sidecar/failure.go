package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// The reasons that a probe fails for, values of the label "reason".
const (
	reasonTimeout   = "timeout"
	reasonRefused   = "connection_refused"
	reasonNetwork   = "network" // any other error of the network, or a server whose name is unknown
	reasonMalformed = "malformed"
	reasonServfail  = "servfail"
	reasonNxdomain  = "nxdomain"
	reasonRcode     = "rcode" // any other rcode but NOERROR
	reasonNoRecord  = "no_record"
)

// reasons returns all of them.
func reasons() []string {
	return []string{
		reasonTimeout, reasonRefused, reasonNetwork, reasonMalformed,
		reasonServfail, reasonNxdomain, reasonRcode, reasonNoRecord,
	}
}

// failure is why a probe failed: a reason to count by, and a text for people.
type failure struct {
	reason string
	text   string
}

func (f *failure) Error() string { return f.text }

// errMalformed says that nothing but messages that cannot be read, or that
// answer another question, came back.
var errMalformed = errors.New("malformed reply")

// exchangeFailure names what went wrong with an exchange that had this time.
// The result is nil where nothing did.
func exchangeFailure(err error, timeout time.Duration) *failure {
	var netError net.Error
	var lookup *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errMalformed):
		return &failure{reasonMalformed, err.Error()}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &failure{reasonRefused, "connection refused"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &netError) && netError.Timeout():
		return &failure{reasonTimeout, fmt.Sprintf("timeout after %v", timeout)}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{reasonNetwork, "connection closed"}
	case errors.As(err, &lookup):
		return &failure{reasonNetwork, fmt.Sprintf("looking up %s: %s", lookup.Name, lookup.Err)}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without the addresses, whose port differs each time
	}
	return &failure{reasonNetwork, err.Error()}
}

// replyFailure says why reply does not answer p, nil if it does: rcode NOERROR
// and an answer record of the type asked. For ANY each type will do, as a
// server may choose (RFC 8482 section 4).
func replyFailure(reply *dns.Msg, p Probe) *failure {
	switch reply.Rcode {
	case dns.RcodeSuccess:
		if hasRecord(reply, p.Qtype) {
			return nil
		}
		qtype := dns.TypeToString[p.Qtype]
		return &failure{reasonNoRecord, fmt.Sprintf("no %s record for %s", qtype, strings.TrimSuffix(p.Name, "."))}
	case dns.RcodeServerFailure:
		return &failure{reasonServfail, "rcode SERVFAIL"}
	case dns.RcodeNameError:
		return &failure{reasonNxdomain, "rcode NXDOMAIN"}
	}
	name, ok := dns.RcodeToString[reply.Rcode]
	if !ok {
		name = fmt.Sprint(reply.Rcode)
	}
	return &failure{reasonRcode, "rcode " + name}
}

func hasRecord(reply *dns.Msg, qtype uint16) bool {
	for _, rr := range reply.Answer {
		h := rr.Header()
		if h.Class == dns.ClassINET && (h.Rrtype == qtype || qtype == dns.TypeANY) {
			return true
		}
	}
	return false
}
