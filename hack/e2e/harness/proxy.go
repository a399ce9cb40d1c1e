package harness

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Proxy is a TCP proxy whose connections a test cuts: what talks through it
// is disconnected while all others are not.
type Proxy struct {
	// Addr is the host:port to connect to.
	Addr string

	target string
	mu     sync.Mutex
	open   bool
	conns  map[net.Conn]struct{}
	wg     sync.WaitGroup
}

// StartProxy starts a proxy to target, a host:port. It is open.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a bind does not wait
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, open: true, conns: map[net.Conn]struct{}{}}
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by the cleanup
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.SetOpen(false)
		p.wg.Wait()
	})
	return p
}

// SetOpen lets connections through, or ends all there are and refuses others.
func (p *Proxy) SetOpen(open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = open
	if open {
		return
	}
	for conn := range p.conns {
		conn.Close()
	}
	clear(p.conns)
}

// add keeps conn to be closed by SetOpen; it is false, and conn is closed,
// while the proxy is not open.
func (p *Proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) serve(client net.Conn) {
	if !p.add(client) {
		return
	}
	defer client.Close()
	server, err := net.Dial("tcp", p.target) //nolint:noctx // on loopback it answers or refuses
	if err != nil {
		return // the client sees its connection closed
	}
	if !p.add(server) {
		return
	}
	defer server.Close()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		p.wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // either side may end it
			done <- struct{}{}
		})
	}
	<-done
}
