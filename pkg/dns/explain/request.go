package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/miekg/dns"

	"kubedns/pkg/dns/federation"
	"kubedns/pkg/dns/qname"
)

// A Request is what is to be explained. ParseRequest makes it.
type Request struct {
	// Asked is the name or address as given.
	Asked string
	// Name is fully qualified where Absolute is set; else a search path
	// completes it. Its case is as given.
	Name     string
	Absolute bool
	Type     uint16
	// Search is the namespace of the pod that asks; "" for none.
	Search string
}

// ParseRequest makes a Request of the parameters name, type and search of a
// query, which may be anything. The error is one line that quotes nothing of
// them. A type that is not given is A, and PTR for an address or its reverse
// name.
func ParseRequest(rawQuery string) (Request, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return Request{}, errors.New("the query is not name=value&name=value with %XX for other characters")
	}
	var values [3]string
	for i, parameter := range []string{"name", "type", "search"} {
		switch given := query[parameter]; {
		case len(given) > 1:
			return Request{}, fmt.Errorf("%s is given %d times", parameter, len(given))
		case len(given) == 1:
			values[i] = given[0]
		}
	}
	return NewRequest(values[0], values[1], values[2])
}

// NewRequest is ParseRequest for values that have been taken apart.
func NewRequest(name, qtype, search string) (Request, error) {
	r := Request{Asked: name, Search: strings.ToLower(search)}
	if name == "" {
		return r, errors.New("no name: say name=web.shop.svc.cluster.local, or an address")
	}
	if err := checkText("name", name); err != nil {
		return r, err
	}
	if err := checkText("type", qtype); err != nil {
		return r, err
	}
	if err := checkText("search", search); err != nil {
		return r, err
	}
	if r.Search != "" && !federation.IsLabel(r.Search) {
		return r, errors.New("search is no namespace: 1 to 63 letters, digits and dashes, neither first nor last a dash")
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		r.Name, r.Absolute = qname.ReverseName(addr.WithZone("").Unmap()), true
	} else if err := r.parseName(name); err != nil {
		return r, err
	}
	return r, r.parseType(qtype)
}

// checkText refuses what is no text, and what has no place in a name.
func checkText(what, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", what)
	}
	for _, c := range s {
		switch {
		case unicode.IsControl(c):
			return fmt.Errorf("%s has a control character, %U", what, c)
		case !unicode.IsPrint(c), unicode.IsSpace(c), strings.ContainsRune("<>&\"'`\\", c):
			return fmt.Errorf("%s has a character that is in no name, %U", what, c)
		}
	}
	return nil
}

// parseName refuses what no DNS message can carry (RFC 1035 section 2.3.4).
func (r *Request) parseName(name string) error {
	r.Name = name
	under, dot := strings.CutSuffix(name, ".")
	r.Absolute = dot || r.Search == ""
	if r.Absolute && !dot {
		r.Name += "."
	}
	if under == "" { // the root
		r.Absolute = true
		return nil
	}
	octets := 1
	for label := range strings.SplitSeq(under, ".") {
		switch {
		case label == "":
			return errors.New("name has an empty label: two dots, or one in front")
		case len(label) > 63:
			return fmt.Errorf("name has a label of %d octets: 63 at most", len(label))
		}
		octets += 1 + len(label)
	}
	if octets > 255 {
		return fmt.Errorf("name has %d octets: 255 at most", octets)
	}
	return nil
}

func (r *Request) parseType(s string) error {
	if s == "" {
		r.Type = dns.TypeA
		if _, err := qname.ParseReverse(qname.Append(nil, strings.ToLower(r.Name))); err == nil {
			r.Type = dns.TypePTR
		}
		return nil
	}
	s = strings.ToUpper(s)
	t, known := dns.StringToType[s]
	if number, ok := strings.CutPrefix(s, "TYPE"); ok && !known { // RFC 3597 section 5
		n, err := strconv.ParseUint(number, 10, 16)
		t, known = uint16(n), err == nil
	}
	if !known || t == dns.TypeNone || t == dns.TypeOPT || t == dns.TypeReserved {
		return errors.New("unknown type: say A, AAAA, SRV, PTR, … or TYPE and its number")
	}
	r.Type = t
	return nil
}

// typeString is the type as it is asked for: "A", "TYPE1234".
func typeString(t uint16) string { return dns.Type(t).String() }
