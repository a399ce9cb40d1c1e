package configmap

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"kubedns/pkg/await"
	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/config"
)

func TestMain(m *testing.M) {
	if err := flag.Set("logtostderr", "true"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// apiServer speaks as much of the API as it takes to list and watch the
// ConfigMaps of a namespace, in JSON, with or without streaming lists. Requests
// for anything else fail the test.
type apiServer struct {
	*httptest.Server
	t         *testing.T
	streaming bool
	// selectors reports whether the server heeds field selectors.
	selectors bool

	mu       sync.Mutex
	version  int
	objects  map[string]*corev1.ConfigMap // by name
	down     int                          // answer with this status instead
	held     chan struct{}                // wait for it to be closed before answering
	requests []string                     // "list" or "watch" or "stream"
	watchers map[*watcher]struct{}
}

type watcher struct {
	events chan metav1.WatchEvent
	cut    chan struct{} // closed to end the connection
}

func newAPIServer(t *testing.T, streaming bool) *apiServer {
	t.Helper()
	s := &apiServer{
		t: t, streaming: streaming, selectors: true, version: 100,
		objects: map[string]*corev1.ConfigMap{}, watchers: map[*watcher]struct{}{},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// client is one for s as programs make it.
func (s *apiServer) client() rest.Interface {
	s.t.Helper()
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	client, err := apiclient.Core(&rest.Config{Host: s.URL, Transport: transport, QPS: -1})
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/kube-system/configmaps" {
		s.t.Errorf("unexpected %s %s", r.Method, r.URL)
	}
	query := r.URL.Query()
	if got := query.Get("fieldSelector"); got != "metadata.name=kube-dns" {
		s.t.Errorf("field selector %q", got)
	}
	if got := r.Header.Get("Accept"); !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf") {
		s.t.Errorf("Accept: %s", got)
	}
	watch, stream := query.Get("watch") != "", query.Get("sendInitialEvents") == "true"
	kind := "list"
	if stream {
		kind = "stream"
	} else if watch {
		kind = "watch"
	}
	s.mu.Lock()
	s.requests = append(s.requests, kind)
	down, held := s.down, s.held
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case down != 0:
		s.fail(w, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: int32(down), Reason: metav1.StatusReasonForbidden, Message: "down for the test",
		}})
	case stream && !s.streaming:
		s.fail(w, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil))
	case watch:
		s.serveWatch(w, r, query.Get("resourceVersion"), stream)
	default:
		s.serveList(w)
	}
}

func (s *apiServer) fail(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.WriteHeader(int(status.Code))
	s.encode(w, status)
}

func (s *apiServer) serveList(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := corev1.ConfigMapList{
		TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)},
	}
	for name, cm := range s.objects {
		if !s.selectors || name == "kube-dns" {
			list.Items = append(list.Items, *cm)
		}
	}
	s.encode(w, list)
}

func (s *apiServer) serveWatch(w http.ResponseWriter, r *http.Request, from string, stream bool) {
	s.mu.Lock()
	since, _ := strconv.Atoi(from)
	if !stream && since > s.version {
		// As the real one: nothing, until it has come as far.
		s.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if !stream && since < s.version {
		s.mu.Unlock()
		gone := apierrors.NewResourceExpired("too old for the test").Status()
		gone.Kind, gone.APIVersion = "Status", "v1"
		s.encode(w, metav1.WatchEvent{Type: "ERROR", Object: s.raw(gone)})
		return
	}
	me := &watcher{events: make(chan metav1.WatchEvent, 100), cut: make(chan struct{})}
	if stream {
		for name, cm := range s.objects {
			if !s.selectors || name == "kube-dns" {
				me.events <- s.event("ADDED", cm)
			}
		}
		bookmark := configMap("", nil)
		bookmark.ResourceVersion = strconv.Itoa(s.version)
		bookmark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		me.events <- s.event("BOOKMARK", bookmark)
	}
	s.watchers[me] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, me)
		s.mu.Unlock()
	}()
	flusher := http.NewResponseController(w)
	for {
		if err := flusher.Flush(); err != nil {
			return
		}
		select {
		case event := <-me.events:
			s.encode(w, event)
		case <-me.cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *apiServer) encode(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.t.Logf("answering: %v", err)
	}
}

// event is one about cm as the wire has it.
func (s *apiServer) event(kind string, cm *corev1.ConfigMap) metav1.WatchEvent {
	return metav1.WatchEvent{Type: kind, Object: s.raw(cm)}
}

func (s *apiServer) raw(v any) (raw runtime.RawExtension) {
	text, err := json.Marshal(v)
	if err != nil {
		s.t.Error(err)
	}
	raw.Raw = text
	return raw
}

// set makes cm what the API server has, nil under a name being deletion.
func (s *apiServer) set(name string, cm *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	old, kind := s.objects[name], "ADDED"
	switch {
	case cm == nil:
		kind = "DELETED"
		cm = old.DeepCopy()
		delete(s.objects, name)
	case old != nil:
		kind = "MODIFIED"
		fallthrough
	default:
		s.objects[name] = cm
	}
	cm.ResourceVersion = strconv.Itoa(s.version)
	for w := range s.watchers {
		if !s.selectors || name == "kube-dns" {
			w.events <- s.event(kind, cm)
		}
	}
}

// with changes how s behaves.
func (s *apiServer) with(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// cut ends all watches.
func (s *apiServer) cut() {
	s.with(func() {
		for w := range s.watchers {
			close(w.cut)
			delete(s.watchers, w)
		}
	})
}

// seen waits until a request of that kind was made, and forgets all.
func (s *apiServer) seen(kind string) {
	s.t.Helper()
	eventually(s.t, "a request to "+kind, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Contains(s.requests, kind) {
			return false
		}
		s.requests = nil
		return true
	})
}

// watched waits until there is a watch that new events go to.
func (s *apiServer) watched() {
	s.t.Helper()
	eventually(s.t, "a watch", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watchers) > 0
	})
}

// TestGoesBack has an API server whose state is an older one, as after etcd was
// restored.
func TestGoesBack(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming=%v", streaming), func(t *testing.T) {
			s := newAPIServer(t, streaming)
			s.set("kube-dns", configMap("kube-dns", upstream(1)))
			r := start(t, s.client())
			if u := <-r.updates; !is(u, 1) {
				t.Fatalf("first update %+v", u)
			}
			s.watched()
			s.set("kube-dns", configMap("kube-dns", upstream(2)))
			if u := <-r.updates; !is(u, 2) {
				t.Fatalf("second update %+v", u)
			}
			s.with(func() {
				s.version = 50
				s.objects["kube-dns"] = configMap("kube-dns", upstream(3))
				s.objects["kube-dns"].ResourceVersion = "50"
			})
			s.cut()
			select {
			case u := <-r.updates:
				if !is(u, 3) {
					t.Errorf("update %+v", u)
				}
			case <-time.After(10 * time.Second):
				t.Error("the older state is not seen")
			}
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.Until(t, 10*time.Second, what, ok)
}

// configMap is one of that name with data and an own UID.
func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: types.UID("uid-" + name)},
		Data:       data,
	}
}

func upstream(n int) map[string]string {
	return map[string]string{"upstreamNameservers": fmt.Sprintf(`["192.0.2.%d"]`, n)}
}

func is(u config.Update, n int) bool {
	return u.Err == nil && u.Config.Equal(&config.Config{UpstreamNameservers: []netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 53),
	}})
}

func isDefault(u config.Update) bool { return u.Err == nil && u.Config.Equal(&config.Config{}) }

// run is a source that runs until the test ends.
type run struct {
	t       *testing.T
	updates chan config.Update
	errors  chan error
}

func start(t *testing.T, client rest.Interface) *run {
	t.Helper()
	r := &run{t: t, updates: make(chan config.Update, 100), errors: make(chan error, 1000)}
	source := New(client, "kube-system", "kube-dns", func(err error) { r.errors <- err })
	source.backoff = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 1.01, Steps: 10, Cap: 20 * time.Millisecond}
	var _ config.Source = source
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- source.Run(ctx, func(u config.Update) { r.updates <- u }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	})
	return r
}

// wait returns the next update, which has to satisfy ok.
func (r *run) wait(what string, ok func(config.Update) bool) config.Update {
	r.t.Helper()
	select {
	case u := <-r.updates:
		if !ok(u) {
			r.t.Fatalf("%s: got %+v, error %v", what, u.Config, u.Err)
		}
		return u
	case <-time.After(10 * time.Second):
		r.t.Fatalf("%s: no update within 10 s", what)
		panic("not reached")
	}
}

// waitError returns the next error that contains text.
func (r *run) waitError(text string) error {
	r.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case err := <-r.errors:
			if strings.Contains(err.Error(), text) {
				return err
			}
		case <-deadline:
			r.t.Fatalf("no error with %q within 10 s", text)
		}
	}
}

// drained fails the test if something was reported that no wait has seen.
func (r *run) drained() {
	r.t.Helper()
	select {
	case u := <-r.updates:
		r.t.Errorf("one update too many: %+v, error %v", u.Config, u.Err)
	default:
	}
}

// Both ways to list: API servers before Kubernetes 1.32 cannot stream.
func bothWays(t *testing.T, test func(t *testing.T, s *apiServer)) {
	t.Helper()
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming=%v", streaming), func(t *testing.T) {
			test(t, newAPIServer(t, streaming))
		})
	}
}

func TestFollowsConfigMap(t *testing.T) {
	bothWays(t, func(t *testing.T, s *apiServer) {
		s.set("kube-dns", configMap("kube-dns", upstream(1)))
		s.set("other", configMap("other", upstream(9)))
		r := start(t, s.client())
		u := r.wait("at start", func(u config.Update) bool { return is(u, 1) })
		if u.Origin != "ConfigMap kube-system/kube-dns" || u.Version != "101" || u.Time.IsZero() {
			t.Errorf("update %+v", u)
		}
		s.watched()
		s.set("kube-dns", configMap("kube-dns", upstream(2)))
		if u := r.wait("changed", func(u config.Update) bool { return is(u, 2) }); u.Version != "103" {
			t.Errorf("version %q, want 103", u.Version)
		}
		s.set("kube-dns", configMap("kube-dns", map[string]string{"upstreamNameservers": "["}))
		u = r.wait("mistake", func(u config.Update) bool { return u.Config == nil && u.Err != nil })
		if want := `upstreamNameservers: "[" is not JSON: unexpected end of JSON input`; u.Err.Error() != want || u.Version != "104" {
			t.Errorf("error %q, version %q, want %q, 104", u.Err, u.Version, want)
		}
		s.set("kube-dns", configMap("kube-dns", upstream(3)))
		r.wait("repaired", func(u config.Update) bool { return is(u, 3) })
		s.set("kube-dns", nil)
		if u := r.wait("deleted", isDefault); u.Version != "" {
			t.Errorf("version %q of a ConfigMap that is absent", u.Version)
		}
		s.set("kube-dns", configMap("kube-dns", nil))
		r.wait("created without data", isDefault)
		s.set("kube-dns", configMap("kube-dns", upstream(4)))
		r.wait("filled", func(u config.Update) bool { return is(u, 4) })
		r.drained()
		if len(r.errors) > 0 {
			t.Errorf("error: %v", <-r.errors)
		}
	})
}

func TestAbsentIsDefaultOnceKnown(t *testing.T) {
	bothWays(t, func(t *testing.T, s *apiServer) {
		held := make(chan struct{})
		s.held = held
		r := start(t, s.client())
		s.seen("stream") // it waits for the answer
		r.drained()
		s.with(func() { s.held = nil })
		close(held)
		r.wait("absent", isDefault)
		s.watched()
		s.set("kube-dns", configMap("kube-dns", upstream(1)))
		r.wait("created", func(u config.Update) bool { return is(u, 1) })
		r.drained()
	})
}

// TestOutage: what was reported stays while the API server is away, and what
// happened meanwhile is reported once it is back.
func TestOutage(t *testing.T) {
	tests := []struct {
		name  string
		while func(s *apiServer)
		then  func(u config.Update) bool // nil: nothing new
	}{
		{"nothing happened", func(*apiServer) {}, nil},
		{"changed", func(s *apiServer) { s.set("kube-dns", configMap("kube-dns", upstream(2))) }, func(u config.Update) bool { return is(u, 2) }},
		{"deleted", func(s *apiServer) { s.set("kube-dns", nil) }, isDefault},
		{"replaced", func(s *apiServer) {
			s.set("kube-dns", nil)
			s.set("kube-dns", configMap("kube-dns", upstream(3)))
		}, func(u config.Update) bool { return is(u, 3) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, s *apiServer) {
				s.set("kube-dns", configMap("kube-dns", upstream(1)))
				r := start(t, s.client())
				r.wait("at start", func(u config.Update) bool { return is(u, 1) })
				s.watched()
				s.with(func() { s.down = http.StatusForbidden })
				s.cut()
				err := r.waitError("down for the test")
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ConfigMap kube-system/kube-dns: ") {
					t.Errorf("error %v: not forbidden, or without the ConfigMap's name", err)
				}
				r.drained()
				tt.while(s)
				s.with(func() { s.down = 0 })
				if tt.then != nil {
					r.wait("after the outage", tt.then)
				}
				s.watched()
				s.set("kube-dns", configMap("kube-dns", upstream(9)))
				r.wait("in the end", func(u config.Update) bool { return is(u, 9) })
				r.drained()
			})
		})
	}
}

// TestDownAtStart: nothing is reported before the API server has answered.
func TestDownAtStart(t *testing.T) {
	bothWays(t, func(t *testing.T, s *apiServer) {
		s.set("kube-dns", configMap("kube-dns", upstream(1)))
		s.down = http.StatusForbidden
		r := start(t, s.client())
		_ = r.waitError("listing ConfigMap kube-system/kube-dns: ")
		_ = r.waitError("listing ConfigMap kube-system/kube-dns: ")
		r.drained()
		s.with(func() { s.down = 0 })
		r.wait("up", func(u config.Update) bool { return is(u, 1) })
	})
}

// TestNobodyListens: a refused connection is reported, which client-go alone
// would keep to itself while it tries to stream.
func TestNobodyListens(t *testing.T) {
	s := newAPIServer(t, true)
	client := s.client()
	s.Close()
	r := start(t, client)
	_ = r.waitError("connection refused")
	_ = r.waitError("connection refused")
	r.drained()
}

// TestServerWithoutSelectors: other ConfigMaps are nothing to us, should the
// server send them.
func TestServerWithoutSelectors(t *testing.T) {
	bothWays(t, func(t *testing.T, s *apiServer) {
		s.selectors = false
		s.set("other", configMap("other", upstream(8)))
		r := start(t, s.client())
		r.wait("absent", isDefault)
		s.watched()
		s.set("other", configMap("other", upstream(9)))
		s.set("kube-dns", configMap("kube-dns", upstream(1)))
		s.set("other", nil)
		r.wait("created", func(u config.Update) bool { return is(u, 1) })
		s.set("kube-dns", configMap("kube-dns", upstream(2)))
		r.wait("changed", func(u config.Update) bool { return is(u, 2) })
		r.drained()
	})
}

func TestUpdate(t *testing.T) {
	source := New(nil, "kube-system", "kube-dns", nil)
	source.onError(errors.New("not wanted by anybody")) // must not panic
	tests := []struct {
		name   string
		data   map[string]string
		binary map[string][]byte
		ok     func(config.Update) bool
		warn   []string
		err    string
	}{
		{"data", upstream(1), nil, func(u config.Update) bool { return is(u, 1) }, nil, ""},
		{"unknown key", map[string]string{"README": ""}, nil, isDefault, []string{`unknown key "README"`}, ""},
		{
			"binary data", upstream(1), map[string][]byte{"stubDomains": []byte("{"), "image": {0xff}},
			func(u config.Update) bool { return is(u, 1) },
			[]string{`key "image" ignored, as it is in binaryData`, `key "stubDomains" ignored, as it is in binaryData`},
			"",
		},
		{"not UTF-8", map[string]string{"federations": "\xff"}, nil, func(u config.Update) bool { return u.Config == nil }, nil, `federations: "\xff" is not UTF-8`},
		{"not valid", map[string]string{"federations": "a"}, nil, func(u config.Update) bool { return u.Config == nil }, nil, `federations: "a" is not name=domain`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cm := configMap("kube-dns", tt.data)
			cm.BinaryData = tt.binary
			cm.ResourceVersion = "7"
			u := source.update(cm)
			if !tt.ok(u) || !slices.Equal(u.Warnings, tt.warn) || u.Version != "7" {
				t.Errorf("%+v, warnings %q, version %q; want warnings %q, version 7", u.Config, u.Warnings, u.Version, tt.warn)
			}
			if got := fmt.Sprint(u.Err); tt.err != "" && got != tt.err || tt.err == "" && u.Err != nil {
				t.Errorf("error %v, want %q", u.Err, tt.err)
			}
		})
	}
}

// TestVersionsOfTwoConfigMaps: after a restored etcd, another ConfigMap can have
// a version that was seen before.
func TestVersionsOfTwoConfigMaps(t *testing.T) {
	var got []config.Update
	st := &store{source: New(nil, "kube-system", "kube-dns", nil), report: func(u config.Update) { got = append(got, u) }}
	first, second := configMap("kube-dns", upstream(1)), configMap("kube-dns", upstream(2))
	second.UID = "another"
	for _, cm := range []*corev1.ConfigMap{first, first, second, second} {
		cm.ResourceVersion = "7"
		if err := st.Replace([]any{cm}, "8"); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || !is(got[0], 1) || !is(got[1], 2) {
		t.Errorf("updates %+v, want both ConfigMaps once", got)
	}
}
