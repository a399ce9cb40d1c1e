package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// exchange sends p's query and returns the reply. It asks over UDP, and again over
// TCP when the reply is truncated and lacks the record that p asks for. It
// returns when ctx ends at the latest.
func exchange(ctx context.Context, p Probe) (*dns.Msg, error) {
	question := p.question()
	reply, err := exchangeOver(ctx, "udp", p.Server, question)
	if err == nil && reply.Truncated && !hasRecord(reply, p.Qtype) {
		return exchangeOver(ctx, "tcp", p.Server, question)
	}
	return reply, err
}

// askAgain is how long to wait for a reply over UDP before the query is sent
// again. One datagram dropped on a busy machine must not make the kubelet restart
// a healthy server.
const askAgain = 250 * time.Millisecond

// exchangeOver reads until the reply to question arrives. Other datagrams are
// ignored: they may be forged, and the right one may still follow.
func exchangeOver(ctx context.Context, network, server string, question *dns.Msg) (*dns.Msg, error) {
	var dialer net.Dialer
	netConn, err := dialer.DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	conn := &dns.Conn{Conn: netConn, UDPSize: dns.DefaultMsgSize}
	defer conn.Close()
	// The end of ctx, by its deadline too, ends reading and writing.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	if err := conn.WriteMsg(question); err != nil {
		return nil, err
	}
	if network == "udp" {
		done := make(chan struct{})
		var repeating sync.WaitGroup
		defer repeating.Wait()
		defer close(done)
		repeating.Go(func() { repeat(conn, question, done) })
	}
	var malformed error
	for {
		reply, err := conn.ReadMsg()
		if err == nil {
			if err = checkReply(reply, question); err == nil {
				return reply, nil
			}
		} else if isNetError(err) {
			if malformed != nil {
				return nil, malformed
			}
			return nil, err
		}
		malformed = fmt.Errorf("%w: %w", errMalformed, err)
		if network == "tcp" {
			return nil, malformed
		}
	}
}

// repeat sends question every askAgain until done is closed.
func repeat(conn *dns.Conn, question *dns.Msg, done <-chan struct{}) {
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		if err := conn.WriteMsg(question); err != nil {
			return // the reader gets the error too
		}
	}
}

// isNetError reports whether reading a message failed because of the network and
// not because of the message.
func isNetError(err error) bool {
	var netError net.Error
	return errors.As(err, &netError) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// checkReply returns nil if reply answers question. A reply that reports an error
// may lack the question.
func checkReply(reply, question *dns.Msg) error {
	switch {
	case !reply.Response:
		return errors.New("not a reply")
	case reply.Id != question.Id:
		return errors.New("wrong ID")
	case len(reply.Question) == 0 && reply.Rcode != dns.RcodeSuccess:
		return nil
	case len(reply.Question) != 1:
		return fmt.Errorf("%d questions", len(reply.Question))
	}
	got, want := reply.Question[0], question.Question[0]
	if got.Qtype != want.Qtype || got.Qclass != want.Qclass || !strings.EqualFold(got.Name, want.Name) {
		return errors.New("another question")
	}
	return nil
}
