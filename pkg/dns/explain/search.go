package explain

import (
	"context"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/qname"
)

// ndots is what Kubernetes gives pods: a name with fewer dots goes through the
// search path first (resolv.conf(5)).
const ndots = 5

// search is the question to explain: the one that answers of those that a
// pod's resolver asks, else the one that comes closest to a name that exists.
// Without a namespace there is but one.
func (e *Explainer) search(ctx context.Context, r Request, up *oneQuestion) (dns.Question, []Candidate) {
	question := func(name string) dns.Question {
		return dns.Question{Name: name, Qtype: r.Type, Qclass: dns.ClassINET}
	}
	if r.Search == "" {
		return question(r.Name), nil
	}
	names := searchPath(r.Name, r.Absolute, r.Search, e.o.Tree.Zone())
	candidates := make([]Candidate, 0, len(names))
	best, fewest := names[0], 1000
	answered := false
	for _, name := range names {
		c := Candidate{Name: name}
		switch {
		case answered:
			c.Note = "not asked: the one before answers"
		case !isName(name):
			c.Note = "not asked: longer than a DNS name may be"
		default:
			before := len(up.refused)
			_, m := e.ask(ctx, question(name), up, 0, true)
			if len(up.refused) > before {
				c.Note = "not asked: this explanation has forwarded its one question"
				break
			}
			x := explanation{Explainer: e, question: question(name), reply: m}
			if answered = x.resolves(); answered {
				best, c.Used = name, true
			}
			if m != nil {
				c.Rcode, c.Answers = rcodeString(m.Rcode), len(m.Answer)
			}
			if m != nil && !answered {
				c.Note = noteOf(m)
			}
			if n := e.missingLabels(name); !answered && n < fewest {
				best, fewest = name, n
			}
		}
		candidates = append(candidates, c)
	}
	return question(best), candidates
}

// noteOf says what resolvers do with a reply that does not answer.
func noteOf(m *dns.Msg) string {
	switch m.Rcode {
	case dns.RcodeSuccess:
		return "NODATA: glibc's resolver asks the next one, musl's stops here"
	case dns.RcodeNameError:
		return ""
	}
	return "glibc's resolver asks the next one, musl's stops here and fails"
}

// searchPath are the names that a pod in the namespace asks for in place of
// name, in order. The node's own search domains, which come last, are not
// known.
func searchPath(name string, absolute bool, namespace, zone string) []string {
	if absolute {
		return []string{name}
	}
	var names []string
	for _, domain := range []string{namespace + ".svc." + zone, "svc." + zone, zone} {
		names = append(names, name+"."+domain)
	}
	if strings.Count(name, ".") >= ndots {
		return append([]string{name + "."}, names...)
	}
	return append(names, name+".")
}

// isName reports whether a message can carry the name.
func isName(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok
}

// missingLabels counts the labels of a name in the zone left of the longest
// name that exists; names outside miss more than any.
func (e *Explainer) missingLabels(name string) int {
	n := e.o.Tree.Names().ParseText(name)
	if !n.InZone() {
		return 999
	}
	var service []byte
	switch {
	case n.Form < qname.Namespace || n.Form > qname.BelowService:
		return n.Left()
	case n.Form >= qname.Service:
		service = n.Service()
	}
	records, exists := e.o.Tree.Service(n.Namespace(), service)
	switch {
	case !exists:
		return n.Left() - 1
	case records == nil:
		return n.Left() - 2
	}
	return n.Left() - 3
}

// searchSteps says what came of the search path.
func searchSteps(r Question, candidates []Candidate) []string {
	if len(candidates) == 0 {
		return nil
	}
	dots := strings.Count(r.Asked, ".")
	order := "less than ndots:5: the search path comes first, then the name as it is"
	switch {
	case strings.HasSuffix(r.Asked, ".") || len(candidates) == 1:
		order = "it is not completed"
	case dots >= ndots:
		order = "as many as ndots:5: the name as it is comes first, then the search path"
	}
	steps := []string{fmt.Sprintf("%s has %s, %s", r.Asked, count(dots, "dot"), order)}
	for i, c := range candidates {
		if c.Used {
			return append(steps, fmt.Sprintf("of %s the %s answers: %s", count(len(candidates), "question"), ordinal(i+1), c.Name))
		}
	}
	return append(steps, fmt.Sprintf("none of %s answers; the one that comes closest is explained: %s", count(len(candidates), "question"), r.Name))
}

func ordinal(n int) string {
	return [...]string{"", "first", "second", "third", "fourth"}[min(n, 4)]
}
