package qname

import (
	"bytes"
	"net/netip"
	"strings"
)

// Form is which form a name has. Z is the zone in the names below.
type Form uint8

const (
	// None is no name: it could not be read.
	None Form = iota
	// Outside is a name that is neither in the zone nor in a reverse zone.
	Outside
	// Reverse is a name in in-addr.arpa or ip6.arpa, or one of these zones. It
	// need not be an address's, see Addr.
	Reverse
	// Apex is Z.
	Apex
	// Services is svc.Z.
	Services
	// Namespace is NAMESPACE.svc.Z.
	Namespace
	// Service is SERVICE.NAMESPACE.svc.Z.
	Service
	// Endpoint is HOSTNAME.SERVICE.NAMESPACE.svc.Z, or the label of an address
	// in place of the hostname. A Service of a federation has a name of the same
	// form, SERVICE.NAMESPACE.FEDERATION.svc.Z, see Federated.
	Endpoint
	// Protocol is _PROTOCOL.SERVICE.NAMESPACE.svc.Z. No hostname begins with an
	// underscore (RFC 1123 section 2.1).
	Protocol
	// Port is _PORT._PROTOCOL.SERVICE.NAMESPACE.svc.Z. Only the protocol's
	// underscore is required: a port without one has no records.
	Port
	// BelowService is any other name below a Service's. It has no records.
	BelowService
	// Pods is pod.Z.
	Pods
	// PodNamespace is NAMESPACE.pod.Z.
	PodNamespace
	// Pod is ADDRESS.NAMESPACE.pod.Z. The label need not be an address, see Addr.
	Pod
	// BelowPod is any name below a Pod's. It has no records.
	BelowPod
	// DNS is dns.Z.
	DNS
	// Nameserver is ns.dns.Z.
	Nameserver
	// BelowDNS is any other name below dns.Z. It has no records.
	BelowDNS
	// Version is dns-version.Z.
	Version
	// Unknown is any other name in the zone. It has no records.
	Unknown
)

// Name is a name and its form. It refers to the Wire that it was parsed from
// and is valid until that is changed.
type Name struct {
	Form Form
	// Wildcard is set where "*" or "_*" is in the place of a namespace, Service,
	// endpoint, port or protocol. It is never set outside svc.Z.
	Wildcard bool

	left int // labels left of the zone or the reverse zone
	wire *Wire
}

// InZone reports whether the name is the zone's or below it.
func (n Name) InZone() bool { return n.Form >= Apex }

// Left is the number of labels left of the zone, or of the reverse zone.
func (n Name) Left() int { return n.left }

// ZoneOffset is where the zone's name begins in the name's wire form: for a
// name that is Reverse, the reverse zone's name.
func (n Name) ZoneOffset() int { return n.wire.Offset(n.left) }

// Labels has the labels left of the zone, from the left. It allocates.
func (n Name) Labels() []string {
	if n.wire == nil {
		return nil
	}
	return n.wire.Strings(n.left)
}

// Namespace is the namespace's label of any form from Namespace to
// BelowService, and of PodNamespace, Pod and BelowPod.
func (n Name) Namespace() []byte { return n.wire.Label(n.left - 2) }

// Service is the Service's label of any form from Service to BelowService.
func (n Name) Service() []byte { return n.wire.Label(n.left - 3) }

// Hostname is the label left of the Service's of an Endpoint or a BelowService.
func (n Name) Hostname() []byte { return n.wire.Label(n.left - 4) }

// Protocol is the protocol's label of a Protocol or a Port, with its underscore.
func (n Name) Protocol() []byte { return n.wire.Label(n.left - 4) }

// Port is the port's label of a Port, with its underscore.
func (n Name) Port() []byte { return n.wire.Label(n.left - 5) }

// Federated has the labels that name a Service of a federation if the name is
// one: the Service, the namespace and the federation. ok is false for every
// form but Endpoint. It allocates.
func (n Name) Federated() (labels []string, ok bool) {
	if n.Form != Endpoint {
		return nil, false
	}
	return n.wire.Strings(3), true
}

// Addr is the address of a Pod, or of a name that is Reverse.
func (n Name) Addr() (addr netip.Addr, ok bool) {
	switch n.Form {
	case Pod:
		return ParsePodLabel(n.wire.Label(0))
	case Reverse:
		addr, err := ParseReverse(n.wire.Octets())
		return addr, err == nil
	}
	return netip.Addr{}, false
}

// Zone tells the forms of names, relative to one zone. It is immutable.
type Zone struct {
	name   string
	wire   []byte
	labels int
}

// NewZone makes a Zone of a fully qualified name in lower case and without
// escapes, "cluster.local.".
func NewZone(name string) *Zone {
	z := &Zone{name: name, wire: Append(nil, name)}
	for at := 0; z.wire[at] != 0; at += 1 + int(z.wire[at]) {
		z.labels++
	}
	return z
}

// String is the zone's name, "cluster.local.".
func (z *Zone) String() string { return z.name }

// Wire is the zone's name in wire form. It must not be changed.
func (z *Zone) Wire() []byte { return z.wire }

// Reverse zones' names in wire form.
const (
	inAddrArpa = "\x07in-addr\x04arpa\x00"
	ip6Arpa    = "\x03ip6\x04arpa\x00"
)

// Parse is the name that w has. It allocates nothing.
func (z *Zone) Parse(w *Wire) Name {
	if w.size == 0 {
		return Name{wire: w}
	}
	if left := w.labels - z.labels; left >= 0 && bytes.Equal(w.octets[w.Offset(left):w.size], z.wire) {
		n := Name{left: left, wire: w}
		n.parse()
		return n
	}
	if left := w.labels - 2; left >= 0 {
		if zone := w.octets[w.starts[left]:w.size]; string(zone) == inAddrArpa || string(zone) == ip6Arpa {
			return Name{Form: Reverse, left: left, wire: w}
		}
	}
	return Name{Form: Outside, left: w.labels, wire: w}
}

// ParseText is Parse of a fully qualified name in presentation form, of any
// case. The form of a name that no message can carry is None.
func (z *Zone) ParseText(name string) Name {
	w := new(Wire)
	w.SetText(name)
	return z.Parse(w)
}

// parse finds the form of a name in the zone.
func (n *Name) parse() {
	if n.left == 0 {
		n.Form = Apex
		return
	}
	switch string(n.wire.Label(n.left - 1)) {
	case "svc":
		n.parseService()
	case "pod":
		n.Form = [...]Form{Pods, PodNamespace, Pod, BelowPod}[min(n.left, 4)-1]
	case "dns":
		switch {
		case n.left == 1:
			n.Form = DNS
		case n.left == 2 && string(n.wire.Label(0)) == "ns":
			n.Form = Nameserver
		default:
			n.Form = BelowDNS
		}
	case "dns-version":
		n.Form = Unknown
		if n.left == 1 {
			n.Form = Version
		}
	default:
		n.Form = Unknown
	}
}

// parseService finds the form of a name that ends in svc and the zone.
func (n *Name) parseService() {
	switch n.left {
	case 1:
		n.Form = Services
		return
	case 2:
		n.Form = Namespace
	case 3:
		n.Form = Service
	case 4:
		n.Form = Endpoint
		if n.Hostname()[0] == '_' {
			n.Form = Protocol
		}
	case 5:
		n.Form = BelowService
		if protocol := n.Protocol(); protocol[0] == '_' || string(protocol) == "*" {
			n.Form = Port
		}
	default:
		n.Form = BelowService
		return // an asterisk has no meaning here
	}
	for i := range n.left - 1 {
		if IsWildcard(n.wire.Label(i)) {
			n.Wildcard = true
			return
		}
	}
}

// IsWildcard reports whether a label stands for any: "*", or for a port or a
// protocol "_*".
func IsWildcard[T ~string | ~[]byte](label T) bool {
	switch len(label) {
	case 1:
		return label[0] == '*'
	case 2:
		return label[0] == '_' && label[1] == '*'
	}
	return false
}

// Contains reports whether a name in presentation form, fully qualified and of
// any case, is the zone's or below it. The name may be longer than a message
// can carry.
func (z *Zone) Contains(name string) bool {
	if z.labels == 0 {
		return true
	}
	at := len(name) - len(z.name)
	if at < 0 {
		return false
	}
	for i := range len(z.name) {
		if lower(name[at+i]) != z.name[i] {
			return false
		}
	}
	if at == 0 {
		return true
	}
	// The dot before the zone, unless it is a part of the label.
	under := name[:at-1]
	escapes := len(under) - len(strings.TrimRight(under, `\`))
	return name[at-1] == '.' && escapes%2 == 0
}
