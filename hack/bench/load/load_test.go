package load

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestPercentile(t *testing.T) {
	thousand := make([]time.Duration, 1000)
	for i := range thousand {
		thousand[i] = time.Duration(i + 1)
	}
	tests := []struct {
		name   string
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{"none", nil, 50, 0},
		{"one", []time.Duration{7}, 99, 7},
		{"median of three", []time.Duration{1, 2, 9}, 50, 2},
		{"p50", thousand, 50, 500},
		{"p99", thousand, 99, 990},
		{"p99.9", thousand, 99.9, 999},
		{"max", thousand, 100, 1000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Percentile(tt.sorted, tt.p); got != tt.want {
				t.Errorf("Percentile(%v) = %d, want %d", tt.p, got, tt.want)
			}
		})
	}
}

// server answers every question but each lose-th, where lose is not 0, after
// the delay; it answers rcode.
func server(t *testing.T, delay time.Duration, lose int, rcode byte) netip.AddrPort {
	t.Helper()
	pc, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, maxSize)
		for n := 1; ; n++ {
			size, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if lose != 0 && n%lose == 0 {
				continue
			}
			time.Sleep(delay)
			buf[2] |= 0x80
			buf[3] = buf[3]&^15 | rcode
			if _, err := pc.WriteTo(buf[:size], from); err != nil {
				return
			}
		}
	}()
	addr, err := netip.ParseAddrPort(pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func questions(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, name := range []string{"a.example.", "longer.b.example."} {
		msg, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		b.Write(binary.BigEndian.AppendUint16(nil, uint16(len(msg))))
		b.Write(msg)
	}
	return b.Bytes()
}

func TestRate(t *testing.T) {
	r, err := Run(t.Context(), Options{
		Server: server(t, 0, 0, 0), Questions: questions(t), Sockets: 3, Duration: 500 * time.Millisecond, Rate: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine may end it before the last question was due.
	if r.Sent < 450 || r.Sent > 501 || r.Answered != r.Sent || r.Lost != 0 || r.Failed != 0 {
		t.Errorf("%+v, want 500 answers", r)
	}
	if r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max {
		t.Errorf("latencies out of order: %+v", r)
	}
}

// The delay of the server shows in the latency, and the rate does not fall.
func TestRateDoesNotWait(t *testing.T) {
	r, err := Run(t.Context(), Options{
		Server: server(t, 2*time.Millisecond, 0, 0), Questions: questions(t), Sockets: 2, Duration: 300 * time.Millisecond, Rate: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Sent < 250 || r.P50 < 2*time.Millisecond {
		t.Errorf("%+v, want 300 questions that take longer and longer", r)
	}
}

func TestOutstanding(t *testing.T) {
	r, err := Run(t.Context(), Options{
		Server: server(t, 0, 0, 0), Questions: questions(t), Sockets: 3, Duration: 300 * time.Millisecond, Outstanding: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered < 100 || r.Answered != r.Sent || r.Lost != 0 {
		t.Errorf("%+v, want an answer for every question", r)
	}
}

// Several threads are one load: nobody asks what another does.
func TestThreads(t *testing.T) {
	o := Options{
		Server: server(t, 0, 0, 0), Questions: bytes.Repeat(questions(t), 50), Sockets: 5, Duration: 300 * time.Millisecond,
		Outstanding: 11, Threads: 3,
	}
	for _, n := range []struct{ sockets, outstanding, threads int }{{5, 11, 3}, {7, 8, 5}, {16, 100, 2}, {4, 4, 4}, {1, 1, 1}} {
		o := o
		o.Sockets, o.Outstanding, o.Threads = n.sockets, n.outstanding, n.threads
		var all []byte
		sockets, outstanding := 0, 0
		for i, part := range o.split() {
			if part.Sockets < 1 || part.Outstanding < part.Sockets || len(part.Questions) < len(o.Questions)/(n.threads+1) {
				t.Errorf("%v: thread %d has %d sockets, %d questions under way and %d octets", n, i, part.Sockets, part.Outstanding, len(part.Questions))
			}
			all = append(all, part.Questions...)
			sockets, outstanding = sockets+part.Sockets, outstanding+part.Outstanding
		}
		if !bytes.Equal(all, o.Questions) || sockets != o.Sockets || outstanding != o.Outstanding {
			t.Errorf("%v: the threads have %d sockets, %d questions under way and %d octets", n, sockets, outstanding, len(all))
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered < 100 || r.Answered != r.Sent || r.Lost != 0 || r.P50 <= 0 || r.Max < r.P999 {
		t.Errorf("%+v, want an answer for every question", r)
	}
}

func TestLost(t *testing.T) {
	r, err := Run(t.Context(), Options{
		Server: server(t, 0, 5, 2), Questions: questions(t), Sockets: 2, Duration: 300 * time.Millisecond, Rate: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost != r.Sent/5 || r.Answered != r.Sent-r.Lost || r.Failed != r.Answered {
		t.Errorf("%+v, want a fifth lost and the others failed", r)
	}
}

func TestOptions(t *testing.T) {
	one := []byte{0, 1, 0}
	for _, o := range []Options{
		{},
		{Questions: one, Sockets: 4, Outstanding: 2},
		{Questions: one, Sockets: 4, Outstanding: 4, Threads: 5},
		{Questions: one, Sockets: 4, Outstanding: 4, Threads: 2},
		{Questions: one, Sockets: 4, Outstanding: 4, Threads: 3},
		{Questions: one, Sockets: 4, Rate: 4, Threads: 2},
	} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("Run(%+v) succeeded", o)
		}
	}
}

// A server over TCP whose answers are larger than many programs' buffers.
func TestTCP(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{Listener: l, MaxTCPQueries: -1, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for i := range 1500 {
			m.Answer = append(m.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET},
				A:   net.IPv4(192, 0, 2, byte(i)),
			})
		}
		if err := w.WriteMsg(m); err != nil {
			t.Error(err)
		}
	})}
	done := make(chan error, 1)
	started := make(chan struct{})
	srv.NotifyStartedFunc = func() { close(started) }
	go func() { done <- srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := srv.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	addr, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := RunTCP(t.Context(), Options{Server: addr, Questions: questions(t), Sockets: 3, Duration: 300 * time.Millisecond, Outstanding: 10})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered < 10 || r.Answered != r.Sent || r.Lost != 0 || r.Failed != 0 || r.P50 <= 0 {
		t.Errorf("%+v, want an answer for every question", r)
	}
}
