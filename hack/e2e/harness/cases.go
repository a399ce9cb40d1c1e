package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// A Case is a fact about kube-dns: what is in the cluster, and what is answered
// then. A case file is a YAML list of them.
type Case struct {
	// Name says the fact; it is the name of the subtest.
	Name string `json:"name"`
	// Source is where the fact is written down, or who depends on it.
	Source string `json:"source"`
	Steps  []Step `json:"steps"`
}

// A Step changes the cluster, then asks. What is asked may take a while to
// become true.
type Step struct {
	// NextSecond waits first until what is made now has a later creation
	// time, which has whole seconds, than what was made before.
	NextSecond bool `json:"nextSecond,omitempty"`
	// Apply is objects as YAML documents. Their Namespaces are made.
	Apply string `json:"apply,omitempty"`
	// Remove is objects to delete, as "Service shop/cart" or "Node a".
	Remove []string `json:"remove,omitempty"`
	Ask    []Expect `json:"ask,omitempty"`
}

// Expect is a question and its reply. A reply must have the question as it was
// asked. For a name in the zone these hold where nothing else is said: the
// flags aa, ra and rd are set and tc is not, and a negative reply's authority
// section is the zone's SOA record alone.
//
// Records are lines of a zone file, "cart.shop.svc.cluster.local. 30 IN A
// 192.0.2.7", each field of which may be "*", which matches anything.
type Expect struct {
	// Q is "NAME TYPE", or "NAME TYPE CLASS".
	Q string `json:"q"`
	// Rcode is NOERROR where empty; several that are as good have "|" between.
	Rcode string `json:"rcode,omitempty"`
	// Answer is the whole answer section; none where empty and neither Count
	// nor AtLeast is given.
	Answer string `json:"answer,omitempty"`
	// Ordered wants the answers in the order written; else any.
	Ordered bool `json:"ordered,omitempty"`
	// Count and AtLeast say how many answers there are, where Answer is empty.
	Count   *int `json:"count,omitempty"`
	AtLeast int  `json:"atLeast,omitempty"`
	// Extra are records that the additional section has among others, but for
	// an OPT record. NoExtra wants it empty.
	Extra   string `json:"extra,omitempty"`
	NoExtra bool   `json:"noExtra,omitempty"`
	// Authority is the whole authority section; "any" leaves it open.
	Authority string `json:"authority,omitempty"`
	// Flags are flags that are set, or not where "!" stands before: aa, tc, rd,
	// ra, and opt for an OPT record. They come on top of what holds anyway.
	Flags string `json:"flags,omitempty"`
	// Over asks over "udp" or "tcp" alone; else over both.
	Over string `json:"over,omitempty"`
	// EDNS asks with an OPT record that offers this payload size.
	EDNS *uint16 `json:"edns,omitempty"`
	// Version is of EDNS in the question.
	Version uint8 `json:"version,omitempty"`
	// MaxSize bounds the reply's size on the wire.
	MaxSize int `json:"maxSize,omitempty"`

	question dns.Question
}

// LoadCases reads the case files that match the pattern.
func LoadCases(t testing.TB, pattern string) []*Case {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no case files match %s: %v", pattern, err)
	}
	var all []*Case
	names := map[string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []*Case
		if err := yaml.UnmarshalStrict(b, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range cases {
			if err := c.check(); err != nil {
				t.Fatalf("%s: %q: %v", file, c.Name, err)
			}
			if names[c.Name] {
				t.Fatalf("%s: a second case is named %q", file, c.Name)
			}
			names[c.Name] = true
		}
		all = append(all, cases...)
	}
	return all
}

func (c *Case) check() error {
	if c.Name == "" || c.Source == "" || len(c.Steps) == 0 {
		return errors.New("name, source or steps are missing")
	}
	for i := range c.Steps {
		for j := range c.Steps[i].Ask {
			if err := c.Steps[i].Ask[j].parse(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Expect) parse() error {
	f := strings.Fields(e.Q)
	if len(f) != 2 && len(f) != 3 {
		return fmt.Errorf("question %q is not NAME TYPE", e.Q)
	}
	e.question = dns.Question{Name: dns.Fqdn(f[0]), Qclass: dns.ClassINET}
	var ok bool
	if e.question.Qtype, ok = dns.StringToType[f[1]]; !ok {
		// RFC 3597 section 5: TYPE and a number.
		n, err := strconv.ParseUint(strings.TrimPrefix(f[1], "TYPE"), 10, 16)
		if err != nil {
			return fmt.Errorf("question %q: no type %q", e.Q, f[1])
		}
		e.question.Qtype = uint16(n)
	}
	if len(f) == 3 {
		if e.question.Qclass, ok = dns.StringToClass[f[2]]; !ok {
			return fmt.Errorf("question %q: no class %q", e.Q, f[2])
		}
	}
	for _, flag := range strings.Fields(e.Flags) {
		if !slices.Contains([]string{"aa", "tc", "rd", "ra", "opt"}, strings.TrimPrefix(flag, "!")) {
			return fmt.Errorf("question %q: no flag %q", e.Q, flag)
		}
	}
	if e.Over != "" && e.Over != "udp" && e.Over != "tcp" {
		return fmt.Errorf("question %q: over %q", e.Q, e.Over)
	}
	return nil
}

// A Player plays cases.
type Player struct {
	// Cluster is what objects are applied to.
	Cluster *ControlPlane
	// Servers are the host:port of each kube-dns that watches it. All are
	// asked everything.
	Servers []string
	// Zone is the cluster domain, "cluster.local.".
	Zone string
	// Timeout is how long a step's replies may take to become right.
	Timeout time.Duration
}

// Play plays each case as a subtest, one after the other.
func (p *Player) Play(t *testing.T, cases []*Case) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { p.play(t, c) })
	}
}

func (p *Player) play(t *testing.T, c *Case) {
	t.Helper()
	var applied []*unstructured.Unstructured
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t.Context is done by now
		defer cancel()
		for _, o := range slices.Backward(applied) {
			if err := p.Cluster.Delete(ctx, o); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		}
	})
	for i, step := range c.Steps {
		if step.NextSecond {
			NextSecond(t)
		}
		objects, err := DecodeObjects(step.Apply)
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		for _, o := range objects {
			if err := p.Cluster.Apply(t.Context(), o); err != nil {
				t.Fatalf("step %d: %v", i+1, err)
			}
			applied = append(applied, o)
		}
		for _, name := range step.Remove {
			o, err := parseObjectName(name)
			if err != nil {
				t.Fatalf("step %d: %v", i+1, err)
			}
			if err := p.Cluster.Delete(t.Context(), o); err != nil {
				t.Fatalf("step %d: %v", i+1, err)
			}
		}
		deadline := time.Now().Add(p.Timeout)
		for j := range step.Ask {
			for _, problem := range p.await(t.Context(), &step.Ask[j], deadline) {
				t.Errorf("step %d: %s (%s)", i+1, problem, c.Source)
			}
		}
	}
}

// NextSecond waits until the clock shows another second: an object made then
// has a later creation time than those made before.
func NextSecond(t testing.TB) {
	t.Helper()
	before := time.Now().Unix()
	Eventually(t, 2*time.Second, func() error {
		if time.Now().Unix() == before {
			return errors.New("it is still the same second")
		}
		return nil
	})
}

// await asks e of every server until the replies are right or the deadline has
// passed, and returns what is wrong then.
func (p *Player) await(ctx context.Context, e *Expect, deadline time.Time) []string {
	var problems []string
	for _, server := range p.Servers {
		for _, network := range []string{"udp", "tcp"} {
			if e.Over != "" && e.Over != network {
				continue
			}
			ctx, cancel := context.WithDeadline(ctx, deadline)
			// Right twice: an answer may depend on what was asked before.
			right := 0
			err := poll(ctx, 20*time.Millisecond, func(context.Context) error {
				for right < 2 {
					if err := p.ask(context.WithoutCancel(ctx), e, server, network == "tcp"); err != nil {
						right = 0
						return err
					}
					right++
				}
				return nil
			})
			cancel()
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s of %s over %s: %v", e.Q, server, network, err))
			}
		}
	}
	return problems
}

func (p *Player) ask(ctx context.Context, e *Expect, server string, tcp bool) error {
	reply, err := Ask(ctx, Question{
		Server: server, TCP: tcp,
		Name: e.question.Name, Type: e.question.Qtype, Class: e.question.Qclass,
		EDNS: e.EDNS, Version: e.Version,
	})
	if err != nil {
		return err
	}
	if err := p.compare(e, reply); err != nil {
		return fmt.Errorf("%w, in\n%s", err, reply)
	}
	return nil
}

// compare returns the first difference of the reply from e.
func (p *Player) compare(e *Expect, reply *Reply) error {
	if len(reply.Question) != 1 || reply.Question[0] != e.question {
		return fmt.Errorf("the question came back as %v", reply.Question)
	}
	rcodes := strings.Split(e.Rcode, "|")
	if e.Rcode == "" {
		rcodes = []string{"NOERROR"}
	}
	if got := rcodeName(reply); !slices.Contains(rcodes, got) {
		return fmt.Errorf("rcode is %s, want %s", got, strings.Join(rcodes, " or "))
	}
	if err := e.compareAnswer(reply.Answer); err != nil {
		return err
	}
	if err := p.compareAuthority(e, reply); err != nil {
		return err
	}
	for _, want := range lines(e.Extra) {
		if !slices.ContainsFunc(reply.Extra, func(rr dns.RR) bool { return matches(rr, want) }) {
			return fmt.Errorf("the additional section lacks %q", want)
		}
	}
	if e.NoExtra && len(reply.Extra) > 0 && (len(reply.Extra) > 1 || reply.IsEdns0() == nil) {
		return errors.New("the additional section is not empty")
	}
	if e.MaxSize > 0 && reply.Size > e.MaxSize {
		return fmt.Errorf("the reply has %d octets, want %d at most", reply.Size, e.MaxSize)
	}
	return p.compareFlags(e, reply)
}

func (e *Expect) compareAnswer(got []dns.RR) error {
	for _, rr := range got {
		if srv, ok := rr.(*dns.SRV); ok && (srv.Weight == 0 || srv.Port == 0) {
			return fmt.Errorf("an SRV record has weight or port 0: %s", rr)
		}
	}
	switch {
	case e.Answer != "":
		return compareRecords("answer", got, lines(e.Answer), e.Ordered)
	case e.Count != nil && len(got) != *e.Count:
		return fmt.Errorf("%d answers, want %d", len(got), *e.Count)
	case len(got) < e.AtLeast:
		return fmt.Errorf("%d answers, want %d at least", len(got), e.AtLeast)
	case e.Count == nil && e.AtLeast == 0 && len(got) > 0:
		return fmt.Errorf("%d answers, want none", len(got))
	}
	return nil
}

func (p *Player) compareAuthority(e *Expect, reply *Reply) error {
	want := lines(e.Authority)
	switch {
	case e.Authority == "any":
		return nil
	case e.Authority != "":
	case !p.inZone(e), len(reply.Answer) > 0:
		return nil
	case reply.Rcode == dns.RcodeSuccess, reply.Rcode == dns.RcodeNameError:
		// RFC 2308 sections 2.1 and 2.2.
		want = []string{p.Zone + " 30 IN SOA ns.dns." + p.Zone + " hostmaster." + p.Zone + " * * * * 30"}
	}
	return compareRecords("authority", reply.Ns, want, false)
}

func (p *Player) compareFlags(e *Expect, reply *Reply) error {
	got := map[string]bool{
		"aa": reply.Authoritative, "tc": reply.Truncated,
		"rd": reply.RecursionDesired, "ra": reply.RecursionAvailable,
		"opt": reply.IsEdns0() != nil,
	}
	want := map[string]bool{"rd": true, "opt": e.EDNS != nil, "tc": false}
	if p.inZone(e) && (reply.Rcode == dns.RcodeSuccess || reply.Rcode == dns.RcodeNameError) {
		want["aa"], want["ra"] = true, true
	}
	for _, flag := range strings.Fields(e.Flags) {
		name, not := strings.CutPrefix(flag, "!")
		want[name] = !not
	}
	for name, set := range want {
		if got[name] != set {
			return fmt.Errorf("flag %s is %v, want %v", name, got[name], set)
		}
	}
	return nil
}

func (p *Player) inZone(e *Expect) bool {
	return e.question.Qclass == dns.ClassINET && dns.IsSubDomain(p.Zone, strings.ToLower(e.question.Name))
}

// rcodeName names the rcode; 16 is BADVERS where there is no TSIG (RFC 6891
// section 9).
func rcodeName(reply *Reply) string {
	if reply.Rcode == dns.RcodeBadVers {
		return "BADVERS"
	}
	return dns.RcodeToString[reply.Rcode]
}

// compareRecords matches got and want one to one.
func compareRecords(section string, got []dns.RR, want []string, ordered bool) error {
	left := slices.Clone(got)
	for i, w := range want {
		j := slices.IndexFunc(left, func(rr dns.RR) bool { return matches(rr, w) })
		if j < 0 {
			return fmt.Errorf("the %s section lacks %q", section, w)
		}
		if ordered && j != 0 {
			return fmt.Errorf("record %d of the %s section is not %q", i+1, section, w)
		}
		left = slices.Delete(left, j, j+1)
	}
	if len(left) > 0 {
		return fmt.Errorf("the %s section also has %q", section, left[0])
	}
	return nil
}

func matches(rr dns.RR, want string) bool {
	g, w := strings.Fields(rr.String()), strings.Fields(want)
	return slices.EqualFunc(g, w, func(g, w string) bool { return w == "*" || g == w })
}

// lines are the lines of text that are not blank.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// DecodeObjects parses YAML documents.
func DecodeObjects(manifests string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	d := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var raw map[string]any
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		case raw != nil:
			objects = append(objects, &unstructured.Unstructured{Object: raw})
		}
	}
}

// parseObjectName parses "Service shop/cart".
func parseObjectName(text string) (*unstructured.Unstructured, error) {
	kind, name, ok := strings.Cut(text, " ")
	if !ok {
		return nil, fmt.Errorf("object %q is not KIND NAME", text)
	}
	o := &unstructured.Unstructured{}
	o.SetKind(kind)
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		o.SetNamespace(namespace)
		name = rest
	}
	o.SetName(name)
	for _, k := range kinds {
		if k.kind == kind {
			o.SetAPIVersion(k.resource.GroupVersion().String())
			return o, nil
		}
	}
	return nil, fmt.Errorf("object %q: unknown kind", text)
}

// kinds are the kinds of object that cases may have. It is never written.
var kinds = []struct {
	kind       string
	resource   schema.GroupVersionResource
	namespaced bool
}{
	{"Service", schema.GroupVersionResource{Version: "v1", Resource: "services"}, true},
	{"ConfigMap", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true},
	{"Node", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, false},
	{"Namespace", schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, false},
	{"EndpointSlice", schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, true},
}

func (c *ControlPlane) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	for _, k := range kinds {
		if k.kind != o.GetKind() || k.resource.GroupVersion().String() != o.GetAPIVersion() {
			continue
		}
		if !k.namespaced {
			return c.Dynamic.Resource(k.resource), nil
		}
		if o.GetNamespace() == "" {
			return nil, fmt.Errorf("%s %s has no namespace", o.GetKind(), o.GetName())
		}
		return c.Dynamic.Resource(k.resource).Namespace(o.GetNamespace()), nil
	}
	return nil, fmt.Errorf("unknown kind %s %s", o.GetAPIVersion(), o.GetKind())
}

// Apply creates or changes o, by server-side apply, and makes its Namespace.
func (c *ControlPlane) Apply(ctx context.Context, o *unstructured.Unstructured) error {
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	if ns := o.GetNamespace(); ns != "" {
		if err := c.EnsureNamespace(ctx, ns); err != nil {
			return err
		}
	}
	if _, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "e2e", Force: true}); err != nil {
		return fmt.Errorf("applying %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

// Delete deletes o, and returns when it is gone. One that is not there is no
// error. A Namespace stays: nothing here would finalize it.
func (c *ControlPlane) Delete(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetKind() == "Namespace" {
		return nil
	}
	r, err := c.resource(o)
	if err != nil {
		return err
	}
	zero := int64(0)
	err = r.Delete(ctx, o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &zero})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	return nil
}
