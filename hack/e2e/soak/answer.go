package soak

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// An Answer is what a reply says, in a form to compare.
type Answer struct {
	Rcode         int
	Authoritative bool
	// Records are "name TYPE rdata" in lower case, sorted, each once; of an SRV
	// record's weight, whose share depends on the others, nothing. Those of
	// the additional section, but for OPT, have "+ " before them.
	Records []string
}

// String is the answer in one line.
func (a Answer) String() string {
	flag := ""
	if a.Authoritative {
		flag = " aa"
	}
	return fmt.Sprintf("%s%s [%s]", dns.RcodeToString[a.Rcode], flag, strings.Join(a.Records, ", "))
}

func (a Answer) equal(b Answer) bool {
	return a.Rcode == b.Rcode && a.Authoritative == b.Authoritative && slices.Equal(a.Records, b.Records)
}

// Read makes an Answer of a reply. It is an error where the reply has what no
// reply of kube-dns may have: another question, TC, a TTL that is not the
// zone's on a record of the zone, a negative answer without the zone's SOA
// record.
func Read(zone string, q dns.Question, m *dns.Msg) (Answer, error) {
	if len(m.Question) != 1 || m.Question[0] != q {
		return Answer{}, fmt.Errorf("the question comes back as %v", m.Question)
	}
	if m.Truncated {
		return Answer{}, fmt.Errorf("TC is set")
	}
	a := Answer{Rcode: m.Rcode, Authoritative: m.Authoritative}
	for _, rr := range m.Answer {
		line, err := readRecord(zone, rr)
		if err != nil {
			return Answer{}, err
		}
		a.Records = append(a.Records, line)
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			continue
		}
		line, err := readRecord(zone, rr)
		if err != nil {
			return Answer{}, err
		}
		a.Records = append(a.Records, "+ "+line)
	}
	n := len(a.Records)
	slices.Sort(a.Records)
	if a.Records = slices.Compact(a.Records); len(a.Records) != n {
		return Answer{}, fmt.Errorf("a record stands there twice")
	}
	negative := len(m.Answer) == 0 && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError)
	if negative && m.Authoritative {
		if len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || m.Ns[0].Header().Name != zone {
			return Answer{}, fmt.Errorf("a negative answer has the authority section %v, want the zone's SOA record", m.Ns)
		}
	}
	return a, nil
}

// ttl is the zone's, in seconds.
const ttl = 30

func readRecord(zone string, rr dns.RR) (string, error) {
	h := rr.Header()
	name := strings.ToLower(h.Name)
	inZone := strings.HasSuffix(name, "."+zone) || strings.HasSuffix(name, ".arpa.")
	if inZone && h.Ttl != ttl {
		return "", fmt.Errorf("%s has the TTL %d, want %d", name, h.Ttl, ttl)
	}
	var data string
	switch r := rr.(type) {
	case *dns.A:
		data = r.A.String()
	case *dns.AAAA:
		data = r.AAAA.String()
	case *dns.CNAME:
		data = r.Target
	case *dns.PTR:
		data = r.Ptr
	case *dns.SRV:
		if r.Priority != 10 || r.Weight == 0 {
			return "", fmt.Errorf("%v: want priority 10 and a weight", rr)
		}
		data = fmt.Sprintf("%d %s", r.Port, r.Target)
	default:
		return "", fmt.Errorf("an unexpected record: %v", rr)
	}
	return record(name, h.Rrtype, data), nil
}

func record(name string, rrtype uint16, data string) string {
	return name + " " + dns.TypeToString[rrtype] + " " + strings.ToLower(data)
}
