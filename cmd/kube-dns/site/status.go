package site

import (
	"time"

	"kubedns/pkg/dns"
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

// statusPage describes kube-dns as it is now.
func (s *Site) statusPage(now time.Time) status {
	p := status{
		Program: "kube-dns", Version: version.Version, Revision: version.Revision, Domain: s.o.Flags.Domain,
		Started: s.o.Started, UptimeSeconds: now.Sub(s.o.Started).Seconds(),
		Reason: s.o.NotReady(), Upstreams: []upstream{},
	}
	p.Ready = p.Reason == ""
	c := s.o.Configuration()
	p.Configuration = configStatus{Origin: c.InForce.Origin, Version: c.InForce.Version, Read: c.InForce.Time}
	heard := c.InForce.Time
	if c.Refused.Time.After(heard) {
		p.Configuration.Refused, p.Configuration.RefusedTime = c.Refused.Err.Error(), c.Refused.Time
		heard = c.Refused.Time
	}
	known := s.o.Cluster.Status()
	p.Records = recordsOf(known)
	p.Records.Incomplete = s.o.Cluster.Incomplete()
	if !known.Manifests {
		p.APIServer = apiServerOf(known, heard)
	}
	all := s.samples.until(now)
	p.Questions = questionsStatus{Windows: windows(all), Minutes: minutes(all), Samples: intervals(all)}
	p.Questions.Chart = newChart(p.Questions.Samples, now)
	for _, h := range s.o.Forwarder.Health() {
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
		p.Upstreams = append(p.Upstreams, u)
	}
	return p
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

// rates is a table of questions and rcodes, a row for each span of time.
type rates struct {
	Label, Head string
	ByTime      bool // a row is named by its end, not by its length
	Rows        []questions
}

// WindowsTable has the last minute, 5 and 10 minutes.
func (q questionsStatus) WindowsTable() rates {
	return rates{Label: "Questions and rcodes", Head: "In the last", Rows: q.Windows}
}

// MinutesTable has each minute.
func (q questionsStatus) MinutesTable() rates {
	return rates{Label: "Questions and rcodes in each minute", Head: "Until", ByTime: true, Rows: q.Minutes}
}

// Rcodes are the heads of the columns behind the rate.
func (rates) Rcodes() [4]string { return rcodes }

// cell is a number with the head of its column.
type cell struct{ Head, Value string }

// Row is q's numbers in the order of the tables' columns.
func (q questions) Row() []cell {
	row := []cell{{"a second", number(q.PerSecond())}}
	for i, n := range q.byRcode() {
		row = append(row, cell{rcodes[i], percent(q, n)})
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

// Form is the form of /explain, empty.
func (status) Form() explainForm { return explainForm{} }
