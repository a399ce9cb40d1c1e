package server

import (
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
	var failed, refused seldom
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
		if c == nil {
			if n, ok := refused.due(time.Now()); ok {
				glog.V(2).Infof("server: %v: too many TCP connections of one client (%d refused)", conn.RemoteAddr(), n)
			}
			closeConn(conn)
			continue
		}
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

// serveConn answers the questions of one connection (RFC 7766): pipelined ones
// in the order in which their answers are there.
func (s *Server) serveConn(ctx context.Context, conn *tcpConn) {
	defer closeConn(conn)
	stop := context.AfterFunc(ctx, func() { closeConn(conn) })
	defer stop()

	var (
		mu      sync.Mutex // writes
		pending = make(chan struct{}, maxPipelined)
	)
	// write sends a reply that has room for its length before it. A client
	// that does not read loses the connection.
	write := func(framed []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		binary.BigEndian.PutUint16(framed, uint16(len(framed)-2))
		if err := conn.SetWriteDeadline(time.Now().Add(tcpWriteTimeout)); err != nil {
			return false
		}
		_, err := conn.Write(framed)
		if err != nil {
			closeConn(conn)
		}
		return err == nil
	}
	w := s.newWorker()
	defer w.slow.Wait()
	var length [2]byte
	var msg, buf []byte
	for {
		// The whole of a question has to come within the idle time.
		if err := conn.SetReadDeadline(time.Now().Add(s.tcpIdle)); err != nil {
			return
		}
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if cap(msg) < n {
			msg = make([]byte, n)
		}
		msg = msg[:n]
		if _, err := io.ReadFull(conn, msg); err != nil {
			return
		}
		now := time.Now().UnixNano()
		s.asked.Store(now)
		conn.active.Store(now)
		reply := w.handle(ctx, msg, buf, true, func() respond {
			pending <- struct{}{}
			return func(reply []byte) {
				defer func() { <-pending }()
				if len(reply) > 0 {
					write(append(make([]byte, 2, 2+len(reply)), reply...))
				}
			}
		})
		if cap(msg) > maxQuery {
			msg, w.q.msg = nil, nil // an open connection keeps no more than it needs
		}
		if reply == nil {
			continue
		}
		if !write(append(make([]byte, 2, 2+len(reply)), reply...)) {
			return
		}
		buf = reply[:0]
		if cap(buf) > maxQuery {
			buf, w.r.buf, w.r.targets = nil, nil, nil
		}
	}
}
