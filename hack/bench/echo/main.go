// The echo that `make bench` measures: the least that a DNS server in Go does.
// It reads and writes datagrams in batches, on one socket a core, and sends
// each back as an answer without any record. Nothing of it looks at a name.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	batch   = 64
	maxSize = 4096
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: echo ADDRESS:PORT")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// run answers until SIGTERM.
func run(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var wg sync.WaitGroup
	errs := make(chan error, runtime.GOMAXPROCS(0))
	for range cap(errs) {
		conn, err := listen(ctx, addr)
		if err != nil {
			stop()
			wg.Wait()
			return err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		wg.Go(func() {
			if err := serve(conn); !errors.Is(err, net.ErrClosed) {
				errs <- err
				stop()
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func listen(ctx context.Context, addr string) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", addr)
	if err != nil {
		return nil, err
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("a %T in place of a UDP socket", pc)
	}
	return conn, nil
}

func serve(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var (
		msgs  [batch]mmsghdr
		iovs  [batch]unix.Iovec
		names [batch]unix.RawSockaddrInet4
		data  [batch][maxSize]byte
		n     int
		errno syscall.Errno
		first int
	)
	for i := range msgs {
		iovs[i].Base = &data[i][0]
		msgs[i].hdr.Name = (*byte)(unsafe.Pointer(&names[i]))
		msgs[i].hdr.Iov = &iovs[i]
		msgs[i].hdr.SetIovlen(1)
	}
	recv := func(fd uintptr) bool {
		r, _, e := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&msgs[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		n, errno = int(r), e
		return e != unix.EAGAIN
	}
	sent := 0
	send := func(fd uintptr) bool {
		r, _, e := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&msgs[first])), uintptr(n-first), unix.MSG_DONTWAIT, 0, 0)
		sent, errno = int(r), e
		return e != unix.EAGAIN
	}
	for {
		for i := range msgs {
			msgs[i].hdr.Namelen = unix.SizeofSockaddrInet4
			iovs[i].SetLen(maxSize)
		}
		if err := raw.Read(recv); err != nil {
			return err
		}
		if errno != 0 {
			continue // an ICMP error of an earlier answer
		}
		for i := range n {
			data[i][2] |= 0x80 // QR: an answer
			iovs[i].SetLen(int(msgs[i].len))
		}
		for first = 0; first < n; first += sent {
			if err := raw.Write(send); err != nil {
				return err
			}
			if errno != 0 {
				sent = 1 // the first message's error: leave it
			}
		}
	}
}
