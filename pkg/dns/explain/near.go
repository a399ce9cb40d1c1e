package explain

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"kubedns/pkg/dns/qname"
	"kubedns/pkg/dns/treecache"
)

// nameIndex has the names of all Services, for names near another. It is made
// anew when records have changed, at most once in a while: what it has is
// looked up in the tree before it is shown.
type nameIndex struct {
	mu     sync.Mutex
	made   time.Time
	serial uint32
	names  *names
}

// indexAge is for how long an index serves while records change.
const indexAge = 2 * time.Second

// names are immutable.
type names struct {
	services   []near              // every name once
	in         map[string][]near   // the Services of a namespace
	namespaces map[string][]string // those that have a Service of the name, sorted
	all        []near              // namespaces
}

// near is a name and which characters are in it.
type near struct {
	name string
	mask uint64
}

func newNear(name string) near {
	n := near{name: name}
	for i := range len(name) {
		n.mask |= 1 << (name[i] & 63)
	}
	return n
}

// get is the index; making it takes some milliseconds for 10,000 Services.
func (i *nameIndex) get(tree *treecache.Tree) *names {
	i.mu.Lock()
	defer i.mu.Unlock()
	serial, now := tree.Serial(), time.Now()
	if i.names != nil && (i.serial == serial || now.Sub(i.made) < indexAge) {
		return i.names
	}
	i.names, i.serial, i.made = indexNames(tree.Keys()), serial, now
	return i.names
}

func indexNames(keys []treecache.Key) *names {
	n := &names{in: map[string][]near{}, namespaces: map[string][]string{}}
	slices.SortFunc(keys, func(a, b treecache.Key) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, k := range keys {
		at := newNear(k.Name)
		if n.in[k.Namespace] == nil {
			n.all = append(n.all, newNear(k.Namespace))
		}
		if n.namespaces[k.Name] == nil {
			n.services = append(n.services, at)
		}
		n.in[k.Namespace] = append(n.in[k.Namespace], at)
		n.namespaces[k.Name] = append(n.namespaces[k.Name], k.Namespace)
	}
	return n
}

// maxCompared is how many names are compared in full for one list.
const maxCompared = 2000

// closest are the names among all that are at most so many edits from name,
// the closest first.
func closest(name string, all []near) []string {
	most := 1 + len(name)/4
	wanted := newNear(name)
	type found struct {
		name     string
		distance int
	}
	var best []found
	compared := 0
	for _, n := range all {
		if abs(len(n.name)-len(name)) > most || bits.OnesCount64(n.mask^wanted.mask) > 2*most || n.name == name {
			continue
		}
		if compared++; compared > maxCompared {
			break
		}
		if d := distance(name, n.name, most); d <= most {
			best = append(best, found{n.name, d})
		}
	}
	slices.SortStableFunc(best, func(a, b found) int { return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name)) })
	var closest []string
	for _, f := range best[:min(len(best), maxNear)] {
		closest = append(closest, f.name)
	}
	return closest
}

func abs(n int) int { return max(n, -n) }

// maxLabel is how many octets a label has at most (RFC 1035 section 2.3.4).
const maxLabel = 63

// distance is how many letters are to be inserted, deleted, replaced, or
// exchanged with their neighbour, to make b of a; more than most is most+1.
func distance(a, b string, most int) int {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) > maxLabel || len(b) > maxLabel || abs(len(a)-len(b)) > most {
		return most + 1
	}
	var rows [3][maxLabel + 1]uint8
	before, last, next := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = uint8(j)
	}
	for i := 1; i <= len(a); i++ {
		next[0] = uint8(i)
		least := next[0]
		for j := 1; j <= len(b); j++ {
			change := uint8(1)
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(last[j]+1, next[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			next[j] = d
			least = min(least, d)
		}
		if int(least) > most {
			return most + 1
		}
		before, last, next = last, next, before
	}
	return min(int(last[len(b)]), most+1)
}

// addNear enters a name of the zone, unless it is there or five are.
func (x *explanation) addNear(why string, labels ...string) {
	name := strings.Join(append(labels, "svc", x.o.Tree.Zone()), ".")
	if len(x.out.Near) >= maxNear || name == x.name || slices.ContainsFunc(x.out.Near, func(n Near) bool { return n.Name == name }) {
		return
	}
	x.out.Near = append(x.out.Near, Near{name, why})
}

// has reports whether a Service has records.
func (x *explanation) has(namespace, name string) bool {
	r, _ := x.o.Tree.Service([]byte(namespace), []byte(name))
	return r != nil
}

// nearService finds Services near one that there is not.
func (x *explanation) nearService() {
	names := x.names.get(x.o.Tree)
	n := len(x.labels)
	namespace := x.labels[n-2]
	if x.qname.Form == qname.Namespace {
		for _, ns := range closest(namespace, names.all) {
			x.addNear("a namespace with a name like it", ns)
		}
		return
	}
	service := x.labels[n-3]
	below := x.labels[:n-3]
	full := func() bool { return len(x.out.Near) >= maxNear }
	add := func(why, service, namespace string) {
		if !x.has(namespace, service) {
			return
		}
		if len(below) > 0 && x.hasBelow(namespace, service, below) {
			x.addNear(why, append(slices.Clone(below), service, namespace)...)
			return
		}
		x.addNear(why, service, namespace)
	}
	for _, s := range closest(service, names.in[namespace]) {
		add("a Service with a name like it in the same namespace", s, namespace)
	}
	for _, ns := range closest(namespace, names.all) {
		add("the same Service in a namespace with a name like it", service, ns)
	}
	for _, ns := range names.namespaces[service] {
		if full() {
			return
		}
		add("the same Service in another namespace", service, ns)
	}
	add("a Service of this namespace's name in a namespace of this Service's name", namespace, service)
	if x.qname.Form > qname.Service {
		// a.b.svc with something in front, and something left out: perhaps
		// the labels are a Service and its namespace already.
		add("with the first labels as Service and namespace", x.labels[0], x.labels[1])
	}
	if full() {
		return
	}
	for _, ns := range closest(namespace, names.all) {
		for _, s := range closest(service, names.in[ns]) {
			add("a Service with a name like it in a namespace with a name like it", s, ns)
		}
	}
	if full() {
		return
	}
	for _, s := range closest(service, names.services) {
		for _, ns := range names.namespaces[s][:min(len(names.namespaces[s]), maxNear)] {
			add("a Service with a name like it in another namespace", s, ns)
		}
	}
}

// hasBelow reports whether the Service has the labels below it.
func (x *explanation) hasBelow(namespace, service string, below []string) bool {
	r, _ := x.o.Tree.Service([]byte(namespace), []byte(service))
	switch {
	case r == nil || r.Kind == treecache.ExternalName:
		return false
	case len(below) == 1:
		return len(r.AtString(below[0])) > 0 || r.HasProtocol([]byte(below[0]))
	}
	return len(below) == 2 && r.PortAt([]byte(below[0]), []byte(below[1])) != nil
}

// nearBelow finds endpoints of the Service near a label.
func (x *explanation) nearBelow(key treecache.Key, r *treecache.Records, label string) {
	var labels []near
	if r.Kind == treecache.Headless {
		last := ""
		for i := range r.Addresses {
			if l := r.Addresses[i].Label; l != last && len(labels) < maxCompared {
				labels = append(labels, newNear(l))
				last = l
			}
		}
	}
	for _, l := range closest(label, labels) {
		x.addNear("an endpoint with a hostname like it", l, key.Name, key.Namespace)
	}
	x.addNear("the Service itself", key.Name, key.Namespace)
	if x.has(label, key.Name) {
		x.addNear("with the first labels in the place of Service and namespace", key.Name, label)
	}
	if x.has(key.Name, label) {
		x.addNear("without the namespace at the end", label, key.Name)
	}
	// What has an endpoint of this name elsewhere is not looked for: that
	// would be every Service.
}

// nearPorts are the ports that a Service has.
func (x *explanation) nearPorts(r *treecache.Records) {
	wanted := x.labels[0]
	ports := slices.Clone(r.Ports)
	slices.SortStableFunc(ports, func(a, b treecache.Port) int {
		return distance(wanted, a.Name, 64) - distance(wanted, b.Name, 64)
	})
	for _, p := range ports {
		x.addNear("a port that the Service has", p.Name, p.Protocol, r.Key.Name, r.Key.Namespace)
	}
	x.addNear("the Service itself, with all its ports", r.Key.Name, r.Key.Namespace)
}

// nearMissingSvc finds the Service that a name of the zone without svc means.
func (x *explanation) nearMissingSvc() {
	x.meant(x.labels)
}

// nearOutside finds the Service that a name outside the zone means, one that
// ends before the zone does or in a name like it.
func (x *explanation) nearOutside() {
	x.meant(strings.Split(strings.TrimSuffix(x.name, "."), "."))
}

// meant looks for a Service and its namespace in two labels that follow each
// other, the leftmost first.
func (x *explanation) meant(labels []string) {
	for i := 0; i+1 < len(labels) && i < 4; i++ {
		service, namespace := labels[i], labels[i+1]
		if !x.has(namespace, service) {
			continue
		}
		if i > 0 && x.hasBelow(namespace, service, labels[:i]) {
			x.addNear("the name of a Service, spelled out", append(slices.Clone(labels[:i]), service, namespace)...)
		}
		x.addNear("the name of a Service, spelled out", service, namespace)
	}
	if len(labels) > 0 && len(labels) <= 2 {
		names := x.names.get(x.o.Tree)
		for _, ns := range names.namespaces[labels[0]][:min(maxNear, len(names.namespaces[labels[0]]))] {
			if x.has(ns, labels[0]) {
				x.addNear("a Service of this name", labels[0], ns)
			}
		}
	}
}
