package site

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubedns/cmd/kube-dns/app/options"
	"kubedns/pkg/dns/config"
	"kubedns/pkg/page"
)

// TestPagesBeforeAnythingIsKnown: the pages are there from the first moment,
// whatever the Origin and the error are.
func TestPagesBeforeAnythingIsKnown(t *testing.T) {
	now := Configuration{
		InForce:     config.Update{Config: &config.Config{}, Origin: "default"},
		Nameservers: Nameservers{Addrs: []netip.AddrPort{}, LeftOut: []netip.AddrPort{}, Error: Hostile},
	}
	s := &Site{o: Options{
		Flags:         &options.Options{Domain: "cluster.local.", ConfigMap: "kube-dns", ConfigMapNamespace: "kube-system"},
		Configuration: func() Configuration { return now },
	}}
	c := s.configPage()
	if c.InForce.Origin != "default" || !c.InForce.Read.IsZero() || c.Refused != nil {
		t.Errorf("configuration %+v, want the default, never read", c)
	}
	read := time.Unix(1_000_000, 0)
	now.InForce = config.Update{
		Config: &config.Config{Federations: map[string]string{"a": "b.example"}}, Origin: "ConfigMap kube-system/" + Hostile,
		Version: "42", Time: read, Warnings: []string{Hostile},
	}
	now.Refused = config.Update{Err: errors.New(Hostile), Origin: Hostile, Version: Hostile, Time: read.Add(time.Second)}
	c = s.configPage()
	if want := (Origin{Kind: "configMap", Name: "kube-system/kube-dns", Version: "42"}); c.Values[0].From != want || c.Values[0].Lines[0] != "a=b.example" {
		t.Errorf("federations %+v, want them from %+v", c.Values[0], want)
	}
	var err error
	if s.pages, err = page.New("kube-dns"); err != nil {
		t.Fatal(err)
	}
	body, err := s.parse(configTemplate)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := body.Execute(&b, map[string]any{"Title": "Configuration", "Data": c}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "&lt;script&gt;"); strings.Contains(b.String(), "<script") || n < 6 {
		t.Errorf("%d texts escaped, want 6 and no markup:\n%s", n, b.String())
	}
}
