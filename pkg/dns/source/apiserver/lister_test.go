package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubedns/pkg/dns/internal/clustertest"
)

// newTestLister is one whose list is once.
func newTestLister(once func(context.Context) (string, error)) *lister {
	return &lister{
		contact:  newContact(),
		resource: "services", listOnce: once, spreadRelist: spreadRelist,
	}
}

// TestListsAreSpread counts the lists of a hundred instances whose API server
// is away for ten minutes and comes back: they become rare, and neither while
// it is away nor once it is back do they come together.
func TestListsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, away = 100, 10 * time.Minute
		refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		var (
			mu    sync.Mutex
			begin = time.Now()
			lists = map[int]int{} // by the half second they came in
			last  = map[int]time.Duration{}
			wg    sync.WaitGroup
		)
		for i := range instances {
			l := newTestLister(func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				at := time.Since(begin)
				lists[int(at/(500*time.Millisecond))]++
				if gap := at - last[i]; gap > maxRetry {
					t.Errorf("instance %d let %v pass between two lists, want %v at the most", i, gap, maxRetry)
				}
				last[i] = at
				if at < away {
					return "", refused
				}
				return "", nil
			})
			known := "7"
			l.version.Store(&known) // it has listed before: this is no start
			wg.Go(func() {
				if _, err := l.list(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begin) - away; took > maxRetry {
			t.Errorf("the last instance came back after %v, want %v at the most", took, maxRetry)
		}
		// 100 lists that waited 5 to 10 s each are 7 in half a second, and of
		// hundreds of these hardly one has three times as many. Of the first
		// lists and those after the first failure there are more.
		for at, n := range lists {
			bound := 30
			if at < 30 {
				bound = 75
			}
			if n > bound {
				t.Errorf("%d lists in half second %d, want %d at the most", n, at, bound)
			}
		}
		total := 0
		for _, n := range lists {
			total += n
		}
		if per := float64(total) / instances; per < 60 || per > 125 {
			t.Errorf("%.1f lists of each instance in %v, want one in 5 to 10 s", per, away)
		}
		t.Logf("%d lists of %d instances in %v, in half a second %d at the most, at first %d", total, instances, away, most(lists, 30), most(lists, 0))
	})
}

// most is the largest number of lists in half a second from that of first on.
func most(lists map[int]int, first int) int {
	n := 0
	for at, of := range lists {
		if at >= first {
			n = max(n, of)
		}
	}
	return n
}

// TestListRetries has lists fail in several ways and looks when the next comes.
func TestListRetries(t *testing.T) {
	expired := apierrors.NewResourceExpired("the continue token is too old")
	for _, tt := range []struct {
		name     string
		errs     []error
		min, max time.Duration // from the first list to the one that succeeds
	}{
		{"refused once", []error{syscall.ECONNREFUSED}, 500 * time.Millisecond, time.Second},
		{"refused twice", []error{syscall.ECONNREFUSED, syscall.ECONNREFUSED}, 1500 * time.Millisecond, 3 * time.Second},
		{"asked to wait", []error{apierrors.NewTooManyRequests("busy", 7)}, 7 * time.Second, 10500 * time.Millisecond},
		{"asked to wait for a day", []error{apierrors.NewTooManyRequests("busy", 86400)}, maxSuggested, maxSuggested * 3 / 2},
		{"asked to wait for less than it would", []error{syscall.EPIPE, syscall.EPIPE, syscall.EPIPE, syscall.EPIPE, apierrors.NewServerTimeout(corev1Services, "list", 1)}, 12500 * time.Millisecond, 25 * time.Second},
		{"pages expired", []error{expired}, 0, 0},
		{"pages expired again", []error{expired, expired}, 500 * time.Millisecond, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					begin, errs := time.Now(), tt.errs
					l := newTestLister(func(context.Context) (string, error) {
						if len(errs) == 0 {
							return "9", nil
						}
						err := errs[0]
						errs = errs[1:]
						return "", err
					})
					if _, err := l.list(t.Context()); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(begin); took < tt.min || took > tt.max {
						t.Errorf("listed after %v, want %v to %v", took, tt.min, tt.max)
					}
					if got := l.version.Load(); got == nil || *got != "9" {
						t.Errorf("version %v", got)
					}
				})
			}
		})
	}
}

var corev1Services = schema.GroupResource{Resource: "services"}

// TestListStops: a list that waits ends with its context.
func TestListStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newTestLister(func(context.Context) (string, error) { return "", syscall.ECONNREFUSED })
		done := make(chan error)
		go func() {
			_, err := l.list(ctx)
			done <- err
		}()
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// TestClusterGoesBack has an API server whose state is an older one, as after
// etcd was restored: a watch from a version that is yet to come would be
// silent, and what was there would be answered for as long.
func TestClusterGoesBack(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: old}, spec: {clusterIP: 192.0.2.1}}
---
{kind: Service, metadata: {name: lost}, spec: {clusterIP: 192.0.2.2}}
---
{kind: Service, metadata: {name: fresh}, spec: {clusterIP: 192.0.2.3}}`)
	s.set(services[0])
	kd := s.kubeDNS(t)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the records are complete", kd.HasSynced)
	s.do(func() {
		s.set(services[1])
		s.version += 1000
	})
	// An event tells the watch how far the API server has come.
	s.do(func() { s.set(services[0]) })
	clustertest.Eventually(t, "the Service is known", func() bool { return strings.Contains(clustertest.ZoneText(kd.Tree()), "lost.default.svc A") })
	s.do(func() {
		delete(s.objects["services"], "default/lost")
		s.version, s.oldest = 101, 0
		s.log = nil
		s.epoch++
		s.set(services[2])
	})
	clustertest.Eventually(t, "the state is the API server's", func() bool {
		got := clustertest.ZoneText(kd.Tree())
		return !strings.Contains(got, "lost.") && strings.Contains(got, "fresh.default.svc A") && strings.Contains(got, "old.default.svc A")
	})
}

// TestClusterListsAfterAnOutage: once an API server could not be reached, what
// comes back is not taken for the same one, with which the watch would go on.
func TestClusterListsAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, 1000)
	src, kd := s.source(t)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the services are watched", func() bool { return get(s, func() int { return s.watches["services"] }) == 1 })
	lists := func() int { return get(s, func() int { return s.lists["services"] }) }
	before := lists()

	// That a watch ends is no outage.
	s.do(func() { s.epoch++ })
	clustertest.Eventually(t, "the services are watched again", func() bool { return get(s, func() int { return s.watches["services"] }) == 1 })
	if n := lists(); n != before {
		t.Errorf("listed %d times after a watch ended", n-before)
	}

	addr := s.Listener.Addr().String()
	// After an event, that the watch ends is no reason to list either.
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.1}}`)
	s.do(func() { s.set(services[0]) })
	clustertest.Eventually(t, "the event has come", func() bool { return clustertest.ZoneText(kd.Tree()) != "" })
	before = lists()
	s.Listener.Close()
	s.CloseClientConnections()
	clustertest.Eventually(t, "a connection was refused", func() bool {
		return strings.Contains(src.contact.failure("services").Err, "connection refused")
	})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	again := &http.Server{Handler: s.Config.Handler, ReadHeaderTimeout: time.Minute}
	defer again.Close()
	go func() { _ = again.Serve(l) }() // until it is closed
	clustertest.Eventually(t, "the services are listed anew", func() bool { return lists() > before })
}

// TestWatchAskedToWait: a watch that is refused with 429 is asked for again
// when the API server wants, and nothing is listed meanwhile.
func TestWatchAskedToWait(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var watches []time.Time
	lists := 0
	s := newAPIServer(t, 1000)
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/services") {
			inner.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		busy := false
		if r.URL.Query().Has("watch") {
			watches = append(watches, time.Now())
			busy = len(watches) <= 2
		} else {
			lists++
		}
		mu.Unlock()
		if busy {
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusTooManyRequests, "services")
			return
		}
		inner.ServeHTTP(w, r)
	})
	kd := s.kubeDNS(t)
	clustertest.Start(t, kd.Run)
	clustertest.Eventually(t, "the services are watched", func() bool { return get(s, func() int { return s.watches["services"] }) == 1 })
	mu.Lock()
	defer mu.Unlock()
	if len(watches) != 3 || lists != 1 {
		t.Errorf("%d watches and %d lists, want 3 and 1", len(watches), lists)
	}
	for i := 1; i < len(watches); i++ {
		if gap := watches[i].Sub(watches[i-1]); gap < time.Second {
			t.Errorf("watch %d came %v after the one before, want 1s at the least", i, gap)
		}
	}
}

// TestVersionAskedToWait: so is a watch whose version the API server has no time
// to tell of.
func TestVersionAskedToWait(t *testing.T) {
	t.Parallel()
	var asked, lists atomic.Int64
	s := newAPIServer(t, 1000)
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/services") && !r.URL.Query().Has("watch") {
			if r.URL.Query().Get("limit") != "1" {
				lists.Add(1)
			} else if asked.Add(1) == 1 {
				w.Header().Set("Retry-After", "1")
				fail(w, http.StatusTooManyRequests, "services")
				return
			}
		}
		inner.ServeHTTP(w, r)
	})
	kd := s.kubeDNS(t)
	clustertest.Start(t, kd.Run)
	services, _ := clustertest.Parse(t, `{kind: Service, metadata: {name: web}, spec: {clusterIP: 192.0.2.1}}`)
	clustertest.Eventually(t, "the services are watched", func() bool { return get(s, func() int { return s.watches["services"] }) == 1 })
	s.do(func() { s.set(services[0]) })
	clustertest.Eventually(t, "the event has come", func() bool { return clustertest.ZoneText(kd.Tree()) != "" })
	s.do(func() { s.epoch++ }) // the watch ends
	clustertest.Eventually(t, "the version is asked for again", func() bool { return asked.Load() == 2 })
	moved := services[0].DeepCopy()
	moved.Spec.ClusterIP, moved.Spec.ClusterIPs = "192.0.2.2", nil
	s.do(func() { s.set(moved) })
	clustertest.Eventually(t, "the watch goes on", func() bool { return strings.Contains(clustertest.ZoneText(kd.Tree()), "192.0.2.2") })
	if n := lists.Load(); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
}

// TestBackoff: the waits grow to their most, differ by chance, and are never
// as short as nothing.
func TestBackoff(t *testing.T) {
	waits := func() string {
		var b backoff
		var all []string
		for _, want := range []time.Duration{1, 2, 4, 8, 10, 10, 10} {
			wait := b.after(syscall.ECONNREFUSED)
			if wait < want*time.Second/2 || wait > want*time.Second {
				t.Errorf("wait %v, want %d to %d halves of a second", wait, want, 2*want)
			}
			all = append(all, wait.String())
		}
		return fmt.Sprint(all)
	}
	if a, b := waits(), waits(); a == b {
		t.Errorf("two instances wait the same: %s", a)
	}
}
