package explain

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
)

// FuzzExplain has any name, type and namespace explained: it is refused with a
// line that repeats nothing, or explained, and what is said is true: names
// that are said to exist do, and the reply is the server's.
func FuzzExplain(f *testing.F) {
	for _, seed := range [][3]string{
		{"web.shop.svc.cluster.local", "", ""}, {"wbe.shop.svc.cluster.local.", "AAAA", ""}, {"web", "SRV", "shop"}, {"db-0.db.shop", "A", "tools"},
		{"_http._tcp.web.shop.svc.cluster.local", "SRV", ""}, {"*.shop.svc.cluster.local", "ANY", ""}, {"*._tcp.*.*.svc.cluster.local", "SRV", ""},
		{"10.244.0.31", "", ""}, {"31.0.244.10.in-addr.arpa", "TYPE12", ""}, {"2001:db8::31", "", "shop"}, {"10-244-0-31.shop.pod.cluster.local", "A", ""},
		{"loop-a.shop.svc.cluster.local", "A", ""}, {"nowhere.shop.svc.cluster.local", "AAAA", ""}, {"www.example.org", "AXFR", ""}, {"a.b.c.d.e.svc.cluster.local", "", "x"},
		{"<script>", "<b>", "<i>"}, {"m\xc3\xbcnchen.example", "A", ""}, {"\xff", "\xff", "\xff"}, {strings.Repeat("a.", 127), "A", "shop"}, {".", "NS", "shop"}, {"orders.shop.mars.svc.cluster.local", "A", ""},
		{"ns.dns.cluster.local", "A", ""}, {"dns-version.cluster.local", "TXT", ""}, {"cluster.local", "SOA", "cluster"}, {"fe80::1%eth0", "", ""}, {"::ffff:10.96.20.7", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	fixture := newFixture(f, manifest, nil)
	fixture.kd.SetFederations(map[string]string{"mars": "fed.example.org"})
	f.Fuzz(func(t *testing.T, name, qtype, search string) {
		r, err := NewRequest(name, qtype, search)
		if err != nil {
			if strings.ContainsAny(err.Error(), "<>\"'") || strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("%q repeats what was asked", err)
			}
			return
		}
		e, err := fixture.explainer.Explain(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		fixture.checkExplanation(t, e)
		switch {
		case e.Resolves != (e.Reason == Answered):
			t.Errorf("resolves %v, reason %s", e.Resolves, e.Reason)
		case e.Summary == "" || len(e.Steps) == 0 || len(e.Replies) == 0:
			t.Errorf("summary %q, steps %q, replies %v", e.Summary, e.Steps, e.Replies)
		case e.Closest == "" && e.Way == WayTree:
			t.Error("no closest name")
		case !e.Resolves && e.Advice == "":
			t.Error("no advice")
		case len(e.Replies) > 0 && e.Replies[0].Rcode == "NXDOMAIN" && e.Missing == nil:
			t.Error("NXDOMAIN, and nothing is missing")
		}
		var text bytes.Buffer
		if err := e.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(text.String(), func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
			t.Errorf("%q in the text", text.String()[i:min(text.Len(), i+10)])
		}
	})
}
