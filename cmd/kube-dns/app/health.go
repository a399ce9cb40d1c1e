package app

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang/glog"

	"kubedns/pkg/dns/treecache"
)

// readiness is what /readiness answers: "starting" until set is called.
type readiness struct{ why atomic.Pointer[func() string] }

// set makes why say in words why kube-dns is not ready, or "" where it is.
func (r *readiness) set(why func() string) { r.why.Store(&why) }

func (r *readiness) reason() string {
	if why := r.why.Load(); why != nil {
		return (*why)()
	}
	return "starting"
}

// addHealth adds /readiness and /cache.
func addHealth(mux *http.ServeMux, ready *readiness, tree *treecache.Tree, ttl uint32) {
	mux.HandleFunc("/readiness", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if why := ready.reason(); why != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, why)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/cache", func(w http.ResponseWriter, r *http.Request) {
		name := strings.ToLower(r.URL.Query().Get("name"))
		if name != "" && !strings.HasSuffix(name, ".") {
			name += "."
		}
		view, ok := tree.View(name, ttl)
		if !ok {
			http.Error(w, fmt.Sprintf("no records at or below %q", name), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := view.WriteJSON(w); err != nil {
			glog.V(2).Infof("app: writing /cache: %v", err)
		}
	})
}

// newHTTPServer has the time-outs that a server open to a network needs.
func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
