// Package site is the site of kube-dns's health port: / tells how kube-dns is,
// /config what it was told, /explain why a name resolves or not. Each is a page
// for people and JSON for scripts.
//
// It shows what its Options hand in, and changes nothing: no metric counts a
// visit. Only Run starts something, a sample of the server's counters each 5 s.
// What is common with the sidecar's page, such as the layout, is kubedns/pkg/page.
//
// The chart is an SVG drawn in 120 lines (chart.go): a rectangle for each rcode
// and 5 s. Charting libraries for browsers need scripts, which the pages'
// Content-Security-Policy forbids; those for Go draw axes and legends that do
// not follow the page's colours, its dark scheme or the width of a phone.
package site

import (
	"context"
	_ "embed" // for the pages
	"fmt"
	"html/template"
	"net/http"
	"time"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/explain"
	"kubedns/pkg/dns/forward"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/page"
)

// The pages' templates; form.html is a part of status.html and explain.html.
var (
	//go:embed form.html
	formTemplate string
	//go:embed status.html
	statusTemplate string
	//go:embed config.html
	configTemplate string
	//go:embed explain.html
	explainTemplate string
)

// Options are what a Site shows. All must be set, and are used by several
// goroutines at once.
type Options struct {
	// Flags are what kube-dns was told at its start.
	Flags   *options.Options
	Started time.Time
	// NotReady returns why kube-dns is not ready, "" if it is.
	NotReady      func() string
	Cluster       Cluster
	Server        Server
	Forwarder     *forward.Forwarder
	Configuration func() Configuration
}

// Cluster is what is known of the cluster: a *dns.KubeDNS.
type Cluster interface {
	explain.Source
	Tree() *treecache.Tree
	Status() dns.Status
}

// Server answers questions and counts them: a *server.Server.
type Server interface {
	explain.Server
	Totals() server.Totals
}

// Configuration is the configuration in force and how it came to be, at one
// moment.
type Configuration struct {
	// InForce has a zero Time before anything was read. Its Config is never nil.
	InForce config.Update
	// Refused is the last update that was refused; its Time is zero if none was.
	Refused     config.Update
	Nameservers Nameservers
}

// Site is the pages. It is safe for concurrent use.
type Site struct {
	o       Options
	pages   *page.Site
	samples samples
	explain http.Handler

	status, config *template.Template
}

// New returns the site of a kube-dns.
func New(o Options) (*Site, error) {
	pages, err := page.New("kube-dns",
		page.Link{Path: "./", Text: "Status"},
		page.Link{Path: "explain", Text: "Explain"},
		page.Link{Path: "config", Text: "Configuration"},
		page.Link{Path: "cache", Text: "Cache"},
	)
	if err != nil {
		return nil, err
	}
	s := &Site{o: o, pages: pages, samples: samples{totals: o.Server.Totals}}
	explainPage, err := s.parse(explainTemplate)
	if err != nil {
		return nil, err
	}
	if s.status, err = s.parse(statusTemplate); err != nil {
		return nil, err
	}
	if s.config, err = s.parse(configTemplate); err != nil {
		return nil, err
	}
	s.explain = &explainHandler{
		explainer: explain.New(explain.Options{
			Tree: o.Cluster.Tree(), Source: o.Cluster, Server: o.Server, Forwarder: o.Forwarder,
			Config: func() *config.Config { return o.Configuration().InForce.Config },
			TTL:    uint32(o.Flags.TTL / time.Second), DNSService: o.Flags.DNSService,
		}),
		site: pages, page: explainPage,
	}
	return s, nil
}

// parse returns the template of a page, for page.Write. The text defines
// "body", and can use "form".
func (s *Site) parse(text string) (*template.Template, error) {
	t, err := s.pages.Parse(formTemplate, text)
	if err != nil {
		return nil, fmt.Errorf("kube-dns's pages: %w", err)
	}
	return t, nil
}

// Register adds /, /config and /explain to mux.
func (s *Site) Register(mux *http.ServeMux) {
	mux.Handle("/explain", s.explain)
	mux.HandleFunc("GET /{$}", s.show("Status", s.status, func() any { return s.statusPage(time.Now()) }))
	mux.HandleFunc("GET /config", s.show("Configuration", s.config, func() any { return s.configPage() }))
}

// Run samples the server's counters until ctx is done.
func (s *Site) Run(ctx context.Context) error { return s.samples.run(ctx) }

// show answers with what look returns, as a page or as JSON.
func (s *Site) show(title string, t *template.Template, look func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch html, err := page.WantsHTML(r); {
		case err != nil:
			s.pages.Error(w, r, http.StatusBadRequest, err.Error())
		case html:
			page.Write(w, http.StatusOK, title, t, look())
		default:
			page.WriteJSON(w, http.StatusOK, look())
		}
	}
}

// explainForm is what the form of /explain is filled with; the template "form"
// is executed with it. A field that is left empty comes as empty.
type explainForm struct {
	Name   string // as asked for: a name or an address
	Type   string // empty: A
	Search string // the namespace whose search path a pod has; empty for none
}
