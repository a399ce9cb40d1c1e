package explain

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"

	cluster "kubedns/pkg/dns"
)

// candidateEndpoint is one address of a slice, to be judged.
type candidateEndpoint struct {
	cluster.DescribedEndpoint
	addr  netip.Addr
	label string // its name below the Service
	ports []cluster.DescribedPort
}

// leftOut has the rule by which an endpoint is not in the answer; nil where
// only readiness counts.
func (x *explanation) leftOut(r *treecache.Records) func(candidateEndpoint) string {
	family := func(e candidateEndpoint) string {
		switch {
		case x.question.Qtype == dns.TypeA && !e.addr.Is4():
			return "address type: IPv6, and A was asked for"
		case x.question.Qtype == dns.TypeAAAA && e.addr.Is4():
			return "address type: IPv4, and AAAA was asked for"
		}
		return ""
	}
	if r != nil && r.Kind != treecache.Headless {
		return nil
	}
	switch form := x.qname.Form; {
	case form == qname.Service && x.question.Qtype == dns.TypeSRV:
		return func(e candidateEndpoint) string {
			if !slices.ContainsFunc(e.ports, func(p cluster.DescribedPort) bool { return p.Number != 0 }) {
				return "no such port: its slice has no port with a number"
			}
			return ""
		}
	case form == qname.Service:
		return family
	case form == qname.Endpoint:
		return func(e candidateEndpoint) string {
			if e.label != x.labels[0] {
				return "hostname elsewhere: its name is " + e.label
			}
			return family(e)
		}
	case form == qname.Port:
		return func(e candidateEndpoint) string {
			for _, p := range e.ports {
				if "_"+strings.ToLower(p.Name) == x.labels[0] && "_"+strings.ToLower(p.Protocol) == x.labels[1] {
					if p.Number == 0 {
						return "no such port: in its slice the port has no number"
					}
					return ""
				}
			}
			return "no such port: its slice has none of this name and protocol"
		}
	}
	return nil
}

// serviceFacts enters what is known of the Service, from its objects and,
// while a snapshot is served, from its records alone. r may be nil.
func (x *explanation) serviceFacts(key treecache.Key, r *treecache.Records, leftOut func(candidateEndpoint) string) {
	if r == nil {
		r, _ = x.o.Tree.Service([]byte(key.Namespace), []byte(key.Name))
	}
	d, known := x.o.Source.DescribeService(key)
	if r == nil && !known {
		return
	}
	s := &Service{Namespace: key.Namespace, Name: key.Name, Addresses: []string{}, Ports: []Port{}, Slices: []Slice{}}
	x.out.Service = s
	if r != nil {
		age := max(0, time.Since(r.Since()).Seconds())
		s.RecordAgeSeconds = &age
		created := r.Created.UTC()
		s.Created = &created
		s.Kind = kindString(r.Kind)
		s.ExternalName = r.Target
		for i := range r.Addresses {
			if !r.Addresses[i].Repeated && len(s.Addresses) < maxListed {
				s.Addresses = append(s.Addresses, r.Addresses[i].Addr.String())
			}
		}
	}
	if !known {
		return
	}
	created := d.Created.UTC()
	s.Created, s.ResourceVersion, s.Type, s.PublishNotReady = &created, d.ResourceVersion, d.Type, d.PublishNotReady
	s.Ports = portsOf(d.Ports)
	switch {
	case d.Type == "ExternalName":
		s.Kind, s.ExternalName = kindString(treecache.ExternalName), d.ExternalName
	case d.Headless:
		s.Kind = kindString(treecache.Headless)
	default:
		s.Kind = kindString(treecache.ClusterIP)
		s.Addresses = addrStrings(d.ClusterIPs)
	}
	x.slices(s, d, leftOut)
}

func kindString(k treecache.Kind) string {
	switch k {
	case treecache.Headless:
		return "headless"
	case treecache.ExternalName:
		return "external name"
	}
	return "cluster IP"
}

func portsOf(all []cluster.DescribedPort) []Port {
	ports := make([]Port, len(all))
	for i, p := range all {
		ports[i] = Port(p)
	}
	return ports
}

// slices enters the slices and endpoints, those that are left out before the
// others, as many as may still be listed.
func (x *explanation) slices(s *Service, d cluster.Description, leftOut func(candidateEndpoint) string) {
	type place struct {
		label string
		addr  netip.Addr
	}
	seen := map[place]string{}
	for _, slice := range d.Slices {
		out := Slice{
			Name: slice.Name, AddressType: slice.AddressType, ResourceVersion: slice.ResourceVersion,
			Ports: portsOf(slice.Ports), Endpoints: []Endpoint{},
		}
		if slice.AddressType != "IPv4" && slice.AddressType != "IPv6" {
			out.LeftOut = "address type: no record comes from a slice of type " + slice.AddressType
		}
		var answered []Endpoint
		for e := range slice.Endpoints {
			s.Endpoints++
			c := candidateEndpoint{DescribedEndpoint: e, addr: e.Addr, label: e.Hostname, ports: slice.Ports}
			if c.label == "" {
				c.label = treecache.AddressLabel(e.Addr)
			}
			shown := Endpoint{Address: e.Addr.String(), Hostname: e.Hostname, Ready: e.Ready}
			if d.Headless && (e.Ready || d.PublishNotReady) {
				shown.Name = c.label + "." + d.Key.Name + "." + d.Key.Namespace + ".svc." + x.o.Tree.Zone()
			}
			at := place{c.label, e.Addr}
			other, repeated := seen[at]
			switch {
			case !d.Headless && d.Type != "ExternalName":
				if !e.Ready {
					shown.LeftOut = "not ready"
				}
			case !e.Ready && !d.PublishNotReady:
				shown.LeftOut = "not ready"
			case repeated:
				shown.LeftOut = "the same address and name are in the slice " + other + " already"
			case leftOut != nil:
				shown.LeftOut = leftOut(c)
			}
			if d.Headless && (e.Ready || d.PublishNotReady) && !repeated {
				seen[at] = slice.Name
			}
			if shown.LeftOut == "" {
				s.Answered++
				answered = append(answered, shown)
				continue
			}
			if x.list() {
				out.Endpoints = append(out.Endpoints, shown)
			}
		}
		for _, e := range answered {
			if x.list() {
				out.Endpoints = append(out.Endpoints, e)
			}
		}
		s.Slices = append(s.Slices, out)
	}
}
