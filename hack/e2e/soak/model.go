package soak

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A Model says what kube-dns is to answer. The values of its History are
// *corev1.Service, *discoveryv1.EndpointSlice, and for the ConfigMap the key
// of Upstreams that it names.
type Model struct {
	History *History
	// Zone is "cluster.local.".
	Zone string
	// ConfigMap is the configuration's.
	ConfigMap Key
	// Upstreams are what the upstream nameservers have, by the address that the
	// configuration names: name to addresses and aliases. Every other name
	// is NXDOMAIN there.
	Upstreams map[string]Upstream
}

// An Upstream is what an upstream nameserver has.
type Upstream struct {
	Addresses map[string][]netip.Addr
	Aliases   map[string]string
}

// A Verdict is what Check says.
type Verdict struct {
	// Right is whether some state that may be answered has the answer.
	Right bool
	// Rule is the index in Rules() of the strictest rule that the answer is
	// right by.
	Rule int
	// Undecided is set where there are too many states to try, and none of
	// those that were tried has the answer; Right is set as well.
	Undecided bool
	// Wants are answers that would have been right, some of them where there
	// are many.
	Wants []string
	// Objects are those that the answer depends on.
	Objects []Key
}

// Rules are names of the rules, from the strictest.
func Rules() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.String())
	}
	return names
}

// maxStates is how many states are tried for one answer.
const maxStates = 2000

// Check reports whether got is a right answer to a question that was asked and
// answered at these moments. Every write that was begun before it was answered
// must have settled.
func (m *Model) Check(q dns.Question, asked, answered time.Time, got Answer) Verdict {
	name := strings.ToLower(q.Name)
	// Nearly every answer is right by the first rule. Of the others, the last
	// rule decides, and those between say how old it is.
	last := len(rules) - 1
	var v Verdict
	for _, i := range slices.Concat([]int{0, last}, between(1, last)) {
		w := newWindow(m.History, asked, answered, rules[i])
		s := &states{model: m, window: w}
		right, complete, wants := s.match(name, q.Qtype, got)
		if i == last {
			v = Verdict{Right: right || !complete, Undecided: !right && !complete, Rule: last, Wants: wants}
			for k := range w.cache {
				k.of = ""
				v.Objects = append(v.Objects, k)
			}
			v.Objects = slices.Compact(sorted(v.Objects))
			if !right {
				return v
			}
		}
		if right && i != last {
			return Verdict{Right: true, Rule: i}
		}
	}
	return v
}

// between are the numbers from first to before end.
func between(first, end int) []int {
	var all []int
	for i := first; i < end; i++ {
		all = append(all, i)
	}
	return all
}

// states are those of the cluster in a window.
type states struct {
	model  *Model
	window *window
}

// match looks for a state that gives the answer. complete is whether it has
// looked at all.
func (s *states) match(name string, qtype uint16, got Answer) (right, complete bool, wants []string) {
	s.window.reduce = func(k Key, v any) (string, bool) { return s.alone(k, v, name, qtype, got) }
	if each := s.union(name, qtype); each != nil {
		return s.matchUnion(name, each, got)
	}
	seen := map[string]bool{}
	complete = s.window.each(maxStates, func(get func(Key) any) bool {
		c := cluster{states: s, get: get}
		want := c.answer(name, qtype)
		if want.equal(got) {
			right = true
		} else if text := want.String(); len(seen) < 20 && !seen[text] {
			seen[text] = true
			wants = append(wants, text)
		}
		return !right
	})
	return right, complete, wants
}

// alone answers a question from one version of a slice, as if the Service k.of
// were headless and had no other. Answers from several slices are the union of
// those from each, but for two things: an address that has a hostname in one
// loses the PTR record of its label in all, and an SRV record brings the
// addresses that other slices have for its target. So what has a record that
// got does not have is not possible, but for PTR, and what gives the same
// answers makes no difference, but for SRV.
func (s *states) alone(k Key, v any, name string, qtype uint16, got Answer) (what string, possible bool) {
	serviceKey := Key{Resource: Services, Namespace: k.Namespace, Name: k.of}
	own := fmt.Sprintf("%s.%s.svc.%s", k.of, k.Namespace, s.model.Zone)
	var answers []Answer
	for _, all := range []bool{false, true} {
		service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: all}}
		c := cluster{states: s, only: &k, get: func(read Key) any {
			switch read {
			case k:
				return v
			case serviceKey:
				return service
			}
			return nil
		}}
		var a Answer
		if each := s.union(name, qtype); each != nil {
			a.Records = each(c, serviceKey)
			slices.Sort(a.Records)
		} else {
			at := name
			if name != own && !strings.HasSuffix(name, "."+own) {
				at = own // at the end of a chain
			}
			a = c.answer(at, qtype)
		}
		answers = append(answers, a)
	}
	possible = true
	if qtype != dns.TypePTR {
		have := map[string]bool{exists: got.Rcode != dns.RcodeNameError}
		for _, r := range got.Records {
			have[r] = true
		}
		for _, r := range answers[0].Records {
			possible = possible && (have[r] || strings.Contains(name, "*") && strings.HasPrefix(r, "+ "))
		}
		if got.Rcode == dns.RcodeNameError && s.union(name, qtype) == nil {
			possible = possible && answers[0].Rcode == dns.RcodeNameError
		}
	}
	if qtype == dns.TypeSRV {
		return content(v), possible
	}
	return answers[0].String() + answers[1].String(), possible
}

// union returns, for a question whose answer is the union of what each Service
// adds, the function that says that, and nil for others. The function's result
// is nil where the Service adds nothing, not even that the name exists.
func (s *states) union(name string, qtype uint16) func(cluster, Key) []string {
	if addr, ok := parseReverse(name); ok {
		return func(c cluster, k Key) []string {
			if qtype == dns.TypePTR {
				return c.pointers(name, k, addr)
			}
			return nil
		}
	}
	labels, ok := s.under(name)
	if !ok {
		return nil
	}
	if len(labels) == 1 && labels[0] != "*" {
		return func(c cluster, k Key) []string {
			if k.Namespace != labels[0] || c.service(k) == nil {
				return nil
			}
			return []string{exists}
		}
	}
	if slices.Contains(labels, "*") {
		return func(c cluster, k Key) []string { return c.wildcard(name, labels, qtype, k) }
	}
	return nil
}

// exists stands among records for that a name exists.
const exists = "exists"

// under splits a name left of "svc" and the zone.
func (s *states) under(name string) ([]string, bool) {
	left, ok := strings.CutSuffix(name, ".svc."+s.model.Zone)
	if !ok {
		return nil, false
	}
	return strings.Split(left, "."), true
}

// matchUnion is match for a union. For each Service it takes all sets of
// records that it may add; the answer must be the union of one of each. Where
// there are too many choices, each record of the answer must be one that some
// Service may add, and what a Service adds in every state must be there.
func (s *states) matchUnion(name string, each func(cluster, Key) []string, got Answer) (right, complete bool, wants []string) {
	reverse := strings.HasSuffix(name, ".arpa.")
	// The additional section of an answer for a name with an asterisk is read
	// from the tree by itself, after the answer: a change may come between, and
	// both be right. It is not compared.
	additional := func(r string) bool { return strings.Contains(name, "*") && strings.HasPrefix(r, "+ ") }
	have := map[string]bool{}
	for _, r := range got.Records {
		have[r] = !additional(r)
	}
	maps.DeleteFunc(have, func(_ string, compared bool) bool { return !compared })
	switch {
	case got.Rcode == dns.RcodeSuccess && got.Authoritative:
		have[exists] = true
	case got.Rcode == dns.RcodeNameError && len(got.Records) == 0 && got.Authoritative != reverse:
		// What kube-dns does not hold of the reverse names, the upstream
		// nameservers answer.
	default:
		return false, true, []string{"records of the zone, or NXDOMAIN"}
	}
	right = true
	possible := map[string]bool{}
	var choices [][][]string
	for _, k := range sorted(s.window.history.keys(Services)) {
		var sets [][]string
		done := s.window.each(maxStates, func(get func(Key) any) bool {
			set := slices.DeleteFunc(each(cluster{states: s, get: get}, k), additional)
			slices.Sort(set)
			set = slices.Compact(set)
			if !slices.ContainsFunc(sets, func(o []string) bool { return slices.Equal(o, set) }) {
				sets = append(sets, set)
			}
			return true
		})
		if !done {
			return false, false, nil
		}
		if len(sets) == 1 && len(sets[0]) == 0 {
			continue
		}
		wants = append(wants, fmt.Sprintf("%s/%s: %q", k.Namespace, k.Name, sets))
		// A set with a record that is not there was not chosen.
		sets = slices.DeleteFunc(sets, func(set []string) bool {
			return slices.ContainsFunc(set, func(r string) bool { return !have[r] })
		})
		if len(sets) == 0 {
			right = false
			continue
		}
		for _, set := range sets {
			for _, r := range set {
				possible[r] = true
			}
		}
		choices = append(choices, sets)
	}
	for r := range have {
		right = right && possible[r]
	}
	return right && chosen(choices, have), true, wants
}

// chosen reports whether one of each choice together are all of have; every one
// of them is part of it, and every record of have is in some. Where there are
// too many to try that is enough.
func chosen(choices [][][]string, have map[string]bool) bool {
	n := 1
	for _, sets := range choices {
		if n *= len(sets); n > maxStates {
			return true
		}
	}
	for i := range n {
		union := map[string]bool{}
		rest := i
		for _, sets := range choices {
			for _, r := range sets[rest%len(sets)] {
				union[r] = true
			}
			rest /= len(sets)
		}
		if len(union) == len(have) {
			return true
		}
	}
	return false
}

func sorted(keys []Key) []Key {
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// cluster is one state.
type cluster struct {
	*states
	get  func(Key) any
	only *Key // the one slice that there is; nil where the window has them
}

// service is what is made of a Service, for DNS.
type service struct {
	name     string // "web.shop.svc.cluster.local."
	external string // the name that it stands for; fully qualified
	headless bool
	hosts    []host
	ports    []port
}

// host is an address and its label below the Service; "" for none.
type host struct {
	label string
	addr  netip.Addr
	named bool // by an endpoint's hostname
}

// port is one that a target has.
type port struct {
	name, protocol string // in lower case
	number         int32
	label          string // the target's below the Service; "" is the Service
}

// service reads a Service and its slices; nil where there is none.
func (c cluster) service(k Key) *service {
	s, ok := c.get(k).(*corev1.Service)
	if !ok {
		return nil
	}
	r := &service{name: fmt.Sprintf("%s.%s.svc.%s", k.Name, k.Namespace, c.model.Zone)}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		target := strings.ToLower(strings.TrimSuffix(s.Spec.ExternalName, "."))
		if addr, err := netip.ParseAddr(target); err == nil {
			r.hosts = []host{{addr: addr}}
		} else {
			r.external = target + "."
		}
		return r
	}
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		for _, ip := range s.Spec.ClusterIPs {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				continue
			}
			r.hosts = append(r.hosts, host{label: SystemLabel(addr), addr: addr})
		}
		for _, p := range s.Spec.Ports {
			r.ports = append(r.ports, port{strings.ToLower(p.Name), strings.ToLower(string(p.Protocol)), p.Port, ""})
		}
		return r
	}
	r.headless = true
	for _, sliceKey := range c.slicesOf(k) {
		l, ok := c.get(sliceKey).(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for _, e := range l.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if !ready && !s.Spec.PublishNotReadyAddresses {
				continue
			}
			for _, a := range e.Addresses {
				addr, err := netip.ParseAddr(a)
				if err != nil {
					continue
				}
				h := host{label: SystemLabel(addr), addr: addr}
				if e.Hostname != nil && *e.Hostname != "" {
					h.label, h.named = strings.ToLower(*e.Hostname), true
				}
				r.hosts = append(r.hosts, h)
				for _, p := range l.Ports {
					if p.Port == nil || *p.Port == 0 {
						continue
					}
					q := port{"", "tcp", *p.Port, h.label}
					if p.Name != nil {
						q.name = strings.ToLower(*p.Name)
					}
					if p.Protocol != nil {
						q.protocol = strings.ToLower(string(*p.Protocol))
					}
					r.ports = append(r.ports, q)
				}
			}
		}
	}
	return r
}

// slicesOf are the slices that belong to the Service in any state, sorted.
func (c cluster) slicesOf(k Key) []Key {
	if c.only != nil {
		return []Key{*c.only}
	}
	own, ok := c.window.slices[k]
	if ok {
		return own
	}
	for _, sliceKey := range c.window.history.keys(Slices) {
		sliceKey.of = k.Name
		if sliceKey.Namespace == k.Namespace && slices.ContainsFunc(c.window.versions(sliceKey), func(v any) bool { return v != nil }) {
			own = append(own, sliceKey)
		}
	}
	own = sorted(own)
	c.window.slices[k] = own
	return own
}

// belongs reports whether v is a slice of the Service.
func belongs(v any, service string) bool {
	l, ok := v.(*discoveryv1.EndpointSlice)
	return ok && l.Labels[discoveryv1.LabelServiceName] == service
}

// content is all that a record is made from, to be compared.
func content(v any) string {
	var b strings.Builder
	switch o := v.(type) {
	case *corev1.Service:
		fmt.Fprintf(&b, "%s %s %q %q %v", o.Spec.Type, o.Spec.ClusterIP, o.Spec.ClusterIPs, o.Spec.ExternalName, o.Spec.PublishNotReadyAddresses)
		for _, p := range o.Spec.Ports {
			fmt.Fprintf(&b, " %s/%s:%d", p.Name, p.Protocol, p.Port)
		}
	case *discoveryv1.EndpointSlice:
		b.WriteString(o.Labels[discoveryv1.LabelServiceName])
		for _, e := range o.Endpoints {
			fmt.Fprintf(&b, " %q=%s %v", e.Addresses, deref(e.Hostname), e.Conditions.Ready == nil || *e.Conditions.Ready)
		}
		for _, p := range o.Ports {
			fmt.Fprintf(&b, " %s/%s:%d", deref(p.Name), deref(p.Protocol), deref(p.Port))
		}
	default:
		fmt.Fprint(&b, o)
	}
	return b.String()
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// SystemLabel is the label of an address that has no hostname: the hex of the
// text of a hex hash.
func SystemLabel(addr netip.Addr) string {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "&{%s 0 10 10  false 30 0  }", addr) // a hash takes everything
	return hex.EncodeToString(fmt.Appendf(nil, "%x", hash.Sum32()))
}

// answer is the answer to a question that has no asterisk.
func (c cluster) answer(name string, qtype uint16) Answer {
	return c.follow(name, qtype, nil)
}

// maxChain is how many CNAME records kube-dns may follow before it gives up.
// The tests make no chain that is longer and not a loop.
const maxChain = 8

// follow answers the name at the end of a chain of CNAME records.
func (c cluster) follow(name string, qtype uint16, chain []string) Answer {
	if !strings.HasSuffix(name, "."+c.model.Zone) {
		return c.outside(name, qtype)
	}
	found, records, target := c.lookup(name, qtype)
	a := Answer{Rcode: dns.RcodeSuccess, Authoritative: true}
	switch {
	case !found:
		a.Rcode = dns.RcodeNameError
	case target != "":
		records = []string{record(name, dns.TypeCNAME, target)}
		if qtype != dns.TypeA && qtype != dns.TypeAAAA {
			break
		}
		if slices.Contains(chain, target) || target == name || len(chain) >= maxChain {
			return Answer{Rcode: dns.RcodeServerFailure, Authoritative: true}
		}
		end := c.follow(target, qtype, append(slices.Clone(chain), name))
		if end.Rcode == dns.RcodeServerFailure {
			return end
		}
		a.Rcode = end.Rcode
		records = append(records, end.Records...)
	}
	slices.Sort(records)
	a.Records = slices.Compact(records)
	return a
}

// outside is what the upstream nameserver that is configured says.
func (c cluster) outside(name string, qtype uint16) Answer {
	addr, _ := c.get(c.model.ConfigMap).(string)
	upstream, ok := c.model.Upstreams[addr]
	if !ok {
		return Answer{Rcode: dns.RcodeServerFailure}
	}
	a := Answer{}
	if target, ok := upstream.Aliases[name]; ok {
		a.Records = append(a.Records, record(name, dns.TypeCNAME, target))
		name = target
	}
	addresses, ok := upstream.Addresses[name]
	if !ok {
		a.Rcode = dns.RcodeNameError
	}
	for _, addr := range addresses {
		if family(addr) == qtype {
			a.Records = append(a.Records, record(name, qtype, addr.String()))
		}
	}
	slices.Sort(a.Records)
	return a
}

func family(addr netip.Addr) uint16 {
	if addr.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

// lookup finds a name of the zone: whether it exists, its records of the type,
// and for the name of an ExternalName Service what it stands for.
func (c cluster) lookup(name string, qtype uint16) (found bool, records []string, target string) {
	labels, ok := c.under(name)
	if !ok || len(labels) < 2 || len(labels) > 4 {
		return false, nil, ""
	}
	n := len(labels)
	s := c.service(Key{Resource: Services, Namespace: labels[n-1], Name: labels[n-2]})
	if s == nil || s.headless && len(s.hosts) == 0 {
		return false, nil, ""
	}
	switch n {
	case 2:
		if s.external != "" {
			return true, nil, s.external
		}
		return true, s.at(name, qtype, func(host) bool { return true }, func(port) bool { return true }), ""
	case 3:
		at := func(h host) bool { return h.label == labels[0] }
		if slices.ContainsFunc(s.hosts, at) {
			return true, s.at(name, qtype, at, func(port) bool { return false }), ""
		}
		return slices.ContainsFunc(s.ports, func(p port) bool { return p.name != "" && "_"+p.protocol == labels[0] }), nil, ""
	}
	at := func(p port) bool { return p.name != "" && "_"+p.name == labels[0] && "_"+p.protocol == labels[1] }
	return slices.ContainsFunc(s.ports, at), s.at(name, qtype, func(host) bool { return false }, at), ""
}

// at are the records of the type that the hosts and ports have at a name.
func (s *service) at(name string, qtype uint16, hosts func(host) bool, ports func(port) bool) []string {
	var records []string
	for _, h := range s.hosts {
		if qtype == family(h.addr) && hosts(h) {
			records = append(records, record(name, qtype, h.addr.String()))
		}
	}
	if qtype != dns.TypeSRV {
		return records
	}
	for _, p := range s.ports {
		if !ports(p) {
			continue
		}
		target := s.target(p)
		records = append(records, record(name, dns.TypeSRV, fmt.Sprintf("%d %s", p.number, target)))
		for _, h := range s.hosts {
			if p.label == "" || p.label == h.label {
				records = append(records, "+ "+record(target, family(h.addr), h.addr.String()))
			}
		}
	}
	return records
}

func (s *service) target(p port) string {
	if p.label == "" {
		return s.name
	}
	return p.label + "." + s.name
}

// pointers are the PTR records that the Service gives the address. An address
// that has a hostname has no record for its system-assigned label.
func (c cluster) pointers(name string, k Key, addr netip.Addr) []string {
	s := c.service(k)
	if s == nil || s.external != "" {
		return nil
	}
	isNamed := slices.ContainsFunc(s.hosts, func(h host) bool { return h.addr == addr && h.named })
	var records []string
	for _, h := range s.hosts {
		switch {
		case h.addr != addr, h.label == "", isNamed && !h.named:
		case s.headless:
			records = append(records, record(name, dns.TypePTR, h.label+"."+s.name), exists)
		default:
			records = append(records, record(name, dns.TypePTR, s.name), exists)
		}
	}
	return records
}

// wildcard is what the Service adds to the answer for a name with asterisks.
func (c cluster) wildcard(name string, labels []string, qtype uint16, k Key) []string {
	n := len(labels)
	if n > 4 || !matches(labels[n-1], k.Namespace) || n > 1 && !matches(labels[n-2], k.Name) {
		return nil
	}
	s := c.service(k)
	if s == nil || s.headless && len(s.hosts) == 0 {
		return nil
	}
	records := []string{exists}
	switch {
	case n <= 2:
		if s.external == "" {
			records = append(records, s.at(name, qtype, func(host) bool { return true }, func(port) bool { return true })...)
		}
	case s.external != "":
		return nil
	case n == 3:
		at := func(h host) bool { return h.label != "" && matches(labels[0], h.label) }
		if !slices.ContainsFunc(s.hosts, at) {
			return nil
		}
		records = append(records, s.at(name, qtype, at, func(port) bool { return false })...)
	default:
		at := func(p port) bool {
			return p.name != "" && matches(labels[0], "_"+p.name) && matches(labels[1], "_"+p.protocol)
		}
		if !slices.ContainsFunc(s.ports, at) {
			return nil
		}
		records = append(records, s.at(name, qtype, func(host) bool { return false }, at)...)
	}
	return records
}

func matches(label, name string) bool { return label == "*" || label == name }

// parseReverse reads a name under in-addr.arpa or ip6.arpa.
func parseReverse(name string) (netip.Addr, bool) {
	if left, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(left, ".")
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		return addr, err == nil
	}
	left, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	nibbles := strings.Split(left, ".")
	slices.Reverse(nibbles)
	var groups []string
	for group := range slices.Chunk(nibbles, 4) {
		groups = append(groups, strings.Join(group, ""))
	}
	addr, err := netip.ParseAddr(strings.Join(groups, ":"))
	return addr, err == nil
}
