package treecache

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/skynetservices/skydns/msg"

	"kubedns/pkg/dns/qname"
)

// Priority is every SRV record's, kept from kube-dns.
const Priority = 10

// A Node of the tree as /cache shows it: the names below it by their first
// label, and its own records by a key that is unique in it.
type Node struct {
	ChildNodes map[string]*Node
	Entries    map[string]msg.Service
}

func newNode() *Node { return &Node{map[string]*Node{}, map[string]msg.Service{}} }

func (n *Node) child(label string) *Node {
	c := n.ChildNodes[label]
	if c == nil {
		c = newNode()
		n.ChildNodes[label] = c
	}
	return c
}

// add enters s under key, or where that is taken, under key#2, key#3, …
func (n *Node) add(key string, s msg.Service) {
	unique := key
	for i := 2; ; i++ {
		if _, taken := n.Entries[unique]; !taken {
			break
		}
		unique = key + "#" + strconv.Itoa(i)
	}
	n.Entries[unique] = s
}

// View is the part of the tree at and below name, a fully qualified name in
// lower case, as a tree whose root is the DNS's root. ok is false where name
// does not exist. ttl is the records' TTL in seconds.
func (t *Tree) View(name string, ttl uint32) (root *Node, ok bool) {
	root = newNode()
	under := strings.TrimSuffix(name, ".")
	zone := strings.TrimSuffix(t.Zone(), ".")
	base := "svc." + zone
	at := func(labels ...string) *Node {
		n := root
		for _, label := range slices.Backward(strings.Split(base, ".")) {
			n = n.child(label)
		}
		for _, label := range slices.Backward(labels) {
			n = n.child(label)
		}
		return n
	}
	namespace, service, below := "*", "*", ""
	switch n := t.names.ParseText(under + "."); {
	case under == "" || base == under || strings.HasSuffix("."+base, "."+under):
		at()
		ok = true
	case n.Wildcard || n.Form < qname.Namespace || n.Form > qname.Port:
		return root, false
	default:
		labels := n.Labels()
		labels = labels[:len(labels)-1] // without svc
		namespace = labels[len(labels)-1]
		if n.Form >= qname.Service {
			service = labels[len(labels)-2]
			below = strings.Join(labels[:len(labels)-2], ".")
		}
	}
	var found []*Records
	t.Match(namespace, service, func(r *Records) { found = append(found, r) })
	for _, r := range found {
		if r.view(at(r.Key.Name, r.Key.Namespace), below, t.Zone(), ttl) {
			ok = true
		}
	}
	return root, ok
}

// view enters the part of r below the name below, relative to the Service,
// and reports whether there is any.
func (r *Records) view(n *Node, below, zone string, ttl uint32) bool {
	found := below == ""
	for i := range r.Addresses {
		a := &r.Addresses[i]
		if below == "" || below == a.Label {
			found = true
			n.add(cmp.Or(a.Label, AddressLabel(a.Addr)), r.addressService(a, zone, ttl))
		}
	}
	if r.Target != "" && below == "" {
		n.add(SystemLabel(r.Target), r.targetService(zone, ttl))
	}
	for _, p := range r.Ports {
		if below != "" && below != p.Protocol && below != p.Name+"."+p.Protocol {
			continue
		}
		found = true
		c := n.child(p.Protocol).child(p.Name)
		for _, srv := range p.SRVs {
			s := r.srvService(srv, p, zone, ttl)
			c.add(cmp.Or(srv.Label, SystemLabel(s.Host)), s)
		}
	}
	return found
}

// WriteJSON writes the node as /cache has it: indented with tabs.
func (n *Node) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(n)
}

// Name is the Service's fully qualified name, "web.default.svc.cluster.local.".
func (r *Records) Name(zone string) string {
	return r.Key.Name + "." + r.Key.Namespace + ".svc." + zone
}

// Services are the Service's records at its own name as SkyDNS has them:
// an address each, or the external name.
func (r *Records) Services(zone string, ttl uint32) []msg.Service {
	if r.Target != "" {
		return []msg.Service{r.targetService(zone, ttl)}
	}
	var services []msg.Service
	for i := range r.Addresses {
		if !r.Addresses[i].Repeated {
			services = append(services, r.addressService(&r.Addresses[i], zone, ttl))
		}
	}
	return services
}

// LabelServices are the records at a label below the Service.
func (r *Records) LabelServices(label, zone string, ttl uint32) []msg.Service {
	var services []msg.Service
	for i := range r.Addresses {
		if a := &r.Addresses[i]; a.Label != "" && (a.Label == label || label == "*" && !a.Repeated) {
			services = append(services, r.addressService(a, zone, ttl))
		}
	}
	return services
}

// PortServices are the SRV records of p.
func (r *Records) PortServices(p Port, zone string, ttl uint32) []msg.Service {
	services := make([]msg.Service, len(p.SRVs))
	for i, srv := range p.SRVs {
		services[i] = r.srvService(srv, p, zone, ttl)
	}
	return services
}

// The Key of a msg.Service is the record's place as SkyDNS has it in etcd:
// without one SkyDNS panics when it makes a target of it.

func (r *Records) addressService(a *Address, zone string, ttl uint32) msg.Service {
	name := r.Name(zone)
	if a.Label != "" {
		name = a.Label + "." + name
	}
	return msg.Service{Host: a.Addr.String(), Priority: Priority, Weight: 10, Ttl: ttl, Key: msg.Path(name)}
}

func (r *Records) targetService(zone string, ttl uint32) msg.Service {
	return msg.Service{Host: r.Target, Priority: Priority, Weight: 10, Ttl: ttl, Key: msg.Path(r.Name(zone))}
}

func (r *Records) srvService(srv SRV, p Port, zone string, ttl uint32) msg.Service {
	target := r.Name(zone)
	if srv.Label != "" {
		target = srv.Label + "." + target
	}
	owner := p.Name + "." + p.Protocol + "." + r.Name(zone)
	return msg.Service{Host: target, Port: int(srv.Port), Priority: Priority, Weight: 10, Ttl: ttl, Key: msg.Path(owner)}
}
