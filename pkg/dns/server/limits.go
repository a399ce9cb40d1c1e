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

// connTable bounds the TCP connections, of each client and in all.
type connTable struct {
	all, each int

	mu       sync.Mutex
	conns    connSet
	byClient map[netip.Addr]connSet
	evicted  logLimiter
}

type connSet map[*tcpConn]struct{}

// tcpConn is an open connection.
type tcpConn struct {
	net.Conn
	client  netip.Addr
	active  atomic.Int64 // when a question last came, or it was opened, in Unix nanoseconds
	pending atomic.Int32 // questions that wait for a deferred answer
}

func newConnTable(all, each int) *connTable {
	return &connTable{all: all, each: each, conns: connSet{}, byClient: map[netip.Addr]connSet{}}
}

// add enters a connection. If its client has too many, the client's longest idle
// one is closed; if there are too many in all, the longest idle of all is (RFC
// 7766 section 6.2.3). So idle connections keep no new one out.
func (t *connTable) add(conn net.Conn) *tcpConn {
	c := &tcpConn{Conn: conn}
	c.active.Store(time.Now().UnixNano())
	if addr, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.client = addr.Addr().Unmap()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if own := t.byClient[c.client]; len(own) >= t.each {
		t.evict(own, "too many from one client")
	} else if len(t.conns) >= t.all {
		t.evict(t.conns, "too many")
	}
	t.conns[c] = struct{}{}
	own := t.byClient[c.client] // may have gone with its last connection
	if own == nil {
		own = connSet{}
		t.byClient[c.client] = own
	}
	own[c] = struct{}{}
	return c
}

// makeRoom closes the longest idle connection, to free its descriptor. It
// reports whether there was one.
func (t *connTable) makeRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.evict(t.conns, "out of file descriptors")
}

// evict closes the longest idle connection of a set, and reports whether there
// was one. t is locked. why is for the log.
func (t *connTable) evict(set connSet, why string) bool {
	c := set.longestIdle()
	if c == nil {
		return false
	}
	if n, ok := t.evicted.due(time.Now()); ok {
		glog.V(2).Infof("server: closed idle TCP connection from %v: %s (%d closed)", c.RemoteAddr(), why, n)
	}
	t.forget(c)
	closeConn(c)
	return true
}

// longestIdle is the connection whose last question is the longest ago. One
// that waits for an answer is idle only if all do. It is nil for an empty set.
func (s connSet) longestIdle() *tcpConn {
	var longest *tcpConn
	longestBusy, longestActive := false, int64(0)
	for c := range s {
		busy, active := c.pending.Load() > 0, c.active.Load()
		if longest == nil || longestBusy && !busy || longestBusy == busy && active < longestActive {
			longest, longestBusy, longestActive = c, busy, active
		}
	}
	return longest
}

// remove takes a closed connection out of the table.
func (t *connTable) remove(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(c)
}

// forget takes a connection out of the table, if it is there. t is locked.
func (t *connTable) forget(c *tcpConn) {
	delete(t.conns, c)
	own := t.byClient[c.client]
	delete(own, c)
	if len(own) == 0 {
		delete(t.byClient, c.client)
	}
}

// size is how many connections are open.
func (t *connTable) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// logLimiter allows one line in the log per second, however often its event
// happens. The zero value is ready. It is not safe for concurrent use.
type logLimiter struct {
	next   time.Time // when the next line may come
	events int       // since the last line
}

// due counts an event. If a line is due, n is the number of events since the
// last line, this one included.
func (l *logLimiter) due(now time.Time) (n int, ok bool) {
	l.events++
	if now.Before(l.next) {
		return 0, false
	}
	n, l.events, l.next = l.events, 0, now.Add(time.Second)
	return n, true
}

// descriptorsFor is n, or half of the limit of open files if that is less: the
// other half is for HTTP, the API server and the upstream nameservers.
func descriptorsFor(n int, limit uint64) int {
	if limit/2 < uint64(n) {
		return max(1, int(limit/2))
	}
	return n
}

// rateLimiter bounds the answers over UDP to each client address. Its memory
// is fixed: addresses with the same hash share a bucket.
//
// It is the generic cell rate algorithm (ITU-T I.371): a bucket keeps the time
// at which the next question is due if they come evenly.
type rateLimiter struct {
	interval int64 // nanoseconds between answers
	burst    int64 // how far ahead of that time a client may be, in nanoseconds
	seed     maphash.Seed
	due      [1 << 16]atomic.Int64
	slips    atomic.Uint32
}

// newRateLimiter allows perSecond answers a second to each client address, and
// as many at once. It is nil, for no limit, if perSecond is 0.
func newRateLimiter(perSecond int) *rateLimiter {
	if perSecond == 0 {
		return nil
	}
	return &rateLimiter{interval: int64(time.Second) / int64(perSecond), burst: int64(time.Second), seed: maphash.MakeSeed()}
}

// allow counts an answer to the client and reports whether it is allowed.
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

// slip reports whether a question past the limit gets a reply with TC, so that
// an honest client can come back over TCP, where addresses are not forged. Every
// second one does, so less is sent than was received.
func (l *rateLimiter) slip() bool { return l.slips.Add(1)%2 == 0 }

// clientAddr is the IP address in a sockaddr written by the kernel, nil if it
// has none.
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

// overloadedAfter is how long every batch must be full before a socket is
// overloaded.
const overloadedAfter = 100 * time.Millisecond

// overloadDetector reports whether questions come faster over a socket than they
// are answered. One full batch is a burst. When batch after batch is full for
// overloadedAfter, and each was there before it was read, the socket is behind;
// forwarded questions, which cost most, are then answered SERVFAIL. The zero
// value is ready.
type overloadDetector struct {
	slack int64 // when a batch last was not full or had to be waited for, in Unix nanoseconds
}

// note takes a batch of n datagrams, whether the socket had to wait for it, and
// the time in Unix nanoseconds. It reports whether the socket is overloaded.
func (d *overloadDetector) note(n int, waited bool, now int64) bool {
	if n < batchSize || waited || d.slack == 0 {
		d.slack = now
	}
	return now-d.slack > int64(overloadedAfter)
}
