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
	Service *Identity
	// Label is the first label of the PTR record's target, which is below the
	// Service, or empty where the target is the Service itself.
	Label string
	// PodHostname is that of the Address.
	PodHostname bool
}

// Name is the PTR record's target, fully qualified.
func (o Owner) Name(zone string) string {
	name := o.Service.Key.Name + "." + o.Service.Key.Namespace + ".svc." + zone
	if o.Label != "" {
		name = o.Label + "." + name
	}
	return name
}

// An Identity is what does not change with a Service's records. The reverse
// records refer to it and not to the records, so that those of 1,500 addresses
// need not be touched when one of them changes.
type Identity struct {
	Key     Key
	Created time.Time
	kind    Kind
	wire    []byte
}

// Wire is the Service's name in wire form, as Records.Wire has it.
func (i *Identity) Wire() []byte { return i.wire }

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
// name may be are left out of next. It reports whether the tree changed:
// records that are equal to those there are leave all as it was. Calls for one
// key must not be concurrent.
func (t *Tree) Replace(key Key, next *Records, now time.Time) bool {
	if next != nil {
		next.dropLongNames(len(key.Name) + len(key.Namespace) + 2 + len(t.suffix))
	}
	t.mu.RLock()
	last := t.namespaces[key.Namespace][key.Name]
	t.mu.RUnlock()
	// What takes longer for larger Services is done with readers let in.
	if last == nil && next == nil || last != nil && next != nil && last.Equal(next) {
		return false
	}
	if next != nil {
		next.count = next.counts()
		next.id = t.identity(next, last)
		next.since = now.UnixNano()
	}
	gone, come := reverseChanges(last, next)

	t.mu.Lock()
	defer t.mu.Unlock()
	services := t.namespaces[key.Namespace]
	if last != nil {
		delete(services, key.Name)
		t.counts.add(last.count, -1)
		t.services--
	}
	if next != nil {
		if services == nil {
			services = map[string]*Records{}
			t.namespaces[key.Namespace] = services
		}
		services[key.Name] = next
		t.counts.add(next.count, 1)
		t.services++
	}
	if len(services) == 0 {
		delete(t.namespaces, key.Namespace)
	}
	for _, a := range gone {
		t.unlink(last.id, a)
	}
	for _, a := range come {
		t.link(next.id, a)
	}
	t.serial.Store(max(t.serial.Load()+1, uint32(now.Unix())))
	return true
}

// identity is last's where it is still the same, or a new one.
func (t *Tree) identity(next, last *Records) *Identity {
	if last != nil && last.id.kind == next.Kind && last.id.Created.Equal(next.Created) {
		return last.id
	}
	key := next.Key
	wire := make([]byte, 0, len(key.Name)+len(key.Namespace)+2+len(t.suffix))
	wire = append(append(wire, byte(len(key.Name))), key.Name...)
	wire = append(append(wire, byte(len(key.Namespace))), key.Namespace...)
	return &Identity{Key: key, Created: next.Created, kind: next.Kind, wire: append(wire, t.suffix...)}
}

// reverseChanges are the addresses whose reverse records go and come when next
// takes the place of last; either may be nil.
func reverseChanges(last, next *Records) (gone, come []*Address) {
	var before, after []Address
	same := last != nil && next != nil && last.id == next.id
	if last != nil {
		before = last.Addresses
	}
	if next != nil {
		after = next.Addresses
	}
	for len(before) > 0 || len(after) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = compareAddresses(before[0], after[0])
		}
		if order == 0 && same && before[0].Reverse == after[0].Reverse && before[0].PodHostname == after[0].PodHostname {
			before, after = before[1:], after[1:]
			continue
		}
		if order <= 0 {
			if before[0].Reverse {
				gone = append(gone, &before[0])
			}
			before = before[1:]
		}
		if order >= 0 {
			if after[0].Reverse {
				come = append(come, &after[0])
			}
			after = after[1:]
		}
	}
	return gone, come
}

// owner is the service's as an owner of one of its addresses.
func (i *Identity) owner(a *Address) Owner {
	o := Owner{Service: i, PodHostname: a.PodHostname}
	if i.kind == Headless {
		o.Label = a.Label
	}
	return o
}

func (t *Tree) link(id *Identity, a *Address) {
	t.reverse[a.Addr] = t.reverse[a.Addr].with(id.owner(a))
}

func (t *Tree) unlink(id *Identity, a *Address) {
	left := t.reverse[a.Addr].without(id.owner(a))
	if left.first.Service == nil {
		delete(t.reverse, a.Addr)
		return
	}
	t.reverse[a.Addr] = left
}

// with has one owner more, in its place.
func (o owners) with(come Owner) owners {
	switch {
	case o.first.Service == nil:
		return owners{first: come}
	case compareOwners(come, o.first) < 0:
		return owners{come, slices.Concat([]Owner{o.first}, o.more)}
	}
	i, _ := slices.BinarySearchFunc(o.more, come, compareOwners)
	return owners{o.first, slices.Concat(o.more[:i], []Owner{come}, o.more[i:])}
}

// without has one owner less.
func (o owners) without(gone Owner) owners {
	if o.first == gone {
		if len(o.more) == 0 {
			return owners{}
		}
		return owners{o.more[0], o.more[1:]}
	}
	i, ok := slices.BinarySearchFunc(o.more, gone, compareOwners)
	if !ok {
		return o
	}
	return owners{o.first, slices.Concat(o.more[:i], o.more[i+1:])}
}

// compareOwners is the order of several owners' PTR records (docs/records.md):
// endpoints that have a hostname and are a Pod's first, then the older
// Service, then by namespace, name and label.
func compareOwners(a, b Owner) int {
	if a.PodHostname != b.PodHostname {
		if a.PodHostname {
			return -1
		}
		return 1
	}
	return cmp.Or(
		a.Service.Created.Compare(b.Service.Created),
		strings.Compare(a.Service.Key.Namespace, b.Service.Key.Namespace),
		strings.Compare(a.Service.Key.Name, b.Service.Key.Name),
		strings.Compare(a.Label, b.Label),
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

// keysAtOnce is for how many Services Keys keeps writers waiting.
const keysAtOnce = 256

// Keys has the Services that have a name in the DNS, in no order. It lets
// writers in between: what changes meanwhile may be in it or not.
func (t *Tree) Keys() []Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	keys := make([]Key, 0, t.services)
	seen := 0
	// A map may change while it is iterated over, in the loop's own time.
	for _, services := range t.namespaces {
		for _, r := range services {
			if !r.Empty {
				keys = append(keys, r.Key)
			}
			if seen++; seen%keysAtOnce == 0 {
				t.mu.RUnlock()
				t.mu.RLock()
			}
		}
	}
	return keys
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
