// Package federation knows the names of federated Services: which question
// asks for one, and what it is called in the federation's own domain. It does
// no I/O and starts no goroutines; whether the Service exists here, and which
// Nodes there are, is its caller's to know.
//
// Kubernetes has dropped federation; kube-dns keeps it for those who
// configured it.
package federation

import "strings"

// Query is the question "svc.ns.fed.svc.<zone>" taken apart.
type Query struct {
	Service    string // RFC 1035 label, lower case
	Namespace  string // RFC 1123 label, lower case
	Federation string // RFC 1123 label, lower case
	Domain     string // the federation's domain, without a trailing dot
}

// Match reports whether the labels left of "svc.<zone>" (["svc", "ns", "fed"],
// lower case, in the order of the name) ask for a configured federation. It is
// true only for three labels of which the first is an RFC 1035 label, the
// others are RFC 1123 labels, and the third is a key of federations (name to
// domain). It changes neither argument.
//
// A pod of a headless Service can have a name of the same shape
// (host.svc.ns): the caller looks for that one first.
func Match(labels []string, federations map[string]string) (Query, bool) {
	if len(labels) != 3 {
		return Query{}, false
	}
	service, namespace, name := labels[0], labels[1], labels[2]
	domain, ok := federations[name]
	if !ok || !IsLabel(name) || !IsLabel(namespace) || !isServiceLabel(service) {
		return Query{}, false
	}
	return Query{Service: service, Namespace: namespace, Federation: name, Domain: domain}, true
}

// maxNameLength is how long a name may be as text, with its trailing dot:
// RFC 1035 section 2.3.4 allows 255 octets on the wire, one more than that.
const maxNameLength = 254

// Target is the Service's name in the federation's domain, fully qualified:
// "svc.ns.fed.svc.<topologyZone>.<region>.<domain>.". It is "" when there is
// no such name: the topology zone or the region is unknown (""), or the name
// is longer than a DNS name may be. The answer is SERVFAIL then.
func (q Query) Target(topologyZone, region string) string {
	if topologyZone == "" || region == "" {
		return ""
	}
	name := strings.Join([]string{
		q.Service, q.Namespace, q.Federation, "svc", topologyZone, region, q.Domain, "",
	}, ".")
	if len(name) > maxNameLength {
		return ""
	}
	return name
}

// Labels of a Node that say where it is. The beta names are what Kubernetes
// 1.16 and older set.
const (
	labelZone       = "topology.kubernetes.io/zone"
	labelRegion     = "topology.kubernetes.io/region"
	labelZoneBeta   = "failure-domain.beta.kubernetes.io/zone"
	labelRegionBeta = "failure-domain.beta.kubernetes.io/region"
)

// Topology reads the cloud's zone and region from the labels of one Node. Each
// is "" when it is unknown: neither its label nor the older one is there, or
// what they say cannot be part of a name. (A label's value may be "a..b",
// which is no name.)
func Topology(labels map[string]string) (topologyZone, region string) {
	return firstName(labels[labelZone], labels[labelZoneBeta]),
		firstName(labels[labelRegion], labels[labelRegionBeta])
}

// firstName returns the first value that is one or more labels of a name, "" if
// none is.
func firstName(values ...string) string {
	for _, value := range values {
		if value != "" && !strings.HasPrefix(value, ".") && !strings.HasSuffix(value, ".") &&
			!strings.Contains(value, "..") {
			return value
		}
	}
	return ""
}

// IsLabel reports whether s is a label as RFC 1123 section 2.1 has it, in lower
// case: 1 to 63 of a-z, 0-9 and -, neither first nor last a -.
func IsLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isServiceLabel reports whether s can be a Service's name: a label as RFC 1035
// section 2.3.1 has it, in lower case, so that it begins with a letter.
func isServiceLabel(s string) bool {
	return IsLabel(s) && s[0] >= 'a'
}
