package skydns

import (
	"slices"
	"strings"

	etcd "github.com/coreos/etcd/client"
	"github.com/skynetservices/skydns/msg"

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
	if strings.Contains(name, "*") {
		return b.records(name, noPorts)
	}
	return b.records(name, allKinds)
}

// SRVRecords is Records for a question of type SRV: at a name with an asterisk
// in it there are the records of ports and no others, at a Service's own those
// of every port.
func (b *Backend) SRVRecords(name string) ([]msg.Service, error) {
	if strings.Contains(name, "*") {
		return b.records(name, onlyPorts)
	}
	return b.records(name, allKinds)
}

func (b *Backend) records(name string, want kinds) ([]msg.Service, error) {
	zone := b.tree.Zone()
	if name == zone {
		return nil, nil
	}
	under, ok := strings.CutSuffix(name, "."+zone)
	if !ok {
		return nil, errNoName
	}
	labels := strings.Split(under, ".")
	switch top := labels[len(labels)-1]; {
	case top == "svc" && len(labels) == 1:
		return nil, nil
	case top == "svc":
		return b.below(labels[:len(labels)-1], want)
	case top == "pod" && len(labels) <= 2:
		return nil, nil
	case top == "pod" && len(labels) == 3:
		if addr, ok := treecache.ParsePodLabel([]byte(labels[0])); ok {
			return []msg.Service{b.record(addr.String(), name)}, nil
		}
	}
	return nil, errNoName
}

// record is one that is not in the tree.
func (b *Backend) record(host, name string) msg.Service {
	return msg.Service{Host: host, Priority: treecache.Priority, Weight: 10, Ttl: b.ttl, Key: msg.Path(name)}
}

// below is the records of a name left of svc and the zone.
func (b *Backend) below(labels []string, want kinds) ([]msg.Service, error) {
	zone, n := b.tree.Zone(), len(labels)
	if n > 4 {
		return nil, errNoName
	}
	service := "*"
	if n > 1 {
		service = labels[n-2]
	}
	var all []msg.Service
	found := false
	b.tree.Match(labels[n-1], service, func(r *treecache.Records) {
		if n > 2 && r.Kind == treecache.ExternalName {
			return
		}
		switch n {
		case 1:
			found = true
		case 2:
			found = true
			switch {
			case want == onlyPorts:
				all = append(all, r.PortServices(treecache.Port{SRVs: r.SRVs}, zone, b.ttl)...)
			case want == noPorts && r.Target != "":
				// A CNAME tolerates nothing beside it (RFC 1034 section 3.6.2).
			default:
				all = append(all, r.Services(zone, b.ttl)...)
			}
		case 3:
			at := r.LabelServices(labels[0], zone, b.ttl)
			if want != onlyPorts {
				all = append(all, at...)
			}
			found = found || len(at) > 0
			for _, p := range r.Ports {
				found = found || matchUnderscored(labels[0], p.Protocol) && labels[0] != "*"
			}
		case 4:
			for _, p := range r.Ports {
				if matchUnderscored(labels[0], p.Name) && matchUnderscored(labels[1], p.Protocol) {
					found = true
					if want != noPorts {
						all = append(all, r.PortServices(p, zone, b.ttl)...)
					}
				}
			}
		}
	})
	if !found && n == 1 {
		_, found = b.tree.Service([]byte(labels[0]), nil)
	}
	if found {
		if want == onlyPorts {
			all = uniqueTargets(all)
		}
		return all, nil
	}
	if target, ok := b.federated(labels); ok && target != "" {
		return []msg.Service{b.record(target, strings.Join(labels, ".")+".svc."+zone)}, nil
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
func matchUnderscored(label, name string) bool {
	return label == name || label == "*" || label == "_*"
}

// ReverseRecord implements skydns.Backend: the first owner of a reverse name's
// address. SkyDNS has room for one.
func (b *Backend) ReverseRecord(name string) (*msg.Service, error) {
	addr, err := treecache.ParseReverse(treecache.AppendName(nil, strings.ToLower(name)))
	if err != nil {
		return nil, errNoName
	}
	first, _, ok := b.tree.Reverse(addr)
	if !ok {
		return nil, errNoName
	}
	record := b.record(first.Name(b.tree.Zone()), name)
	return &record, nil
}
