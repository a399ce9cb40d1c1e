package localaddr

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAll(t *testing.T) {
	local, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(local, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("no loopback address among %v", local)
	}
	for _, a := range local {
		if a.Is4In6() || (a.Is6() && a.IsLinkLocalUnicast()) != (a.Zone() != "") {
			t.Errorf("address %v", a)
		}
	}
}
