package dns

import (
	"slices"
	"strings"

	etcd "github.com/coreos/etcd/client"
	"github.com/skynetservices/skydns/msg"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// errNoName is what SkyDNS answers NXDOMAIN.
var errNoName = etcd.Error{Code: etcd.ErrorCodeKeyNotFound, Message: "no such name"}

// kinds are the records that are wanted of a name: SkyDNS makes CNAME records
// of an SRV record's target where it is asked for addresses, and SRV records
// with port 0 of addresses.
type kinds uint8

const (
	allKinds  kinds = iota // of a name that stands for itself
	noPorts                // with an asterisk, for other types than SRV
	onlyPorts              // with an asterisk, for SRV
)

// Records implements skydns.Backend: the records at name, fully qualified and
// in lower case, with "*" in place of a namespace, Service, endpoint, port or
// protocol for any. Where a name exists without records there are none and no
// error.
//
// With an asterisk in it, a name has the records of other types than SRV;
// SRVRecords has those.
func (kd *KubeDNS) Records(name string, _ bool) ([]msg.Service, error) {
	return kd.records(name, noPorts)
}

// SRVRecords is Records for a question of type SRV: at a name with an asterisk
// in it there are the records of ports and no others, at a Service's own those
// of every port.
func (kd *KubeDNS) SRVRecords(name string) ([]msg.Service, error) {
	return kd.records(name, onlyPorts)
}

// records has the records at name: where it is a wildcard those that are
// wanted, else all.
func (kd *KubeDNS) records(name string, want kinds) ([]msg.Service, error) {
	n := kd.tree.Names().ParseText(name)
	if !n.Wildcard {
		want = allKinds
	}
	switch n.Form {
	case qname.Apex, qname.Services, qname.Pods, qname.PodNamespace:
		return nil, nil
	case qname.Namespace, qname.Service, qname.Endpoint, qname.Protocol, qname.Port:
		return kd.below(n, want)
	case qname.Pod:
		if addr, ok := n.Addr(); ok {
			return []msg.Service{kd.record(addr.String(), name)}, nil
		}
	}
	return nil, errNoName
}

// record is one that is not in the tree.
func (kd *KubeDNS) record(host, name string) msg.Service {
	return msg.Service{Host: host, Priority: treecache.Priority, Weight: 10, Ttl: kd.ttl, Key: msg.Path(name)}
}

// below is the records of a name below svc and the zone.
func (kd *KubeDNS) below(n qname.Name, want kinds) ([]msg.Service, error) {
	zone, service, hostname := kd.tree.Zone(), "*", ""
	if n.Form != qname.Namespace {
		service = string(n.Service())
	}
	if n.Form == qname.Endpoint {
		hostname = string(n.Hostname())
	}
	var all []msg.Service
	found := false
	kd.tree.Match(string(n.Namespace()), service, func(r *treecache.Records) {
		if n.Form > qname.Service && r.Kind == treecache.ExternalName {
			return
		}
		switch n.Form {
		case qname.Namespace:
			found = true
		case qname.Service:
			found = true
			switch {
			case want == onlyPorts:
				all = append(all, r.PortServices(treecache.Port{SRVs: r.SRVs}, zone, kd.ttl)...)
			case want == noPorts && r.Target != "":
				// A CNAME tolerates nothing beside it (RFC 1034 section 3.6.2).
			default:
				all = append(all, r.Services(zone, kd.ttl)...)
			}
		case qname.Endpoint:
			at := r.LabelServices(hostname, zone, kd.ttl)
			if want != onlyPorts {
				all = append(all, at...)
			}
			found = found || len(at) > 0
		case qname.Protocol:
			for _, p := range r.Ports {
				found = found || matchUnderscored(n.Protocol(), p.Protocol)
			}
		case qname.Port:
			for _, p := range r.Ports {
				if matchUnderscored(n.Port(), p.Name) && matchUnderscored(n.Protocol(), p.Protocol) {
					found = true
					if want != noPorts {
						all = append(all, r.PortServices(p, zone, kd.ttl)...)
					}
				}
			}
		}
	})
	if !found && n.Form == qname.Namespace {
		_, found = kd.tree.Service(n.Namespace(), nil)
	}
	if found {
		if want == onlyPorts {
			all = uniqueTargets(all)
		}
		return all, nil
	}
	if labels, ok := n.Federated(); ok {
		if target, ok := kd.Federated(labels); ok && target != "" {
			return []msg.Service{kd.record(target, strings.Join(labels, ".")+".svc."+zone)}, nil
		}
	}
	return nil, errNoName
}

// uniqueTargets leaves each pair of target and port once. SkyDNS does so as
// well, but after it has given each of them its share of the weight.
func uniqueTargets(all []msg.Service) []msg.Service {
	type pair struct {
		target string
		port   int
	}
	seen := make(map[pair]struct{}, len(all))
	return slices.DeleteFunc(all, func(s msg.Service) bool {
		p := pair{s.Host, s.Port}
		_, repeated := seen[p]
		seen[p] = struct{}{}
		return repeated
	})
}

// matchUnderscored tells whether label, "_http", "*" or "_*", is the port or
// protocol name. An asterisk stands for an underscored label only where
// nothing but a port or protocol can stand.
func matchUnderscored(label []byte, name string) bool {
	return string(label) == name || qname.IsWildcard(label)
}

// ReverseRecord implements skydns.Backend: the first owner of a reverse name's
// address. SkyDNS has room for one.
func (kd *KubeDNS) ReverseRecord(name string) (*msg.Service, error) {
	n := kd.tree.Names().ParseText(name)
	addr, ok := n.Addr()
	if !ok || n.Form != qname.Reverse {
		return nil, errNoName
	}
	first, _, ok := kd.tree.Reverse(addr)
	if !ok {
		return nil, errNoName
	}
	record := kd.record(first.Name(kd.tree.Zone()), name)
	return &record, nil
}
