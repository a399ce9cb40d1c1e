// Package fakeapi is an API server of one cluster that costs next to nothing:
// it has the Namespaces, Services and EndpointSlices, lists them whole or in
// pages, streams them, and sends the changes of endpoints that it is asked for
// to whoever watches, each with one system call. It speaks protobuf alone, over
// HTTP/1.1 without TLS, and keeps no past: a watch that asks for an older
// resource version than the present one gets 410 Gone and has to list.
package fakeapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"kubedns/hack/bench/cluster"
)

// contentType is the only one that is spoken.
const contentType = "application/vnd.kubernetes.protobuf"

// resources are what is served, by path.
var resources = map[string]schema.GroupVersionKind{
	"/api/v1/namespaces":                       corev1.SchemeGroupVersion.WithKind("Namespace"),
	"/api/v1/services":                         corev1.SchemeGroupVersion.WithKind("Service"),
	"/apis/discovery.k8s.io/v1/endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
}

// Server is the API server. Its methods are safe for concurrent use.
type Server struct {
	c        *cluster.Cluster
	scheme   *apiruntime.Scheme
	encoder  *protobuf.Serializer
	listener net.Listener
	http     *http.Server
	served   chan error

	mu         sync.Mutex
	version    uint64
	stores     map[string]*store // by path
	closed     bool
	slices     []*discoveryv1.EndpointSlice
	firstSlice []int       // by Service, the number of its first slice; -1 without
	listed     []time.Time // when an initial list had been read, one for each path and watcher
}

// store is the objects of one resource.
type store struct {
	gvk      schema.GroupVersionKind
	objects  []apiruntime.Object
	added    [][]byte // the watch event that adds the object; nil where it has changed
	watchers map[*watcher]struct{}
}

// watcher is one request that watches.
type watcher struct {
	conn     net.Conn
	deadline time.Time  // for writing events; the store's
	writing  sync.Mutex // held while initial events are written
}

// writeTimeout is how long a watcher may leave what is sent to it, at the
// least; then it is dropped and has to list anew, as with a real API server.
const (
	writeTimeout   = 2 * time.Second
	initialTimeout = 30 * time.Second // for the whole list
)

// New makes the server of c and listens on a free port of 127.0.0.1; it serves
// until Close.
func New(c *cluster.Cluster) (*Server, error) {
	s := &Server{c: c, scheme: apiruntime.NewScheme(), version: 1, stores: map[string]*store{}, served: make(chan error, 1)}
	if err := errors.Join(corev1.AddToScheme(s.scheme), discoveryv1.AddToScheme(s.scheme)); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(s.scheme, schema.GroupVersion{Version: "v1"})
	s.encoder = protobuf.NewSerializer(s.scheme, s.scheme)
	if err := s.fill(); err != nil {
		return nil, err
	}
	var err error
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil { //nolint:noctx // a bind does not wait
		return nil, err
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { s.served <- s.http.Serve(s.listener) }()
	return s, nil
}

// Close ends every watch and the server.
func (s *Server) Close() error {
	err := s.http.Close()
	s.mu.Lock()
	s.closed = true
	for _, st := range s.stores {
		for w := range st.watchers {
			st.drop(w)
		}
	}
	s.mu.Unlock()
	if serr := <-s.served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// URL is where the server is.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// WriteKubeconfig writes a kubeconfig for the server into dir and returns its
// path.
func (s *Server) WriteKubeconfig(dir string) (string, error) {
	file := filepath.Join(dir, "fakeapi.kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: %q}}]
users: [{name: bench, user: {}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
current-context: bench
`, s.URL())
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// fill makes the objects and their events.
func (s *Server) fill() error {
	byKind := map[string]*store{}
	for path, gvk := range resources {
		st := &store{gvk: gvk, watchers: map[*watcher]struct{}{}}
		s.stores[path], byKind[gvk.Kind] = st, st
	}
	add := func(kind string, o apiruntime.Object) error {
		s.version++
		meta, ok := o.(metav1.Object)
		if !ok {
			return fmt.Errorf("a %T is no object", o)
		}
		cluster.Stamp(meta, kind, s.version)
		st := byKind[kind]
		event, err := s.event(watch.Added, st.gvk, o)
		if err != nil {
			return err
		}
		st.objects = append(st.objects, o)
		st.added = append(st.added, event)
		return nil
	}
	for _, name := range s.c.NamespaceNames() {
		if err := add("Namespace", cluster.NamespaceObject(name)); err != nil {
			return err
		}
	}
	for i := range s.c.Services {
		svc := &s.c.Services[i]
		o := svc.Object()
		o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		if err := add("Service", o); err != nil {
			return err
		}
		first := -1
		for _, slice := range svc.SliceObjects() {
			if first < 0 {
				first = len(s.slices)
			}
			s.slices = append(s.slices, slice)
			if err := add("EndpointSlice", slice); err != nil {
				return err
			}
		}
		s.firstSlice = append(s.firstSlice, first)
	}
	return nil
}

// encode encodes an object as an API server does: "k8s", 0, runtime.Unknown.
func (s *Server) encode(gvk schema.GroupVersionKind, o apiruntime.Object) ([]byte, error) {
	o.GetObjectKind().SetGroupVersionKind(gvk)
	data, err := apiruntime.Encode(s.encoder, o)
	if err != nil {
		return nil, fmt.Errorf("encoding a %s: %w", gvk.Kind, err)
	}
	return data, nil
}

// event encodes a watch event in a frame: its length in four octets, then a
// WatchEvent without the type around it. The frame is a chunk of an HTTP/1.1
// response (RFC 9112 section 7.1).
func (s *Server) event(kind watch.EventType, gvk schema.GroupVersionKind, o apiruntime.Object) ([]byte, error) {
	object, err := s.encode(gvk, o)
	if err != nil {
		return nil, err
	}
	e := metav1.WatchEvent{Type: string(kind), Object: apiruntime.RawExtension{Raw: object}}
	n := e.Size()
	chunk := fmt.Appendf(make([]byte, 0, n+20), "%x\r\n", 4+n)
	chunk = binary.BigEndian.AppendUint32(chunk, uint32(n))
	chunk = chunk[:len(chunk)+n]
	if _, err := e.MarshalToSizedBuffer(chunk[len(chunk)-n:]); err != nil {
		return nil, fmt.Errorf("encoding a watch event: %w", err)
	}
	return append(chunk, "\r\n"...), nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	st := s.stores[r.URL.Path]
	s.mu.Unlock()
	switch {
	case st == nil:
		http.NotFound(w, r)
	case !strings.Contains(r.Header.Get("Accept"), contentType):
		http.Error(w, "only "+contentType+" is spoken", http.StatusNotAcceptable)
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		s.watch(w, r, st)
	default:
		s.list(w, r, st)
	}
}

// list writes the list, or the page of it that is asked for.
func (s *Server) list(w http.ResponseWriter, r *http.Request, st *store) {
	p, err := parsePage(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	data, last, err := s.encodeList(st, p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if _, err := w.Write(data); err != nil || !last {
		return
	}
	// The client is to have it all before it is waited for.
	if err := http.NewResponseController(w).Flush(); err == nil {
		s.awaitRead(r)
	}
}

// page is a part of a list.
type page struct {
	version uint64 // the first page's; 0 in the request for that
	from    int    // number of its first object
	limit   int    // objects at the most; 0 for all
}

// parsePage reads limit and continue. A continuation is "version-from": an
// object keeps its number, and it does no harm to a list of that version that
// it is a newer one.
func parsePage(query url.Values) (p page, err error) {
	if limit := query.Get("limit"); limit != "" {
		if p.limit, err = strconv.Atoi(limit); err != nil || p.limit < 0 {
			return p, fmt.Errorf("limit %q", limit)
		}
	}
	if next := query.Get("continue"); next != "" {
		if _, err := fmt.Sscanf(next, "%d-%d", &p.version, &p.from); err != nil || p.from < 0 {
			return p, fmt.Errorf("continue %q", next)
		}
	}
	return p, nil
}

// encodeList encodes a page and reports whether it is the last.
func (s *Server) encodeList(st *store, p page) (data []byte, last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.version == 0 {
		p.version = s.version
	}
	objects := st.objects[min(p.from, len(st.objects)):]
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.version, 10)}
	if p.limit > 0 && p.limit < len(objects) {
		remaining := int64(len(objects) - p.limit)
		objects = objects[:p.limit]
		meta.Continue, meta.RemainingItemCount = fmt.Sprintf("%d-%d", p.version, p.from+p.limit), &remaining
	}
	var list apiruntime.Object
	switch st.gvk.Kind {
	case "Namespace":
		l := &corev1.NamespaceList{ListMeta: meta}
		for _, o := range objects {
			l.Items = append(l.Items, *o.(*corev1.Namespace)) // fill put nothing else there
		}
		list = l
	case "Service":
		l := &corev1.ServiceList{ListMeta: meta}
		for _, o := range objects {
			l.Items = append(l.Items, *o.(*corev1.Service)) // fill put nothing else there
		}
		list = l
	default:
		l := &discoveryv1.EndpointSliceList{ListMeta: meta}
		for _, o := range objects {
			l.Items = append(l.Items, *o.(*discoveryv1.EndpointSlice)) // fill put nothing else there
		}
		list = l
	}
	data, err = s.encode(st.gvk.GroupVersion().WithKind(st.gvk.Kind+"List"), list)
	return data, meta.Continue == "", err
}

// awaitRead waits until the client has read all that was written to it: the
// kernel holds megabytes that it has not. That moment goes into Listed.
func (s *Server) awaitRead(r *http.Request) {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		table, err := os.ReadFile("/proc/net/tcp")
		if n, ok := unread(string(table), client.Port()); err != nil || !ok || n == 0 {
			break
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = append(s.listed, time.Now())
}

// unread is how many octets /proc/net/tcp has on their way to the socket with
// that local port, in the queues at both ends of its connection; ok tells
// whether there is such a socket.
func unread(table string, port uint16) (n uint64, ok bool) {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		// sl, local address, remote address, state, tx_queue:rx_queue
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		sent, received, _ := strings.Cut(f[4], ":")
		queue := ""
		switch {
		case strings.HasSuffix(f[1], suffix):
			queue, ok = received, true
		case strings.HasSuffix(f[2], suffix):
			queue = sent
		default:
			continue
		}
		if octets, err := strconv.ParseUint(queue, 16, 64); err == nil {
			n += octets
		}
	}
	return n, ok
}

// Listed is when clients had read the last byte of each initial list, since
// the last call of ForgetLists.
func (s *Server) Listed() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.listed...)
}

// ForgetLists empties Listed.
func (s *Server) ForgetLists() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = nil
}

// watch streams events, after the whole list where that was asked for
// (sendInitialEvents). The connection is the watcher's alone from then on, and
// SetEndpoint writes to it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, st *store) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	wr := &watcher{conn: conn}
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	if err := s.begin(wr, st, initial, r.URL.Query().Get("resourceVersion")); err == nil {
		if initial {
			s.awaitRead(r)
		}
		// A client says nothing more: this returns once it has gone or was dropped.
		_, _ = io.Copy(io.Discard, conn)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.drop(wr)
}

// begin makes wr a watcher and writes the beginning of its response. One that
// asks for a past which is not kept is told so, which is an error.
func (s *Server) begin(wr *watcher, st *store, initial bool, version string) error {
	wr.writing.Lock()
	defer wr.writing.Unlock()
	head := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s;stream=watch\r\nTransfer-Encoding: chunked\r\n\r\n", contentType)
	s.mu.Lock()
	if !initial && version != strconv.FormatUint(s.version, 10) {
		s.mu.Unlock()
		return s.refuse(wr, head)
	}
	var events [][]byte
	err := wr.conn.SetWriteDeadline(time.Now().Add(initialTimeout))
	if s.closed {
		err = http.ErrServerClosed
	}
	if initial && err == nil {
		events, err = s.initialEvents(st)
	}
	if err == nil {
		st.watchers[wr] = struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = wr.conn.Write(slices.Concat(append([][]byte{head}, events...)...))
	return err
}

// refuse tells a watcher that it has to list.
func (s *Server) refuse(wr *watcher, head []byte) error {
	event, err := s.event(watch.Error, schema.GroupVersionKind{Version: "v1", Kind: "Status"}, &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
	})
	if err == nil {
		_, err = wr.conn.Write(slices.Concat(head, event, []byte("0\r\n\r\n")))
	}
	return errors.Join(errors.New("a watch from the past"), err)
}

// initialEvents add every object, and end with a bookmark; s is locked.
func (s *Server) initialEvents(st *store) ([][]byte, error) {
	for i, o := range st.objects {
		if st.added[i] != nil {
			continue
		}
		var err error
		if st.added[i], err = s.event(watch.Added, st.gvk, o); err != nil {
			return nil, err
		}
	}
	end, err := s.event(watch.Bookmark, st.gvk, st.bookmark(s.version))
	return append(slices.Clone(st.added), end), err
}

// send sends an event; a watcher that leaves it is dropped.
func (st *store) send(wr *watcher, event []byte) {
	wr.writing.Lock()
	defer wr.writing.Unlock()
	var err error
	// A deadline is a timer: a new one with each event would cost more than
	// that does.
	if now := time.Now(); wr.deadline.Sub(now) < writeTimeout {
		wr.deadline = now.Add(2 * writeTimeout)
		err = wr.conn.SetWriteDeadline(wr.deadline)
	}
	if err == nil {
		_, err = wr.conn.Write(event)
	}
	if err != nil {
		st.drop(wr)
	}
}

// drop ends a watch.
func (st *store) drop(wr *watcher) {
	delete(st.watchers, wr)
	_ = wr.conn.Close() // it may have gone by itself
}

// bookmark ends the initial events.
func (st *store) bookmark(version uint64) apiruntime.Object {
	meta := metav1.ObjectMeta{
		ResourceVersion: strconv.FormatUint(version, 10),
		Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}
	switch st.gvk.Kind {
	case "Namespace":
		return &corev1.Namespace{ObjectMeta: meta}
	case "Service":
		return &corev1.Service{ObjectMeta: meta}
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: meta}
}

// SetEndpoint gives an endpoint of a headless Service, by their numbers in the
// cluster, another address, and tells the watchers.
func (s *Server) SetEndpoint(service, endpoint int, addr netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firstSlice[service] < 0 || endpoint >= len(s.c.Services[service].Endpoints) {
		return fmt.Errorf("service %d has no endpoint %d", service, endpoint)
	}
	n := s.firstSlice[service] + endpoint/cluster.SliceSize
	slice := s.slices[n]
	slice.Endpoints[endpoint%cluster.SliceSize].Addresses = []string{addr.String()}
	s.version++
	slice.ResourceVersion = strconv.FormatUint(s.version, 10)
	slice.Generation++
	st := s.stores["/apis/discovery.k8s.io/v1/endpointslices"]
	event, err := s.event(watch.Modified, st.gvk, slice)
	if err != nil {
		return err
	}
	st.added[n] = nil
	for wr := range st.watchers {
		st.send(wr, event)
	}
	return nil
}

// Watchers is how many watch EndpointSlices.
func (s *Server) Watchers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stores["/apis/discovery.k8s.io/v1/endpointslices"].watchers)
}

// A Change is a change of endpoints that goes on for some time: one endpoint of
// one Service after another gets another address.
type Change struct {
	Services []int         // by their numbers in the cluster, in turn
	Every    time.Duration // from one change to the next
}

// Changed is the address that Apply gives an endpoint of a Service, by its
// number in the cluster; no other Service has it.
func Changed(service int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 31, byte(service >> 8), byte(service)})
}

// Apply makes the changes until ctx is done, and then gives each Service the
// address that it had. It returns how many changes there were.
func (s *Server) Apply(ctx context.Context, ch Change) (n int, err error) {
	// It sleeps in the kernel. A timer of the runtime would wake the runtime's
	// monitor with each change, which then wakes fifty times more, 20 µs apart:
	// processor time that whoever is measured would miss.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	changed := map[int]bool{}
	for next := time.Now(); ; {
		next = next.Add(ch.Every)
		if wait := time.Until(next); wait > 0 {
			ts := unix.NsecToTimespec(wait.Nanoseconds())
			_ = unix.Nanosleep(&ts, nil) // one that a signal interrupts is shorter
		}
		if ctx.Err() != nil {
			for service := range changed {
				err = errors.Join(err, s.SetEndpoint(service, 0, s.c.Services[service].Endpoints[0].Addr))
			}
			return n, err
		}
		service := ch.Services[n%len(ch.Services)]
		addr := s.c.Services[service].Endpoints[0].Addr
		if n/len(ch.Services)%2 == 0 {
			addr = Changed(service)
		}
		if err := s.SetEndpoint(service, 0, addr); err != nil {
			return n, err
		}
		changed[service] = true
		n++
	}
}
