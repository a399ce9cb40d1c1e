package server

import (
	"bytes"
	"context"
)

// Way is how a question is answered.
type Way string

// Each question is answered in one way.
const (
	// WayNone is a message whose name does not matter: it is malformed, has
	// another class or opcode, or asks for a zone transfer.
	WayNone Way = "none"
	// WayIncomplete is REFUSED because the records are not complete.
	WayIncomplete Way = "incomplete"
	// WayTree is a name of the zone, answered from the tree.
	WayTree Way = "tree"
	// WayReverse is a reverse name that the tree holds.
	WayReverse Way = "reverse"
	// WayWildcard is a name with an asterisk.
	WayWildcard Way = "wildcard"
	// WayExternal is a Service's external name, which is followed.
	WayExternal Way = "external"
	// WayFederation is a federated Service's name, which is followed.
	WayFederation Way = "federation"
	// WayForward is a name that the upstream nameservers answer.
	WayForward Way = "forward"
)

// Inspection is how the server answers a message now.
type Inspection struct {
	Way Way
	// Reply is what a client would get, in wire form; nil for nothing.
	Reply []byte
}

// Inspect answers msg as if it had come over UDP or TCP, with the same code, and
// leaves no trace: it counts in no metric and no bound, and not as a last
// question. Upstream queries go through f. Inspect returns when the answer is
// there or ctx is done.
func (s *Server) Inspect(ctx context.Context, f Forwarder, msg []byte, tcp bool) Inspection {
	// A copy: what answers a question answers it here too. Only what leaves a
	// trace is replaced.
	a := s.answerer
	a.forwarder, a.metrics, a.wildcards = f, s.inspectMetrics, s.inspectWildcards
	w := a.newWorker()
	later := make(chan []byte, 1)
	reply := w.handle(ctx, msg, nil, tcp, func() respond {
		return func(b []byte) { later <- bytes.Clone(b) }
	})
	w.async.Wait()
	select {
	case reply = <-later:
	default:
	}
	return Inspection{Way: w.took(), Reply: reply}
}

// took is the way in which the worker's last question was answered.
func (w *worker) took() Way {
	if w.incomplete {
		return WayIncomplete
	}
	if !w.decided {
		return WayNone
	}
	switch w.route {
	case routeWildcard:
		return WayWildcard
	case routeExternal:
		return WayExternal
	case routeFederation:
		return WayFederation
	case routeForward:
		return WayForward
	}
	if w.sys == systemReverse {
		return WayReverse
	}
	return WayTree
}
