// Package load asks a DNS server questions over UDP and measures how long each
// answer takes: at a fixed rate that does not wait for answers, or as fast as
// a number of outstanding questions allows.
//
// Each thread asks its own questions on its own sockets. The time of a question
// is when it is given to the kernel, the time of an answer when the kernel
// received it (SO_TIMESTAMPNS, socket(7)), so that what this program is late
// does not count.
package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options say what is asked.
type Options struct {
	Server    netip.AddrPort
	Questions []byte // messages, each with its length in two octets before it; asked in turn
	Sockets   int    // the clients that questions are spread over
	Duration  time.Duration
	// Rate is how many questions a second are asked, evenly spaced; 0: a new
	// one for each answer, with Outstanding under way.
	Rate        int
	Outstanding int
	// Threads share sockets, questions and Outstanding; 0 is 1. With a Rate
	// there is one.
	Threads int
}

// Result is what came of it.
type Result struct {
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
	// Lost are those that were not answered within a second.
	Lost int `json:"lost"`
	// Failed are the answers among Answered that are neither NOERROR nor
	// NXDOMAIN.
	Failed  int           `json:"failed"`
	Elapsed time.Duration `json:"elapsed"`
	// P50 to Max are of the time from question to answer.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

const (
	timeout = time.Second // after that an answer does not come any more
	batch   = 32
	maxSize = 4096
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// client is one socket and the questions that are under way on it.
type client struct {
	fd      int
	next    uint16         // ID of the next question
	asked   [1 << 16]int64 // when, by ID, in Unix nanoseconds; 0: not under way
	waiting int            // questions under way
	owed    int            // questions to ask as soon as possible, where Rate is 0
}

type generator struct {
	o         Options
	clients   []*client
	polls     []unix.PollFd
	at        int // in Questions
	result    Result
	latencies []time.Duration

	recvMsgs, sendMsgs [batch]mmsghdr
	recvIovs, sendIovs [batch]unix.Iovec
	recvData, sendData [batch][maxSize]byte
	recvControl        [batch][64]byte
}

// Run asks for o.Duration, or until ctx is done, and then waits for the
// answers that are still to come.
func Run(ctx context.Context, o Options) (*Result, error) {
	if len(o.Questions) < 2 || o.Sockets < 1 || o.Rate == 0 && o.Outstanding < o.Sockets {
		return nil, errors.New("no questions, no sockets, or fewer outstanding questions than sockets")
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
	if o.Threads < 1 || o.Threads > o.Sockets || o.Threads > 1 && o.Rate > 0 {
		return nil, errors.New("more threads than sockets, or several with a rate")
	}
	parts := make([]*generator, o.Threads)
	errs := make([]error, o.Threads)
	var wg sync.WaitGroup
	for i, part := range o.split() {
		if len(part.Questions) == 0 {
			return nil, errors.New("more threads than questions")
		}
		parts[i] = &generator{o: part}
	}
	for i := range parts {
		wg.Go(func() { errs[i] = parts[i].onThread(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := parts[0]
	for _, g := range parts[1:] {
		all.add(g)
	}
	all.finish()
	return &all.result, nil
}

// split is what each thread has to do; a thread may have no questions, where
// there are hardly any.
func (o Options) split() []Options {
	parts := make([]Options, o.Threads)
	rest := o.Questions
	for i := range parts {
		part := o
		first, last := o.Sockets*i/o.Threads, o.Sockets*(i+1)/o.Threads
		part.Sockets = last - first
		part.Outstanding = o.Outstanding*last/o.Sockets - o.Outstanding*first/o.Sockets
		size := 0
		for size < len(rest) && (size < len(o.Questions)/o.Threads || i == o.Threads-1) {
			size += 2 + int(binary.BigEndian.Uint16(rest[size:]))
		}
		part.Questions, rest = rest[:size], rest[size:]
		parts[i] = part
	}
	return parts
}

// onThread asks on a thread of its own.
func (g *generator) onThread(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Sleep as long as asked, not 50 µs longer (prctl(2)).
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting the timer slack: %w", err)
	}
	defer g.close()
	if err := g.open(); err != nil {
		return err
	}
	return g.run(ctx)
}

// add enters what another has measured at the same time.
func (g *generator) add(o *generator) {
	g.result.Sent += o.result.Sent
	g.result.Lost += o.result.Lost
	g.result.Failed += o.result.Failed
	g.result.Elapsed = max(g.result.Elapsed, o.result.Elapsed)
	g.latencies = append(g.latencies, o.latencies...)
}

func (g *generator) open() error {
	for i := range g.o.Sockets {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("opening a socket: %w", err)
		}
		c := &client{fd: fd}
		g.clients = append(g.clients, c)
		if err := errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.Connect(fd, &unix.SockaddrInet4{Port: int(g.o.Server.Port()), Addr: g.o.Server.Addr().As4()}),
		); err != nil {
			return fmt.Errorf("connecting to %v: %w", g.o.Server, err)
		}
		g.polls = append(g.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		if g.o.Rate == 0 {
			c.owed = g.o.Outstanding / g.o.Sockets
			if i < g.o.Outstanding%g.o.Sockets {
				c.owed++
			}
		}
	}
	for i := range batch {
		g.recvIovs[i] = unix.Iovec{Base: &g.recvData[i][0]}
		g.recvIovs[i].SetLen(maxSize)
		g.recvMsgs[i].hdr = unix.Msghdr{Iov: &g.recvIovs[i], Control: &g.recvControl[i][0]}
		g.recvMsgs[i].hdr.SetIovlen(1)
		g.sendIovs[i] = unix.Iovec{Base: &g.sendData[i][0]}
		g.sendMsgs[i].hdr = unix.Msghdr{Iov: &g.sendIovs[i]}
		g.sendMsgs[i].hdr.SetIovlen(1)
	}
	expect := g.o.Rate
	if expect == 0 {
		expect = 300_000
	}
	g.latencies = make([]time.Duration, 0, int(float64(expect)*g.o.Duration.Seconds()*1.1)+1000)
	return nil
}

func (g *generator) close() {
	for _, c := range g.clients {
		_ = unix.Close(c.fd) // nothing was written that could be lost
	}
}

func (g *generator) run(ctx context.Context) error {
	start := time.Now()
	end := start.Add(g.o.Duration)
	expire := start.Add(timeout)
	var interval time.Duration
	if g.o.Rate > 0 {
		interval = time.Second / time.Duration(g.o.Rate)
	}
	due, turn := start, 0
	for {
		now := time.Now()
		if !now.Before(end) || ctx.Err() != nil {
			break
		}
		if now.After(expire) {
			g.expire(now)
			expire = now.Add(timeout / 4)
		}
		wait := 50 * time.Millisecond
		if g.o.Rate > 0 {
			for ; !due.After(now); due = due.Add(interval) {
				if err := g.ask(g.clients[turn], 1); err != nil {
					return err
				}
				turn = (turn + 1) % len(g.clients)
			}
			wait = max(time.Until(due), 0)
		} else {
			for _, c := range g.clients {
				if err := g.ask(c, c.owed); err != nil {
					return err
				}
				c.owed = 0
			}
		}
		if err := g.receive(wait); err != nil {
			return err
		}
	}
	g.result.Elapsed = time.Since(start)
	for limit := time.Now().Add(timeout); g.waiting() && time.Now().Before(limit); {
		if err := g.receive(20 * time.Millisecond); err != nil {
			return err
		}
	}
	g.expire(time.Now().Add(timeout))
	return nil
}

func (g *generator) waiting() bool {
	return slices.ContainsFunc(g.clients, func(c *client) bool { return c.waiting > 0 })
}

// ask sends n questions on c.
func (g *generator) ask(c *client, n int) error {
	for n > 0 {
		k := min(n, batch)
		first := c.next
		for i := range k {
			size := int(binary.BigEndian.Uint16(g.o.Questions[g.at:]))
			msg := g.o.Questions[g.at+2 : g.at+2+size]
			if g.at += 2 + size; g.at >= len(g.o.Questions) {
				g.at = 0
			}
			copy(g.sendData[i][:], msg)
			binary.BigEndian.PutUint16(g.sendData[i][:], c.next)
			g.sendIovs[i].SetLen(size)
			c.next++
		}
		now := time.Now().UnixNano()
		r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&g.sendMsgs[0])), uintptr(k), unix.MSG_DONTWAIT, 0, 0)
		sent := int(r)
		switch errno {
		case 0:
		case unix.EAGAIN, unix.ECONNREFUSED, unix.ENOBUFS:
			sent = 0
		default:
			return fmt.Errorf("sending: %w", errno)
		}
		for i := range k {
			id := first + uint16(i)
			if c.asked[id] == 0 {
				c.waiting++
			} else {
				g.result.Lost++ // the IDs went round before it was answered
			}
			// What could not be sent counts like what was lost on the way.
			c.asked[id] = now
		}
		g.result.Sent += k
		n -= k
		if sent < k && g.o.Rate == 0 {
			return nil // do not spin: they expire, and are asked again
		}
	}
	return nil
}

// receive takes what answers there are, after waiting for the first for so
// long at most.
func (g *generator) receive(wait time.Duration) error {
	ts := unix.NsecToTimespec(int64(wait))
	n, err := unix.Ppoll(g.polls, &ts, nil)
	if errors.Is(err, unix.EINTR) || n == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("waiting for answers: %w", err)
	}
	for i, p := range g.polls {
		if p.Revents == 0 {
			continue
		}
		if err := g.read(g.clients[i]); err != nil {
			return err
		}
	}
	return nil
}

func (g *generator) read(c *client) error {
	for i := range batch {
		g.recvMsgs[i].hdr.SetControllen(len(g.recvControl[i]))
	}
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&g.recvMsgs[0])), batch, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.ECONNREFUSED:
		return nil
	default:
		return fmt.Errorf("receiving: %w", errno)
	}
	now := time.Now().UnixNano()
	for i := range int(r) {
		m := &g.recvMsgs[i]
		if m.len < 12 {
			continue
		}
		id := binary.BigEndian.Uint16(g.recvData[i][:])
		asked := c.asked[id]
		if asked == 0 {
			continue // too late
		}
		c.asked[id] = 0
		c.waiting--
		if g.o.Rate == 0 {
			c.owed++
		}
		received := now
		if t, ok := timestamp(g.recvControl[i][:m.hdr.Controllen]); ok {
			received = t
		}
		g.latencies = append(g.latencies, time.Duration(max(received-asked, 0)))
		if rcode := g.recvData[i][3] & 15; rcode != 0 && rcode != 3 {
			g.result.Failed++
		}
	}
	return nil
}

// timestamp is the time in a control message SCM_TIMESTAMPNS, in Unix
// nanoseconds.
func timestamp(control []byte) (int64, bool) {
	if len(control) < unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) ||
		int32(binary.NativeEndian.Uint32(control[8:])) != unix.SOL_SOCKET ||
		int32(binary.NativeEndian.Uint32(control[12:])) != unix.SCM_TIMESTAMPNS {
		return 0, false
	}
	data := control[unix.SizeofCmsghdr:]
	return int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:])), true
}

// expire gives up what was asked longer than timeout ago.
func (g *generator) expire(now time.Time) {
	limit := now.Add(-timeout).UnixNano()
	for _, c := range g.clients {
		if c.waiting == 0 {
			continue
		}
		for id, asked := range c.asked {
			if asked == 0 || asked > limit {
				continue
			}
			c.asked[id] = 0
			c.waiting--
			if g.o.Rate == 0 {
				c.owed++
			}
			g.result.Lost++
		}
	}
}

func (g *generator) finish() {
	g.result.Answered = len(g.latencies)
	slices.Sort(g.latencies)
	g.result.P50 = Percentile(g.latencies, 50)
	g.result.P99 = Percentile(g.latencies, 99)
	g.result.P999 = Percentile(g.latencies, 99.9)
	g.result.Max = Percentile(g.latencies, 100)
}

// Percentile is the smallest of the sorted values that at least p percent do
// not exceed; 0 of none.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// Without the rounding 99.9 percent of 1000 would be 999.0000000000001.
	rank := int(p/100*float64(len(sorted)) + 1 - 1e-9)
	return sorted[min(max(rank, 1), len(sorted))-1]
}
