package treecache

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Kind says what sort of Service a set of records was made for.
type Kind uint8

// The kinds of Service that records differ for.
const (
	ClusterIP Kind = iota
	Headless
	ExternalName
)

// String is the kind as metrics and the log name it: "cluster_ip",
// "headless", "external_name".
func (k Kind) String() string {
	switch k {
	case Headless:
		return "headless"
	case ExternalName:
		return "external_name"
	}
	return "cluster_ip"
}

// A Key names a Service.
type Key struct{ Namespace, Name string }

// String is "namespace/name", as kubectl prints it.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Address is an address of a Service, and the label that it has below it.
type Address struct {
	// Label is an endpoint's hostname or the label the system assigned, in
	// lower case; empty where the address has no name of its own.
	Label string
	// Addr has no zone, and an IPv4 address is in its own form.
	Addr netip.Addr
	// Repeated is set where the same address stands before under another
	// label: it is answered at that label, but only once at the Service.
	Repeated bool
	// Reverse is set where the address's PTR record names this label, for a
	// cluster IP the Service itself.
	Reverse bool
	// PodHostname is set where the endpoint has a hostname and is a Pod's:
	// of several owners of an address those come first.
	PodHostname bool
}

// SRV is what differs between the SRV records of one Service.
type SRV struct {
	// Label is the target's label below the Service; empty where the target
	// is the Service itself.
	Label string
	Port  uint16 // never 0
}

// Port has the SRV records of one named port and protocol.
type Port struct {
	Protocol string // with its underscore, in lower case: "_tcp"
	Name     string // with its underscore, in lower case: "_http"
	SRVs     []SRV  // each pair of label and port once; never empty
}

// Records is all that one Service owns in the DNS, in the form that answers
// are written from. It is complete when given to Replace, and nobody changes
// it afterwards.
type Records struct {
	Key  Key
	Kind Kind
	// Addresses are sorted by label, then by address. They are never empty
	// for Headless: a headless Service without an endpoint to answer with
	// has no name (DNS specification 1.1.0 section 2.4.1), see Empty.
	Addresses []Address
	// Ports are sorted by protocol, then by name; SRV records by label, then
	// by port.
	Ports []Port
	// SRVs are the records at the Service's own name: those of every port,
	// named or not, each pair of label and port once.
	SRVs []SRV
	// Target is what an ExternalName stands for, fully qualified and in the
	// manifest's spelling; empty for other kinds.
	Target string
	// HasReady is set where any endpoint of the Service is ready, whatever
	// its kind.
	HasReady bool
	// Created is the Service's creation, which orders the owners of an
	// address.
	Created time.Time
	// Empty is set where only the namespace is to exist.
	Empty bool

	// Set by Replace.
	id    *Identity
	count Counts
	since int64 // Unix nanoseconds
}

// Since is when the records took their place in the tree; the zero time where
// they are in none.
func (r *Records) Since() time.Time {
	if r.since == 0 {
		return time.Time{}
	}
	return time.Unix(0, r.since)
}

// Wire is the Service's name in wire form (RFC 1035 section 3.1), in lower
// case and with the root's octet: SRV targets and PTR records end in it. It
// is set once the records are in a tree.
func (r *Records) Wire() []byte { return r.id.wire }

// At has the addresses at label, all those that share it.
func (r *Records) At(label []byte) []Address {
	if len(label) == 0 {
		return nil
	}
	first := sortSearch(r.Addresses, label)
	last := first
	for last < len(r.Addresses) && r.Addresses[last].Label == string(label) {
		last++
	}
	return r.Addresses[first:last]
}

// AtString is At for a label that is a string.
func (r *Records) AtString(label string) []Address {
	// A conversion that does not escape costs no allocation for what a label
	// may be long.
	var b [64]byte
	return r.At(append(b[:0], label...))
}

// sortSearch is the index of the first address whose label is not before
// label. It is written out since slices.BinarySearchFunc would make a string
// of label.
func sortSearch(addresses []Address, label []byte) int {
	low, high := 0, len(addresses)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if addresses[mid].Label < string(label) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// PortAt has the SRV records of a port and protocol, both with their
// underscore, or nil.
func (r *Records) PortAt(name, protocol []byte) []SRV {
	for i := range r.Ports {
		if p := &r.Ports[i]; p.Name == string(name) && p.Protocol == string(protocol) {
			return p.SRVs
		}
	}
	return nil
}

// HasProtocol reports whether a port has the protocol, "_tcp": then that name
// exists below the Service, without records (RFC 8020).
func (r *Records) HasProtocol(protocol []byte) bool {
	for i := range r.Ports {
		if r.Ports[i].Protocol == string(protocol) {
			return true
		}
	}
	return false
}

// Family counts the addresses answered at the Service's own name. It is set
// once the records are in a tree.
func (r *Records) Family() (ipv4, ipv6 int) { return r.count.A, r.count.AAAA }

// Sort brings addresses and ports into the order that Records promises, and
// marks what repeats.
func (r *Records) Sort() {
	slices.SortFunc(r.Addresses, compareAddresses)
	markRepeated(r.Addresses)
	slices.SortFunc(r.Ports, func(a, b Port) int {
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Name, b.Name))
	})
	for i := range r.Ports {
		slices.SortFunc(r.Ports[i].SRVs, CompareSRVs)
	}
	slices.SortFunc(r.SRVs, CompareSRVs)
}

// fewAddresses are compared with each other sooner than entered into a map.
const fewAddresses = 32

// markRepeated sets Repeated.
func markRepeated(addresses []Address) {
	if len(addresses) <= fewAddresses {
		for i := range addresses {
			a := &addresses[i]
			a.Repeated = slices.ContainsFunc(addresses[:i], func(b Address) bool { return b.Addr == a.Addr })
		}
		return
	}
	seen := make(map[netip.Addr]struct{}, len(addresses))
	for i := range addresses {
		a := &addresses[i]
		_, a.Repeated = seen[a.Addr]
		seen[a.Addr] = struct{}{}
	}
}

// CompareSRVs is the order of SRV records.
func CompareSRVs(a, b SRV) int {
	return cmp.Or(strings.Compare(a.Label, b.Label), cmp.Compare(a.Port, b.Port))
}

// compareAddresses is the order of Records.Addresses.
func compareAddresses(a, b Address) int {
	return cmp.Or(strings.Compare(a.Label, b.Label), a.Addr.Compare(b.Addr))
}

// maxWire is how many octets a name may have in wire form (RFC 1035 section
// 2.3.4).
const maxWire = 255

// dropLongNames takes away what no DNS message can carry, as a PTR record's or
// an SRV record's target: names below the Service that are too long, or all of
// it. Only a long zone makes them so. wire is how many octets the
// Service's own name has in wire form.
func (r *Records) dropLongNames(wire int) {
	room := maxWire - wire // for a label and its length
	if room < 0 {
		*r = Records{Key: r.Key, Kind: r.Kind, Created: r.Created, Empty: true}
		return
	}
	tooLong := func(label string) bool { return label != "" && 1+len(label) > room }
	if !slices.ContainsFunc(r.Addresses, func(a Address) bool { return tooLong(a.Label) }) {
		return // SRV records' targets are labels of addresses
	}
	for i := range r.Addresses {
		if a := &r.Addresses[i]; tooLong(a.Label) {
			a.Label, a.Reverse, a.PodHostname = "", r.Kind == ClusterIP && a.Reverse, false
		}
	}
	without := func(all []SRV) []SRV {
		return slices.DeleteFunc(slices.Clone(all), func(s SRV) bool { return tooLong(s.Label) })
	}
	r.SRVs = without(r.SRVs)
	for i := range r.Ports {
		r.Ports[i].SRVs = without(r.Ports[i].SRVs)
	}
	r.Ports = slices.DeleteFunc(r.Ports, func(p Port) bool { return len(p.SRVs) == 0 })
	r.Sort()
}

// Equal reports whether the two are the same in everything that is answered.
// Neither is nil.
func (r *Records) Equal(o *Records) bool {
	return r.Key == o.Key && r.Kind == o.Kind && r.Target == o.Target && r.Empty == o.Empty &&
		r.HasReady == o.HasReady && r.Created.Equal(o.Created) &&
		slices.Equal(r.Addresses, o.Addresses) && slices.Equal(r.SRVs, o.SRVs) &&
		slices.EqualFunc(r.Ports, o.Ports, func(a, b Port) bool {
			return a.Protocol == b.Protocol && a.Name == b.Name && slices.Equal(a.SRVs, b.SRVs)
		})
}

// counts are the records a Service has, by type.
func (r *Records) counts() Counts {
	var c Counts
	if r.Empty {
		return c
	}
	if r.Target != "" {
		c.CNAME = 1
		return c
	}
	for i := range r.Addresses {
		a := &r.Addresses[i]
		switch {
		case a.Repeated:
		case a.Addr.Is4():
			c.A++
		default:
			c.AAAA++
		}
		if a.Reverse {
			c.PTR++
		}
	}
	for i := range r.Ports {
		c.SRV += len(r.Ports[i].SRVs)
	}
	return c
}
