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

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/version"
)

// Backend is what the server asks besides the tree. Its methods must be safe for
// concurrent use.
type Backend interface {
	skydns.Backend
	// SRVRecords is Records for a question of type SRV: for a name with an
	// asterisk it returns the records of ports and not those of addresses.
	SRVRecords(name string) ([]Record, error)
	// HasFederations reports whether any federation is configured.
	HasFederations() bool
	// Federated reports whether labels, those left of svc and the zone in lower
	// case, name a Service of a configured federation, and the target of its
	// CNAME: "" if that is unknown.
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
	// DNSService is the Service whose cluster IPs are the addresses of
	// ns.dns.<zone>.
	DNSService treecache.Key
	// Sockets is the number of UDP sockets that share the address; 0 is
	// GOMAXPROCS.
	Sockets int
	// TCPIdleTimeout is how long a connection stays open without a question
	// (RFC 7766 section 6.2.3); 0 is 10 s.
	TCPIdleTimeout time.Duration
	// MaxTCPConnections bounds the open connections; 0 is 1000. Past it, a new
	// one closes the one that has been idle longest.
	MaxTCPConnections int
	// MaxTCPConnectionsPerClient bounds those of one client address; 0 is 250.
	// Past it, a new one closes the client's own that has been idle longest.
	MaxTCPConnectionsPerClient int
	// MaxAnswersPerSecond bounds the answers over UDP to one client address;
	// 0 is no bound.
	MaxAnswersPerSecond int
	// Namespace and Subsystem are the prefixes of the names of kube-dns's own
	// metrics; "" is "skydns".
	Namespace, Subsystem string
}

// Server answers DNS questions over UDP and TCP.
type Server struct {
	answerer

	sockets int
	tcpIdle time.Duration
	conns   *connTable
	replies sync.Pool    // of *[]byte, for replies over TCP
	rate    *rateLimiter // nil for no limit

	asked atomic.Int64 // when the last question came, in Unix nanoseconds

	inspectMetrics   *metrics // never collected
	inspectWildcards *wildcardQueue
}

// answerer answers a message, however it came. Inspect works on a copy, so a
// field must stay valid when it is copied: use a pointer for what has a state.
// What counts or bounds the questions of clients is replaced in Inspect.
type answerer struct {
	zone      *zone
	backend   Backend
	forwarder Forwarder
	skydns    dns.Handler // questions of every type but SRV
	skydnsSRV dns.Handler
	udpSize   uint16
	metrics   *metrics
	panics    *panicLog
	wildcards *wildcardQueue
}

// wildcardQueue bounds the questions for names with an asterisk: maxWildcards
// wait or are answered, and as many are answered at one time as slots has room
// for.
type wildcardQueue struct {
	waiting atomic.Int32
	slots   chan struct{}
}

func newWildcardQueue(slots int) *wildcardQueue {
	return &wildcardQueue{slots: make(chan struct{}, slots)}
}

// enter counts a question and reports whether there was room for it. If there
// was, leave must be called once it is answered.
func (w *wildcardQueue) enter() bool {
	if w.waiting.Add(1) > maxWildcards {
		w.waiting.Add(-1)
		return false
	}
	return true
}

func (w *wildcardQueue) leave() { w.waiting.Add(-1) }

// New makes a server. It starts nothing; see Listen and Serve.
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
		glog.V(2).Infof("server: reading RLIMIT_NOFILE: %v", err)
	} else if n := descriptorsFor(o.MaxTCPConnections, files.Cur); n < o.MaxTCPConnections {
		glog.Warningf("server: at most %d TCP connections instead of %d: RLIMIT_NOFILE is %d", n, o.MaxTCPConnections, files.Cur)
		o.MaxTCPConnections = n
	}
	conns := newConnTable(o.MaxTCPConnections, o.MaxTCPConnectionsPerClient)
	s := &Server{
		answerer: answerer{
			zone:      newZone(o.Tree, o.TTL, o.NegativeTTL, o.DNSService),
			backend:   o.Backend,
			forwarder: o.Forwarder,
			udpSize:   max(o.UDPSize, dns.MinMsgSize),
			metrics:   newMetrics(o.Namespace, o.Subsystem, func() float64 { return float64(conns.size()) }),
			panics:    &panicLog{},
			// Half of the processors, so that the other half is free for
			// questions that are answered at once.
			wildcards: newWildcardQueue(max(1, runtime.GOMAXPROCS(0)/2)),
		},
		sockets: o.Sockets,
		tcpIdle: o.TCPIdleTimeout,
		conns:   conns,
		rate:    newRateLimiter(o.MaxAnswersPerSecond),

		inspectMetrics:   newMetrics(o.Namespace, o.Subsystem, func() float64 { return 0 }),
		inspectWildcards: newWildcardQueue(1),
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

// LastQuestion is the time of the last question, zero before the first.
func (s *Server) LastQuestion() time.Time {
	if t := s.asked.Load(); t != 0 {
		return time.Unix(0, t)
	}
	return time.Time{}
}

// worker answers one message after another. One goroutine uses it.
type worker struct {
	a   *answerer
	q   query
	r   reply
	tcp bool // how the question came
	// overloaded is set while questions come faster than they are answered.
	overloaded bool
	// route and sys are those of the last question, for Inspect. They are valid
	// if decided is set.
	route   route
	sys     system
	decided bool
	// incomplete is set if the last question was refused because the records
	// are not complete.
	incomplete bool
	// async counts the questions that are answered on goroutines of their own.
	// The owner of the worker waits for it before it returns.
	async sync.WaitGroup
}

func (a *answerer) newWorker() *worker {
	w := &worker{a: a}
	w.r.ttl = a.zone.ttl
	return w
}

// parse takes msg apart, see query.parse, and finds the form of its name.
func (w *worker) parse(msg []byte) error {
	err := w.q.parse(msg)
	w.q.name = w.a.zone.names.Parse(&w.q.wire)
	return err
}

// respond sends a deferred reply to the client. It is called once, from any
// goroutine, and does not keep its argument. An empty reply is not sent.
type respond func(reply []byte)

// handle answers msg. The reply is in buf's array if that is large enough. It is
// nil if there is no reply, or if the answer is deferred: then handle calls
// responder, and what that returns is called with the reply. A panic is caught
// and answered SERVFAIL. ctx ends deferred answers.
func (w *worker) handle(ctx context.Context, msg, buf []byte, tcp bool, responder func() respond) (out []byte) {
	start := time.Now()
	a, q, r := w.a, &w.q, &w.r
	w.tcp = tcp
	sys := systemAuth
	defer func() {
		if p := recover(); p != nil {
			out = w.recovered(p, start, sys, buf)
		}
	}()
	err := w.parse(msg)
	if errors.Is(err, errDrop) {
		return nil
	}
	limit := a.limit(q, tcp)
	r.start(q, buf, limit)
	sys = systemOf(q.name.Form)
	if err != nil {
		return w.done(start, sys, errorRcode(err), 0)
	}
	if refusedType(q) {
		return w.done(start, sys, dns.RcodeRefused, 0)
	}
	if q.qclass != dns.ClassINET && q.qclass != dns.ClassANY {
		return w.done(start, sys, otherClass(q, r), 0)
	}
	v := verdict{route: routeForward}
	if sys != systemRecursive {
		if !a.backend.HasSynced() {
			w.incomplete = true
			return w.done(start, sys, dns.RcodeRefused, 0)
		}
		v = a.zone.resolve(q, r, rand.Uint32())
		if v.route == routeFederation {
			if _, ok := a.federated(q.name); !ok {
				v.route = routeDirect
			}
		}
	}
	w.route, w.sys, w.decided = v.route, sys, true
	if v.route == routeDirect {
		return w.done(start, sys, v.rcode, bitAA|bitRA)
	}
	if w.overloaded && sys == systemRecursive {
		a.metrics.shed.Inc()
		return w.done(start, sys, dns.RcodeServerFailure, bitRA)
	}
	if v.route == routeWildcard && !a.wildcards.enter() {
		return w.done(start, sys, dns.RcodeServerFailure, bitAA|bitRA)
	}
	w.deferAnswer(ctx, start, sys, v, msg, limit, responder())
	return nil
}

// limited answers a question past the client's rate: with TC and no records, or
// not at all.
func (w *worker) limited(rate *rateLimiter, msg, buf []byte) []byte {
	a, q, r := w.a, &w.q, &w.r
	a.metrics.limited.Inc()
	if q.parse(msg) != nil || !rate.slip() {
		return nil
	}
	r.start(q, buf, a.limit(q, false))
	r.truncated = true
	return r.finish(q, dns.RcodeSuccess, 0, a.udpSize)
}

// federated is Backend.Federated for a name.
func (a *answerer) federated(name qname.Name) (target string, ok bool) {
	if !a.backend.HasFederations() {
		return "", false // the usual case; search paths make many such names
	}
	labels, ok := name.Federated()
	if !ok {
		return "", false
	}
	return a.backend.Federated(labels)
}

// done finishes the reply in w and counts it.
func (w *worker) done(start time.Time, sys system, rcode int, flags uint16) []byte {
	out := w.r.finish(&w.q, rcode, flags, w.a.udpSize)
	w.a.metrics.answered(sys, time.Since(start), len(out), causeOf(rcode, w.r.answers, w.r.truncated, w.tcp))
	return out
}

// limit is the largest reply in octets: over UDP the smaller of the client's
// size and ours, 512 without EDNS (RFC 6891 sections 6.2.3 to 6.2.5).
func (a *answerer) limit(q *query, tcp bool) int {
	switch {
	case tcp:
		return dns.MaxMsgSize
	case !q.edns:
		return dns.MinMsgSize
	}
	return int(max(min(q.udpSize, a.udpSize), dns.MinMsgSize))
}

// systemOf is the system of a question by the form of its name, in the words of
// kube-dns's metrics.
func systemOf(form qname.Form) system {
	switch form {
	case qname.Outside:
		return systemRecursive
	case qname.Reverse:
		return systemReverse
	}
	return systemAuth // names in the zone, and those that could not be read
}

// errorRcode is the rcode for an error of query.parse.
func errorRcode(err error) int {
	switch {
	case errors.Is(err, errOpcode):
		return dns.RcodeNotImplemented
	case errors.Is(err, errVersion):
		return dns.RcodeBadVers
	}
	return dns.RcodeFormatError
}

// refusedType reports whether the type is a zone transfer, which is refused for
// every name (RFC 5936 section 2.2.1).
func refusedType(q *query) bool { return q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR }

// otherClass answers a class other than IN: the version for version.bind and
// version.server in class CHAOS. It returns the rcode, REFUSED for all others.
func otherClass(q *query, r *reply) int {
	const versionBind, versionServer = "\x07version\x04bind\x00", "\x07version\x06server\x00"
	name := string(q.wire.Octets())
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

// recovered answers a question whose answer panicked.
func (w *worker) recovered(p any, start time.Time, sys system, buf []byte) []byte {
	w.a.metrics.panics.Inc()
	w.a.panics.log(p, w.q.msg)
	if len(w.q.msg) < headerLen || w.q.flags&bitQR != 0 {
		return nil
	}
	w.r.start(&w.q, buf, dns.MinMsgSize)
	return w.done(start, sys, dns.RcodeServerFailure, bitRA)
}

// panicLog logs panics with their question and stack, one per second at most.
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

// describe is a message's question for the log; its octets in hexadecimal if it
// has none that can be read.
func describe(msg []byte) string {
	m := new(dns.Msg)
	if err := m.Unpack(msg); err == nil && len(m.Question) > 0 {
		return strings.TrimPrefix(m.Question[0].String(), ";")
	}
	return fmt.Sprintf("%x", msg[:min(len(msg), 512)])
}
