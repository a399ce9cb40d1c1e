package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// shownInText is how many records, endpoints and owners a list has in text.
const shownInText = 20

// WriteText writes the explanation as text that one reads at a glance: the
// answer first, then what to do, then how it came about. Characters that a
// terminal would obey are spelled out.
func (e *Explanation) WriteText(w io.Writer) error {
	t := &text{}
	verdict := "does not resolve"
	if e.Resolves {
		verdict = "resolves"
	}
	t.line(0, "%s %s %s (%s)", e.Question.Name, e.Question.Type, verdict, e.Reason)
	t.line(0, "%s", e.Summary)
	if e.Advice != "" {
		t.line(0, "What to do: %s", e.Advice)
	}
	t.near(e)
	for _, r := range e.Replies {
		t.reply(r)
	}
	t.search(e.Search)
	t.heading("How it comes about (%s)", e.Way)
	for i, s := range e.Steps {
		t.line(2, "%d. %s", i+1, s)
	}
	if e.Closest != "" && !e.Resolves {
		t.line(2, "closest name that exists: %s", e.Closest)
	}
	t.chain(e.Chain)
	t.owners(e.Owners)
	if e.Service != nil {
		t.service(e.Service)
	}
	t.upstream(e.Upstream)
	t.heading("dnsmasq in front")
	t.line(2, "%s", e.Dnsmasq.Note)
	if len(e.Notes) > 0 {
		t.heading("Notes")
		for _, n := range e.Notes {
			t.line(2, "%s", n)
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

type text struct{ b strings.Builder }

func (t *text) line(indent int, format string, args ...any) {
	t.b.WriteString(strings.Repeat(" ", indent))
	for _, c := range fmt.Sprintf(format, args...) {
		if unicode.IsPrint(c) {
			t.b.WriteRune(c)
		} else {
			fmt.Fprintf(&t.b, "\\u%04x", c)
		}
	}
	t.b.WriteByte('\n')
}

func (t *text) heading(format string, args ...any) {
	t.b.WriteByte('\n')
	t.line(0, format, args...)
}

func (t *text) more(n int, what string) {
	if n > 0 {
		t.line(4, "and %s more", count(n, what))
	}
}

func (t *text) near(e *Explanation) {
	if len(e.Near) == 0 {
		return
	}
	t.heading("Names that exist")
	for _, n := range e.Near {
		t.line(2, "%s  (%s)", n.Name, n.Why)
	}
}

func (t *text) reply(r Reply) {
	var over []string
	for _, o := range r.Over {
		over = append(over, fmt.Sprintf("%s, %d octets", o.Name, o.Octets))
	}
	t.heading("Reply (%s): %s, flags %s", strings.Join(over, "; "), r.Rcode, strings.Join(r.Flags, " "))
	rows := r.Rows()
	for _, rr := range rows[:min(len(rows), shownInText)] {
		t.line(2, "%-10s  %s %d %s %s %s", rr.Section, rr.Name, rr.TTL, rr.Class, rr.Type, rr.Data)
	}
	t.more(len(rows)-shownInText, "record")
}

func (t *text) search(candidates []Candidate) {
	if len(candidates) == 0 {
		return
	}
	t.heading("Search path")
	for i, c := range candidates {
		mark := "  "
		if c.Used {
			mark = "* "
		}
		note := c.Note
		if c.Rcode != "" {
			note = strings.TrimSuffix(fmt.Sprintf("%s, %s. %s", c.Rcode, count(c.Answers, "answer"), c.Note), " ")
		}
		t.line(2, "%s%d. %s  %s", mark, i+1, c.Name, note)
	}
}

func (t *text) chain(hops []Hop) {
	if len(hops) == 0 {
		return
	}
	t.heading("Chain")
	for i, h := range hops {
		end := h.Target
		if len(h.Addresses) > 0 {
			end = strings.Join(h.Addresses, " ")
		}
		if h.Fault != "" {
			end = h.Fault
		}
		ttl := ""
		if h.TTL > 0 {
			ttl = fmt.Sprintf(" TTL %d", h.TTL)
		}
		server := ""
		if h.Server != "" {
			server = ", says " + h.Server
		}
		t.line(2, "%d. %s %s %s%s%s", i+1, h.Name, h.Type, end, ttl, server)
	}
}

func (t *text) owners(owners []Owner) {
	if len(owners) == 0 {
		return
	}
	t.heading("Owners")
	for i, o := range owners[:min(len(owners), shownInText)] {
		t.line(2, "%d. %s  (%s)", i+1, o.Name, o.Why)
	}
	t.more(len(owners)-shownInText, "owner")
}

func (t *text) service(s *Service) {
	t.heading("Service %s/%s, %s", s.Namespace, s.Name, s.Kind)
	if s.ExternalName != "" {
		t.line(2, "external name %s", s.ExternalName)
	}
	if len(s.Addresses) > 0 {
		t.line(2, "addresses %s", strings.Join(s.Addresses[:min(len(s.Addresses), shownInText)], " "))
		t.more(len(s.Addresses)-shownInText, "address")
	}
	if len(s.Ports) > 0 {
		t.line(2, "ports %s", portsString(s.Ports))
	}
	var facts []string
	if s.PublishNotReady {
		facts = append(facts, "publishes endpoints that are not ready")
	}
	if s.RecordAgeSeconds != nil {
		facts = append(facts, fmt.Sprintf("records as they are for %v", seconds(*s.RecordAgeSeconds)))
	}
	if s.Created != nil && !s.Created.IsZero() {
		facts = append(facts, fmt.Sprintf("created %s", s.Created.Format(time.RFC3339)))
	}
	if s.ResourceVersion != "" {
		facts = append(facts, "resourceVersion "+s.ResourceVersion)
	}
	if len(facts) > 0 {
		t.line(2, "%s", strings.Join(facts, ", "))
	}
	for _, slice := range s.Slices {
		t.line(2, "EndpointSlice %s, %s, ports %s%s", slice.Name, slice.AddressType, portsString(slice.Ports), version(slice.ResourceVersion))
		if slice.LeftOut != "" {
			t.line(4, "left out: %s", slice.LeftOut)
		}
		for _, e := range slice.Endpoints[:min(len(slice.Endpoints), shownInText)] {
			name := cmp.Or(e.Hostname, "no hostname")
			if e.LeftOut != "" {
				t.line(4, "%s (%s) left out: %s", e.Address, name, e.LeftOut)
			} else {
				t.line(4, "%s (%s)", e.Address, name)
			}
		}
		t.more(len(slice.Endpoints)-shownInText, "endpoint")
	}
}

func version(v string) string {
	if v == "" {
		return ""
	}
	return ", resourceVersion " + v
}

func portsString(ports []Port) string {
	var all []string
	for _, p := range ports[:min(len(ports), shownInText)] {
		all = append(all, fmt.Sprintf("%s %s/%d", cmp.Or(p.Name, "(unnamed)"), p.Protocol, p.Number))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

func (t *text) upstream(u *Upstream) {
	if u == nil {
		return
	}
	t.heading("Upstream nameservers, asked for %s %s", u.Name, u.Type)
	for _, n := range u.Nameservers {
		state := ""
		if n.Failing {
			state = " (failing)"
		}
		t.line(2, "%s%s %s", n.Address, state, n.Result)
	}
	if u.Error != "" && len(u.Nameservers) == 0 {
		t.line(2, "%s", u.Error)
	}
}
