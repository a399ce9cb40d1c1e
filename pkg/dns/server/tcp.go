package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/golang/glog"
)

// maxPipelined is how many questions of one connection may be under way at
// upstream nameservers; the next one is read when one of them is answered.
const maxPipelined = 100

// tcpWriteTimeout ends a connection whose client does not read.
const tcpWriteTimeout = 5 * time.Second

// serveTCP accepts connections until the listener is closed, and returns once
// they have ended.
func (s *Server) serveTCP(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var failed logLimiter
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Out of descriptors, or a client that went away: no reason to end.
			if n, ok := failed.due(time.Now()); ok {
				glog.Warningf("server: accepting TCP: %v (%d times)", err, n)
			}
			pause := 50 * time.Millisecond
			if isOutOfDescriptors(err) && s.conns.makeRoom() {
				pause = time.Millisecond // until the descriptor is free
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		c := s.conns.add(conn)
		wg.Go(func() {
			defer s.conns.remove(c)
			s.serveConn(ctx, c)
		})
	}
}

// isOutOfDescriptors tells whether err is that the process, or the system, has
// as many files open as it may.
func isOutOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func closeConn(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		glog.V(2).Infof("server: closing: %v", err)
	}
}

// Sizes of a connection's buffers.
const (
	// readBuffer is what an open connection holds, and how much of what a
	// client has sent ahead is answered with one write.
	readBuffer = 4096
	// replyBuffer is what holds replies until they are written, while there
	// are any; a larger reply makes it larger.
	replyBuffer = 8 << 10
	// flushAfter is how many octets of replies are written at once.
	flushAfter = 16 << 10
)

// session is one connection and what is on its way there.
type session struct {
	s    *Server
	conn *tcpConn
	in   *bufio.Reader
	w    *worker

	mu  sync.Mutex // writing to conn
	out *[]byte    // framed replies that are to be written; nil where there are none
}

// serveConn answers the questions of one connection (RFC 7766): pipelined ones
// in the order in which their answers are there. Those that came together are
// answered together.
func (s *Server) serveConn(ctx context.Context, conn *tcpConn) {
	defer closeConn(conn)
	stop := context.AfterFunc(ctx, func() { closeConn(conn) })
	defer stop()

	c := &session{s: s, conn: conn, in: bufio.NewReaderSize(conn, readBuffer), w: s.newWorker()}
	defer c.w.async.Wait()
	defer c.flush()
	pending := make(chan struct{}, maxPipelined)
	responder := func() respond {
		select {
		case pending <- struct{}{}:
		default:
			c.flush() // it may take a while
			pending <- struct{}{}
		}
		conn.pending.Add(1)
		return func(reply []byte) {
			defer func() {
				conn.pending.Add(-1)
				<-pending
			}()
			if len(reply) > 0 {
				framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(reply)), uint16(len(reply)))
				c.write(append(framed, reply...))
			}
		}
	}
	for {
		msg, n, err := c.next()
		if err != nil {
			return
		}
		now := time.Now().UnixNano()
		s.asked.Store(now)
		conn.active.Store(now)
		ok := c.reply(ctx, msg, responder)
		c.w.q.msg = nil // the buffer's, or too long to keep
		if _, err := c.in.Discard(n); err != nil || !ok {
			return
		}
	}
}

// next waits for the next question, and for that only where the replies before
// it are written. n octets are then to be discarded.
func (c *session) next() (msg []byte, n int, err error) {
	if !c.waiting() {
		if !c.flush() {
			return nil, 0, net.ErrClosed
		}
		// The whole of a question has to come within the idle time.
		if err := c.conn.SetReadDeadline(time.Now().Add(c.s.tcpIdle)); err != nil {
			return nil, 0, err
		}
	}
	head, err := c.in.Peek(2)
	if err != nil {
		return nil, 0, err
	}
	n = int(binary.BigEndian.Uint16(head))
	if 2+n <= c.in.Size() {
		framed, err := c.in.Peek(2 + n)
		if err != nil {
			return nil, 0, err
		}
		return framed[2:], 2 + n, nil
	}
	if _, err := c.in.Discard(2); err != nil {
		return nil, 0, err
	}
	var large bytes.Buffer // grows as octets come: the length alone takes none
	_, err = io.CopyN(&large, c.in, int64(n))
	return large.Bytes(), 0, err
}

// waiting tells whether the whole of a question has been read already.
func (c *session) waiting() bool {
	if c.in.Buffered() < 2 {
		return false
	}
	head, err := c.in.Peek(2)
	return err == nil && c.in.Buffered() >= 2+int(binary.BigEndian.Uint16(head))
}

// reply answers msg into the buffer of replies. It reports whether the
// connection is to go on.
func (c *session) reply(ctx context.Context, msg []byte, responder func() respond) bool {
	if c.out == nil {
		c.out = c.s.replies.Get().(*[]byte)
	}
	// Room for the length is left before the reply, which is written behind
	// the others where it fits.
	out := append(*c.out, 0, 0)
	at := len(out)
	reply := c.w.handle(ctx, msg, out[at:], true, responder)
	if reply == nil || c.out == nil { // nothing, or not yet, and perhaps flushed meanwhile
		return true
	}
	binary.BigEndian.PutUint16(out[at-2:], uint16(len(reply)))
	if at+len(reply) <= cap(out) && &reply[0] == &out[at : at+1][0] {
		out = out[:at+len(reply)]
	} else {
		out = append(out, reply...)
	}
	*c.out = out
	return len(out) < flushAfter || c.flush()
}

// flush writes the replies that are there, and gives their buffer back: an
// open connection keeps no more than it needs.
func (c *session) flush() bool {
	if c.out == nil {
		return true
	}
	ok := len(*c.out) == 0 || c.write(*c.out)
	*c.out = (*c.out)[:0]
	c.s.replies.Put(c.out)
	c.out, c.w.r.buf = nil, nil
	return ok
}

// write sends framed replies. A client that does not read loses the
// connection.
func (c *session) write(framed []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(tcpWriteTimeout)); err != nil {
		return false
	}
	_, err := c.conn.Write(framed)
	if err != nil {
		closeConn(c.conn)
	}
	return err == nil
}
