package harness

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// A ProxyMode is what a Proxy does with connections.
type ProxyMode int

// What a Proxy does.
const (
	// ProxyForward lets everything through.
	ProxyForward ProxyMode = iota
	// ProxyClose takes connections and closes them at once, as a load balancer
	// without a backend does.
	ProxyClose
	// ProxyRefuse does not listen, as a machine whose server has ended.
	ProxyRefuse
	// ProxySilent keeps connections, takes new ones, and lets nothing
	// through, as a network that loses every packet.
	ProxySilent
)

// A Proxy is a TCP proxy to one address, whose connections a test disturbs:
// what talks through it is disconnected while all others are not.
type Proxy struct {
	// Addr is the host:port to connect to.
	Addr string

	target string
	wg     sync.WaitGroup

	mu       sync.Mutex
	mode     ProxyMode
	listener net.Listener // nil while it does not listen
	conns    map[net.Conn]struct{}
	frozen   map[net.Conn]struct{}
	changed  chan struct{} // closed when the mode changes
	ended    bool
}

// StartProxy starts a proxy to target, a host:port, in the mode given.
func StartProxy(t testing.TB, target string, mode ProxyMode) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a bind does not wait
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, conns: map[net.Conn]struct{}{}, frozen: map[net.Conn]struct{}{}, changed: make(chan struct{})}
	p.serve(l)
	t.Cleanup(func() {
		p.mu.Lock()
		p.ended = true
		close(p.changed)
		p.changed = make(chan struct{})
		p.stop()
		p.mu.Unlock()
		p.wg.Wait()
	})
	p.SetMode(t, mode)
	return p
}

// SetMode changes what the proxy does. But for ProxySilent, which keeps them,
// that ends the connections there are.
func (p *Proxy) SetMode(t testing.TB, mode ProxyMode) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = mode
	close(p.changed)
	p.changed = make(chan struct{})
	if mode == ProxySilent {
		return
	}
	p.closeConns()
	switch {
	case mode == ProxyRefuse:
		p.stop()
	case p.listener == nil:
		l, err := net.Listen("tcp", p.Addr) //nolint:noctx // a bind does not wait
		if err != nil {
			t.Fatal(err)
		}
		p.serve(l)
	}
}

// Freeze lets nothing through on the connections there are, as a network that
// has forgotten of them; new ones are forwarded.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.frozen[conn] = struct{}{}
	}
}

// stop ends listening and every connection; p.mu is held.
func (p *Proxy) stop() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	p.closeConns()
}

func (p *Proxy) closeConns() {
	for conn := range p.conns {
		conn.Close()
	}
	clear(p.conns)
}

// serve accepts connections of l until it is closed.
func (p *Proxy) serve(l net.Listener) {
	p.listener = l
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by stop
			}
			p.wg.Go(func() { p.handle(conn) })
		}
	})
}

// add keeps conn to be closed later; it is closed at once, and the result
// false, where the mode says so.
func (p *Proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == ProxyClose || p.listener == nil {
		conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) handle(client net.Conn) {
	defer client.Close()
	if !p.add(client) {
		return
	}
	server, err := net.Dial("tcp", p.target) //nolint:noctx // on loopback it answers or refuses
	if err != nil {
		return // the client sees its connection closed
	}
	defer server.Close()
	if !p.add(server) {
		return
	}
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			_, _ = io.Copy(&gate{p, pair[0]}, pair[1]) // either side may end it
			pair[0].Close()
			pair[1].Close()
		})
	}
	wg.Wait()
}

// gate is a connection that nothing is written to while the proxy is silent.
type gate struct {
	proxy *Proxy
	conn  net.Conn
}

func (g *gate) Write(b []byte) (int, error) {
	for {
		g.proxy.mu.Lock()
		_, open := g.proxy.conns[g.conn]
		_, frozen := g.proxy.frozen[g.conn]
		silent, changed := (g.proxy.mode == ProxySilent || frozen) && !g.proxy.ended, g.proxy.changed
		g.proxy.mu.Unlock()
		switch {
		case !open && !silent:
			return 0, errors.New("the proxy ended the connection")
		case !silent:
			return g.conn.Write(b)
		}
		<-changed
	}
}
