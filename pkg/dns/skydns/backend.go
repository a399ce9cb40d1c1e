package skydns

import (
	"slices"
	"strings"

	etcd "github.com/coreos/etcd/client"
	"github.com/skynetservices/skydns/msg"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// Backend implements the Backend of SkyDNS's server, but for HasSynced. Its
// methods are safe for concurrent use.
type Backend struct {
	tree      *treecache.Tree
	ttl       uint32
	federated func(labels []string) (target string, ok bool)
}

// New makes a Backend of tree, whose records have a TTL of ttl seconds.
//
// federated reports whether the labels left of "svc" and the zone, from the
// left and in lower case, name a Service of a configured federation. The target
// is that of its CNAME record, "" while it has none.
func New(tree *treecache.Tree, ttl uint32, federated func(labels []string) (target string, ok bool)) *Backend {
	return &Backend{tree: tree, ttl: ttl, federated: federated}
}

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
func (b *Backend) Records(name string, _ bool) ([]msg.Service, error) {
	return b.records(name, noPorts)
}

// SRVRecords is Records for a question of type SRV: at a name with an asterisk
// in it there are the records of ports and no others, at a Service's own those
// of every port.
func (b *Backend) SRVRecords(name string) ([]msg.Service, error) {
	return b.records(name, onlyPorts)
}

// records has the records at name: where it is a wildcard those that are
// wanted, else all.
func (b *Backend) records(name string, want kinds) ([]msg.Service, error) {
	n := b.tree.Names().ParseText(name)
	if !n.Wildcard {
		want = allKinds
	}
	switch n.Form {
	case qname.Apex, qname.Services, qname.Pods, qname.PodNamespace:
		return nil, nil
	case qname.Namespace, qname.Service, qname.Endpoint, qname.Protocol, qname.Port:
		return b.below(n, want)
	case qname.Pod:
		if addr, ok := n.Addr(); ok {
			return []msg.Service{b.record(addr.String(), name)}, nil
		}
	}
	return nil, errNoName
}

// record is one that is not in the tree.
func (b *Backend) record(host, name string) msg.Service {
	return msg.Service{Host: host, Priority: treecache.Priority, Weight: 10, Ttl: b.ttl, Key: msg.Path(name)}
}

// below is the records of a name below svc and the zone.
func (b *Backend) below(n qname.Name, want kinds) ([]msg.Service, error) {
	zone, service, hostname := b.tree.Zone(), "*", ""
	if n.Form != qname.Namespace {
		service = string(n.Service())
	}
	if n.Form == qname.Endpoint {
		hostname = string(n.Hostname())
	}
	var all []msg.Service
	found := false
	b.tree.Match(string(n.Namespace()), service, func(r *treecache.Records) {
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
				all = append(all, r.PortServices(treecache.Port{SRVs: r.SRVs}, zone, b.ttl)...)
			case want == noPorts && r.Target != "":
				// A CNAME tolerates nothing beside it (RFC 1034 section 3.6.2).
			default:
				all = append(all, r.Services(zone, b.ttl)...)
			}
		case qname.Endpoint:
			at := r.LabelServices(hostname, zone, b.ttl)
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
						all = append(all, r.PortServices(p, zone, b.ttl)...)
					}
				}
			}
		}
	})
	if !found && n.Form == qname.Namespace {
		_, found = b.tree.Service(n.Namespace(), nil)
	}
	if found {
		if want == onlyPorts {
			all = uniqueTargets(all)
		}
		return all, nil
	}
	if labels, ok := n.Federated(); ok {
		if target, ok := b.federated(labels); ok && target != "" {
			return []msg.Service{b.record(target, strings.Join(labels, ".")+".svc."+zone)}, nil
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

// matchUnderscored reports whether label, "_http", "*" or "_*", is the port or
// protocol name. An asterisk stands for an underscored label only where
// nothing but a port or protocol can stand.
func matchUnderscored(label []byte, name string) bool {
	return string(label) == name || qname.IsWildcard(label)
}

// ReverseRecord implements skydns.Backend: the first owner of a reverse name's
// address. SkyDNS has room for one.
func (b *Backend) ReverseRecord(name string) (*msg.Service, error) {
	n := b.tree.Names().ParseText(name)
	addr, ok := n.Addr()
	if !ok || n.Form != qname.Reverse {
		return nil, errNoName
	}
	first, _, ok := b.tree.Reverse(addr)
	if !ok {
		return nil, errNoName
	}
	record := b.record(first.Name(b.tree.Zone()), name)
	return &record, nil
}
