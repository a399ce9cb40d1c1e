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

// maxPipelined bounds the deferred answers of one connection. The next question is
// read once one of them is sent.
const maxPipelined = 100

// tcpWriteTimeout closes a connection whose client does not read.
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
			// Out of descriptors, or the client has gone: go on.
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

// isOutOfDescriptors reports whether the process or the system has reached its
// limit of open files.
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
	// readBuffer is held by every open connection. The pipelined questions in it
	// are answered with one write.
	readBuffer = 4096
	// replyBuffer holds replies until they are written. A larger reply grows it.
	replyBuffer = 8 << 10
	// flushAfter is the number of octets after which replies are written.
	flushAfter = 16 << 10
)

// session answers the questions of one connection.
type session struct {
	s    *Server
	conn *tcpConn
	in   *bufio.Reader
	w    *worker

	mu  sync.Mutex // guards writes to conn
	out *[]byte    // framed replies not yet written; nil if there are none
}

// serveConn answers the questions of one connection (RFC 7766). Each is answered
// when its answer is there, in any order. Replies to questions that came together
// are written together.
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
			c.flush() // the wait may be long
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
		c.w.q.msg = nil // it is in the buffer, or too long to keep
		if _, err := c.in.Discard(n); err != nil || !ok {
			return
		}
	}
}

// next returns the next question. It writes the replies so far before it waits.
// The caller discards n octets after use.
func (c *session) next() (msg []byte, n int, err error) {
	if !c.waiting() {
		if !c.flush() {
			return nil, 0, net.ErrClosed
		}
		// The whole question must come within the idle time.
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
	var large bytes.Buffer // grows with what comes, not with the length that is announced
	_, err = io.CopyN(&large, c.in, int64(n))
	return large.Bytes(), 0, err
}

// waiting reports whether a whole question is in the buffer.
func (c *session) waiting() bool {
	if c.in.Buffered() < 2 {
		return false
	}
	head, err := c.in.Peek(2)
	return err == nil && c.in.Buffered() >= 2+int(binary.BigEndian.Uint16(head))
}

// reply appends the reply to msg to the buffer of replies. It reports whether the
// connection is still good.
func (c *session) reply(ctx context.Context, msg []byte, responder func() respond) bool {
	if c.out == nil {
		c.out = c.s.replies.Get().(*[]byte)
	}
	// The reply goes behind the others if it fits there, after room for its
	// length.
	out := append(*c.out, 0, 0)
	at := len(out)
	reply := c.w.handle(ctx, msg, out[at:], true, responder)
	if reply == nil || c.out == nil { // none, or deferred; responder may have flushed
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

// flush writes the replies and returns their buffer to the pool, so that an idle
// connection holds none. It reports whether the write succeeded.
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

// write sends framed replies. It closes the connection if the client does not read
// in time.
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
