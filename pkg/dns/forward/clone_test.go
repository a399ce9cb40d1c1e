package forward

import (
	"errors"
	"reflect"
	"testing"

	"github.com/miekg/dns"
)

// A clone asks as the original would, and neither changes the other.
func TestClone(t *testing.T) {
	good, bad := serve(t, answering(t, "192.0.2.1")), serve(t, rcode(dns.RcodeServerFailure))
	f := forwarder(bad, good)
	startWith(f, 0)
	ask := func(f *Forwarder) {
		t.Helper()
		if _, from, err := f.Exchange(t.Context(), question("www.example.org.", dns.TypeA), false); err != nil || from != good {
			t.Errorf("%v, %v, want an answer of %v", from, err, good)
		}
	}
	ask(f) // the first is known to fail from here on
	before, turn := f.Health(), f.turn.Load()
	if !before[0].Failing {
		t.Fatalf("not failing: %+v", before[0])
	}
	c := f.Clone()
	if got := c.Health(); !reflect.DeepEqual(got, before) {
		t.Errorf("the clone knows %+v, want %+v", got, before)
	}
	if c.turn.Load() != turn {
		t.Errorf("the clone's turn is %d, want %d", c.turn.Load(), turn)
	}
	ask(c)
	if got := c.Health()[1].Questions; got != before[1].Questions+1 {
		t.Errorf("the clone has asked %d times, want %d", got, before[1].Questions+1)
	}
	c.SetNameservers(nil)
	if got := f.Health(); !reflect.DeepEqual(got, before) || f.turn.Load() != turn || f.InFlight() != 0 {
		t.Errorf("the original knows %+v, want %+v", got, before)
	}
}

// A clone of a forwarder that is full is full too.
func TestCloneOverloaded(t *testing.T) {
	f := New(Options{MaxInFlight: 1})
	f.inFlight.Store(1)
	if _, _, err := f.Clone().Exchange(t.Context(), question("www.example.org.", dns.TypeA), false); !errors.Is(err, ErrOverloaded) {
		t.Errorf("%v, want %v", err, ErrOverloaded)
	}
}
