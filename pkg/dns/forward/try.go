package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// errAbandoned says that a try ended without result because the question did.
var errAbandoned = errors.New("abandoned")

// event is what a try found out. An interim one is followed by another.
type event struct {
	try     *try
	msg     *dns.Msg // nil where there is err
	err     error
	interim bool
	rtt     time.Duration // from question to msg; 0 while unknown
}

// A try is one question to one nameserver. Its goroutine runs run; the fields
// below the line are of that goroutine until it has ended.
type try struct {
	forwarder  *Forwarder
	server     *nameserver
	events     chan<- event // has room for all that is sent
	started    time.Time
	patience   time.Duration // after this long a silence is a failure
	wasFailing bool          // when it was asked
	open       bool          // a final event is still to come
	heard      bool          // there was an event
	err        error         // what went wrong, once not open

	// ---
	query    query
	ignored  int    // datagrams
	mismatch string // of the last one ignored
}

// take notes what the try found out.
func (t *try) take(ev event) {
	t.heard = true
	if ev.interim {
		return
	}
	t.open = false
	now := time.Now()
	switch {
	case ev.err != nil:
		t.err = ev.err
		if !isLocal(ev.err) {
			t.server.failed(now, t.started, ev.err)
		}
	case isAnswer(ev.msg.Rcode):
		t.server.answered(now, ev.rtt)
	default:
		t.err = fmt.Errorf("rcode %s", rcodeString(ev.msg.Rcode))
		if ev.msg.Rcode == dns.RcodeServerFailure || ev.msg.Rcode == dns.RcodeRefused {
			t.server.failed(now, t.started, t.err)
		}
	}
}

// abandon ends a try whose goroutine has ended without result at now.
func (t *try) abandon(now time.Time, cancelled bool) {
	t.open = false
	silence := now.Sub(t.started)
	t.err = fmt.Errorf("no reply in %v", silence.Round(time.Millisecond))
	if t.ignored > 0 {
		t.err = fmt.Errorf("%w, %d datagrams ignored, the last for %s", t.err, t.ignored, t.mismatch)
	}
	if !cancelled && !t.heard && silence >= t.patience {
		t.server.silent(now, t.started, t.err)
	}
}

func rcodeString(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return fmt.Sprint(rcode)
}

// isLocal says whether err is about this host rather than the nameserver: out
// of files, memory or ports.
func isLocal(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// run sends what it finds out to events, the last event not being interim.
func (t *try) run(ctx context.Context) {
	ev := event{try: t}
	func() {
		defer func() {
			// A packet never ends the process, whatever it does to the parser.
			if r := recover(); r != nil {
				ev.msg, ev.err = nil, fmt.Errorf("malformed reply: panic: %v", r)
			}
		}()
		ev.msg, ev.rtt, ev.err = t.exchange(ctx)
	}()
	if ev.err != nil {
		ev.err = withoutAddr(ev.err)
		if ctx.Err() != nil {
			ev.err = errAbandoned
		}
	}
	t.events <- ev
}

// withoutAddr removes what package net puts around the error of a system call,
// as our own messages name the nameserver.
func withoutAddr(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		err = call.Err
	}
	return err
}

// exchange asks over UDP, again without EDNS where that is not understood, and
// again over TCP where the reply is truncated. A reply that makes it ask again
// is an interim event.
func (t *try) exchange(ctx context.Context) (*dns.Msg, time.Duration, error) {
	edns := t.server.edns(t.started)
	msg, rtt, err := t.udp(ctx, edns)
	if err != nil {
		return nil, 0, err
	}
	if edns && isFormatError(msg.Rcode) {
		t.events <- event{try: t, msg: msg, interim: true}
		plain, plainRTT, err := t.udp(ctx, false)
		if err != nil {
			return nil, 0, fmt.Errorf("without EDNS, after %s: %w", rcodeString(msg.Rcode), withoutAddr(err))
		}
		if !isFormatError(plain.Rcode) {
			t.server.lacksEDNS(time.Now())
		}
		msg, rtt, edns = plain, plainRTT, false
	}
	if msg.Truncated && isAnswer(msg.Rcode) {
		t.events <- event{try: t, msg: msg, interim: true}
		if full, err := t.tcp(ctx, edns); err == nil && isAnswer(full.Rcode) {
			return full, rtt, nil
		}
	}
	return msg, rtt, nil
}

// isFormatError says whether rcode is what a nameserver says to an OPT it does
// not know (RFC 6891 section 7).
func isFormatError(rcode int) bool {
	return rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeBadVers
}

const (
	// freeIgnored datagrams are ignored as fast as they come, then
	// ignoredPerPause in each pause: a flood costs no more processor time.
	freeIgnored     = 1024
	ignoredPerPause = 32
	ignorePause     = time.Millisecond
)

// udp asks over a new socket until there is a reply, an error, or ctx ends.
func (t *try) udp(ctx context.Context, edns bool) (*dns.Msg, time.Duration, error) {
	var d net.Dialer
	conn, err := d.DialUDP(ctx, "udp", netip.AddrPort{}, t.server.addr)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	packed := t.query.prepare(edns)
	buffer := t.forwarder.buffers.Get().(*[maxDatagram]byte)
	defer t.forwarder.buffers.Put(buffer)
	sent := time.Now()
	for wait, resent := t.forwarder.options.Retransmit, false; ; wait, resent = 2*wait, true {
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, 0, err
		}
		if _, err := conn.Write(packed); err != nil {
			return nil, 0, err
		}
		n, err := t.receive(ctx, conn, buffer[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return nil, 0, err
		}
		rtt := time.Since(sent)
		if resent {
			rtt = 0 // who knows which datagram was answered
		}
		if n == len(buffer) {
			buffer[2] |= 0x02 // TC: the rest may be lost
		}
		msg, err := unpack(buffer[:n])
		return msg, rtt, err
	}
}

// receive reads the next datagram that is a reply into buffer.
func (t *try) receive(ctx context.Context, conn *net.UDPConn, buffer []byte) (int, error) {
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return 0, err
		}
		mismatch := t.query.mismatch(buffer[:n])
		if mismatch == "" {
			return n, nil
		}
		t.mismatch = mismatch
		t.ignored++
		if t.ignored > freeIgnored && t.ignored%ignoredPerPause == 0 {
			select {
			case <-time.After(ignorePause):
			case <-ctx.Done():
			}
		}
	}
}

// tcp asks over a new connection.
func (t *try) tcp(ctx context.Context, edns bool) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, t.forwarder.options.TCPTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", t.server.addr.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	packed := t.query.prepare(edns)
	framed := make([]byte, 2, 2+len(packed))
	binary.BigEndian.PutUint16(framed, uint16(len(packed)))
	if _, err := conn.Write(append(framed, packed...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	packet := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, packet); err != nil {
		return nil, err
	}
	if mismatch := t.query.mismatch(packet); mismatch != "" {
		return nil, fmt.Errorf("reply over TCP ignored for %s", mismatch)
	}
	return unpack(packet)
}
