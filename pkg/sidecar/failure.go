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

// Why a probe failed, the values of the label "reason".
const (
	reasonTimeout   = "timeout"
	reasonRefused   = "connection_refused"
	reasonNetwork   = "network" // any other network error, or the server's name is unknown
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

// failure is why a probe failed: reason is a metric's label, text is for people.
type failure struct {
	reason string
	text   string
}

func (f *failure) Error() string { return f.text }

// errMalformed means that only messages came back that cannot be parsed or that
// answer another question.
var errMalformed = errors.New("malformed reply")

// exchangeFailure classifies the error of an exchange with that timeout. It is nil
// if err is.
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

// replyFailure returns why reply does not answer p, nil if it does: that takes
// rcode NOERROR and an answer record of the type asked, or of any type for ANY,
// where the server may choose (RFC 8482 section 4).
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
