package app

import (
	"time"

	"kubedns/pkg/dns"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/dns/treecache"
	"kubedns/pkg/version"
)

// status is what / answers. Fields are only ever added.
type status struct {
	Program       string    `json:"program"` // "kube-dns"
	Version       string    `json:"version"`
	Revision      string    `json:"revision"`
	Domain        string    `json:"domain"` // "cluster.local."
	Started       time.Time `json:"started"`
	UptimeSeconds float64   `json:"uptimeSeconds"`

	// Ready is what /readiness says, Reason why not.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`

	Records recordsStatus `json:"records"`
	// APIServer is absent where a directory of manifests stands in for it.
	APIServer     *apiServerStatus `json:"apiServer,omitempty"`
	Questions     questionsStatus  `json:"questions"`
	Configuration configStatus     `json:"configuration"`
	// Upstreams are the nameservers that other names are forwarded to, in the
	// order they are configured.
	Upstreams []upstream `json:"upstreams"`
}

// recordsStatus is what is served.
type recordsStatus struct {
	// Source is "apiServer", "manifests", or "snapshot" while what was known
	// before a restart is served.
	Source        string    `json:"source"`
	SnapshotTaken time.Time `json:"snapshotTaken,omitzero"`
	// Incomplete is why the records are not yet those of the API server.
	Incomplete string `json:"incomplete,omitempty"`
	// Services and EndpointSlices are those that the source has told of,
	// ServicesServed those that have records.
	Services       int `json:"services"`
	EndpointSlices int `json:"endpointSlices"`
	ServicesServed int `json:"servicesServed"`
	// ByType is {"A":…,"AAAA":…,"SRV":…,"PTR":…,"CNAME":…}.
	ByType treecache.Counts `json:"byType"`
}

// apiServerStatus is how the API server is.
type apiServerStatus struct {
	// LastContact is the last list, watch event or bookmark; absent before the
	// first.
	LastContact time.Time `json:"lastContact,omitzero"`
	// Failures are the lists and watches that fail now.
	Failures []watchFailure `json:"failures"`
}

type watchFailure struct {
	Resource string    `json:"resource"` // "services"
	Error    string    `json:"error"`
	Time     time.Time `json:"time"`
}

// questionsStatus is what was answered lately.
type questionsStatus struct {
	// Windows are the last minute, the last 5 and the last 10, shorter soon
	// after the start; Minutes each of those minutes, the latest first; Samples
	// each 5 s, the latest last.
	Windows []questions `json:"windows"`
	Minutes []questions `json:"minutes"`
	Samples []questions `json:"samples"`

	Chart chart `json:"-"`
}

// configStatus is where the configuration in force is from; /config has more.
type configStatus struct {
	Origin  string    `json:"origin"`
	Version string    `json:"version,omitempty"`
	Read    time.Time `json:"read,omitzero"`
	// Refused is why the last update was, where that is what stands there now.
	Refused     string    `json:"refused,omitempty"`
	RefusedTime time.Time `json:"refusedTime,omitzero"`
}

// upstream is a nameserver and how it is.
type upstream struct {
	Addr string `json:"addr"` // "192.0.2.53:53"
	// State is "answers", "fails", or "unknown" where it has not answered or
	// failed yet.
	State               string    `json:"state"`
	ConsecutiveFailures int       `json:"consecutiveFailures"`
	Questions           uint64    `json:"questions"`
	Failures            uint64    `json:"failures"`
	RTTSeconds          float64   `json:"rttSeconds"` // smoothed; 0 while unknown
	LastSuccess         time.Time `json:"lastSuccess,omitzero"`
	LastFailure         time.Time `json:"lastFailure,omitzero"`
	LastError           string    `json:"lastError,omitempty"`

	RTT time.Duration `json:"-"`
}

// status describes kube-dns as it is now.
func (a *app) status(now time.Time) status {
	s := status{
		Program: "kube-dns", Version: version.Version, Revision: version.Revision, Domain: a.options.Domain,
		Started: a.started, UptimeSeconds: now.Sub(a.started).Seconds(),
		Reason: a.ready.reason(), Upstreams: []upstream{},
	}
	s.Ready = s.Reason == ""
	var refused time.Time
	a.reload.last(func(inForce, last config.Update) {
		s.Configuration = configStatus{Origin: inForce.Origin, Version: inForce.Version, Read: inForce.Time}
		if last.Time.After(inForce.Time) {
			s.Configuration.Refused, s.Configuration.RefusedTime = last.Err.Error(), last.Time
		}
		refused = last.Time
	})
	heard := s.Configuration.Read
	if refused.After(heard) {
		heard = refused
	}
	known := a.kd.Status()
	s.Records = recordsOf(known)
	s.Records.Incomplete = a.kd.Incomplete()
	if !known.Manifests {
		s.APIServer = apiServerOf(known, heard)
	}
	all := a.samples.until(now)
	s.Questions = questionsStatus{Windows: windows(all), Minutes: minutes(all), Samples: intervals(all)}
	s.Questions.Chart = newChart(s.Questions.Samples, now)
	for _, h := range a.forwarder.Health() {
		u := upstream{
			Addr: h.Addr.String(), State: "unknown", ConsecutiveFailures: h.ConsecutiveFailures, Questions: h.Questions,
			Failures: h.Failures, RTTSeconds: h.RTT.Seconds(), RTT: h.RTT,
			LastSuccess: h.LastSuccess, LastFailure: h.LastFailure, LastError: h.LastError,
		}
		switch {
		case h.Failing:
			u.State = "fails"
		case !h.LastSuccess.IsZero():
			u.State = "answers"
		}
		s.Upstreams = append(s.Upstreams, u)
	}
	return s
}

func recordsOf(known dns.Status) recordsStatus {
	r := recordsStatus{
		Source: "apiServer", SnapshotTaken: known.SnapshotTaken,
		Services: known.Services, EndpointSlices: known.Slices, ServicesServed: known.ServicesServed,
		ByType: known.Records,
	}
	switch {
	case known.Manifests:
		r.Source = "manifests"
	case !known.SnapshotTaken.IsZero():
		r.Source = "snapshot"
	}
	return r
}

// apiServerOf has the failures that last. That of a ConfigMap is over once an
// update of it came after, at configured.
func apiServerOf(known dns.Status, configured time.Time) *apiServerStatus {
	s := &apiServerStatus{LastContact: known.LastContact, Failures: []watchFailure{}}
	for _, f := range known.Failures {
		if f.Resource != "configmaps" || f.Time.After(configured) {
			s.Failures = append(s.Failures, watchFailure{f.Resource, f.Err, f.Time})
		}
	}
	return s
}

// Span is the length of q for people: "10m0s".
func (q questions) Span() time.Duration {
	return time.Duration(q.Seconds * float64(time.Second)).Round(time.Second)
}

// Row is q's numbers in the order of the tables' columns.
func (q questions) Row() []string {
	row := []string{number(q.PerSecond())}
	for _, n := range q.byRcode() {
		row = append(row, percent(q, n))
	}
	return row
}

// percent is n's share of q: "12.5 %", and "–" where nothing was asked.
func percent(q questions, n uint64) string {
	if q.Questions == 0 {
		return "–"
	}
	return number(q.Share(n)) + " %"
}

// Form is empty.
func (s status) Form() explainForm { return explainForm{} }

const statusTemplate = `{{define "rates"}}<thead><tr><th scope="col">{{.}}</th><th scope="col" class="number">A second</th>
<th scope="col" class="number">NOERROR</th><th scope="col" class="number">NXDOMAIN</th><th scope="col" class="number">REFUSED</th><th scope="col" class="number">SERVFAIL</th></tr></thead>{{end}}

{{define "body"}}
<section aria-labelledby="state"><h2 id="state">{{if .Ready}}<span class="ok">Ready</span>{{else}}<span class="bad">Not ready</span>{{end}}</h2>
{{if not .Ready}}<p class="error" role="alert">{{.Reason}}</p>{{end}}
{{if eq .Records.Source "snapshot"}}<p><span class="warn">Serving a snapshot</span> of {{ago .Records.SnapshotTaken}}: {{.Records.Incomplete}}</p>{{end}}
<dl>
<dt>Version</dt><dd class="name">{{.Version}}{{if ne .Revision "unknown"}} ({{.Revision}}){{end}}</dd>
<dt>Domain</dt><dd class="name">{{.Domain}}</dd>
<dt>Started</dt><dd>{{ago .Started}}</dd>
{{with .APIServer}}<dt>API server</dt><dd>last heard {{ago .LastContact}}{{range .Failures}}<div><span class="bad">{{.Resource}}</span> {{.Error}} <span class="muted">at {{time .Time}}</span></div>{{end}}</dd>
{{else}}<dt>API server</dt><dd>none: a directory of manifests stands in for it</dd>{{end}}
<dt>Configuration</dt><dd>{{.Configuration.Origin}}, read {{ago .Configuration.Read}}
{{- with .Configuration}}{{if .Refused}}<div><span class="bad">an update was refused</span> {{ago .RefusedTime}}: {{.Refused}}</div>{{end}}{{end}}
<div><a href="config">Every value, and where it comes from</a></div></dd>
</dl></section>

<section aria-labelledby="ask"><h2 id="ask">Why does a name resolve, or not?</h2>
{{template "form" .Form}}</section>

<section aria-labelledby="questions"><h2 id="questions">Questions</h2>
{{with .Questions}}<figure>
{{with .Chart}}<p class="scale" aria-hidden="true"><span>{{.Top}} a second</span></p>
<svg role="img" aria-labelledby="chart-title" aria-describedby="chart-text" viewBox="{{.ViewBox}}" preserveAspectRatio="none">
<title id="chart-title">Questions a second by rcode</title><desc id="chart-text">{{.Description}}</desc>
<path class="axis" d="M0 0H600M0 50H600M0 100H600"/>
{{range .Bands}}{{if .Path}}<path class="area {{.Class}}" d="{{.Path}}"/>{{end}}{{end}}
</svg>
<p class="scale" aria-hidden="true"><span>10 minutes ago</span><span>now</span></p>
<figcaption><ul class="keys">{{range .Bands}}<li><span class="key {{.Class}}" aria-hidden="true"></span>{{.Rcode}} {{.Share}}</li>{{end}}</ul></figcaption>{{end}}
</figure>
<div class="scroll" role="region" aria-label="Questions and rcodes" tabindex="0"><table>
{{template "rates" "In the last"}}
<tbody>{{range .Windows}}<tr><th scope="row">{{.Span}}</th>{{range .Row}}<td class="number">{{.}}</td>{{end}}</tr>{{end}}</tbody>
</table></div>
<details><summary>Each minute</summary>
<div class="scroll" role="region" aria-label="Questions and rcodes in each minute" tabindex="0"><table>
{{template "rates" "Until"}}
<tbody>{{range .Minutes}}<tr><th scope="row">{{time .At}}</th>{{range .Row}}<td class="number">{{.}}</td>{{end}}</tr>{{end}}</tbody>
</table></div></details>
<p class="hint">FORMERR and NOTIMP, which are rare, count with NOERROR.</p>{{end}}</section>

<section aria-labelledby="upstreams"><h2 id="upstreams">Upstream nameservers</h2>
{{if .Upstreams}}<div class="scroll" role="region" aria-label="Upstream nameservers" tabindex="0"><table>
<thead><tr><th scope="col">Address</th><th scope="col">State</th><th scope="col" class="number">Questions</th><th scope="col" class="number">Failures</th><th scope="col" class="number">Round trip</th><th scope="col">Last error</th></tr></thead>
<tbody>{{range .Upstreams}}<tr><th scope="row" class="name">{{.Addr}}</th>
<td>{{if eq .State "answers"}}<span class="ok">answers</span>{{else if eq .State "fails"}}<span class="bad">fails</span>{{else}}<span class="muted">not asked yet</span>{{end}}</td>
<td class="number">{{.Questions}}</td><td class="number">{{.Failures}}</td><td class="number">{{if .RTT}}{{duration .RTT}}{{else}}–{{end}}</td>
<td class="text">{{if .LastError}}{{.LastError}} <span class="muted">at {{time .LastFailure}}</span>{{else}}–{{end}}</td></tr>{{end}}</tbody>
</table></div>{{else}}<p><span class="bad">None</span>: names outside {{.Domain}} are answered SERVFAIL.</p>{{end}}</section>

<section aria-labelledby="records"><h2 id="records">Records</h2>
<dl class="short">
<dt>Services</dt><dd>{{.Records.ServicesServed}} served, {{.Records.Services}} known</dd>
<dt>EndpointSlices</dt><dd>{{.Records.EndpointSlices}} known</dd>
{{with .Records.ByType}}<dt>A</dt><dd>{{.A}}</dd><dt>AAAA</dt><dd>{{.AAAA}}</dd><dt>SRV</dt><dd>{{.SRV}}</dd><dt>PTR</dt><dd>{{.PTR}}</dd><dt>CNAME</dt><dd>{{.CNAME}}</dd>{{end}}
</dl>
<p><a href="cache">All records as JSON</a></p></section>

<section aria-labelledby="paths"><h2 id="paths">Other paths of this port</h2>
<dl>
<dt><a href="explain">/explain</a></dt><dd>why a name answers as it does</dd>
<dt><a href="config">/config</a></dt><dd>the configuration in force, and the last update that was refused</dd>
<dt><a href="cache">/cache</a></dt><dd>the tree of records; ?name= is the part below a name</dd>
<dt><a href="readiness">/readiness</a></dt><dd>ok, or why not</dd>
</dl>
<p class="hint">/, /explain and /config are JSON for scripts: <span class="name">?format=json</span>, or an Accept header that prefers it.</p></section>
{{end}}`
