package explain

import (
	"time"
)

// An Explanation is why a question is answered as it is. As JSON it has the
// fields below under the names in their tags; fields may be added, and those
// there are keep their name and meaning. Lists are never null, but absent
// where that is said. Names are fully qualified, in the spelling of DNS's
// master files (RFC 1035 section 5.1); durations are in seconds.
type Explanation struct {
	// Time is when it was made.
	Time     time.Time `json:"time"`
	Question Question  `json:"question"`
	// Resolves is set where the reply over TCP is NOERROR and has a record of
	// the type asked for, or, for types other than A and AAAA, any answer.
	Resolves bool   `json:"resolves"`
	Reason   Reason `json:"reason"`
	// Summary is the reason in a sentence.
	Summary string `json:"summary"`
	// Advice is what to do where the name does not resolve; absent where it
	// does.
	Advice string `json:"advice,omitempty"`
	Way    Way    `json:"way"`
	// Steps is how the answer came about, in order.
	Steps []string `json:"steps"`
	// Replies are what a client gets, once for all the ways to ask that get
	// the same records.
	Replies []Reply `json:"replies"`
	// Closest is the longest name that exists at or above the one asked for;
	// absent for names outside the zone.
	Closest string `json:"closest,omitempty"`
	// Missing is what there is not; absent where the name resolves.
	Missing *Missing `json:"missing,omitempty"`
	// Near are up to five names that exist; absent where there are none or
	// the name resolves.
	Near []Near `json:"near,omitempty"`
	// Service is the Service that the name is one of; absent where it is none's.
	Service *Service `json:"service,omitempty"`
	// Chain follows an external name or a federation, hop by hop; absent
	// elsewhere.
	Chain []Hop `json:"chain,omitempty"`
	// Owners are a reverse name's, in the order of the answer; absent where
	// there are none.
	Owners []Owner `json:"owners,omitempty"`
	// Search is what a pod's search path makes of the name, question by
	// question; absent where no namespace was given.
	Search []Candidate `json:"search,omitempty"`
	// Upstream is what came of asking the upstream nameservers; absent where
	// they were not asked.
	Upstream *Upstream `json:"upstream,omitempty"`
	Dnsmasq  Dnsmasq   `json:"dnsmasq"`
	// Notes say where this explanation is not the whole truth; absent where
	// it is.
	Notes []string `json:"notes,omitempty"`
	// Omitted counts records, endpoints and owners that are left out of the
	// lists, which have 1,000 of them at most.
	Omitted int `json:"omitted"`
}

// A Question is what is explained.
type Question struct {
	// Asked is the name or address as it was given.
	Asked string `json:"asked"`
	// Search is the namespace of the pod that asks; absent where none was given.
	Search string `json:"search,omitempty"`
	// Name and Type are the question whose reply is shown.
	Name string `json:"name"`
	Type string `json:"type"`
}

// Reason says in a word why a name resolves or not.
type Reason string

// The reasons. Of those that are negative answers, all but those that say so
// are NXDOMAIN.
const (
	Answered         Reason = "answered"
	NoType           Reason = "no-such-type"             // NODATA: the name exists, without records of the type
	NoNamespace      Reason = "no-such-namespace"        // no Service is in it
	NoService        Reason = "no-such-service"          //
	NoAddress        Reason = "service-without-address"  // the Service has no cluster IP yet, or no external name
	NoReadyEndpoint  Reason = "no-ready-endpoint"        // a headless Service whose endpoints are not ready
	NoEndpoint       Reason = "no-endpoint"              // a headless Service without any endpoint
	NoSuchEndpoint   Reason = "no-such-endpoint"         // no endpoint has this hostname or label
	EndpointNotReady Reason = "endpoint-not-ready"       // one has, and is not ready
	BelowService     Reason = "nothing-below-service"    // an external name, or a cluster IP's
	NoPort           Reason = "no-such-port"             //
	NoProtocol       Reason = "no-such-protocol"         //
	NoMatch          Reason = "nothing-matches"          // a name with an asterisk
	NotPodAddress    Reason = "no-pod-address"           // a label below pod that stands for no address
	NoName           Reason = "no-such-name"             // any other name of the zone
	TargetNoName     Reason = "target-does-not-exist"    // what an external name stands for is NXDOMAIN
	TargetNoType     Reason = "target-without-type"      // it exists, without records of the type: NODATA
	Loop             Reason = "loop"                     // a chain that comes back to a name, or is too long: SERVFAIL
	NoTopology       Reason = "topology-unknown"         // a federation while the Nodes' zone or region is not known: SERVFAIL
	UpstreamNoName   Reason = "upstream-no-such-name"    //
	UpstreamNoType   Reason = "upstream-no-such-type"    // NODATA
	UpstreamSilent   Reason = "upstream-does-not-answer" // SERVFAIL
	UpstreamRefuses  Reason = "upstream-refuses"         // a nameserver's own SERVFAIL, REFUSED and others
	NoNameservers    Reason = "no-nameservers"           // SERVFAIL
	Overloaded       Reason = "too-many-questions"       // SERVFAIL: as many as may be are under way
	Incomplete       Reason = "not-complete"             // REFUSED: the records are not complete yet
	NotServed        Reason = "not-served"               // REFUSED: a zone transfer
	NotAsked         Reason = "not-asked"                // it would take a second question upstream
	Failed           Reason = "server-failure"           // SERVFAIL for another reason
	ChangedMeanwhile Reason = "changed-meanwhile"        // the records changed while they were looked at
)

const (
	maxNear   = 5    // names
	maxListed = 1000 // records, endpoints and owners
	// What is told in one line ends after so many.
	maxStepsPerThing  = 10
	maxNamesInOneLine = 8
)

// Way is which way a question takes.
type Way string

// The ways.
const (
	WayTree       Way = "tree"        // a name of the zone, from its tree
	WayPod        Way = "pod name"    // a name that is an address
	WayWildcard   Way = "wildcard"    // a name with an asterisk
	WayExternal   Way = "external"    // an ExternalName, which is followed
	WayFederation Way = "federation"  // a federated Service, which is followed
	WayReverse    Way = "reverse"     // a reverse name that the tree holds
	WayForward    Way = "forwarded"   // to the upstream nameservers
	WayRefused    Way = "refused"     // the records are not complete
	WayNotServed  Way = "not served"  // a zone transfer
	WayUnknown    Way = "not written" // nothing would be written
)

// A Reply is what a client gets.
type Reply struct {
	// Over are the ways to ask that get these records.
	Over  []Transport `json:"over"`
	Rcode string      `json:"rcode"` // "NOERROR"
	// Flags are those that are set, in the order of the header: "qr", "aa",
	// "tc", "rd", "ra", "ad", "cd".
	Flags      []string `json:"flags"`
	Answer     []Record `json:"answer"`
	Authority  []Record `json:"authority"`
	Additional []Record `json:"additional"` // without OPT
}

// A Row is a record of a reply and the section it is in.
type Row struct {
	Section string // "answer", "authority", "additional"
	Record
}

// Rows are the records of all sections, in order.
func (r Reply) Rows() []Row {
	var rows []Row
	for _, s := range []struct {
		name    string
		records []Record
	}{{"answer", r.Answer}, {"authority", r.Authority}, {"additional", r.Additional}} {
		for _, record := range s.records {
			rows = append(rows, Row{s.name, record})
		}
	}
	return rows
}

// A Transport is a way to ask.
type Transport struct {
	// Name is "UDP 512" (no EDNS), "UDP 1232" (EDNS with that size) or "TCP".
	Name   string `json:"name"`
	Octets int    `json:"octets"` // of the reply
}

// A Record is a resource record.
type Record struct {
	Name  string `json:"name"`
	TTL   uint32 `json:"ttl"`
	Class string `json:"class"`
	Type  string `json:"type"`
	Data  string `json:"data"`
}

// Missing is what there is not.
type Missing struct {
	// Part is "namespace", "service", "address", "endpoint", "port",
	// "protocol", "type", "name", "target" or "nameserver".
	Part string `json:"part"`
	// Name is the part's, as in the question: "shop", "_http", "AAAA".
	Name string `json:"name"`
}

// Near is a name that exists.
type Near struct {
	Name string `json:"name"`
	Why  string `json:"why"` // "the same Service in another namespace"
}

// A Service is what is known of one, and of what is behind it.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Kind is "cluster IP", "headless" or "external name".
	Kind string `json:"kind"`
	// Type is the object's spec.type; absent where it is not known.
	Type      string   `json:"type,omitempty"`
	Addresses []string `json:"addresses"` // cluster IPs; of a headless Service those of its endpoints
	Ports     []Port   `json:"ports"`
	// ExternalName is absent where the Service has none.
	ExternalName    string `json:"externalName,omitempty"`
	PublishNotReady bool   `json:"publishNotReadyAddresses"`
	// Created is absent where it is not known.
	Created         *time.Time `json:"created,omitempty"`
	ResourceVersion string     `json:"resourceVersion,omitempty"`
	// RecordAgeSeconds is for how long the records are as they are; absent
	// where there are none.
	RecordAgeSeconds *float64 `json:"recordAgeSeconds,omitempty"`
	// Endpoints counts those in the slices, Answered those that are in this
	// answer or would be in the Service's.
	Endpoints int     `json:"endpoints"`
	Answered  int     `json:"answered"`
	Slices    []Slice `json:"slices"`
}

// RecordAge is RecordAgeSeconds, or 0 where that is absent.
func (s *Service) RecordAge() time.Duration {
	if s.RecordAgeSeconds == nil {
		return 0
	}
	return seconds(*s.RecordAgeSeconds)
}

// A Port is a Service's or a slice's.
type Port struct {
	Name     string `json:"name"` // "" where unnamed
	Protocol string `json:"protocol"`
	Number   uint16 `json:"number"` // 0 where a slice has none
}

// A Slice is an EndpointSlice.
type Slice struct {
	Name            string `json:"name"`
	AddressType     string `json:"addressType"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Ports           []Port `json:"ports"`
	// LeftOut says why no record comes from the whole slice; absent else.
	LeftOut   string     `json:"leftOut,omitempty"`
	Endpoints []Endpoint `json:"endpoints"` // those that are left out first
}

// An Endpoint is one address of a slice.
type Endpoint struct {
	Address  string `json:"address"`
	Hostname string `json:"hostname,omitempty"`
	// Name is the endpoint's own; absent where it has none.
	Name  string `json:"name,omitempty"`
	Ready bool   `json:"ready"`
	// LeftOut says why it is not in the answer; absent where it is.
	LeftOut string `json:"leftOut,omitempty"`
}

// A Hop is a step of a chain of names.
type Hop struct {
	Name string `json:"name"`
	Type string `json:"type"` // "CNAME", or the type asked for
	TTL  uint32 `json:"ttl"`
	// Target is where a CNAME leads; Addresses are where the chain ends.
	Target    string   `json:"target,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	// Server is who said so: "kube-dns", or a nameserver's "ip:port".
	Server string `json:"server,omitempty"`
	// Fault is why the chain ends here without an answer; absent else.
	Fault string `json:"fault,omitempty"`
}

// An Owner is a name that an address belongs to.
type Owner struct {
	Name    string    `json:"name"`
	Service string    `json:"service"` // "namespace/name"
	Created time.Time `json:"created"`
	// Why is what puts it before those behind it.
	Why string `json:"why"`
}

// A Candidate is one question of a search path.
type Candidate struct {
	Name  string `json:"name"`
	Rcode string `json:"rcode"` // "" where it was not asked
	// Answers counts the records.
	Answers int  `json:"answers"`
	Used    bool `json:"used"` // this one answers
	// Note says why it was not asked, or what is odd; absent else.
	Note string `json:"note,omitempty"`
}

// Upstream is what came of the one question that was forwarded.
type Upstream struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Nameservers are those in force, in the order they are configured.
	Nameservers []Nameserver `json:"nameservers"`
	// Server is who answered; absent where nobody did.
	Server  string  `json:"server,omitempty"`
	Rcode   string  `json:"rcode,omitempty"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// A Nameserver is one that questions are forwarded to.
type Nameserver struct {
	Address string `json:"address"`
	// Failing is set where it failed last time and is asked last.
	Failing bool `json:"failing"`
	// Result is what came of asking it now; absent where it was not asked, or
	// another answered first.
	Result string `json:"result,omitempty"`
}

// Dnsmasq is what the dnsmasq in front of kube-dns does with the question, as
// far as kube-dns's configuration tells.
type Dnsmasq struct {
	// Asks is "kube-dns", "stub domain" or "upstream".
	Asks string `json:"asks"`
	// Domain is the stub domain; absent for others.
	Domain string `json:"domain,omitempty"`
	// Servers are who it asks; empty for those of its /etc/resolv.conf.
	Servers []string `json:"servers"`
	// CachedSeconds is for how long it may answer without asking again.
	CachedSeconds uint32 `json:"cachedSeconds"`
	Note          string `json:"note"`
}
