package cluster

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/miekg/dns"
)

// A Kind is a kind of question.
type Kind string

// The kinds that are asked.
const (
	A           Kind = "a"            // A of a cluster-IP Service
	AAAA        Kind = "aaaa"         // AAAA of one: NODATA
	NXDOMAIN    Kind = "nxdomain"     // what a resolver makes of an external name and its search path
	Headless    Kind = "headless"     // A of a headless Service
	HeadlessBig Kind = "headless-big" // A of the Service Big, EDNS with 1232 octets
	SRV         Kind = "srv"          // _http._tcp of a cluster-IP Service
	SRVHeadless Kind = "srv-headless" // _http._tcp of a headless one, EDNS with 4096 octets
	Mixed       Kind = "mixed"        // see Shares
)

// A Share is a kind's part of the mixed questions, in percent.
type Share struct {
	Kind    Kind
	Percent int
}

// Shares are what mixed questions consist of: pods ask for A and AAAA at once,
// and most of what they ask is a search path's.
func Shares() []Share {
	return []Share{{A, 25}, {AAAA, 20}, {NXDOMAIN, 45}, {Headless, 5}, {SRV, 5}}
}

// Unbounded tells whether the kind's questions are ever new, so that a file of
// them has to be as long as the run that it is for.
func (k Kind) Unbounded() bool { return k == NXDOMAIN || k == Mixed }

// Questions makes one question after another. The same seed gives the same.
type Questions struct {
	c        *Cluster
	rng      *rand.Rand
	seed     uint64
	n        uint64
	clusterI []int // of Services
	headless []int
	pack     []byte
}

// NewQuestions makes the questions about c. NXDOMAIN's names of different
// seeds are different.
func NewQuestions(c *Cluster, seed uint64) *Questions {
	q := &Questions{c: c, rng: rand.New(rand.NewPCG(seed, 53)), seed: seed}
	for i := range c.Services {
		switch s := &c.Services[i]; {
		case !s.Headless():
			q.clusterI = append(q.clusterI, i)
		case s.Name != Big:
			q.headless = append(q.headless, i)
		}
	}
	return q
}

// Next makes a question of kind, whose ID is 0, and says which kind it is if k
// is Mixed.
func (q *Questions) Next(k Kind) (*dns.Msg, Kind) {
	if k == Mixed {
		r := q.rng.IntN(100)
		for _, s := range Shares() {
			if r -= s.Percent; r < 0 {
				k = s.Kind
				break
			}
		}
	}
	m := new(dns.Msg)
	ask := func(name string, qtype uint16, size uint16) {
		m.SetQuestion(name, qtype)
		if size > 0 {
			m.SetEdns0(size, false)
		}
	}
	one := func(list []int) *Service { return &q.c.Services[list[q.rng.IntN(len(list))]] }
	switch k {
	case A:
		ask(one(q.clusterI).DNSName(), dns.TypeA, 0)
	case AAAA:
		ask(one(q.clusterI).DNSName(), dns.TypeAAAA, 0)
	case NXDOMAIN:
		ask(q.externalName(), dns.TypeA, 0)
	case Headless:
		ask(one(q.headless).DNSName(), dns.TypeA, 0)
	case HeadlessBig:
		ask((&Service{Namespace: namespace(0), Name: Big}).DNSName(), dns.TypeA, 1232)
	case SRV:
		ask("_http._tcp."+one(q.clusterI).DNSName(), dns.TypeSRV, 0)
	case SRVHeadless:
		ask("_http._tcp."+one(q.headless).DNSName(), dns.TypeSRV, 4096)
	}
	m.Id = 0
	return m, k
}

// externalName is what a pod's resolver asks, with ndots 5 and the search path
// that kubelet writes, before it asks for the name itself. No two are equal.
func (q *Questions) externalName() string {
	q.n++
	host := fmt.Sprintf("api-%x-%x.example.org.", q.seed, q.n)
	switch q.n % 3 {
	case 0:
		return host + namespace(q.rng.IntN(q.c.Namespaces)) + ".svc." + Zone
	case 1:
		return host + "svc." + Zone
	}
	return host + Zone
}

// Write writes n questions of kind as messages of DNS over TCP are: each with
// its length in two octets before it.
func (q *Questions) Write(w io.Writer, k Kind, n int) error {
	b := bufio.NewWriterSize(w, 1<<20)
	for range n {
		m, _ := q.Next(k)
		msg, err := m.PackBuffer(q.pack)
		if err != nil {
			return fmt.Errorf("packing a question: %w", err)
		}
		q.pack = msg[:cap(msg)]
		var length [2]byte
		binary.BigEndian.PutUint16(length[:], uint16(len(msg)))
		// b keeps its first error.
		_, _ = b.Write(length[:])
		_, _ = b.Write(msg)
	}
	return b.Flush()
}

// Check tells whether reply is right for a question of kind, which is never
// Mixed, that was asked over TCP or not. The records are those that c has.
func (c *Cluster) Check(k Kind, q, reply *dns.Msg, tcp bool) error {
	rcode, answers := dns.RcodeSuccess, 1
	switch k {
	case AAAA:
		answers = 0
	case NXDOMAIN:
		rcode, answers = dns.RcodeNameError, 0
	case Headless, SRVHeadless:
		answers = c.Endpoints
	case HeadlessBig:
		if tcp {
			answers = c.Big
			break
		}
		if !reply.Truncated {
			return fmt.Errorf("%s: not truncated", q.Question[0].Name)
		}
		answers = len(reply.Answer) // as many as fit, or none
	}
	if reply.Rcode != rcode || len(reply.Answer) != answers {
		return fmt.Errorf("%s: %s with %d records, want %s with %d", q.Question[0].String()[1:],
			dns.RcodeToString[reply.Rcode], len(reply.Answer), dns.RcodeToString[rcode], answers)
	}
	if k == A {
		got, ok := reply.Answer[0].(*dns.A)
		if !ok || !c.holds(q.Question[0].Name, got) {
			return fmt.Errorf("%s: wrong address in %v", q.Question[0].Name, reply.Answer[0])
		}
	}
	return nil
}

func (c *Cluster) holds(name string, a *dns.A) bool {
	return slices.ContainsFunc(c.Services, func(s Service) bool {
		return s.DNSName() == name && s.ClusterIP.String() == a.A.String()
	})
}
