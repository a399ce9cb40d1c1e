package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/golang/glog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/treecache"
)

func TestReadinessBeforeAnythingIsKnown(t *testing.T) {
	var r readiness
	mux := http.NewServeMux()
	addHealth(mux, &r, treecache.New("cluster.local."), 30)
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readiness", nil))
		return w
	}
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Body.String() != "starting\n" {
		t.Errorf("%d %q, want 503 and why", w.Code, w.Body)
	}
	r.set(func() string { return "services not listed yet" })
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Body.String() != "services not listed yet\n" {
		t.Errorf("%d %q, want 503 and why", w.Code, w.Body)
	}
	r.set(func() string { return "" })
	if w := get(); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("%d %q, want 200 ok", w.Code, w.Body)
	}
}

func TestReloadKeepsWhatIsInForce(t *testing.T) {
	var applied []*config.Config
	fail := errors.New("no")
	refuse := false
	r := newReload(func(c *config.Config) error {
		if refuse {
			return fail
		}
		applied = append(applied, c)
		return nil
	})
	reg := prometheus.NewRegistry()
	reg.MustRegister(r)
	check := func(successful, timestamp float64) {
		t.Helper()
		if got := testutil.ToFloat64(r.successful); got != successful {
			t.Errorf("successful is %v, want %v", got, successful)
		}
		if got := testutil.ToFloat64(r.timestamp); got != timestamp {
			t.Errorf("timestamp is %v, want %v", got, timestamp)
		}
	}
	check(1, 0)
	r.last(func(inForce, refused config.Update) {
		if inForce.Origin != "default" || !inForce.Time.IsZero() || inForce.Config == nil || !refused.Time.IsZero() {
			t.Errorf("%+v, %+v at the start, want the default, never read, and none refused", inForce, refused)
		}
	})
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(7, 0)})
	check(1, 7)
	r.report(config.Update{Err: fail, Time: time.Unix(8, 0)})
	check(0, 7)
	refuse = true
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(9, 0)})
	check(0, 7)
	refuse = false
	r.report(config.Update{Config: &config.Config{}, Time: time.Unix(10, 0)})
	check(1, 10)
	if len(applied) != 2 {
		t.Errorf("%d configurations applied, want 2", len(applied))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

func TestRunPartsReturnsTheFirstFailure(t *testing.T) {
	failure := errors.New("broken")
	others := 0
	err := runParts(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); others++; return errors.New("later") },
		func(context.Context) error { return failure },
	)
	if !errors.Is(err, failure) || others != 1 {
		t.Errorf("runParts: %v with %d others ended, want %v and 1", err, others, failure)
	}
}

func TestRunPartsOutlivesAPartThatEnds(t *testing.T) {
	failure := errors.New("broken")
	ended := make(chan struct{})
	err := runParts(t.Context(),
		func(context.Context) error { close(ended); return nil },
		func(ctx context.Context) error {
			<-ended
			select {
			case <-ctx.Done():
				return errors.New("ended with the first")
			case <-time.After(50 * time.Millisecond):
				return failure
			}
		},
	)
	if !errors.Is(err, failure) {
		t.Errorf("runParts: %v, want %v", err, failure)
	}
}

// TestNoNameservers: that there is nobody to forward to is warned of, for
// whatever reason.
func TestNoNameservers(t *testing.T) {
	self := netip.MustParseAddrPort("127.0.0.1:10053")
	a := &app{
		options: &options.Options{
			Domain: "cluster.local.", Nameservers: []netip.AddrPort{self}, BindAddress: self.Addr(), Port: int(self.Port()),
		},
		forwarder: forward.New(forward.Options{}),
	}
	before := glog.Stats.Warning.Lines()
	if err := a.useNameservers(nil); err != nil {
		t.Fatal(err)
	}
	// One of its own address, one of what is left.
	if got := glog.Stats.Warning.Lines() - before; got != 2 {
		t.Errorf("%d warnings, want 2", got)
	}
	before = glog.Stats.Warning.Lines()
	if err := a.useNameservers([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}); err != nil {
		t.Fatal(err)
	}
	if got := glog.Stats.Warning.Lines() - before; got != 0 {
		t.Errorf("%d warnings with a nameserver, want none", got)
	}
}
