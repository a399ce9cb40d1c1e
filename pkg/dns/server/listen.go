package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// Listeners are the bound sockets of one address. Serve answers on them.
type Listeners struct {
	addr netip.AddrPort
	udp  []*udpSocket
	tcp  net.Listener
}

// Listen binds addr for UDP and TCP. For port 0 the system chooses one port for
// both.
func (s *Server) Listen(ctx context.Context, addr netip.AddrPort) (*Listeners, error) {
	// The port that the system chooses for TCP may be in use for UDP.
	const attempts = 10
	for i := 1; ; i++ {
		l, err := s.listenOnce(ctx, addr)
		if addr.Port() != 0 || i == attempts || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
}

func (s *Server) listenOnce(ctx context.Context, addr netip.AddrPort) (*Listeners, error) {
	// TCP first: its port is not shared (SO_REUSEPORT), so a second server on the
	// same address fails.
	var lc net.ListenConfig
	tcp, err := lc.Listen(ctx, "tcp", addr.String())
	if err != nil {
		return nil, fmt.Errorf("listening on %v: %w", addr, err)
	}
	bound, err := netip.ParseAddrPort(tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	l := &Listeners{addr: netip.AddrPortFrom(addr.Addr(), bound.Port()), tcp: tcp}
	for range s.sockets {
		u, err := listenUDP(ctx, l.addr, int(s.udpSize))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listening on %v: %w", l.addr, err), l.Close())
		}
		l.udp = append(l.udp, u)
	}
	return l, nil
}

// Addr is the bound address.
func (l *Listeners) Addr() netip.AddrPort { return l.addr }

// Close closes the sockets.
func (l *Listeners) Close() error {
	err := l.tcp.Close()
	for _, u := range l.udp {
		err = errors.Join(err, u.conn.Close())
	}
	return err
}

// Serve answers on l until ctx is done or a socket fails. It closes l, and returns
// once all its goroutines have ended. It may run for several Listeners at a time.
func (s *Server) Serve(ctx context.Context, l *Listeners) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.closeQuietly() })
	defer stop()

	var wg sync.WaitGroup
	errs := make(chan error, len(l.udp)+1)
	run := func(f func() error) {
		wg.Go(func() {
			err := f()
			if err != nil {
				cancel()
			}
			errs <- err
		})
	}
	for _, u := range l.udp {
		run(func() error { return u.serve(ctx, s) })
	}
	run(func() error { return s.serveTCP(ctx, l.tcp) })
	wg.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

func (l *Listeners) closeQuietly() {
	closeConn(l.tcp)
	for _, u := range l.udp {
		closeConn(u.conn)
	}
}
