package forward

import (
	"net/netip"
	"sync"
	"time"
)

// Health is what a Forwarder knows of one nameserver.
type Health struct {
	Addr netip.AddrPort
	// Failing is true from a failure to the next answer: the nameserver is
	// asked last.
	Failing bool
	// ConsecutiveFailures counts the failures since the last answer.
	ConsecutiveFailures int
	// LastError is why the last failure was one; it stays when the nameserver
	// works again. "" where there was none.
	LastError string
	// LastFailure and LastSuccess are zero where there was none.
	LastFailure, LastSuccess time.Time
	// Questions counts the times that this nameserver was asked, Failures
	// those that failed. A question that another nameserver answered first may
	// be neither a failure nor a success.
	Questions, Failures uint64
	// RTT is the smoothed time between question and answer, 0 while unknown.
	RTT time.Duration
}

// nameserver is a nameserver's address and state. It is shared by all questions.
type nameserver struct {
	addr                   netip.AddrPort // not modified
	backoffMin, backoffMax time.Duration  // not modified
	forgetNoEDNS           time.Duration  // not modified

	mu           sync.Mutex
	known        Health        // Addr is unset
	backoff      time.Duration // 0 while not failing
	backoffStart time.Time
	probed       bool // a question asked first since the back-off began
	noEDNSUntil  time.Time
}

func newNameserver(addr netip.AddrPort, o Options) *nameserver {
	return &nameserver{addr: addr, backoffMin: o.BackoffMin, backoffMax: o.BackoffMax, forgetNoEDNS: o.ForgetNoEDNS}
}

// clone is a nameserver of the same address and state, which has its own from
// then on.
func (s *nameserver) clone() *nameserver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &nameserver{
		addr: s.addr, backoffMin: s.backoffMin, backoffMax: s.backoffMax, forgetNoEDNS: s.forgetNoEDNS,
		known: s.known, backoff: s.backoff, backoffStart: s.backoffStart, probed: s.probed, noEDNSUntil: s.noEDNSUntil,
	}
}

func (s *nameserver) health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.known
	h.Addr = s.addr
	return h
}

// due says whether the nameserver is failing and whether it is to be asked
// first nonetheless, as its back-off is over. The back-off starts anew with
// that, so that one question gets to hear it; claim false only looks.
func (s *nameserver) due(now time.Time, claim bool) (failing, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known.Failing {
		return false, false
	}
	if !claim || now.Sub(s.backoffStart) < s.backoff {
		return true, false
	}
	s.backoffStart = now
	s.probed = true
	return true, true
}

// asked counts a question and says whether the nameserver was failing then.
func (s *nameserver) asked() (failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Questions++
	return s.known.Failing
}

// headStart is for how long a question waits for this nameserver, which is
// failing, before it asks one that works.
func (s *nameserver) headStart() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.RTT == 0 {
		return 100 * time.Millisecond
	}
	return min(max(4*s.known.RTT, 20*time.Millisecond), 200*time.Millisecond)
}

// answered records an answer. rtt is 0 where it is not known.
func (s *nameserver) answered(now time.Time, rtt time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Failing = false
	s.known.ConsecutiveFailures = 0
	s.known.LastSuccess = now
	s.backoff, s.probed = 0, false
	switch {
	case rtt <= 0:
	case s.known.RTT == 0:
		s.known.RTT = rtt
	default:
		s.known.RTT += (rtt - s.known.RTT) / 8 // RFC 6298 section 2
	}
}

// failed records that the try begun at started failed at now because of err.
func (s *nameserver) failed(now, started time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(now, started, err)
}

// silent records that the try begun at started had no reply until now. Where
// another question was answered meanwhile, that is counted but held against
// the name, not the nameserver.
func (s *nameserver) silent(now, started time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.LastSuccess.After(started) {
		s.known.Failures++
		s.known.LastFailure, s.known.LastError = now, err.Error()
		return
	}
	s.fail(now, started, err)
}

// fail is called with mu held.
func (s *nameserver) fail(now, started time.Time, err error) {
	s.known.Failures++
	s.known.ConsecutiveFailures++
	s.known.LastFailure, s.known.LastError = now, err.Error()
	switch {
	case !s.known.Failing:
		s.known.Failing = true
		s.backoff = s.backoffMin
	case s.probed && !started.Before(s.backoffStart):
		s.backoff = min(2*s.backoff, s.backoffMax)
	default:
		return // many questions at once find the same failure
	}
	s.probed = false
	s.backoffStart = now
}

// edns says whether to ask with EDNS.
func (s *nameserver) edns(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !now.Before(s.noEDNSUntil)
}

// lacksEDNS remembers that the nameserver answers only without EDNS.
func (s *nameserver) lacksEDNS(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noEDNSUntil = now.Add(s.forgetNoEDNS)
}
