package load

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// RunTCP asks over TCP, with o.Sockets connections and o.Outstanding questions
// under way on all of them together, for o.Duration or until ctx is done. Its
// times are measured in this program; o.Rate does not count.
func RunTCP(ctx context.Context, o Options) (*Result, error) {
	if len(o.Questions) < 2 || o.Sockets < 1 || o.Outstanding < o.Sockets {
		return nil, errors.New("no questions, no connections, or fewer outstanding questions than connections")
	}
	start := time.Now()
	end := start.Add(o.Duration)
	conns := make([]*tcpClient, o.Sockets)
	errs := make(chan error, o.Sockets)
	for i := range conns {
		c := &tcpClient{end: end, window: o.Outstanding / o.Sockets, questions: o.Questions}
		if i < o.Outstanding%o.Sockets {
			c.window++
		}
		conns[i] = c
		go func() { errs <- c.run(ctx, o) }()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return nil, err
	}
	g := &generator{}
	g.result.Elapsed = time.Since(start)
	for _, c := range conns {
		g.latencies = append(g.latencies, c.latencies...)
		g.result.Sent += c.sent
		g.result.Failed += c.failed
		g.result.Lost += c.sent - len(c.latencies)
	}
	g.finish()
	return &g.result, nil
}

// tcpClient is one connection.
type tcpClient struct {
	end       time.Time
	window    int
	questions []byte
	at        int
	sent      int
	failed    int
	latencies []time.Duration
}

// run asks window questions at once, and one more for each answer, until end;
// then it waits for the last answers.
func (c *tcpClient) run(ctx context.Context, o Options) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", o.Server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(c.end.Add(timeout)); err != nil {
		return err
	}
	asked := map[uint16]time.Time{}
	var id uint16
	ask := func() error {
		size := 2 + int(binary.BigEndian.Uint16(c.questions[c.at:]))
		msg := slices.Clone(c.questions[c.at : c.at+size])
		if c.at += size; c.at >= len(c.questions) {
			c.at = 0
		}
		id++
		binary.BigEndian.PutUint16(msg[2:], id)
		asked[id] = time.Now()
		c.sent++
		_, err := conn.Write(msg)
		return err
	}
	for range c.window {
		if err := ask(); err != nil {
			return fmt.Errorf("asking: %w", err)
		}
	}
	in := bufio.NewReaderSize(conn, 128<<10)
	var head [6]byte // the length, the ID and the flags
	for len(asked) > 0 {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				return nil // the rest is lost
			}
			return fmt.Errorf("reading an answer: %w", err)
		}
		if _, err := in.Discard(int(binary.BigEndian.Uint16(head[:])) - 4); err != nil {
			return fmt.Errorf("reading an answer: %w", err)
		}
		got := binary.BigEndian.Uint16(head[2:])
		t, ok := asked[got]
		if !ok {
			return fmt.Errorf("an answer with the ID %d, which was not asked", got)
		}
		delete(asked, got)
		c.latencies = append(c.latencies, time.Since(t))
		if rcode := head[5] & 15; rcode != 0 && rcode != 3 {
			c.failed++
		}
		if time.Now().Before(c.end) {
			if err := ask(); err != nil {
				return fmt.Errorf("asking: %w", err)
			}
		}
	}
	return nil
}
