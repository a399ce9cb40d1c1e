package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	etcd "github.com/coreos/etcd/client"
	"github.com/miekg/dns"
	"github.com/skynetservices/skydns/msg"
	"go.uber.org/goleak"

	"kubedns/pkg/dns/treecache"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// What the fixture's records and negative answers have as TTL: two values, so
// that one in the other's place is seen.
const (
	testTTL    = 30
	testNegTTL = 10
)

// port is a Service's, "http/tcp" with its number; an unnamed one is "/tcp".
type port struct {
	name   string
	number uint16
}

// endpoint is a headless Service's; without a host it has a system label.
type endpoint struct{ host, addr string }

func newRecords(namespace, name string, kind treecache.Kind) *treecache.Records {
	return &treecache.Records{
		Key: treecache.Key{Namespace: namespace, Name: name}, Kind: kind, HasReady: true,
		Created: time.Unix(1000, 0),
	}
}

func addPorts(r *treecache.Records, ports []port, label string) {
	for _, p := range ports {
		srv := treecache.SRV{Label: label, Port: p.number}
		r.SRVs = append(r.SRVs, srv)
		name, protocol, _ := strings.Cut(p.name, "/")
		if name == "" {
			continue
		}
		i := slices.IndexFunc(r.Ports, func(q treecache.Port) bool { return q.Name == "_"+name && q.Protocol == "_"+protocol })
		if i < 0 {
			i = len(r.Ports)
			r.Ports = append(r.Ports, treecache.Port{Name: "_" + name, Protocol: "_" + protocol})
		}
		r.Ports[i].SRVs = append(r.Ports[i].SRVs, srv)
	}
}

func clusterIP(namespace, name string, ports []port, addrs ...string) *treecache.Records {
	r := newRecords(namespace, name, treecache.ClusterIP)
	for _, a := range addrs {
		r.Addresses = append(r.Addresses, treecache.Address{
			Label: treecache.SystemLabel(a), Addr: netip.MustParseAddr(a), Reverse: true})
	}
	addPorts(r, ports, "")
	r.Sort()
	return r
}

func headless(namespace, name string, ports []port, endpoints ...endpoint) *treecache.Records {
	r := newRecords(namespace, name, treecache.Headless)
	labels := map[string]bool{}
	for _, e := range endpoints {
		label := e.host
		if label == "" {
			label = treecache.SystemLabel(e.addr)
		}
		r.Addresses = append(r.Addresses, treecache.Address{
			Label: label, Addr: netip.MustParseAddr(e.addr), Reverse: true, PodHostname: e.host != ""})
		if !labels[label] {
			labels[label] = true
			addPorts(r, ports, label)
		}
	}
	r.Sort()
	return r
}

func external(namespace, name, target string) *treecache.Records {
	r := newRecords(namespace, name, treecache.ExternalName)
	r.Target = target
	return r
}

// manyEndpoints are n endpoints with hostnames pod-0, pod-1, …
func manyEndpoints(n int) []endpoint {
	all := make([]endpoint, n)
	for i := range all {
		all[i] = endpoint{fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&0xff, i&0xff)}
	}
	return all
}

var webPorts = []port{{"http/tcp", 80}, {"dns/udp", 53}, {"/tcp", 9000}}

// fixture are the Services that most tests ask about.
func fixture() []*treecache.Records {
	empty := newRecords("lonely", "nothing", treecache.Headless)
	empty.Empty = true
	extaddr := newRecords("default", "extaddr", treecache.ExternalName)
	extaddr.Addresses = []treecache.Address{{Addr: netip.MustParseAddr("203.0.113.9")}}
	older := clusterIP("zoo", "older", nil, "10.96.0.77")
	older.Created = time.Unix(500, 0)
	return []*treecache.Records{
		clusterIP("default", "web", webPorts, "10.96.0.10", "fd00::10"),
		clusterIP("default", "v4", nil, "10.96.0.11"),
		clusterIP("default", "v6", []port{{"http/tcp", 80}}, "fd00::12"),
		headless("default", "head", []port{{"http/tcp", 8080}, {"metrics/tcp", 9090}},
			endpoint{"web-0", "192.0.2.1"}, endpoint{"web-0", "2001:db8::1"}, endpoint{"web-1", "192.0.2.2"}, endpoint{"", "192.0.2.3"}),
		headless("default", "shared", nil, endpoint{"db", "192.0.2.21"}, endpoint{"db", "192.0.2.22"}),
		empty,
		external("default", "ext", "www.Example.org."),
		external("default", "inner", "web.default.svc.cluster.local."),
		external("default", "tonxdomain", "missing.example.org."),
		external("default", "tonodata", "empty.example.org."),
		external("default", "tonowhere", "gone.default.svc.cluster.local."),
		external("default", "toempty", "svc.cluster.local."),
		external("default", "topod", "10-1-2-3.default.pod.cluster.local."),
		external("default", "tofed", "web.default.myfed.svc.cluster.local."),
		external("default", "todead", "dead.example.org."),
		external("default", "tofail", "servfail.example.org."),
		external("default", "back", "back.example.org."),
		external("default", "self", "self.default.svc.cluster.local."),
		external("default", "ping", "pong.default.svc.cluster.local."),
		external("default", "pong", "PING.default.svc.cluster.local."),
		external("default", "round", "round.example.org."),
		external("default", "upstreamloop", "loop.example.org."),
		external("default", "wild", "*.default.svc.cluster.local."),
		external("default", "longlabel", strings.Repeat("x", 64)+".example.org."),
		external("default", "longinside", strings.Repeat("x", 64)+".default.svc.cluster.local."),
		extaddr,
		clusterIP("default", "young", nil, "10.96.0.77"),
		clusterIP("app", "young", nil, "10.96.0.77"),
		older,
		headless("default", "podfirst", nil, endpoint{"pod", "10.96.0.77"}),
		clusterIP("kube-system", "kube-dns", []port{{"dns/udp", 53}, {"dns-tcp/tcp", 53}}, "10.96.0.2", "fd00::2"),
	}
}

// fakeBackend is a Backend whose answers are given.
type fakeBackend struct {
	synced    atomic.Bool
	hasSynced func() bool // in place of synced, where not nil
	// records by name, for names with an asterisk; any other name is one of
	// hosts, as SkyDNS asks for the addresses of SRV targets.
	records, srvs, hosts map[string][]Record
	federations          map[string]string // "svc.ns.fed" to target
	wildcards            func(name string) // called for each name with an asterisk
}

func (b *fakeBackend) HasSynced() bool {
	if b.hasSynced != nil {
		return b.hasSynced()
	}
	return b.synced.Load()
}

func (b *fakeBackend) find(in map[string][]Record, name string) ([]Record, error) {
	if strings.Contains(name, "*") && b.wildcards != nil {
		b.wildcards(name)
	}
	if found, ok := in[name]; ok {
		return found, nil
	}
	if found, ok := b.hosts[name]; ok {
		return found, nil
	}
	return nil, etcd.Error{Code: etcd.ErrorCodeKeyNotFound}
}

func (b *fakeBackend) Records(name string, _ bool) ([]msg.Service, error) {
	return b.find(b.records, name)
}

func (b *fakeBackend) SRVRecords(name string) ([]Record, error) { return b.find(b.srvs, name) }

func (b *fakeBackend) ReverseRecord(string) (*msg.Service, error) {
	return nil, etcd.Error{Code: etcd.ErrorCodeKeyNotFound}
}

func (b *fakeBackend) HasFederations() bool { return len(b.federations) > 0 }

func (b *fakeBackend) Federated(labels []string) (string, bool) {
	target, ok := b.federations[strings.Join(labels, ".")]
	return target, ok
}

// fakeForwarder answers like upstream nameservers.
type fakeForwarder func(ctx context.Context, req *dns.Msg, tcp bool) (*dns.Msg, error)

func (f fakeForwarder) Exchange(ctx context.Context, req *dns.Msg, tcp bool) (*dns.Msg, netip.AddrPort, error) {
	m, err := f(ctx, req, tcp)
	return m, netip.MustParseAddrPort("192.0.2.53:53"), err
}

// testServer is a Server with what is behind it.
type testServer struct {
	*Server
	tree    *treecache.Tree
	backend *fakeBackend
}

// newTestServer makes a server of records, synced, whose options change
// changes where it is not nil.
func newTestServer(tb testing.TB, records []*treecache.Records, change func(*Options)) *testServer {
	tb.Helper()
	b := &fakeBackend{}
	b.synced.Store(true)
	o := Options{
		Tree: treecache.New("cluster.local."), Backend: b, TTL: testTTL, NegativeTTL: testNegTTL, Sockets: 1,
		DNSService: treecache.Key{Namespace: "kube-system", Name: "kube-dns"},
		Forwarder: fakeForwarder(func(context.Context, *dns.Msg, bool) (*dns.Msg, error) {
			tb.Error("a question was forwarded")
			return nil, context.Canceled
		}),
	}
	if change != nil {
		change(&o)
	}
	for _, r := range records {
		o.Tree.Replace(r.Key, r, time.Unix(1_000_000, 0))
	}
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return &testServer{Server: s, tree: o.Tree, backend: b}
}

// newHeldServer is a server of the fixture whose forwarder announces every
// question on asked, and answers it once release is closed, with the A record of
// www.example.org.
func newHeldServer(tb testing.TB, change func(*Options)) (s *testServer, asked <-chan struct{}, release chan struct{}) {
	tb.Helper()
	came, release := make(chan struct{}, 1000), make(chan struct{})
	s = newTestServer(tb, fixture(), func(o *Options) {
		o.Forwarder = fakeForwarder(func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
			came <- struct{}{}
			<-release
			return parseReply(tb, req, orgZone["www.example.org. A"]), nil
		})
		if change != nil {
			change(o)
		}
	})
	return s, came, release
}

// handle asks for msg and waits for the reply where it comes later. It is nil
// where there is none.
func (s *testServer) handle(tb testing.TB, msg []byte, tcp bool) []byte {
	tb.Helper()
	return s.handleWith(tb, s.newWorker(), msg, tcp)
}

func (s *testServer) handleWith(tb testing.TB, w *worker, msg []byte, tcp bool) []byte {
	tb.Helper()
	later := make(chan []byte, 1)
	waiting := false
	out := w.handle(tb.Context(), msg, nil, tcp, func() respond {
		waiting = true
		return func(reply []byte) { later <- bytes.Clone(reply) }
	})
	if out != nil || !waiting {
		return out
	}
	select {
	case out = <-later:
		return out
	case <-time.After(10 * time.Second):
		tb.Fatal("no reply")
		return nil
	}
}

// newQuestion packs a question, "web.default.svc.cluster.local. A" or with a
// class "version.bind. TXT CH". change may change it before.
func newQuestion(tb testing.TB, question string, change func(*dns.Msg)) *dns.Msg {
	tb.Helper()
	fields := strings.Fields(question)
	if len(fields) < 2 {
		tb.Fatalf("question %q", question)
	}
	qtype, ok := dns.StringToType[fields[1]]
	if !ok {
		if _, err := fmt.Sscanf(fields[1], "TYPE%d", &qtype); err != nil {
			tb.Fatalf("type %q", fields[1])
		}
	}
	m := &dns.Msg{Question: []dns.Question{{Name: fields[0], Qtype: qtype, Qclass: dns.ClassINET}}}
	if len(fields) > 2 {
		m.Question[0].Qclass = dns.StringToClass[fields[2]]
	}
	m.Id = 0x1234
	if change != nil {
		change(m)
	}
	return m
}

func pack(tb testing.TB, m *dns.Msg) []byte {
	tb.Helper()
	wire, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return wire
}

// ask asks in wire form, checks what is true of every reply, and unpacks it.
func (s *testServer) ask(tb testing.TB, req *dns.Msg, tcp bool) *dns.Msg {
	tb.Helper()
	wire := pack(tb, req)
	reply := s.handle(tb, wire, tcp)
	if reply == nil {
		tb.Fatalf("no reply to %v", req.Question)
	}
	return checkReply(tb, wire, reply, tcp, s.udpSize)
}

// checkReply checks what is true of every reply to the question in query: it
// unpacks, with as many records as the header says and nothing behind them; ID,
// opcode, RD and question are the question's; it has one OPT record if the
// question has any, and is no longer than allowed.
func checkReply(tb testing.TB, query, reply []byte, tcp bool, udpSize uint16) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(reply); err != nil {
		tb.Fatalf("reply does not unpack: %v\n%x", err, reply)
	}
	if len(reply) < headerLen || !bytes.Equal(reply[:2], query[:2]) {
		tb.Fatalf("ID of the reply %x to %x", reply[:2], query[:2])
	}
	if !m.Response || m.Zero || (reply[2]^query[2])&0x79 != 0 {
		tb.Fatalf("flags of the reply %x to %x: QR, opcode, RD or Z is wrong", reply[2:4], query[2:4])
	}
	at := headerLen
	if n := binary.BigEndian.Uint16(reply[4:]); n == 1 {
		end := headerLen
		for reply[end] != 0 {
			end += 1 + int(reply[end])
		}
		end += 5
		if !bytes.HasPrefix(query[headerLen:], reply[headerLen:end]) {
			tb.Fatalf("question of the reply %x to %x", reply[headerLen:end], query)
		}
		at = end
	} else if n != 0 || m.Rcode != dns.RcodeFormatError && m.Rcode != dns.RcodeNotImplemented && m.Rcode != dns.RcodeServerFailure {
		tb.Fatalf("%d questions in a reply %s", n, dns.RcodeToString[m.Rcode])
	}
	records := 0
	for i := 6; i < headerLen; i += 2 {
		records += int(binary.BigEndian.Uint16(reply[i:]))
	}
	opts := 0
	for i := range records {
		if at >= len(reply) {
			tb.Fatalf("record %d of %d is missing\n%x", i, records, reply)
		}
		rr, end, err := dns.UnpackRR(reply, at)
		if err != nil {
			tb.Fatalf("record %d of %d: %v\n%x", i, records, err, reply)
		}
		if rr.Header().Rrtype == dns.TypeOPT {
			opts++
		}
		at = end
	}
	if at != len(reply) {
		tb.Fatalf("%d octets behind the last record\n%x", len(reply)-at, reply)
	}
	limit := dns.MaxMsgSize
	var asked dns.Msg
	if err := asked.Unpack(query); err == nil && len(asked.Question) == 1 {
		wantOPT := 0
		opt := asked.IsEdns0()
		if opt != nil {
			wantOPT = 1
		}
		if asked.Opcode == dns.OpcodeQuery && m.Rcode != dns.RcodeFormatError && opts != wantOPT {
			tb.Fatalf("%d OPT records in a reply, want %d", opts, wantOPT)
		}
		if !tcp {
			limit = dns.MinMsgSize
			if opt != nil {
				limit = int(max(min(opt.UDPSize(), udpSize), dns.MinMsgSize))
			}
		}
	} else if !tcp {
		limit = int(udpSize)
	}
	if len(reply) > limit {
		tb.Fatalf("reply of %d octets, allowed are %d", len(reply), limit)
	}
	return m
}

// text is a reply as text: rcode and flags, then the records, one a line, each
// section sorted. The tree's serial is SERIAL.
func (s *testServer) text(m *dns.Msg) string {
	var b strings.Builder
	b.WriteString(dns.RcodeToString[m.Rcode])
	for _, flag := range []struct {
		name string
		set  bool
	}{{"aa", m.Authoritative}, {"tc", m.Truncated}, {"rd", m.RecursionDesired}, {"ra", m.RecursionAvailable}, {"ad", m.AuthenticatedData}, {"cd", m.CheckingDisabled}} {
		if flag.set {
			b.WriteString(" " + flag.name)
		}
	}
	for _, section := range []struct {
		name string
		rrs  []dns.RR
	}{{"an", m.Answer}, {"ns", m.Ns}, {"ar", m.Extra}} {
		var lines []string
		for _, rr := range section.rrs {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			line := strings.ReplaceAll(rr.String(), "\t", " ")
			line = strings.Replace(line, fmt.Sprintf(" %d 28800 7200", s.tree.Serial()), " SERIAL 28800 7200", 1)
			lines = append(lines, section.name+" "+line)
		}
		slices.Sort(lines)
		for _, line := range lines {
			b.WriteString("\n" + line)
		}
	}
	return b.String()
}

// wantText makes of a row's text what text returns: see cleanText, sorted.
func wantText(s string) string {
	lines := strings.Split(cleanText(s), "\n")
	slices.SortStableFunc(lines[1:], func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Index("an ns ar", a[:2]), strings.Index("an ns ar", b[:2])), cmp.Compare(a, b))
	})
	return strings.Join(lines, "\n")
}

// cleanText takes the indentation from a row's text, one record a line, {soa}
// being the zone's SOA of a negative answer.
func cleanText(s string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.NewReplacer(
		"{soa}", "ns cluster.local. 10 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 28800 7200 604800 10",
	).Replace(strings.Join(lines, "\n"))
}

// upstream answers as nameservers do that serve example.org.
type upstream struct {
	mu    sync.Mutex
	asked []string
	zone  map[string]string // "name TYPE", in lower case, to the lines of the reply as text has them
}

func newUpstream(tb testing.TB, zone map[string]string) (*upstream, fakeForwarder) {
	tb.Helper()
	u := &upstream{zone: zone}
	return u, func(_ context.Context, req *dns.Msg, _ bool) (*dns.Msg, error) {
		q := req.Question[0]
		key := strings.ToLower(q.Name) + " " + dns.Type(q.Qtype).String()
		u.mu.Lock()
		u.asked = append(u.asked, key)
		u.mu.Unlock()
		text, ok := zone[key]
		if !ok {
			return nil, fmt.Errorf("nobody answers %s", key)
		}
		return parseReply(tb, req, text), nil
	}
}

// parseReply makes a reply to req of what text makes of one.
func parseReply(tb testing.TB, req *dns.Msg, text string) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg).SetReply(req)
	m.RecursionAvailable = true
	lines := strings.Split(cleanText(text), "\n")
	m.Rcode = dns.StringToRcode[lines[0]]
	for _, line := range lines[1:] {
		section, record, _ := strings.Cut(line, " ")
		rr, err := dns.NewRR(record)
		if err != nil {
			tb.Errorf("record %q: %v", record, err)
			continue
		}
		switch section {
		case "an":
			m.Answer = append(m.Answer, rr)
		case "ns":
			m.Ns = append(m.Ns, rr)
		case "ar":
			m.Extra = append(m.Extra, rr)
		}
	}
	return m
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// timeNow is the time of a change after the fixture's.
func timeNow() time.Time { return time.Unix(1_000_000, 0) }
