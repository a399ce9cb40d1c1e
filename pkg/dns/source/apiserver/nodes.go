package apiserver

import (
	"context"
	"sync"

	"kubedns/pkg/dns/objects"
)

// nodes are the Nodes, which are watched only while the topology is needed.
type nodes struct {
	changed chan struct{} // wakes watchNodes; one token

	mu     sync.Mutex
	needed bool
	store  *store[*objects.Node] // nil while not needed
}

// NeedTopology implements source.Source.
func (s *Source) NeedTopology(needed bool) {
	s.nodes.mu.Lock()
	s.nodes.needed = needed
	s.nodes.mu.Unlock()
	select {
	case s.nodes.changed <- struct{}{}:
	default:
	}
}

// Topology implements source.Source.
func (s *Source) Topology() (topologyZone, region string) {
	s.nodes.mu.Lock()
	nodes := s.nodes.store
	s.nodes.mu.Unlock()
	if nodes == nil {
		return "", ""
	}
	return objects.Topology(nodes.all())
}

// watchNodes watches the Nodes while the topology is needed.
func (s *Source) watchNodes(ctx context.Context) {
	var (
		wg   sync.WaitGroup
		stop context.CancelFunc
	)
	defer wg.Wait()
	for {
		s.nodes.mu.Lock()
		needed := s.nodes.needed
		s.nodes.mu.Unlock()
		switch {
		case needed && stop == nil:
			nodes := newStore(func(_, _ *objects.Node, _ bool) {}, nil)
			var nodesCtx context.Context
			nodesCtx, stop = context.WithCancel(ctx)
			s.setNodes(nodes)
			wg.Go(func() { follow(nodesCtx, s, s.core, objects.Nodes(), nodes) })
		case !needed && stop != nil:
			s.setNodes(nil)
			stop()
			stop = nil
		}
		select {
		case <-s.nodes.changed:
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return
		}
	}
}

func (s *Source) setNodes(k *store[*objects.Node]) {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	s.nodes.store = k
}
