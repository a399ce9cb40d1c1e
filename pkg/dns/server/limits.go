package server

import (
	"encoding/binary"
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"golang.org/x/sys/unix"
)

// connTable bounds the TCP connections of each client and in all.
type connTable struct {
	all, each int

	mu       sync.Mutex
	conns    map[*tcpConn]struct{}
	byClient map[netip.Addr]int
	evicted  seldom // lines in the log
}

// tcpConn is an open connection.
type tcpConn struct {
	net.Conn
	client netip.Addr
	active atomic.Int64 // when a question last came, or it was opened, in Unix nanoseconds
}

func newConnTable(all, each int) *connTable {
	return &connTable{all: all, each: each, conns: map[*tcpConn]struct{}{}, byClient: map[netip.Addr]int{}}
}

// add enters a connection, or returns nil where its client has too many. Where
// there are too many in all, the one that was idle for the longest is closed
// (RFC 7766 section 6.2.3), so that idle ones cannot keep new clients out.
func (t *connTable) add(conn net.Conn) *tcpConn {
	c := &tcpConn{Conn: conn}
	c.active.Store(time.Now().UnixNano())
	if addr, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.client = addr.Addr().Unmap()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byClient[c.client] >= t.each {
		return nil
	}
	if len(t.conns) >= t.all {
		t.evict()
	}
	t.conns[c] = struct{}{}
	t.byClient[c.client]++
	return c
}

// makeRoom closes the connection that was idle for the longest, for its
// descriptor, and tells whether there was one.
func (t *connTable) makeRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.evict()
}

// evict closes the connection that was idle for the longest, and tells whether
// there was one; t is locked.
func (t *connTable) evict() bool {
	var oldest *tcpConn
	for c := range t.conns {
		if oldest == nil || c.active.Load() < oldest.active.Load() {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	if n, ok := t.evicted.due(time.Now()); ok {
		glog.V(2).Infof("server: %v: closed, there are too many TCP connections (%d closed)", oldest.RemoteAddr(), n)
	}
	t.forget(oldest)
	closeConn(oldest)
	return true
}

// remove takes a connection that has ended out of the table.
func (t *connTable) remove(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(c)
}

func (t *connTable) forget(c *tcpConn) {
	if _, ok := t.conns[c]; !ok {
		return
	}
	delete(t.conns, c)
	if t.byClient[c.client]--; t.byClient[c.client] == 0 {
		delete(t.byClient, c.client)
	}
}

// size is how many connections are open.
func (t *connTable) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// seldom lets a line into the log once a second at most, however often what it
// tells of happens. The zero value is ready; it is not safe for concurrent use.
type seldom struct {
	next   time.Time // when the next line may come
	untold int
}

// due counts an occurrence. Where a line may come it returns how many
// occurrences that line stands for: those since the last one, and this.
func (s *seldom) due(now time.Time) (n int, ok bool) {
	s.untold++
	if now.Before(s.next) {
		return 0, false
	}
	n, s.untold, s.next = s.untold, 0, now.Add(time.Second)
	return n, true
}

// descriptorsFor is how many of n TCP connections there may be where the
// process may have limit files open: half of them at most, so that the others
// remain for HTTP, the API server, and questions at upstream nameservers.
func descriptorsFor(n int, limit uint64) int {
	if limit/2 < uint64(n) {
		return max(1, int(limit/2))
	}
	return n
}

// rateLimiter bounds the answers over UDP to each client address. Its memory
// is fixed: addresses whose hashes agree share a bound.
//
// It is the generic cell rate algorithm (ITU-T I.371): of each bucket it keeps
// the moment at which the client, had it asked evenly, would be due.
type rateLimiter struct {
	interval int64 // nanoseconds between answers
	burst    int64 // how far ahead of even a client may be: a second
	seed     maphash.Seed
	due      [1 << 16]atomic.Int64
	slips    atomic.Uint32
}

// newRateLimiter allows perSecond answers a second to each client address, and
// as many at once; 0 is no limit, which is nil.
func newRateLimiter(perSecond int) *rateLimiter {
	if perSecond == 0 {
		return nil
	}
	return &rateLimiter{interval: int64(time.Second) / int64(perSecond), burst: int64(time.Second), seed: maphash.MakeSeed()}
}

// allow counts an answer to the client and tells whether it may have it.
func (l *rateLimiter) allow(client []byte, now int64) bool {
	due := &l.due[maphash.Bytes(l.seed, client)%uint64(len(l.due))]
	for {
		last := due.Load()
		next := max(last, now) + l.interval
		if next-now > l.burst {
			return false
		}
		if due.CompareAndSwap(last, next) {
			return true
		}
	}
}

// slip tells whether a client past its bound gets a reply with TC, so that an
// honest one can come back over TCP, whose address is not forged: every second
// time, which sends out less than came in.
func (l *rateLimiter) slip() bool { return l.slips.Add(1)%2 == 0 }

// clientAddr is the address in a socket address as the kernel writes it.
func clientAddr(name []byte) []byte {
	if len(name) < 2 {
		return nil
	}
	switch family := binary.NativeEndian.Uint16(name); {
	case family == unix.AF_INET && len(name) >= 8:
		return name[4:8]
	case family == unix.AF_INET6 && len(name) >= 24:
		return name[8:24]
	}
	return nil
}

// pressedAfter is for how long a full batch has to be waiting each time for a
// socket to be behind.
const pressedAfter = 100 * time.Millisecond

// pressure tells whether questions come faster over a socket than they are
// answered: batch after full batch, each there before it was asked for, is no
// burst when it goes on for so long. What costs most and is not the zone's is
// shed then. The zero value is ready.
type pressure struct {
	slack int64 // when there was last no full batch waiting, in Unix nanoseconds
}

// note takes a batch of n datagrams, for which the socket was waited or not, at
// the time now in Unix nanoseconds, and tells whether the socket is behind.
func (p *pressure) note(n int, waited bool, now int64) bool {
	if n < batchSize || waited || p.slack == 0 {
		p.slack = now
	}
	return now-p.slack > int64(pressedAfter)
}
