package e2e

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
)

const (
	// balancerPeriod is how often a balancer looks at /readiness.
	balancerPeriod = 100 * time.Millisecond
	// balancerLag is how much later it acts on what it saw, as a readiness
	// that changes takes a while through kubelet, EndpointSlice and kube-proxy.
	balancerLag = 800 * time.Millisecond
	// balancerIdle is how long a UDP flow is remembered after its last packet.
	balancerIdle = 5 * time.Second
)

// A balancer is one address in front of instances of kube-dns, as the address
// of a Service is where kube-proxy works. It takes an instance out within a
// second after /readiness no longer says ok, and puts it in as late after it
// does. A UDP flow, which is a client's address and port, stays with its
// instance until that is taken out, and answers under way still come through; a
// TCP connection stays until either side ends it.
type balancer struct {
	addr string

	udp  *net.UDPConn
	tcp  net.Listener
	wg   sync.WaitGroup
	done chan struct{}

	mu        sync.Mutex
	instances []*balanced
	next      int
	flows     map[string]*flow // by the client's address
	conns     map[net.Conn]struct{}
}

// balanced is an instance behind a balancer.
type balanced struct {
	kubeDNS *harness.KubeDNS
	in      bool
	changed time.Time // when readiness was first seen to be other than in; zero for not
}

type flow struct {
	instance *balanced
	conn     *net.UDPConn
}

func startBalancer(t *testing.T) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.Addr().(*net.TCPAddr).AddrPort()))
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{
		addr: l.Addr().String(), udp: udp, tcp: l, done: make(chan struct{}),
		flows: map[string]*flow{}, conns: map[net.Conn]struct{}{},
	}
	b.wg.Go(b.serveUDP)
	b.wg.Go(b.serveTCP)
	b.wg.Go(func() { b.follow(t) })
	t.Cleanup(func() {
		close(b.done)
		l.Close()
		udp.Close()
		b.mu.Lock()
		for _, f := range b.flows {
			f.conn.Close()
		}
		for conn := range b.conns {
			conn.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b
}

// add puts an instance behind the balancer, which gets questions once it is
// ready.
func (b *balancer) add(k *harness.KubeDNS) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instances = append(b.instances, &balanced{kubeDNS: k})
}

// remove forgets an instance.
func (b *balancer) remove(k *harness.KubeDNS) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, instance := range b.instances {
		if instance.kubeDNS == k {
			b.instances = append(b.instances[:i:i], b.instances[i+1:]...)
			return
		}
	}
}

// has reports whether an instance gets questions.
func (b *balancer) has(k *harness.KubeDNS) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, instance := range b.instances {
		if instance.kubeDNS == k {
			return instance.in
		}
	}
	return false
}

// follow looks at every instance's readiness.
func (b *balancer) follow(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(balancerPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-b.done:
			return
		case <-ticker.C:
		}
		b.mu.Lock()
		instances := append([]*balanced(nil), b.instances...)
		b.mu.Unlock()
		for _, instance := range instances {
			status, _ := instance.kubeDNS.Readiness(t)
			b.saw(instance, status == 200, time.Now())
		}
	}
}

func (b *balancer) saw(instance *balanced, ready bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case ready == instance.in:
		instance.changed = time.Time{}
	case instance.changed.IsZero():
		instance.changed = now
	case now.Sub(instance.changed) >= balancerLag:
		instance.in, instance.changed = ready, time.Time{}
		if ready {
			return
		}
		for client, f := range b.flows {
			if f.instance == instance {
				delete(b.flows, client)
			}
		}
	}
}

// choose takes the instances in turn; nil where none is in. b.mu is held.
func (b *balancer) choose() *balanced {
	for range b.instances {
		b.next++
		if instance := b.instances[b.next%len(b.instances)]; instance.in {
			return instance
		}
	}
	return nil
}

func (b *balancer) serveUDP() {
	buf := make([]byte, 65535)
	for {
		n, client, err := b.udp.ReadFromUDP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if f := b.flowOf(client); f != nil {
			// A connected socket reports the port unreachable that the packet
			// before has met, and then has not sent this one.
			if _, err := f.conn.Write(buf[:n]); err != nil {
				_, _ = f.conn.Write(buf[:n]) // lost where it fails again
			}
		}
	}
}

func (b *balancer) flowOf(client *net.UDPAddr) *flow {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := client.String()
	if f := b.flows[key]; f != nil {
		return f
	}
	instance := b.choose()
	if instance == nil {
		return nil
	}
	addr, err := net.ResolveUDPAddr("udp", instance.kubeDNS.Addr)
	if err != nil {
		return nil
	}
	conn, err := net.DialUDP("udp", nil, addr)
	if err != nil {
		return nil
	}
	f := &flow{instance, conn}
	b.flows[key] = f
	b.wg.Go(func() { b.answer(key, client, f) })
	return f
}

// answer passes answers back until the flow is idle.
func (b *balancer) answer(key string, client *net.UDPAddr, f *flow) {
	defer f.conn.Close()
	buf := make([]byte, 65535)
	for {
		if err := f.conn.SetReadDeadline(time.Now().Add(balancerIdle)); err != nil {
			return
		}
		n, err := f.conn.Read(buf)
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() || errors.Is(err, net.ErrClosed) {
			b.mu.Lock()
			if b.flows[key] == f {
				delete(b.flows, key)
			}
			b.mu.Unlock()
			return
		}
		if err == nil {
			_, _ = b.udp.WriteToUDP(buf[:n], client) // the client sees that nothing comes
		}
	}
}

func (b *balancer) serveTCP() {
	for {
		client, err := b.tcp.Accept()
		if err != nil {
			return // closed
		}
		b.wg.Go(func() { b.join(client) })
	}
}

func (b *balancer) join(client net.Conn) {
	defer client.Close()
	b.mu.Lock()
	instance := b.choose()
	b.mu.Unlock()
	if instance == nil {
		return
	}
	server, err := net.Dial("tcp", instance.kubeDNS.Addr)
	if err != nil {
		return
	}
	defer server.Close()
	b.mu.Lock()
	b.conns[client], b.conns[server] = struct{}{}, struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.conns, client)
		delete(b.conns, server)
		b.mu.Unlock()
	}()
	select {
	case <-b.done:
		return
	default:
	}
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // either side may end it
			pair[0].Close()
			pair[1].Close()
		})
	}
	wg.Wait()
}
