// Package treecache holds the records that a cluster's Services have, as a
// tree of labels below the zone: svc, the namespaces, the Services, and what
// is below each; beside it the reverse records, by address.
//
// It leaves to others how records come from objects and how answers are
// written. It starts no goroutine. A Tree is safe for concurrent use; what it
// returns is never written again.
package treecache

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Tree is the records of one zone.
type Tree struct {
	zone   string
	suffix []byte // "svc" and the zone in wire form

	serial atomic.Uint32

	mu         sync.RWMutex
	namespaces map[string]map[string]*Records // by namespace, by Service
	reverse    map[netip.Addr]owners
	counts     Counts
	services   int
}

// Counts says how many records there are of each type.
type Counts struct{ A, AAAA, SRV, PTR, CNAME int }

func (c *Counts) add(d Counts, sign int) {
	c.A += sign * d.A
	c.AAAA += sign * d.AAAA
	c.SRV += sign * d.SRV
	c.PTR += sign * d.PTR
	c.CNAME += sign * d.CNAME
}

// An Owner is a name that an address belongs to.
type Owner struct {
	Records *Records
	// Address is the owner's entry: its Label is the first label of the PTR
	// record's target, or empty where the target is the Service itself.
	Address *Address
}

// owners are the owners of one address, in the order of their answers. Nearly
// every address has one, which needs no slice.
type owners struct {
	first Owner
	more  []Owner // immutable: replaced, not written to
}

// New makes an empty tree for a zone, "cluster.local." in lower case, each of
// whose labels has 63 octets at most.
func New(zone string) *Tree {
	t := &Tree{
		zone:       zone,
		namespaces: map[string]map[string]*Records{},
		reverse:    map[netip.Addr]owners{},
	}
	t.suffix = AppendName(nil, "svc."+zone)
	return t
}

// AppendName appends name in wire form to b. Its labels are taken as they
// stand: no escapes, no check of their length.
func AppendName(b []byte, name string) []byte {
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" {
			continue
		}
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	return append(b, 0)
}

// Zone is the zone's name, "cluster.local.".
func (t *Tree) Zone() string { return t.zone }

// Serial is the zone's SOA serial: it grows whenever records change, and is
// the time of the last change in seconds where changes are no denser than
// that, so that it also grows over a restart (RFC 1982).
func (t *Tree) Serial() uint32 { return t.serial.Load() }

// Replace makes next all that the Service key owns, reverse records included,
// in one step; nil takes away what it had. Names that are longer than a DNS
// name may be are left out of next. It reports whether the tree changed: records that are equal to those there are leave all as it was.
func (t *Tree) Replace(key Key, next *Records, now time.Time) bool {
	if next != nil && next.wire == nil {
		wire := make([]byte, 0, len(key.Name)+len(key.Namespace)+2+len(t.suffix))
		wire = append(append(wire, byte(len(key.Name))), key.Name...)
		wire = append(append(wire, byte(len(key.Namespace))), key.Namespace...)
		wire = append(wire, t.suffix...)
		next.wire = wire
		next.dropLongNames()
	}

	t.mu.RLock()
	was := t.namespaces[key.Namespace][key.Name]
	t.mu.RUnlock()
	if was != nil && next != nil && was.Equal(next) {
		return false // compared with readers let in: it may take a while
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	services := t.namespaces[key.Namespace]
	last := services[key.Name]
	if last == nil && next == nil {
		return false
	}
	if last != nil {
		t.unlink(last)
		delete(services, key.Name)
		if len(services) == 0 {
			delete(t.namespaces, key.Namespace)
			services = nil
		}
		t.counts.add(last.counts(), -1)
		t.services--
	}
	if next != nil {
		if services == nil {
			services = map[string]*Records{}
			t.namespaces[key.Namespace] = services
		}
		services[key.Name] = next
		t.link(next)
		t.counts.add(next.counts(), 1)
		t.services++
	}
	t.serial.Store(max(t.serial.Load()+1, uint32(now.Unix())))
	return true
}

func (t *Tree) link(r *Records) {
	for i := range r.Addresses {
		a := &r.Addresses[i]
		if !a.Reverse {
			continue
		}
		o := t.reverse[a.Addr]
		if o.first.Records == nil {
			t.reverse[a.Addr] = owners{first: Owner{r, a}}
			continue
		}
		all := append(o.all(), Owner{r, a})
		slices.SortFunc(all, compareOwners)
		t.reverse[a.Addr] = owners{all[0], all[1:]}
	}
}

func (t *Tree) unlink(r *Records) {
	for i := range r.Addresses {
		a := &r.Addresses[i]
		if !a.Reverse {
			continue
		}
		all := t.reverse[a.Addr].all()
		all = slices.DeleteFunc(all, func(o Owner) bool { return o.Records == r })
		if len(all) == 0 {
			delete(t.reverse, a.Addr)
			continue
		}
		t.reverse[a.Addr] = owners{all[0], all[1:]}
	}
}

// all is a new slice with every owner.
func (o owners) all() []Owner {
	if o.first.Records == nil {
		return nil
	}
	return slices.Concat([]Owner{o.first}, o.more)
}

// compareOwners is the order of several owners' PTR records (records.md):
// endpoints that have a hostname and are a Pod's first, then the older
// Service, then by namespace, name and label.
func compareOwners(a, b Owner) int {
	if a.Address.PodHostname != b.Address.PodHostname {
		if a.Address.PodHostname {
			return -1
		}
		return 1
	}
	return cmp.Or(
		a.Records.Created.Compare(b.Records.Created),
		strings.Compare(a.Records.Key.Namespace, b.Records.Key.Namespace),
		strings.Compare(a.Records.Key.Name, b.Records.Key.Name),
		strings.Compare(a.Address.Label, b.Address.Label),
	)
}

// Service has what a Service owns, or nil where it has no name in the DNS,
// and whether its namespace exists: whether it has any Service.
func (t *Tree) Service(namespace, name []byte) (r *Records, namespaceExists bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	services := t.namespaces[string(namespace)]
	r = services[string(name)]
	if r != nil && r.Empty {
		r = nil
	}
	return r, services != nil
}

// Reverse has the owners of an address in the order of their answers: the
// first one, and the others, of which there are rarely any. ok is false where
// nothing owns it.
func (t *Tree) Reverse(addr netip.Addr) (first Owner, more []Owner, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok := t.reverse[addr]
	return o.first, o.more, ok
}

// Match calls yield with every Service whose namespace and name match, in no
// order; "*" matches all. Records that are Empty are left out. yield runs with
// the tree locked for writers: it must not call the tree's methods.
func (t *Tree) Match(namespace, name string, yield func(*Records)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	inNamespace := func(services map[string]*Records) {
		if name != "*" {
			if r := services[name]; r != nil && !r.Empty {
				yield(r)
			}
			return
		}
		for _, r := range services {
			if !r.Empty {
				yield(r)
			}
		}
	}
	if namespace != "*" {
		inNamespace(t.namespaces[namespace])
		return
	}
	for _, services := range t.namespaces {
		inNamespace(services)
	}
}

// Stats has the number of Services and of records by type.
func (t *Tree) Stats() (services int, counts Counts) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.services, t.counts
}

// String is for the log: the zone and how much is in it.
func (t *Tree) String() string {
	services, c := t.Stats()
	return fmt.Sprintf("%s: %d services, %d A, %d AAAA, %d SRV, %d PTR, %d CNAME", t.zone, services, c.A, c.AAAA, c.SRV, c.PTR, c.CNAME)
}
