package harness

import (
	"context"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// A Question is one question to one server.
type Question struct {
	// Server is the host:port asked.
	Server string
	// TCP asks over TCP, else UDP.
	TCP bool
	// Name is asked for as it is spelled; fully qualified.
	Name string
	// Type is the type asked for.
	Type uint16
	// Class is IN where 0.
	Class uint16
	// EDNS is the UDP payload size that the question's OPT record offers; no
	// OPT record where nil.
	EDNS *uint16
	// Version is EDNS' version.
	Version uint8
	// NoRecursion clears RD.
	NoRecursion bool
	// Timeout is 4 s where 0.
	Timeout time.Duration
}

// A Reply is a message and what is lost in parsing one.
type Reply struct {
	*dns.Msg
	// Size is the message's length on the wire.
	Size int
}

// Ask asks q and returns the reply. A reply that comes over UDP with another ID
// is passed over.
func Ask(ctx context.Context, q Question) (*Reply, error) {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Id: dns.Id(), RecursionDesired: !q.NoRecursion}}
	class := q.Class
	if class == 0 {
		class = dns.ClassINET
	}
	m.Question = []dns.Question{{Name: q.Name, Qtype: q.Type, Qclass: class}}
	if q.EDNS != nil {
		m.SetEdns0(*q.EDNS, false)
		m.IsEdns0().SetVersion(q.Version)
	}
	return Exchange(ctx, q.Server, q.TCP, q.Timeout, m)
}

// Exchange sends m to server and returns the reply.
func Exchange(ctx context.Context, server string, tcp bool, timeout time.Duration, m *dns.Msg) (*Reply, error) {
	if timeout == 0 {
		timeout = 4 * time.Second
	}
	client := &dns.Client{Timeout: timeout, UDPSize: dns.MaxMsgSize}
	if tcp {
		client.Net = "tcp"
	}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.UDPSize = dns.MaxMsgSize
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		wire, err := conn.ReadMsgHeader(nil)
		if err != nil {
			return nil, fmt.Errorf("waiting for the reply: %w", err)
		}
		reply := new(dns.Msg)
		if err := reply.Unpack(wire); err != nil {
			return nil, fmt.Errorf("unpacking the reply: %w", err)
		}
		if reply.Id == m.Id {
			return &Reply{Msg: reply, Size: len(wire)}, nil
		}
	}
}
