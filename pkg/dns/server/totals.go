package server

import dto "github.com/prometheus/client_model/go"

// Totals counts the questions answered since the server was made. Each is in
// Questions, and in one of the other counts at most. A question that is in none of
// those had records in its answer, or an rcode that is not counted by itself
// (FORMERR, NOTIMP).
type Totals struct {
	Questions uint64
	// NXDomain, Refused and ServFail are the rcodes; NoData is NOERROR without
	// an answer, Truncated is a reply that was cut.
	NXDomain, Refused, ServFail, NoData, Truncated uint64
}

// Totals reads the metrics' counters.
func (s *Server) Totals() Totals {
	var t Totals
	m := s.metrics
	for i := range systemNames {
		t.Questions += value(m.requests[i])
		t.NXDomain += value(m.errors[i][causeNXDomain])
		t.Refused += value(m.errors[i][causeRefused])
		t.ServFail += value(m.errors[i][causeServfail])
		t.NoData += value(m.errors[i][causeNodata])
		t.Truncated += value(m.errors[i][causeTruncated]) + value(m.errors[i][causeOverflow])
	}
	return t
}

// value is a counter's value. Prometheus has no other way to read it.
func value(c interface{ Write(*dto.Metric) error }) uint64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0 // a counter's labels are valid, and there is no other error
	}
	return uint64(m.GetCounter().GetValue())
}
