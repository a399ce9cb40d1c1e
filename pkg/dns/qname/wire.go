package qname

import "strings"

// maxOctets is how long a name may be in wire form, with the root's octet, and
// maxLabel how long a label may be (RFC 1035 section 2.3.4).
const (
	maxOctets = 255
	maxLabel  = 63
)

// Wire is a name in wire form (RFC 1035 section 3.1) and lower case, and where
// its labels begin. The zero value has no name; Read and SetText replace the
// name that it has. It is not safe for concurrent use.
type Wire struct {
	octets [maxOctets]byte
	size   int                        // of octets, the root's included; 0 for no name
	starts [(maxOctets + 1) / 2]uint8 // of each label, from the left
	labels int
}

// Reset takes the name away.
func (w *Wire) Reset() { w.size, w.labels = 0, 0 }

// Read takes the uncompressed name that begins at msg[at] and returns where it
// ends. Where there is no such name ok is false, and w has none.
func (w *Wire) Read(msg []byte, at int) (end int, ok bool) {
	w.Reset()
	n := 0
	for {
		if at >= len(msg) {
			w.Reset()
			return 0, false
		}
		length := int(msg[at])
		if length > maxLabel || at+1+length > len(msg) || n+1+length > len(w.octets) {
			w.Reset()
			return 0, false
		}
		w.octets[n] = byte(length)
		if length == 0 {
			w.size = n + 1
			return at + 1, true
		}
		w.starts[w.labels] = uint8(n)
		w.labels++
		label := w.octets[n+1 : n+1+length]
		for i, c := range msg[at+1 : at+1+length] {
			label[i] = lower(c)
		}
		at += 1 + length
		n += 1 + length
	}
}

// SetText takes a fully qualified name in presentation form, "web.default.",
// with the escapes of RFC 1035 section 5.1. It returns false, and w has no
// name, where no message can carry the name or its last dot is missing.
func (w *Wire) SetText(name string) bool {
	w.Reset()
	if name == "." {
		w.octets[0], w.size = 0, 1
		return true
	}
	n := 0
	for at := 0; at < len(name); {
		start := n
		n++ // for the length
		for {
			if at == len(name) {
				w.Reset() // no dot at the end
				return false
			}
			c := name[at]
			at++
			if c == '.' {
				break
			}
			if c == '\\' {
				var width int
				if c, width = unescape(name[at:]); width == 0 {
					w.Reset()
					return false
				}
				at += width
			}
			// One octet stays free for the root.
			if n >= maxOctets-1 {
				w.Reset()
				return false
			}
			w.octets[n] = lower(c)
			n++
		}
		length := n - start - 1
		if length == 0 || length > maxLabel {
			w.Reset()
			return false
		}
		w.octets[start] = byte(length)
		w.starts[w.labels] = uint8(start)
		w.labels++
	}
	if n == 0 {
		return false
	}
	w.octets[n], w.size = 0, n+1
	return true
}

// unescape reads what follows a backslash: three decimal digits, or the
// character itself. width is 0 where neither is there.
func unescape(s string) (c byte, width int) {
	if s == "" {
		return 0, 0
	}
	if s[0] < '0' || s[0] > '9' {
		return s[0], 1
	}
	if len(s) < 3 {
		return 0, 0
	}
	v := 0
	for i := range 3 {
		if s[i] < '0' || s[i] > '9' {
			return 0, 0
		}
		v = v*10 + int(s[i]-'0')
	}
	if v > 255 {
		return 0, 0
	}
	return byte(v), 3
}

// lower is c in lower case where it is an ASCII letter (RFC 4343).
func lower(c byte) byte {
	if c-'A' < 26 {
		c |= 0x20
	}
	return c
}

// Octets is the name in wire form, nil where there is none. It is valid until
// w is changed, and so is what the methods below return.
func (w *Wire) Octets() []byte { return w.octets[:w.size] }

// Labels is the number of labels; the root has none.
func (w *Wire) Labels() int { return w.labels }

// Label is the i-th label from the left.
func (w *Wire) Label(i int) []byte {
	at := int(w.starts[i])
	return w.octets[at+1 : at+1+int(w.octets[at])]
}

// Offset is where the i-th label from the left begins in Octets, its length
// first. The label behind the last is the root.
func (w *Wire) Offset(i int) int {
	if i == w.labels {
		return w.size - 1
	}
	return int(w.starts[i])
}

// Strings has the first n labels from the left. It allocates.
func (w *Wire) Strings(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = string(w.Label(i))
	}
	return s
}

// Append appends a name in presentation form to b in wire form. It takes the
// labels as they are: without escapes, and of any case and length.
func Append(b []byte, name string) []byte {
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" {
			continue
		}
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	return append(b, 0)
}
