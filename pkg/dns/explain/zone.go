package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/server"
	"kubedns/pkg/dns/treecache"
)

// at is the labels from the i-th from the left on, as a name of the zone.
func (x *explanation) at(i int) string {
	return strings.Join(append(slices.Clone(x.labels[i:]), x.o.Tree.Zone()), ".")
}

// exists notes that the walk found the name.
func (x *explanation) exists() {
	x.checked, x.rcode = true, dns.RcodeSuccess
	x.out.Closest = x.name
}

// absent notes that the walk found the name from the i-th label on and no
// more: the reply is NXDOMAIN.
func (x *explanation) absent(closest int, reason Reason, part, name, format string, args ...any) {
	x.checked, x.rcode = true, dns.RcodeNameError
	x.out.Closest = x.at(closest)
	x.fail(reason, part, name, format, args...)
}

// zone walks to a name of the zone, see docs/records.md, and says on the way what
// is there.
func (x *explanation) zone() {
	x.out.Way = WayTree
	switch x.qname.Form {
	case qname.Apex:
		x.step("%s is the zone's own name: it has SOA and NS records", x.question.Name)
		x.exists()
		x.typed("SOA and NS")
	case qname.Services, qname.Namespace, qname.Service, qname.Endpoint, qname.Protocol, qname.Port, qname.BelowService:
		x.step("%s is in the zone %s below svc: it is answered from the zone's tree of Services", x.question.Name, x.o.Tree.Zone())
		x.services()
	case qname.Pods, qname.PodNamespace, qname.Pod, qname.BelowPod:
		x.pods()
	case qname.DNS, qname.Nameserver, qname.BelowDNS:
		x.dnsNames()
	case qname.Version:
		x.step("%s has the version of the DNS specification as a TXT record", x.question.Name)
		x.exists()
		x.typed("TXT")
	default:
		n := len(x.labels)
		top := x.labels[n-1]
		x.step("%s is in the zone %s, which has svc, pod, dns and dns-version below it, and not %q", x.question.Name, x.o.Tree.Zone(), top)
		x.absent(n, NoName, "name", top, "There is no %s in the zone %s: names of Services end in svc.%[2]s.", top, x.o.Tree.Zone())
		x.nearMissingSvc()
	}
}

// typed is the end of a walk to a name that exists and has the types.
func (x *explanation) typed(has string) {
	switch {
	case x.out.Resolves:
		x.out.Summary = fmt.Sprintf("%s has %s of type %s.", x.question.Name, count(len(x.reply.Answer), "record"), x.out.Question.Type)
		if x.question.Qtype == dns.TypeANY {
			x.step("ANY has one HINFO record (RFC 8482)")
		}
	case x.nodata():
		x.step("the name exists and has no record of type %s: NODATA", x.out.Question.Type)
		x.fail(NoType, "type", x.out.Question.Type, "%s exists and has no record of type %s; it has %s.", x.question.Name, x.out.Question.Type, has)
	}
}

func (x *explanation) dnsNames() {
	x.step("dns.%s has the name of the zone's nameserver below it, ns.dns.%[1]s, with the cluster IPs of the Service %v", x.o.Tree.Zone(), x.o.DNSService)
	switch x.qname.Form {
	case qname.DNS:
		x.exists()
		x.typed("no records, only a name below it")
	case qname.Nameserver:
		x.exists()
		r, _ := x.o.Tree.Service([]byte(x.o.DNSService.Namespace), []byte(x.o.DNSService.Name))
		x.serviceFacts(x.o.DNSService, r, nil)
		if r == nil {
			x.step("there is no Service %v", x.o.DNSService)
			x.typed("no records without the Service " + x.o.DNSService.String())
			return
		}
		x.typed("the addresses of the Service " + x.o.DNSService.String())
	default:
		n := len(x.labels)
		x.absent(n-1, NoName, "name", x.labels[n-2], "There is nothing but ns.dns.%s below dns.%[1]s.", x.o.Tree.Zone())
	}
}

func (x *explanation) pods() {
	x.out.Way = WayPod
	x.step("%s is below pod.%s: names of the form a-b-c-d.namespace.pod.%[2]s stand for the address in them, whether or not there is such a Pod", x.question.Name, x.o.Tree.Zone())
	switch x.qname.Form {
	case qname.Pods, qname.PodNamespace:
		x.exists()
		x.typed("no records, only names below it")
		return
	case qname.BelowPod:
		n := len(x.labels)
		closest := n - 2
		if _, ok := qname.ParsePodLabel([]byte(x.labels[n-3])); ok {
			closest = n - 3
		}
		x.absent(closest, NoName, "name", x.labels[n-4], "There is nothing below a Pod's name.")
		return
	}
	addr, ok := x.qname.Addr()
	if !ok {
		x.step("%q is no address: four numbers without leading zeros with dashes for dots, or an IPv6 address with dashes for colons", x.labels[0])
		x.absent(1, NotPodAddress, "address", x.labels[0], "%s stands for no address.", x.labels[0])
		return
	}
	x.step("%q stands for %v", x.labels[0], addr)
	x.exists()
	x.typed(familyType(addr.Is4()))
}

func familyType(v4 bool) string {
	if v4 {
		return "A"
	}
	return "AAAA"
}

// services is svc and everything below it.
func (x *explanation) services() {
	form, n := x.qname.Form, len(x.labels)
	if form == qname.Services {
		x.exists()
		x.step("it has namespaces below it, and no records of its own")
		x.typed("no records, only names below it")
		return
	}
	if x.way == server.WayWildcard {
		x.wildcard()
		return
	}
	namespace := x.labels[n-2]
	_, exists := x.o.Tree.Service([]byte(namespace), nil)
	if !exists {
		x.step("no Service is in the namespace %q: for the DNS it does not exist", namespace)
		x.absent(n-1, NoNamespace, "namespace", namespace, "There is no Service in the namespace %s.", namespace)
		if x.federation() {
			return
		}
		x.nearService()
		return
	}
	x.step("the namespace %q has Services", namespace)
	if form == qname.Namespace {
		x.exists()
		x.typed("no records, only names below it")
		return
	}
	key := treecache.Key{Namespace: namespace, Name: x.labels[n-3]}
	r, _ := x.o.Tree.Service([]byte(key.Namespace), []byte(key.Name))
	x.serviceFacts(key, r, x.leftOut(r))
	switch {
	case r == nil:
		x.noRecords(key)
		x.federation()
	case form == qname.Service:
		x.service(key, r)
	default:
		x.belowService(key, r)
	}
}

// noRecords is a Service without a name in the DNS, or none at all.
func (x *explanation) noRecords(key treecache.Key) {
	d, known := x.o.Source.DescribeService(key)
	absent := func(reason Reason, part, name, format string, args ...any) {
		x.absent(len(x.labels)-2, reason, part, name, format, args...)
	}
	switch {
	case known && x.out.Service == nil: // it has come since it was asked for
		x.checked, x.rcode = true, -1
	case !known:
		x.step("there is no Service %q in it", key.Name)
		absent(NoService, "service", key.Name, "There is no Service %s in the namespace %s.", key.Name, key.Namespace)
		x.nearService()
	case d.Headless:
		s := x.out.Service
		switch {
		case s.Endpoints == 0 && len(s.Slices) == 0:
			x.step("the Service %v is headless and has no EndpointSlice: a headless Service without a ready endpoint has no name", key)
			absent(NoEndpoint, "endpoint", key.Name, "The headless Service %v has no EndpointSlice: its selector matches no Pod, or nobody writes its endpoints.", key)
		case s.Endpoints == 0:
			x.step("the Service %v is headless and its %s no endpoint: a headless Service without a ready endpoint has no name", key, slicesHave(len(s.Slices)))
			absent(NoEndpoint, "endpoint", key.Name, "The headless Service %v has no endpoint in its %s.", key, count(len(s.Slices), "EndpointSlice"))
		default:
			x.step("the Service %v is headless and none of its endpoints is ready (0 of %d): without a ready endpoint it has no name", key, s.Endpoints)
			absent(NoReadyEndpoint, "endpoint", key.Name, "The headless Service %v has %s, and none is ready.", key, count(s.Endpoints, "endpoint"))
		}
	case d.ExternalName == "" && d.Type == "ExternalName":
		absent(NoAddress, "address", key.Name, "The Service %v has an empty external name.", key)
	case len(d.ClusterIPs) == 0 && d.Type != "ExternalName":
		x.step("the Service %v has no cluster IP yet", key)
		absent(NoAddress, "address", key.Name, "The Service %v has no cluster IP yet.", key)
	default:
		// It has come since the tree was looked at, or its name is too long.
		absent(NoAddress, "service", key.Name, "The Service %v has no records: they are being made, or its name is longer than a DNS name may be.", key)
	}
}

func slicesHave(n int) string {
	if n == 1 {
		return "EndpointSlice has"
	}
	return fmt.Sprintf("%d EndpointSlices have", n)
}

// service is a Service's own name.
func (x *explanation) service(key treecache.Key, r *treecache.Records) {
	x.exists()
	v4, v6 := r.Family()
	switch {
	case r.Target != "":
		x.checked = false // the chain's end decides
		x.step("the Service %v is an ExternalName: its name is a CNAME to %s, whatever the type", key, r.Target)
		x.chain(r.Target)
		return
	case r.Kind == treecache.ExternalName:
		x.step("the Service %v is an ExternalName that is an address, which is an %s record", key, familyType(v4 > 0))
	case r.Kind == treecache.Headless:
		x.step("the Service %v is headless: its name has the addresses of its ready endpoints, each once: %s and %s", key, count(v4, "IPv4 address"), count(v6, "IPv6 address"))
	default:
		x.step("the Service %v has the cluster %s %s", key, ipWord(len(r.Addresses)), strings.Join(addressesOf(r), " and "))
		if s := x.out.Service; s != nil && s.ResourceVersion != "" && s.Answered == 0 {
			x.step("it has no endpoint that is ready (%d of %d): the name resolves all the same, connections to the address fail", s.Answered, s.Endpoints)
		}
	}
	has := typesOf(v4, v6, len(r.SRVs))
	if x.question.Qtype == dns.TypeSRV && len(r.SRVs) > 0 {
		x.step("SRV at a Service's own name: a record for each port, named or not, and target: %s", count(len(r.SRVs), "record"))
	}
	x.typed(has)
	if x.nodata() && x.question.Qtype == dns.TypeSRV {
		x.out.Missing = &Missing{"port", key.Name}
		x.out.Summary = fmt.Sprintf("%s exists and has no SRV record: the Service %v has no port with a number.", x.question.Name, key)
	}
}

func ipWord(n int) string {
	if n == 1 {
		return "IP"
	}
	return "IPs"
}

func addressesOf(r *treecache.Records) []string {
	var all []string
	for i := range r.Addresses {
		if len(all) == maxStepsPerThing {
			return append(all, "…")
		}
		if !r.Addresses[i].Repeated {
			all = append(all, r.Addresses[i].Addr.String())
		}
	}
	return all
}

// typesOf says which types a name has.
func typesOf(v4, v6, srv int) string {
	var types []string
	for _, t := range []struct {
		n    int
		name string
	}{{v4, "A"}, {v6, "AAAA"}, {srv, "SRV"}} {
		if t.n > 0 {
			types = append(types, t.name)
		}
	}
	if len(types) == 0 {
		return "no records"
	}
	return strings.Join(types, " and ")
}

// belowService is a name with labels left of a Service's that has records.
func (x *explanation) belowService(key treecache.Key, r *treecache.Records) {
	form, n := x.qname.Form, len(x.labels)
	if r.Kind == treecache.ExternalName {
		x.step("the Service %v is an ExternalName, which has nothing below its name", key)
		x.absent(n-3, BelowService, "name", x.labels[n-4], "Nothing is below the name of the ExternalName Service %v.", key)
		x.federation()
		return
	}
	label := x.labels[n-4]
	at := r.AtString(label)
	switch {
	case form == qname.Endpoint && len(at) > 0:
		x.exists()
		if r.Kind == treecache.Headless {
			x.step("%q is the hostname or label of %s of the headless Service %v that %s ready", label, count(len(at), "endpoint"), key, isOrAre(len(at)))
		} else {
			x.step("%q is the label that the system has assigned to the cluster IP %v of the Service %v", label, at[0].Addr, key)
		}
		v4, v6 := 0, 0
		for _, a := range at {
			if a.Addr.Is4() {
				v4++
			} else {
				v6++
			}
		}
		x.typed(typesOf(v4, v6, 0))
	case form == qname.Protocol || form == qname.Port:
		x.port(key, r)
	case len(at) > 0:
		x.absent(n-4, NoSuchEndpoint, "name", x.labels[n-5], "Nothing is below the name of an endpoint.")
	default:
		x.noEndpoint(key, r, label)
		x.federation()
	}
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// noEndpoint is a label below a Service that none of its endpoints has.
func (x *explanation) noEndpoint(key treecache.Key, r *treecache.Records, label string) {
	n := len(x.labels)
	if r.Kind != treecache.Headless {
		x.step("the Service %v has a cluster IP: below its name are its ports' names and its address's label, not its endpoints", key)
		x.absent(n-3, BelowService, "endpoint", label, "The Service %v is not headless: its endpoints have no names.", key)
		x.nearBelow(key, r, label)
		return
	}
	for _, slice := range x.out.Service.Slices {
		for _, e := range slice.Endpoints {
			if e.Hostname == label && !e.Ready {
				x.step("an endpoint of the Service %v has the hostname %q, and is not ready: %s in the EndpointSlice %s", key, label, e.Address, slice.Name)
				x.absent(n-3, EndpointNotReady, "endpoint", label, "The endpoint %s of the Service %v, %s, is not ready.", label, key, e.Address)
				return
			}
		}
	}
	x.step("no endpoint of the Service %v has the hostname or label %q", key, label)
	x.absent(n-3, NoSuchEndpoint, "endpoint", label, "No endpoint of the headless Service %v has the hostname %s.", key, label)
	x.nearBelow(key, r, label)
}

// port is _protocol or _port._protocol below a Service.
func (x *explanation) port(key treecache.Key, r *treecache.Records) {
	n := len(x.labels)
	protocol := x.labels[n-4]
	if !r.HasProtocol([]byte(protocol)) {
		x.step("no named port of the Service %v has the protocol %q", key, protocol)
		x.absent(n-3, NoProtocol, "protocol", protocol, "No named port of the Service %v has the protocol %s.", key, protocol)
		x.nearPorts(r)
		return
	}
	if x.qname.Form == qname.Protocol {
		x.exists()
		x.step("ports of the Service %v have the protocol %q: the name exists and has no records of its own", key, protocol)
		x.typed("no records, only names below it")
		return
	}
	srvs := r.PortAt([]byte(x.labels[0]), []byte(protocol))
	if srvs == nil {
		x.step("no port of the Service %v has the name %q and the protocol %q", key, x.labels[0], protocol)
		x.absent(n-4, NoPort, "port", x.labels[0], "The Service %v has no port named %s with the protocol %s.", key, strings.TrimPrefix(x.labels[0], "_"), strings.TrimPrefix(protocol, "_"))
		x.nearPorts(r)
		return
	}
	x.exists()
	x.step("the Service %v has the port %q with the protocol %q: %s", key, x.labels[0], protocol, count(len(srvs), "SRV record"))
	x.typed("SRV")
}

// wildcard is a name with an asterisk.
func (x *explanation) wildcard() {
	x.out.Way = WayWildcard
	x.step("an asterisk stands for any Service, namespace, port, protocol or endpoint: the answer is the union of what matches, under the name of the question")
	if x.reply == nil {
		return
	}
	switch {
	case x.out.Resolves:
		x.out.Summary = fmt.Sprintf("What matches has %s of type %s.", count(len(x.reply.Answer), "record"), x.out.Question.Type)
	case x.reply.Rcode == dns.RcodeNameError:
		x.fail(NoMatch, "name", x.labels[0], "Nothing matches %s.", x.question.Name)
		x.step("nothing matches: NXDOMAIN")
	case x.nodata():
		x.fail(NoType, "type", x.out.Question.Type, "What matches %s has no record of type %s.", x.question.Name, x.out.Question.Type)
		x.step("what matches has no record of the type: NODATA")
	default:
		x.fail(Failed, "", "", "Too many names with an asterisk are waiting for their answer.")
	}
}

// federation is for a name that the tree does not have. It reports whether the
// name is a federated Service's.
func (x *explanation) federation() bool {
	target, ok := x.federated(x.qname)
	if !ok {
		return false
	}
	x.out.Way = WayFederation
	x.checked = false
	x.out.Missing, x.out.Near, x.out.Reason, x.out.Summary = nil, nil, Failed, ""
	if x.out.Resolves {
		x.out.Reason = Answered
	}
	x.out.Closest = ""
	x.step("%q is a federation that is configured: the name asks for the Service %s in the namespace %s, here or there", x.labels[2], x.labels[0], x.labels[1])
	if target == "" {
		x.step("the topology zone and region of the Nodes are not known, or the name would be too long: SERVFAIL")
		x.fail(NoTopology, "name", x.labels[2], "The federation's name needs the zone and region of this cluster's Nodes, which are not known.")
		return true
	}
	if strings.HasSuffix(target, "."+x.o.Tree.Zone()) {
		x.step("the Service is in this cluster and has a ready endpoint: CNAME %s", target)
	} else {
		x.step("this cluster has no such Service with a ready endpoint: CNAME %s", target)
	}
	x.chain(target)
	return true
}

// federated is Source.Federated for a name.
func (e *Explainer) federated(n qname.Name) (target string, ok bool) {
	labels, ok := n.Federated()
	if !ok || !e.o.Source.HasFederations() {
		return "", false
	}
	return e.o.Source.Federated(labels)
}
