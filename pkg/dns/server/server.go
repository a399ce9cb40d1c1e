package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/glog"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	skydns "github.com/skynetservices/skydns/server"
	"golang.org/x/sys/unix"

	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/version"
)

// Backend is what the server asks besides the tree. Its methods are called
// from many goroutines.
type Backend interface {
	skydns.Backend
	// SRVRecords is Records for a question of type SRV: at a name with an
	// asterisk in the place of a Service it has the ports' records in place
	// of the addresses.
	SRVRecords(name string) ([]Record, error)
	// HasFederations tells whether any federation is configured.
	HasFederations() bool
	// Federated tells whether the labels left of svc and the zone, in lower
	// case and in the order of the name, ask for a Service of a configured
	// federation, and what its CNAME's target is: "" where that is unknown.
	Federated(labels []string) (target string, ok bool)
}

// Forwarder asks the upstream nameservers.
type Forwarder interface {
	Exchange(ctx context.Context, req *dns.Msg, tcp bool) (*dns.Msg, netip.AddrPort, error)
}

// Options are a Server's; Tree, Backend and Forwarder must be set.
type Options struct {
	Tree      *treecache.Tree
	Backend   Backend
	Forwarder Forwarder

	TTL         uint32 // of records, in seconds
	NegativeTTL uint32 // of negative answers, in seconds; 0 is 30
	UDPSize     uint16 // the largest UDP reply, in octets; 0 is 4096
	// DNSService is the Service whose cluster IPs ns.dns.<zone> has.
	DNSService treecache.Key
	// Sockets is how many UDP sockets share the address; 0 is GOMAXPROCS.
	Sockets int
	// TCPIdleTimeout ends a connection on which nothing was asked for so long
	// (RFC 7766 section 6.2.3); 0 is 10 s.
	TCPIdleTimeout time.Duration
	// MaxTCPConnections bounds the connections at one time, past which the one
	// that was idle for the longest is closed; 0 is 1000.
	MaxTCPConnections int
	// MaxTCPConnectionsPerClient bounds those of one client address, past
	// which new ones are refused; 0 is 250.
	MaxTCPConnectionsPerClient int
	// MaxAnswersPerSecond bounds the answers over UDP to one client address;
	// 0 is no bound.
	MaxAnswersPerSecond int
	// Namespace and Subsystem begin the names of kube-dns's own metrics;
	// empty ones are "skydns".
	Namespace, Subsystem string
}

// Server answers DNS questions over UDP and TCP.
type Server struct {
	zone      *zone
	backend   Backend
	forwarder Forwarder
	skydns    dns.Handler // questions of every type but SRV
	skydnsSRV dns.Handler
	udpSize   uint16
	sockets   int
	tcpIdle   time.Duration
	conns     *connTable
	replies   sync.Pool    // of *[]byte, for replies over TCP
	rate      *rateLimiter // nil: no limit
	metrics   *metrics

	asked atomic.Int64 // when the last question came, in Unix nanoseconds

	panics *panicLog
	unseen *metrics // what Inspect counts, which nobody collects

	wildcards     atomic.Int32  // names with an asterisk that wait or are answered
	wildcardSlots chan struct{} // those that are answered
	inspectSlots  chan struct{} // the same, of Inspect
}

// New makes a server; it listens once Listen is called.
func New(o Options) (*Server, error) {
	if o.NegativeTTL == 0 {
		o.NegativeTTL = 30
	}
	if o.UDPSize == 0 {
		o.UDPSize = 4096
	}
	if o.Sockets == 0 {
		o.Sockets = runtime.GOMAXPROCS(0)
	}
	if o.TCPIdleTimeout == 0 {
		o.TCPIdleTimeout = 10 * time.Second
	}
	if o.MaxTCPConnections == 0 {
		o.MaxTCPConnections = 1000
	}
	if o.MaxTCPConnectionsPerClient == 0 {
		o.MaxTCPConnectionsPerClient = 250
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		glog.V(2).Infof("server: RLIMIT_NOFILE: %v", err)
	} else if n := descriptorsFor(o.MaxTCPConnections, files.Cur); n < o.MaxTCPConnections {
		glog.Warningf("server: %d TCP connections at most, not %d: the process may have %d files open", n, o.MaxTCPConnections, files.Cur)
		o.MaxTCPConnections = n
	}
	conns := newConnTable(o.MaxTCPConnections, o.MaxTCPConnectionsPerClient)
	s := &Server{
		zone:      newZone(o.Tree, o.TTL, o.NegativeTTL, o.DNSService),
		backend:   o.Backend,
		forwarder: o.Forwarder,
		udpSize:   max(o.UDPSize, dns.MinMsgSize),
		sockets:   o.Sockets,
		tcpIdle:   o.TCPIdleTimeout,
		conns:     conns,
		rate:      newRateLimiter(o.MaxAnswersPerSecond),
		metrics:   newMetrics(o.Namespace, o.Subsystem, func() float64 { return float64(conns.size()) }),

		// Half of the processors, so that they never keep the direct way.
		wildcardSlots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		inspectSlots:  make(chan struct{}, 1),

		panics: &panicLog{},
		unseen: newMetrics(o.Namespace, o.Subsystem, func() float64 { return 0 }),
	}
	s.replies.New = func() any {
		b := make([]byte, 0, replyBuffer)
		return &b
	}
	var err error
	cfg := skydns.Config{Domain: o.Tree.Zone(), Ttl: o.TTL, MinTtl: o.NegativeTTL, RoundRobin: true, NoRec: true}
	if s.skydns, err = newSkyDNS(o.Backend, cfg); err != nil {
		return nil, err
	}
	if s.skydnsSRV, err = newSkyDNS(srvBackend{o.Backend}, cfg); err != nil {
		return nil, err
	}
	return s, nil
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) { s.metrics.Collect(ch) }

// LastQuestion is when a question last came; the zero time before the first.
func (s *Server) LastQuestion() time.Time {
	if t := s.asked.Load(); t != 0 {
		return time.Unix(0, t)
	}
	return time.Time{}
}

// worker is what one goroutine needs to answer one question after another.
type worker struct {
	s   *Server
	q   query
	r   reply
	tcp bool // how the question came
	// pressed is set while questions come faster than they are answered.
	pressed bool
	// way and sys say, for Inspect, how the last question was answered, once
	// decided is set.
	way     way
	sys     system
	decided bool
	// incomplete says that it was refused since the records are not complete.
	incomplete bool
	// slow are the questions that are answered on goroutines of their own.
	// Whoever has the worker waits for them in the end.
	slow sync.WaitGroup
}

func (s *Server) newWorker() *worker {
	w := &worker{s: s}
	w.r.ttl = s.zone.ttl
	return w
}

// respond is how an answer that takes longer gets back to the client; it is
// called once, from any goroutine, and does not keep its argument, which is
// empty where nothing is to be written.
type respond func(reply []byte)

// handle answers msg. The answer is in buf's array where that is large enough;
// it is nil where nothing is to be written, or not yet: then later is called
// to get a respond, which is called when the answer is there. A panic on the
// way is caught and answered SERVFAIL. ctx ends what takes longer.
func (w *worker) handle(ctx context.Context, msg, buf []byte, tcp bool, later func() respond) (out []byte) {
	start := time.Now()
	s, q, r := w.s, &w.q, &w.r
	w.tcp = tcp
	sys := systemAuth
	defer func() {
		if p := recover(); p != nil {
			out = w.recovered(p, start, sys, buf)
		}
	}()
	err := q.parse(msg)
	if errors.Is(err, errDrop) {
		return nil
	}
	limit := s.limit(q, tcp)
	r.start(q, buf, limit)
	sys = s.classify(q)
	if err != nil {
		return w.done(start, sys, errorRcode(err), 0)
	}
	if refusedType(q) {
		return w.done(start, sys, dns.RcodeRefused, 0)
	}
	if q.qclass != dns.ClassINET && q.qclass != dns.ClassANY {
		return w.done(start, sys, s.otherClass(q, r), 0)
	}
	v := verdict{way: wayForward}
	switch sys {
	case systemAuth, systemReverse:
		if !s.backend.HasSynced() {
			w.incomplete = true
			return w.done(start, sys, dns.RcodeRefused, 0)
		}
		if sys == systemReverse {
			v = s.zone.reverse(q, r)
			break
		}
		v = s.zone.resolve(q, r, rand.Uint32())
		if v.way == wayFederation && !s.federated(q) {
			v.way = wayDirect
		}
	}
	w.way, w.sys, w.decided = v.way, sys, true
	if v.way == wayDirect {
		return w.done(start, sys, v.rcode, bitAA|bitRA)
	}
	if w.pressed && sys == systemRecursive {
		s.metrics.shed.Inc()
		return w.done(start, sys, dns.RcodeServerFailure, bitRA)
	}
	if v.way == wayWildcard && s.wildcards.Add(1) > maxWildcards {
		s.wildcards.Add(-1)
		return w.done(start, sys, dns.RcodeServerFailure, bitAA|bitRA)
	}
	w.later(ctx, start, sys, v, msg, limit, later())
	return nil
}

// limited answers a question past the client's bound: not at all, or with TC
// and nothing else.
func (w *worker) limited(msg, buf []byte) []byte {
	s, q, r := w.s, &w.q, &w.r
	s.metrics.limited.Inc()
	if q.parse(msg) != nil || !s.rate.slip() {
		return nil
	}
	r.start(q, buf, s.limit(q, false))
	r.truncated = true
	return r.finish(q, dns.RcodeSuccess, 0, s.udpSize)
}

// federated tells whether the question is for a federated Service.
func (s *Server) federated(q *query) bool {
	if !s.backend.HasFederations() {
		return false // nearly always; search paths make many such names
	}
	_, ok := s.backend.Federated(q.labelStrings(3))
	return ok
}

// done finishes the reply in w and counts it.
func (w *worker) done(start time.Time, sys system, rcode int, flags uint16) []byte {
	out := w.r.finish(&w.q, rcode, flags, w.s.udpSize)
	w.s.metrics.answered(sys, time.Since(start), len(out), causeOf(rcode, w.r.answers, w.r.truncated, w.tcp))
	return out
}

// limit is how long the reply may be: over UDP the smaller of what the client
// and what we take, 512 without EDNS (RFC 6891 sections 6.2.3 to 6.2.5).
func (s *Server) limit(q *query, tcp bool) int {
	switch {
	case tcp:
		return dns.MaxMsgSize
	case !q.edns:
		return dns.MinMsgSize
	}
	return int(max(min(q.udpSize, s.udpSize), dns.MinMsgSize))
}

// classify is the system, in the words of kube-dns's metrics, that the
// question's name belongs to.
func (s *Server) classify(q *query) system {
	switch {
	case q.namelen == 0: // it could not be read
		return systemAuth
	case s.zone.holds(q):
		return systemAuth
	case isReverse(q):
		return systemReverse
	}
	return systemRecursive
}

// errorRcode is the answer to a message that is no question.
func errorRcode(err error) int {
	switch {
	case errors.Is(err, errOpcode):
		return dns.RcodeNotImplemented
	case errors.Is(err, errVersion):
		return dns.RcodeBadVers
	}
	return dns.RcodeFormatError
}

// refusedType tells whether the type asks for something that is not done here,
// whatever the name: a transfer of the zone (RFC 5936 section 2.2.1).
func refusedType(q *query) bool { return q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR }

// otherClass answers a class other than IN: what names of class CHAOS say of
// the server, as far as it is told.
func (s *Server) otherClass(q *query, r *reply) int {
	const versionBind, versionServer = "\x07version\x04bind\x00", "\x07version\x06server\x00"
	name := string(q.name())
	if q.qclass != dns.ClassCHAOS || q.qtype != dns.TypeTXT || name != versionBind && name != versionServer {
		return dns.RcodeRefused
	}
	text := "kube-dns " + version.Version
	r.head(nameAt, dns.TypeTXT, [4]byte{}, 1+len(text))
	r.buf[len(r.buf)-headLen+5] = dns.ClassCHAOS
	r.buf = append(append(r.buf, byte(len(text))), text...)
	r.answers++
	return dns.RcodeSuccess
}

// recovered answers a question during which something panicked.
func (w *worker) recovered(p any, start time.Time, sys system, buf []byte) []byte {
	w.s.metrics.panics.Inc()
	w.s.panics.log(p, w.q.msg)
	if len(w.q.msg) < headerLen || w.q.flags&bitQR != 0 {
		return nil
	}
	w.r.start(&w.q, buf, dns.MinMsgSize)
	return w.done(start, sys, dns.RcodeServerFailure, bitRA)
}

// panicLog logs a panic with its question and stack, once a second at most.
type panicLog struct {
	mu   sync.Mutex
	next time.Time
}

func (l *panicLog) log(p any, msg []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	l.next = now.Add(time.Second)
	stack := make([]byte, 8<<10)
	stack = stack[:runtime.Stack(stack, false)]
	glog.Errorf("server: panic: %v\nquestion: %s\n%s", p, describe(msg), stack)
}

// describe is a message's question for the log, or its bytes.
func describe(msg []byte) string {
	m := new(dns.Msg)
	if err := m.Unpack(msg); err == nil && len(m.Question) > 0 {
		return strings.TrimPrefix(m.Question[0].String(), ";")
	}
	return fmt.Sprintf("%x", msg[:min(len(msg), 512)])
}
