package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"github.com/golang/glog"
	"golang.org/x/sys/unix"
)

// batchSize is the number of datagrams per system call.
const batchSize = 64

// maxQuery is the longest question over UDP in octets. A longer one is dropped.
const maxQuery = 4096

// controlSize holds one IP_PKTINFO or IPV6_PKTINFO message.
const controlSize = 64

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// peer is a datagram's source and destination: the reply goes back the same way.
type peer struct {
	name    [unix.SizeofSockaddrInet6]byte
	control [controlSize]byte
}

// udpSocket reads and writes datagrams in batches. It is used by one goroutine,
// but for what responder returns.
type udpSocket struct {
	conn *net.UDPConn
	raw  syscall.RawConn

	in, out   [batchSize]mmsghdr
	inv, outv [batchSize]unix.Iovec
	peers     [batchSize]peer
	queries   [batchSize][maxQuery]byte
	replies   [batchSize][]byte // room for a reply each

	// Results of the callbacks recv and write. Those are made once, so that a call
	// allocates nothing.
	n           int
	waited      bool // nothing was there to read at first
	errno       syscall.Errno
	first, last int
	recv, write func(fd uintptr) bool
}

// listenUDP opens a socket at addr that others may share (SO_REUSEPORT).
func listenUDP(ctx context.Context, addr netip.AddrPort, replySize int) (*udpSocket, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = setUDPOptions(int(fd), addr.Addr()) }); cerr != nil {
			return cerr
		}
		return err
	}}
	pc, err := lc.ListenPacket(ctx, "udp", addr.String())
	if err != nil {
		return nil, err
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("got a %T, want a UDP socket", pc)
	}
	u := &udpSocket{conn: conn}
	if u.raw, err = conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Holds a burst while a batch is answered. The system's limit may be lower.
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		glog.V(2).Infof("server: setting the receive buffer: %v", err)
	}
	for i := range batchSize {
		u.replies[i] = make([]byte, 0, replySize)
		p := &u.peers[i]
		u.inv[i] = unix.Iovec{Base: &u.queries[i][0]}
		u.inv[i].SetLen(maxQuery)
		u.in[i].hdr = unix.Msghdr{Name: &p.name[0], Iov: &u.inv[i], Control: &p.control[0]}
		u.in[i].hdr.SetIovlen(1)
		u.out[i].hdr = unix.Msghdr{Iov: &u.outv[i]}
		u.out[i].hdr.SetIovlen(1)
	}
	u.recv = func(fd uintptr) bool {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&u.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
		u.n, u.errno = int(n), errno
		u.waited = u.waited || errno == unix.EAGAIN
		return errno != unix.EAGAIN
	}
	u.write = func(fd uintptr) bool {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&u.out[u.first])), uintptr(u.last-u.first), unix.MSG_DONTWAIT, 0, 0)
		u.n, u.errno = int(n), errno
		return errno != unix.EAGAIN
	}
	return u, nil
}

func setUDPOptions(fd int, addr netip.Addr) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("setting SO_REUSEPORT: %w", err)
	}
	if !addr.IsUnspecified() {
		return nil
	}
	// A reply must come from the address that was asked. A socket bound to the
	// unspecified address learns that from each datagram's control message. Package
	// net opens an IPv6 socket for 0.0.0.0 and :: alike, with IPv4 addresses mapped;
	// it is an IPv4 socket only if the system has no IPv6.
	err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	if errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if err != nil {
		return fmt.Errorf("setting IP_PKTINFO or IPV6_RECVPKTINFO: %w", err)
	}
	return nil
}

// read waits for datagrams and returns their number.
func (u *udpSocket) read() (int, error) {
	for i := range u.in {
		u.in[i].hdr.Namelen = unix.SizeofSockaddrInet6
		u.in[i].hdr.SetControllen(controlSize)
		u.in[i].hdr.Flags = 0
	}
	u.waited = false
	if err := u.raw.Read(u.recv); err != nil {
		return 0, err
	}
	if u.errno != 0 {
		return 0, u.errno
	}
	return u.n, nil
}

// flush writes the first n messages of out. One that cannot be written is dropped:
// its client asks again.
func (u *udpSocket) flush(n int) error {
	for u.first, u.last = 0, n; u.first < u.last; {
		if err := u.raw.Write(u.write); err != nil {
			return err
		}
		if u.errno != 0 {
			u.n = 1 // the error is the first message's: skip it
		}
		u.first += max(u.n, 1)
	}
	return nil
}

// serve answers until the socket is closed.
func (u *udpSocket) serve(ctx context.Context, s *Server) error {
	w := s.newWorker()
	defer w.async.Wait()
	var load overloadDetector
	for {
		n, err := u.read()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// An ICMP error of an earlier reply, or no memory: go on.
			glog.V(2).Infof("server: reading UDP: %v", err)
			continue
		}
		now := time.Now().UnixNano()
		s.asked.Store(now)
		w.overloaded = load.note(n, u.waited, now)
		answers := 0
		for i := range n {
			m := &u.in[i]
			if m.hdr.Flags&unix.MSG_TRUNC != 0 {
				continue
			}
			var reply []byte
			if query := u.queries[i][:m.len]; s.rate == nil || s.rate.allow(clientAddr(u.peers[i].name[:m.hdr.Namelen]), now) {
				reply = w.handle(ctx, query, u.replies[i], false, func() respond { return u.responder(i) })
			} else {
				reply = w.limited(s.rate, query, u.replies[i])
			}
			if reply == nil {
				continue
			}
			u.replies[i] = reply[:0]
			u.outv[answers].Base = &reply[0]
			u.outv[answers].SetLen(len(reply))
			o := &u.out[answers].hdr
			o.Name, o.Namelen = m.hdr.Name, m.hdr.Namelen
			o.Control, o.Controllen = nil, 0
			if m.hdr.Controllen > 0 && fixControl(u.peers[i].control[:m.hdr.Controllen]) {
				o.Control, o.Controllen = m.hdr.Control, m.hdr.Controllen
			}
			answers++
		}
		if err := u.flush(answers); err != nil && !errors.Is(err, net.ErrClosed) {
			glog.V(2).Infof("server: writing UDP: %v", err)
		}
	}
}

// fixControl turns a datagram's control message into its reply's, and reports
// whether there is one. The reply comes from the address that was asked. It leaves
// on the interface of its route; only for a link-local address is that the
// interface on which the datagram came.
func fixControl(control []byte) bool {
	if len(control) < unix.SizeofCmsghdr {
		return false
	}
	level := int32(binary.NativeEndian.Uint32(control[unsafe.Offsetof(unix.Cmsghdr{}.Level):]))
	kind := int32(binary.NativeEndian.Uint32(control[unsafe.Offsetof(unix.Cmsghdr{}.Type):]))
	data := control[unix.SizeofCmsghdr:]
	switch {
	case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		clear(data[:4]) // ipi_ifindex
		return true
	case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		// An IPv4 link-local address, such as a node-local cache's, has no zone.
		if addr := netip.AddrFrom16([16]byte(data[:16])); !addr.IsLinkLocalUnicast() || addr.Is4In6() {
			clear(data[16:20]) // ipi6_ifindex
		}
		return true
	}
	return false
}

// responder returns what sends a later reply to the i-th datagram. It keeps
// where the datagram came from.
func (u *udpSocket) responder(i int) respond {
	p := u.peers[i]
	namelen, controllen := u.in[i].hdr.Namelen, u.in[i].hdr.Controllen
	if controllen > 0 && !fixControl(p.control[:controllen]) {
		controllen = 0
	}
	return func(reply []byte) {
		if len(reply) == 0 {
			return
		}
		iov := unix.Iovec{Base: &reply[0]}
		iov.SetLen(len(reply))
		hdr := unix.Msghdr{Name: &p.name[0], Namelen: namelen, Iov: &iov}
		hdr.SetIovlen(1)
		if controllen > 0 {
			hdr.Control, hdr.Controllen = &p.control[0], controllen
		}
		var errno syscall.Errno
		err := u.raw.Write(func(fd uintptr) bool {
			_, _, errno = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&hdr)), unix.MSG_DONTWAIT)
			return errno != unix.EAGAIN
		})
		if err != nil && !errors.Is(err, net.ErrClosed) || errno != 0 {
			glog.V(2).Infof("server: writing UDP: %v, errno %v", err, errno)
		}
	}
}
