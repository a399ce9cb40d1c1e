package treecache

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares got with a file in testdata that bears the test's name.
// Rows of one test may share a file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	path := filepath.Join("testdata", test, file)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

const zone = "cluster.local."

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

// service makes a cluster IP Service's records.
func service(namespace, name string, addrs ...string) *Records {
	r := &Records{Key: Key{namespace, name}, Kind: ClusterIP, Created: epoch}
	for _, a := range addrs {
		r.Addresses = append(r.Addresses, Address{
			Label: SystemLabel(a), Addr: netip.MustParseAddr(a), Reverse: true,
		})
	}
	r.Sort()
	return r
}

// headless makes a headless Service's records of endpoints "label=address".
func headless(namespace, name string, endpoints ...string) *Records {
	r := &Records{Key: Key{namespace, name}, Kind: Headless, Created: epoch}
	for _, e := range endpoints {
		label, addr, _ := strings.Cut(e, "=")
		r.Addresses = append(r.Addresses, Address{Label: label, Addr: netip.MustParseAddr(addr), Reverse: true})
	}
	r.Sort()
	return r
}

// reverse has the names that an address's PTR records have, in their order.
func reverse(t *Tree, addr string) []string {
	first, more, ok := t.Reverse(netip.MustParseAddr(addr))
	if !ok {
		return nil
	}
	var names []string
	for _, o := range append([]Owner{first}, more...) {
		name := o.Name(zone)
		names = append(names, strings.TrimSuffix(name, ".svc."+zone))
	}
	return names
}

func put(t *Tree, rs ...*Records) {
	for _, r := range rs {
		t.Replace(r.Key, r, epoch)
	}
}

// TestReverseOrder: who comes first among the owners of one address
// (docs/records.md, row PTR), whatever the order in which they came.
func TestReverseOrder(t *testing.T) {
	const addr = "192.0.2.1"
	older := func(r *Records) *Records { r.Created = epoch.Add(-time.Second); return r }
	pod := func(r *Records) *Records { r.Addresses[0].PodHostname = true; return r }
	for _, tt := range []struct {
		name string
		in   func() []*Records // new ones at each call: a tree keeps what it is given
		want []string
	}{
		{"by namespace", func() []*Records {
			return []*Records{service("b", "a", addr), service("a", "b", addr), service("c", "a", addr)}
		}, []string{"b.a", "a.b", "a.c"}},
		{"by name within a namespace", func() []*Records {
			return []*Records{service("x", "c", addr), service("x", "a", addr), service("x", "b", addr)}
		}, []string{"a.x", "b.x", "c.x"}},
		{"the older Service before the namespace", func() []*Records {
			return []*Records{service("a", "a", addr), older(service("z", "z", addr)), service("b", "b", addr)}
		}, []string{"z.z", "a.a", "b.b"}},
		{"a Pod's hostname before the older Service", func() []*Records {
			return []*Records{older(service("a", "a", addr)), pod(headless("z", "z", "web-0="+addr)), headless("b", "b", "web-0="+addr)}
		}, []string{"web-0.z.z", "a.a", "web-0.b.b"}},
		{"two Pods' hostnames, the older Service's first", func() []*Records {
			return []*Records{pod(headless("a", "a", "p="+addr)), older(pod(headless("z", "z", "q="+addr)))}
		}, []string{"q.z.z", "p.a.a"}},
		{"two hostnames of one Service", func() []*Records {
			return []*Records{headless("a", "a", "y="+addr, "x="+addr), service("a", "b", addr)}
		}, []string{"x.a.a", "y.a.a", "b.a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := len(tt.in())
			for _, order := range permutations(n) {
				tree := New(zone)
				rs := tt.in()
				for _, i := range order {
					put(tree, rs[i])
				}
				if got := reverse(tree, addr); !slices.Equal(got, tt.want) {
					t.Errorf("entered in order %v: PTR records %q, want %q", order, got, tt.want)
				}
				// Taking one away leaves the others in their order.
				for _, i := range order {
					tree.Replace(rs[i].Key, nil, epoch)
					want := slices.DeleteFunc(slices.Clone(tt.want), func(name string) bool {
						return strings.HasSuffix("."+name, "."+rs[i].Key.Name+"."+rs[i].Key.Namespace)
					})
					if got := reverse(tree, addr); !slices.Equal(got, want) {
						t.Errorf("entered in order %v, then without %v: PTR records %q, want %q", order, rs[i].Key, got, want)
					}
					put(tree, rs[i])
				}
			}
		})
	}
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

// TestReplace: what a Service had goes with it, and nothing else.
func TestReplace(t *testing.T) {
	tree := New(zone)
	key := Key{"default", "web"}
	put(tree,
		headless("default", "web", "a=192.0.2.1", "b=192.0.2.2", "a=2001:db8::1"),
		headless("default", "other", "a=192.0.2.1"))

	for _, step := range []struct {
		name       string
		next       *Records
		want       map[string][]string // by address
		services   int
		wantCounts Counts
	}{
		{"other addresses", headless("default", "web", "b=192.0.2.3", "b=192.0.2.2"), map[string][]string{
			"192.0.2.1": {"a.other.default"}, "192.0.2.2": {"b.web.default"}, "192.0.2.3": {"b.web.default"}, "2001:db8::1": nil,
		}, 2, Counts{A: 3, PTR: 3}},
		{"another kind", service("default", "web", "2001:db8::1"), map[string][]string{
			"192.0.2.1": {"a.other.default"}, "192.0.2.2": nil, "192.0.2.3": nil, "2001:db8::1": {"web.default"},
		}, 2, Counts{A: 1, AAAA: 1, PTR: 2}},
		{"external name", &Records{Key: key, Kind: ExternalName, Target: "example.org."}, map[string][]string{
			"192.0.2.1": {"a.other.default"}, "2001:db8::1": nil,
		}, 2, Counts{A: 1, PTR: 1, CNAME: 1}},
		{"nothing to answer with", &Records{Key: key, Kind: Headless, Empty: true}, map[string][]string{
			"192.0.2.1": {"a.other.default"},
		}, 2, Counts{A: 1, PTR: 1}},
		{"gone", nil, map[string][]string{"192.0.2.1": {"a.other.default"}}, 1, Counts{A: 1, PTR: 1}},
	} {
		t.Run(step.name, func(t *testing.T) {
			if !tree.Replace(key, step.next, epoch) {
				t.Error("Replace reports no change")
			}
			for addr, want := range step.want {
				if got := reverse(tree, addr); !slices.Equal(got, want) {
					t.Errorf("PTR records of %s: %q, want %q", addr, got, want)
				}
			}
			services, counts := tree.Stats()
			if services != step.services || counts != step.wantCounts {
				t.Errorf("Stats() = %d, %+v, want %d, %+v", services, counts, step.services, step.wantCounts)
			}
			got, exists := tree.Service([]byte("default"), []byte("web"))
			want := step.next
			if want != nil && want.Empty {
				want = nil
			}
			if got != want || !exists {
				t.Errorf("Service(default, web) = %v, %v, want %v", got, exists, want)
			}
		})
	}
	if tree.Replace(key, nil, epoch) {
		t.Error("taking away what is not there counts as a change")
	}
	tree.Replace(Key{"default", "other"}, nil, epoch)
	if _, exists := tree.Service([]byte("default"), []byte("web")); exists {
		t.Error("the namespace exists without a Service")
	}
	if len(tree.reverse) != 0 || len(tree.namespaces) != 0 {
		t.Errorf("an empty tree still holds %v, %v", tree.reverse, tree.namespaces)
	}
}

// TestOwnersImmutable: what Reverse returned stays as it was while owners come
// and go.
func TestOwnersImmutable(t *testing.T) {
	tree := New(zone)
	const addr = "192.0.2.1"
	put(tree, service("b", "b", addr), service("d", "d", addr), service("f", "f", addr))
	first, more, _ := tree.Reverse(netip.MustParseAddr(addr))
	kept := slices.Clone(more)
	put(tree, service("a", "a", addr), service("c", "c", addr), service("e", "e", addr))
	tree.Replace(Key{"d", "d"}, nil, epoch)
	if !slices.Equal(kept, more) || first.Service.Key.Name != "b" {
		t.Errorf("the owners that were read have changed: %v, want %v", more, kept)
	}
	if got, want := reverse(tree, addr), []string{"a.a", "b.b", "c.c", "e.e", "f.f"}; !slices.Equal(got, want) {
		t.Errorf("PTR records %q, want %q", got, want)
	}
}

// TestReplaceRandomly: after any history the tree is the one that the last
// records of each Service make.
func TestReplaceRandomly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	tree, last := New(zone), map[Key]*Records{}
	addr := func() string { return fmt.Sprintf("192.0.2.%d", rnd.IntN(12)) }
	for range 3000 {
		key := Key{fmt.Sprintf("ns%d", rnd.IntN(3)), fmt.Sprintf("s%d", rnd.IntN(6))}
		var next *Records
		switch rnd.IntN(5) {
		case 0:
		case 1:
			next = service(key.Namespace, key.Name, addr())
		case 2:
			next = &Records{Key: key, Kind: Headless, Empty: true}
		default:
			var endpoints []string
			for range 1 + rnd.IntN(4) {
				e := fmt.Sprintf("h%d=%s", rnd.IntN(3), addr())
				if !slices.Contains(endpoints, e) {
					endpoints = append(endpoints, e)
				}
			}
			next = headless(key.Namespace, key.Name, endpoints...)
			next.Created = epoch.Add(time.Duration(rnd.IntN(3)) * time.Second)
		}
		tree.Replace(key, next, epoch)
		if next == nil {
			delete(last, key)
		} else {
			last[key] = next
		}
	}
	want := New(zone)
	for _, r := range last {
		put(want, r)
	}
	for i := range 12 {
		addr := fmt.Sprintf("192.0.2.%d", i)
		if got, want := reverse(tree, addr), reverse(want, addr); !slices.Equal(got, want) {
			t.Errorf("PTR records of %s: %q, want %q", addr, got, want)
		}
	}
	if got, want := tree.String(), want.String(); got != want {
		t.Errorf("tree %s, want %s", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(tree.namespaces)), slices.Sorted(maps.Keys(want.namespaces)); !slices.Equal(got, want) {
		t.Errorf("namespaces %q, want %q", got, want)
	}
}

func TestMatch(t *testing.T) {
	tree := New(zone)
	put(tree, service("a", "x", "192.0.2.1"), service("a", "y", "192.0.2.2"), service("b", "x", "192.0.2.3"),
		&Records{Key: Key{"b", "empty"}, Kind: Headless, Empty: true})
	for _, tt := range []struct {
		name, namespace, service string
		want                     []string
	}{
		{"one", "a", "x", []string{"a/x"}},
		{"a namespace's", "a", "*", []string{"a/x", "a/y"}},
		{"a name's", "*", "x", []string{"a/x", "b/x"}},
		{"all", "*", "*", []string{"a/x", "a/y", "b/x"}},
		{"empty ones are left out", "b", "empty", nil},
		{"no such namespace", "c", "*", nil},
		{"no such name", "*", "z", nil},
		{"an asterisk matches whole labels", "a*", "x", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			tree.Match(tt.namespace, tt.service, func(r *Records) { got = append(got, r.Key.String()) })
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("Match(%q, %q) yields %q, want %q", tt.namespace, tt.service, got, tt.want)
			}
		})
	}
}

func TestRecords(t *testing.T) {
	r := headless("default", "db", "b=192.0.2.2", "a=192.0.2.1", "b=192.0.2.1", "b=2001:db8::2", "ab=192.0.2.9", "a=2001:db8::1")
	r.Ports = []Port{
		{Protocol: "_udp", Name: "_dns", SRVs: []SRV{{"b", 53}, {"a", 53}}},
		{Protocol: "_tcp", Name: "_web", SRVs: []SRV{{"a", 80}}},
		{Protocol: "_tcp", Name: "_dns", SRVs: []SRV{{"a", 53}, {"a", 5}}},
	}
	r.Sort()
	put(New(zone), r)

	for _, tt := range []struct {
		label string
		want  []string
	}{
		{"a", []string{"192.0.2.1", "2001:db8::1"}},
		{"b", []string{"192.0.2.1", "192.0.2.2", "2001:db8::2"}},
		{"ab", []string{"192.0.2.9"}},
		{"aa", nil}, {"", nil}, {"c", nil}, {strings.Repeat("a", 63), nil},
	} {
		t.Run("At "+tt.label, func(t *testing.T) {
			for _, all := range [][]Address{r.At([]byte(tt.label)), r.AtString(tt.label)} {
				var got []string
				for _, a := range all {
					got = append(got, a.Addr.String())
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("at %q: %q, want %q", tt.label, got, tt.want)
				}
			}
		})
	}
	// 192.0.2.1 is both a's and b's, and counts once.
	if v4, v6 := r.Family(); v4 != 3 || v6 != 2 {
		t.Errorf("Family() = %d, %d, want 3, 2", v4, v6)
	}
	var ports []string
	for _, p := range r.Ports {
		ports = append(ports, fmt.Sprint(p.Name, ".", p.Protocol, p.SRVs))
	}
	if want := []string{"_dns._tcp[{a 5} {a 53}]", "_web._tcp[{a 80}]", "_dns._udp[{a 53} {b 53}]"}; !slices.Equal(ports, want) {
		t.Errorf("ports %q, want %q", ports, want)
	}
	for _, tt := range []struct {
		port, protocol string
		want           int
	}{{"_dns", "_udp", 2}, {"_dns", "_tcp", 2}, {"_web", "_tcp", 1}, {"_web", "_udp", 0}, {"dns", "_udp", 0}, {"_dns", "udp", 0}} {
		if got := r.PortAt([]byte(tt.port), []byte(tt.protocol)); len(got) != tt.want {
			t.Errorf("PortAt(%s, %s) = %v, want %d", tt.port, tt.protocol, got, tt.want)
		}
	}
	for protocol, want := range map[string]bool{"_tcp": true, "_udp": true, "_sctp": false, "tcp": false} {
		if got := r.HasProtocol([]byte(protocol)); got != want {
			t.Errorf("HasProtocol(%s) = %v", protocol, got)
		}
	}
	if want := string(AppendName(nil, "db.default.svc.cluster.local.")); string(r.Wire()) != want {
		t.Errorf("Wire() = %q, want %q", r.Wire(), want)
	}
}

// What repeats is marked whether there are few addresses or many.
func TestMarkRepeated(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, fewAddresses, fewAddresses + 1, 3 * fewAddresses} {
		var all []Address
		for i := range n {
			all = append(all, Address{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i * i % 50)}), Repeated: i%2 == 0})
		}
		markRepeated(all)
		seen := map[netip.Addr]bool{}
		for i, a := range all {
			if a.Repeated != seen[a.Addr] {
				t.Errorf("address %d of %d, %v: Repeated is %v", i, n, a.Addr, a.Repeated)
			}
			seen[a.Addr] = true
		}
	}
}

// TestSerial: it grows with every change and with nothing else, and follows
// the clock (RFC 1982).
func TestSerial(t *testing.T) {
	tree := New(zone)
	now := uint32(epoch.Unix())
	for _, step := range []struct {
		name string
		at   time.Duration
		next *Records
		want uint32
	}{
		{"first", 0, service("a", "x", "192.0.2.1"), now},
		{"a second change in one second", 0, service("a", "x", "192.0.2.2"), now + 1},
		{"a third", 0, nil, now + 2},
		{"no change", time.Minute, nil, now + 2},
		{"a second later, which would be a serial that was used", time.Second, service("a", "x", "192.0.2.1"), now + 3},
		{"the clock goes back", -time.Hour, service("a", "x", "192.0.2.2"), now + 4},
		{"much later", time.Hour, nil, now + 3600},
	} {
		tree.Replace(Key{"a", "x"}, step.next, epoch.Add(step.at))
		if got := tree.Serial(); got != step.want {
			t.Errorf("%s: serial %d, want %d", step.name, got, step.want)
		}
	}
}

// sample is a tree with something of every kind.
func sample() *Tree {
	tree := New(zone)
	web := service("default", "web", "192.0.2.10", "2001:db8::10")
	web.Ports = []Port{{Protocol: "_tcp", Name: "_http", SRVs: []SRV{{"", 80}}}, {Protocol: "_udp", Name: "_quic", SRVs: []SRV{{"", 443}}}}
	web.SRVs = []SRV{{"", 80}, {"", 443}}
	db := headless("default", "db", "db-0=192.0.2.20", "db-0=2001:db8::20", "db-1=192.0.2.21", "db-0=192.0.2.22")
	db.Ports = []Port{{Protocol: "_tcp", Name: "_pg", SRVs: []SRV{{"db-0", 5432}, {"db-0", 5433}, {"db-1", 5432}}}}
	db.SRVs = db.Ports[0].SRVs
	put(tree, web, db,
		&Records{Key: Key{"shop", "mail"}, Kind: ExternalName, Target: "Mail.example.org."},
		&Records{Key: Key{"shop", "old"}, Kind: ExternalName, Addresses: []Address{{Addr: netip.MustParseAddr("192.0.2.30")}}},
		&Records{Key: Key{"shop", "empty"}, Kind: Headless, Empty: true})
	return tree
}

// TestView pins /cache: whole, and below one name.
func TestView(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		ok         bool
	}{
		{"", "all.json", true},
		{"cluster.local.", "all.json", true},
		{"local.", "all.json", true},
		{"svc.cluster.local.", "all.json", true},
		{"svc.cluster.local", "all.json", true},
		{"default.svc.cluster.local.", "default.json", true},
		{"shop.svc.cluster.local.", "shop.json", true},
		{"web.default.svc.cluster.local.", "web.json", true},
		{"db.default.svc.cluster.local.", "db.json", true},
		{"db-0.db.default.svc.cluster.local.", "db-0.json", true},
		{"_tcp.db.default.svc.cluster.local.", "db-tcp.json", true},
		{"_pg._tcp.db.default.svc.cluster.local.", "db-tcp.json", true},
		{"gone.default.svc.cluster.local.", "none.json", false},
		{"gone.svc.cluster.local.", "none.json", false},
		{"empty.shop.svc.cluster.local.", "none.json", false},
		{"*.default.svc.cluster.local.", "none.json", false},
		{"example.org.", "none.json", false},
		{"xsvc.cluster.local.", "none.json", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, ok := sample().View(tt.name, 30)
			if ok != tt.ok {
				t.Errorf("View(%q) finds it: %v, want %v", tt.name, ok, tt.ok)
			}
			if !ok {
				return
			}
			var b bytes.Buffer
			if err := root.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, tt.file, b.Bytes())
		})
	}
}

// TestConcurrentUse has readers and writers at once, for the race detector;
// each reader sees a Service's records and its reverse record belong together.
func TestConcurrentUse(t *testing.T) {
	tree := sample()
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 2000 {
				key := Key{"default", fmt.Sprintf("s%d", rnd.IntN(4))}
				if i%5 == 0 {
					tree.Replace(key, nil, epoch)
					continue
				}
				tree.Replace(key, headless(key.Namespace, key.Name, "a=192.0.2.77", fmt.Sprintf("b=192.0.2.%d", rnd.IntN(8))), epoch)
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			serial := uint32(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				if first, more, ok := tree.Reverse(netip.MustParseAddr("192.0.2.77")); ok {
					for _, o := range append([]Owner{first}, more...) {
						if o.Service.Key.Namespace != "default" || len(o.Service.Wire()) == 0 {
							t.Errorf("owner %v of name %q", o.Service.Key, o.Service.Wire())
						}
					}
				}
				if r, _ := tree.Service([]byte("default"), []byte("s1")); r != nil && r.Key.Name != "s1" {
					t.Errorf("Service(default, s1) = %v", r.Key)
				}
				if s := tree.Serial(); s < serial {
					t.Errorf("the serial fell from %d to %d", serial, s)
				} else {
					serial = s
				}
				tree.View("default.svc.cluster.local.", 30)
				tree.Match("*", "*", func(*Records) {})
				tree.Stats()
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}

// large is a tree of 10,000 Services, every tenth of them headless with 20
// endpoints.
func large() *Tree {
	tree := New(zone)
	for i := range 10_000 {
		put(tree, largeService(i, 0))
	}
	return tree
}

func largeService(i, version int) *Records {
	namespace, name := fmt.Sprintf("ns%d", i%50), fmt.Sprintf("s%d", i)
	if i%10 != 0 {
		return service(namespace, name, fmt.Sprintf("10.96.%d.%d", i/256, i%256))
	}
	var endpoints []string
	for e := range 20 {
		endpoints = append(endpoints, fmt.Sprintf("e%d=10.%d.%d.%d", e, 128+e+version%2*32, i/256, i%256))
	}
	return headless(namespace, name, endpoints...)
}

func TestLookupAllocatesNothing(t *testing.T) {
	tree := sample()
	namespace, name, label := []byte("default"), []byte("db"), []byte("db-0")
	port, protocol := []byte("_pg"), []byte("_tcp")
	addr := netip.MustParseAddr("192.0.2.20")
	wire := AppendName(nil, ReverseName(addr))
	wire6 := AppendName(nil, ReverseName(netip.MustParseAddr("2001:db8::20")))
	pod := []byte("192-0-2-20")
	for _, tt := range []struct {
		name string
		f    func()
	}{
		{"Service", func() { tree.Service(namespace, name) }},
		{"Service, none", func() { tree.Service(name, namespace) }},
		{"At", func() {
			r, _ := tree.Service(namespace, name)
			if len(r.At(label)) != 3 {
				t.Error("At finds nothing")
			}
		}},
		{"AtString", func() {
			r, _ := tree.Service(namespace, name)
			if len(r.AtString("db-0")) != 3 {
				t.Error("AtString finds nothing")
			}
		}},
		{"PortAt", func() {
			r, _ := tree.Service(namespace, name)
			if len(r.PortAt(port, protocol)) != 3 {
				t.Error("PortAt finds nothing")
			}
		}},
		{"Reverse", func() {
			if _, _, ok := tree.Reverse(addr); !ok {
				t.Error("Reverse finds nothing")
			}
		}},
		{"ParseReverse", func() {
			if _, err := ParseReverse(wire); err != nil {
				t.Error(err)
			}
		}},
		{"ParseReverse, IPv6", func() {
			if _, err := ParseReverse(wire6); err != nil {
				t.Error(err)
			}
		}},
		{"ParsePodLabel, IPv4", func() {
			if _, ok := ParsePodLabel(pod); !ok {
				t.Error("ParsePodLabel finds no address")
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := testing.AllocsPerRun(100, tt.f); got != 0 {
				t.Errorf("%v allocations for each call, want none", got)
			}
		})
	}
}

func BenchmarkService(b *testing.B) {
	tree := large()
	namespace, name := []byte("ns42"), []byte("s4242")
	if r, _ := tree.Service(namespace, name); r == nil {
		b.Fatal("no such Service")
	}
	b.ReportAllocs()
	for b.Loop() {
		tree.Service(namespace, name)
	}
}

func BenchmarkReverse(b *testing.B) {
	tree := large()
	name := AppendName(nil, "146.16.96.10.in-addr.arpa.")
	b.ReportAllocs()
	for b.Loop() {
		addr, err := ParseReverse(name)
		if err != nil {
			b.Fatal(err)
		}
		if _, _, ok := tree.Reverse(addr); !ok {
			b.Fatal("no such address")
		}
	}
}

func BenchmarkReplace(b *testing.B) {
	many := func(last string) *Records {
		var endpoints []string
		for e := range 1499 {
			endpoints = append(endpoints, fmt.Sprintf("e%d=10.200.%d.%d", e, e/256, e%256))
		}
		return headless("ns1", "many", append(endpoints, "last="+last)...)
	}
	for _, tt := range []struct {
		name     string
		versions []*Records
	}{
		{"ClusterIP", []*Records{service("ns1", "s4242", "10.96.200.1"), service("ns1", "s4242", "10.96.200.2")}},
		{"Headless20", []*Records{largeService(4240, 0), largeService(4240, 1)}},
		{"OneOf1500", []*Records{many("10.201.0.1"), many("10.201.0.2")}},
		{"AddressOf500", []*Records{service("ns9", "shares", "10.202.0.1"), service("ns9", "shares", "10.202.0.2")}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			tree, versions := large(), tt.versions
			if tt.name == "AddressOf500" {
				for i := range 499 {
					put(tree, service("shared", fmt.Sprintf("s%d", i), "10.202.0.1"))
				}
			}
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				tree.Replace(versions[0].Key, versions[n%2], epoch)
			}
		})
	}
}

// TestReplaceLongNames: a name that no DNS message can carry is left out, and
// what does not need it stays.
func TestReplaceLongNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	// Namespace, Service, svc and zone take 64+64+4+60 octets and the root's
	// one, which leaves 62 for a label and its length.
	tree := New(strings.Repeat("z", 59) + ".")
	r := headless(long, long, long+"=192.0.2.1", long[:61]+"=192.0.2.2", long[:62]+"=192.0.2.3")
	srvs := []SRV{{long[:61], 80}, {long[:62], 80}, {long, 80}}
	r.SRVs = srvs
	r.Ports = []Port{{"_tcp", "_http", srvs}, {"_tcp", "_other", srvs[2:]}}
	tree.Replace(r.Key, r, epoch)
	got, _ := tree.Service([]byte(long), []byte(long))
	if got == nil {
		t.Fatal("the Service is not there")
	}
	if v4, _ := got.Family(); v4 != 3 {
		t.Errorf("%d addresses at the Service, want 3", v4)
	}
	kept := []SRV{{long[:61], 80}}
	if !slices.Equal(got.SRVs, kept) || len(got.Ports) != 1 || !slices.Equal(got.Ports[0].SRVs, kept) {
		t.Errorf("SRV records %v, ports %v; want those of the label of 61 octets alone", got.SRVs, got.Ports)
	}
	for label, want := range map[string]int{long: 0, long[:62]: 0, long[:61]: 1} {
		if n := len(got.At([]byte(label))); n != want {
			t.Errorf("%d addresses at the label of %d octets, want %d", n, len(label), want)
		}
	}
	for addr, want := range map[string]int{"192.0.2.1": 0, "192.0.2.2": 1, "192.0.2.3": 0} {
		if n := len(reverse(tree, addr)); n != want {
			t.Errorf("%d PTR records of %s, want %d", n, addr, want)
		}
	}
	// Replaced by the same, nothing changes.
	again := headless(long, long, long+"=192.0.2.1", long[:61]+"=192.0.2.2", long[:62]+"=192.0.2.3")
	again.SRVs, again.Ports = srvs, []Port{{"_tcp", "_http", srvs}, {"_tcp", "_other", srvs[2:]}}
	if tree.Replace(again.Key, again, epoch) {
		t.Error("the same records are a change")
	}

	tree = New(strings.Repeat(strings.Repeat("z", 59)+".", 3))
	s := service(long, long, "192.0.2.1")
	tree.Replace(s.Key, s, epoch)
	if got, exists := tree.Service([]byte(long), []byte(long)); got != nil || !exists || len(reverse(tree, "192.0.2.1")) != 0 {
		t.Errorf("the Service with a name of %d octets is there (%v), or its namespace is not (%v)", len(s.Wire()), got, exists)
	}
}
