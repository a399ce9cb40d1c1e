package federation

import (
	"maps"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestMatch(t *testing.T) {
	federations := map[string]string{"fed": "example.org", "2nd": "fed.example.net", "Bad_Name": "example.com"}
	long := strings.Repeat("a", 63)
	tests := []struct {
		name   string
		labels []string
		want   Query
		ok     bool
	}{
		{"all three", []string{"web", "default", "fed"}, Query{"web", "default", "fed", "example.org"}, true},
		{"federation with a digit first", []string{"web", "default", "2nd"}, Query{"web", "default", "2nd", "fed.example.net"}, true},
		{"namespace with a digit first", []string{"web", "1st", "fed"}, Query{"web", "1st", "fed", "example.org"}, true},
		{"longest labels", []string{long, long, "fed"}, Query{long, long, "fed", "example.org"}, true},
		{"service with a digit first", []string{"1st", "default", "fed"}, Query{}, false},
		{"service with a dash last", []string{"web-", "default", "fed"}, Query{}, false},
		{"service too long", []string{long + "a", "default", "fed"}, Query{}, false},
		{"namespace too long", []string{"web", long + "a", "fed"}, Query{}, false},
		{"namespace with a dash first", []string{"web", "-default", "fed"}, Query{}, false},
		{"namespace with an underscore", []string{"web", "_default", "fed"}, Query{}, false},
		{"port label", []string{"_tcp", "web", "fed"}, Query{}, false},
		{"wildcard service", []string{"*", "default", "fed"}, Query{}, false},
		{"wildcard namespace", []string{"web", "*", "fed"}, Query{}, false},
		{"empty service", []string{"", "default", "fed"}, Query{}, false},
		{"upper case", []string{"Web", "default", "fed"}, Query{}, false},
		{"other federation", []string{"web", "default", "other"}, Query{}, false},
		{"key that is no label", []string{"web", "default", "Bad_Name"}, Query{}, false},
		{"two labels", []string{"web", "fed"}, Query{}, false},
		{"four labels", []string{"host", "web", "default", "fed"}, Query{}, false},
		{"none", nil, Query{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Match(tt.labels, federations)
			if got != tt.want || ok != tt.ok {
				t.Errorf("Match(%q) = %+v, %v, want %+v, %v", tt.labels, got, ok, tt.want, tt.ok)
			}
		})
	}
	if _, ok := Match([]string{"web", "default", "fed"}, nil); ok {
		t.Error("Match matches without federations")
	}
}

func TestTarget(t *testing.T) {
	q := Query{Service: "web", Namespace: "default", Federation: "fed", Domain: "example.org"}
	long := Query{
		Service: strings.Repeat("a", 63), Namespace: strings.Repeat("b", 63), Federation: strings.Repeat("c", 63),
		Domain: "example.org",
	}
	// 3 labels of 63, "svc", "z", a region, "example.org", each with its dot.
	fits := strings.Repeat("r", 253-3*64-4-2-12)
	tests := []struct {
		name         string
		query        Query
		zone, region string
		want         string
	}{
		{"both known", q, "us-east-1a", "us-east-1", "web.default.fed.svc.us-east-1a.us-east-1.example.org."},
		{"zone unknown", q, "", "us-east-1", ""},
		{"region unknown", q, "us-east-1a", "", ""},
		{"longest", long, "z", fits, strings.Join([]string{
			long.Service, long.Namespace, long.Federation, "svc", "z", fits, "example.org.",
		}, ".")},
		{"too long", long, "z", fits + "r", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.query.Target(tt.zone, tt.region)
			if got != tt.want {
				t.Errorf("Target(%q, %q) = %q, want %q", tt.zone, tt.region, got, tt.want)
			}
			if _, ok := dns.IsDomainName(got); got != "" && !ok {
				t.Errorf("%q is not a name for package dns", got)
			}
		})
	}
}

func TestTopology(t *testing.T) {
	const (
		zone       = "topology.kubernetes.io/zone"
		region     = "topology.kubernetes.io/region"
		zoneBeta   = "failure-domain.beta.kubernetes.io/zone"
		regionBeta = "failure-domain.beta.kubernetes.io/region"
	)
	tests := []struct {
		name                 string
		labels               map[string]string
		wantZone, wantRegion string
	}{
		{"no labels", nil, "", ""},
		{"new names", map[string]string{zone: "z", region: "r"}, "z", "r"},
		{"old names", map[string]string{zoneBeta: "z", regionBeta: "r"}, "z", "r"},
		{"new before old", map[string]string{zone: "z", region: "r", zoneBeta: "y", regionBeta: "q"}, "z", "r"},
		{"one of each", map[string]string{zone: "z", regionBeta: "q"}, "z", "q"},
		{"zone alone", map[string]string{zone: "z"}, "z", ""},
		{"empty new name", map[string]string{zone: "", region: "r", zoneBeta: "y"}, "y", "r"},
		{"dots that make no name", map[string]string{zone: "a..b", region: ".r"}, "", ""},
		{"dots that make labels", map[string]string{zone: "a.b", region: "r"}, "a.b", "r"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gotZone, gotRegion := Topology(tt.labels)
			if gotZone != tt.wantZone || gotRegion != tt.wantRegion {
				t.Errorf("Topology(%v) = %q, %q, want %q, %q", tt.labels, gotZone, gotRegion, tt.wantZone, tt.wantRegion)
			}
		})
	}
}

// FuzzMatch: what matches is exactly what was asked, and its target is a name
// for package dns that begins with the question's labels.
func FuzzMatch(f *testing.F) {
	f.Add("web", "default", "fed", "z", "r")
	f.Add("1web", "1", "fed", "z", "r")
	f.Add("*", "default", "fed", "", "r")
	f.Add("web", "a.b", "fed", "a..b", ".")
	f.Add(strings.Repeat("a", 63), strings.Repeat("b", 63), "fed", strings.Repeat("z", 63), strings.Repeat("r", 63))
	federations := map[string]string{"fed": "example.org", "": "example.net", "a.b": "example.com"}
	f.Fuzz(func(t *testing.T, service, namespace, name, zone, region string) {
		before := maps.Clone(federations)
		q, ok := Match([]string{service, namespace, name}, federations)
		if !maps.Equal(before, federations) {
			t.Fatal("Match changed the federations")
		}
		if !ok {
			if q != (Query{}) {
				t.Errorf("no match, yet %+v", q)
			}
			return
		}
		if want := (Query{service, namespace, "fed", "example.org"}); q != want {
			t.Fatalf("Match = %+v, want %+v", q, want)
		}
		topologyZone, topologyRegion := Topology(map[string]string{labelZone: zone, labelRegion: region})
		target := q.Target(topologyZone, topologyRegion)
		if target == "" {
			return
		}
		// Labels' values hold no character that has a meaning in zone files.
		if strings.ContainsAny(zone+region, `\`) {
			return
		}
		if _, valid := dns.IsDomainName(target); !valid && len(zone) <= 63 && len(region) <= 63 {
			t.Errorf("%q is not a name", target)
		}
		if want := service + "." + namespace + ".fed.svc."; !strings.HasPrefix(target, want) || !strings.HasSuffix(target, ".example.org.") {
			t.Errorf("%q does not begin with %q or end in .example.org.", target, want)
		}
	})
}
