package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Grace is how long after a write what it replaced may be answered.
	Grace = time.Second
	// Relist is how long after the first list, or the opening of a watch, that
	// follows an outage what was replaced during the outage may be answered.
	Relist = 2 * time.Second
	// MaxExcuse is the most that waiting for a processor may add to either.
	MaxExcuse = 1500 * time.Millisecond
)

// A Resource is a kind of object that is watched by itself: "services".
type Resource string

// What kube-dns watches.
const (
	Services   Resource = "services"
	Slices     Resource = "endpointslices"
	ConfigMaps Resource = "configmaps"
)

// Resources are all of them.
var Resources = []Resource{Services, Slices, ConfigMaps}

// A Key names an object.
type Key struct {
	Resource        Resource
	Namespace, Name string

	// of is the Service that a slice is read for: one that belongs to another
	// is as good as none.
	of string
}

// String is "services ns/name".
func (k Key) String() string { return fmt.Sprintf("%s %s/%s", k.Resource, k.Namespace, k.Name) }

// version is one state of an object.
type version struct {
	value    any       // nil where it was absent; nobody changes it
	content  string    // see content
	from     time.Time // when the write call was begun
	replaced time.Time // when the write call that replaced it returned; zero before
}

// outage is a time in which kube-dns did not hear of a resource.
type outage struct {
	from, until time.Time // until is zero while it lasts
}

// History has the versions of every object. Its methods are safe for
// concurrent use, but one object is written after the other.
type History struct {
	// Excuse is how long the programs waited for a processor between two
	// moments; nil for never.
	Excuse func(from, to time.Time) time.Duration

	mu      sync.Mutex
	objects map[Key][]version
	writing time.Time     // when the write call under way was begun; zero for none
	settled chan struct{} // closed when that ends
	outages map[Resource][]outage
}

// NewHistory is that of a cluster without objects.
func NewHistory() *History {
	return &History{objects: map[Key][]version{}, outages: map[Resource][]outage{}}
}

// Write calls write, a write call to the API, and notes the value that it
// returns as the object's: nil where it is gone. An error of write means that
// nothing has changed.
func (h *History) Write(k Key, write func() (any, error)) error {
	h.mu.Lock()
	begun := time.Now()
	h.writing, h.settled = begun, make(chan struct{})
	h.mu.Unlock()

	value, err := write()

	h.mu.Lock()
	defer h.mu.Unlock()
	returned := time.Now()
	h.writing = time.Time{}
	close(h.settled)
	if err != nil {
		return err
	}
	h.note(k, value, begun, returned)
	return nil
}

func (h *History) note(k Key, value any, begun, returned time.Time) {
	all := h.objects[k]
	if n := len(all); n > 0 {
		all[n-1].replaced = returned
	} else {
		// Before it was ever written it was absent.
		all = append(all, version{content: content(nil), replaced: returned})
	}
	h.objects[k] = append(all, version{value: value, content: content(value), from: begun})
}

// Settle waits until every write call that was begun before t has returned.
func (h *History) Settle(ctx context.Context, t time.Time) error {
	for {
		h.mu.Lock()
		writing, settled := h.writing, h.settled
		h.mu.Unlock()
		if writing.IsZero() || writing.After(t) {
			return nil
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Now is the object's last version, nil where it is absent.
func (h *History) Now(k Key) any {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.objects[k]; len(all) > 0 {
		return all[len(all)-1].value
	}
	return nil
}

// Cut notes that kube-dns does not hear of the resource from t on. One that
// is cut off already stays so from then.
func (h *History) Cut(r Resource, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.outages[r]
	if n := len(all); n > 0 && all[n-1].until.IsZero() {
		return
	}
	h.outages[r] = append(all, outage{from: t})
}

// Heard notes that the API server told kube-dns of the resource at t.
func (h *History) Heard(r Resource, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.outages[r]
	if n := len(all); n > 0 && all[n-1].until.IsZero() {
		all[n-1].until = t.Add(Relist)
	}
}

// CutSince is when the outage of the resource began that still lasts; zero
// where none does.
func (h *History) CutSince(r Resource) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.outages[r]; len(all) > 0 && all[len(all)-1].until.IsZero() {
		return all[len(all)-1].from
	}
	return time.Time{}
}

// rule says for how long what was replaced is answerable.
type rule struct {
	grace   time.Duration // after the write
	outages bool          // and through outages
	excuse  bool          // and as long as processors were waited for
}

// rules are from the strictest, that the answer is that of the moment, to what
// is promised.
var rules = []rule{
	{},
	{grace: 10 * time.Millisecond},
	{grace: 30 * time.Millisecond},
	{grace: 100 * time.Millisecond},
	{grace: 300 * time.Millisecond},
	{grace: Grace},
	{grace: Grace, outages: true},
	{grace: Grace, outages: true, excuse: true},
}

// String says the rule for people.
func (r rule) String() string {
	switch {
	case r.excuse:
		return "more, excused by waiting for a processor"
	case r.outages:
		return "from before or in an outage"
	case r.grace == 0:
		return "of the moment"
	}
	return fmt.Sprintf("up to %v old", r.grace)
}

// answerableUntil is the last moment that the rule allows for a version of r
// that was replaced then, to a question that was asked at asked.
func (h *History) answerableUntil(r Resource, replaced, asked time.Time, by rule) time.Time {
	until := h.excused(replaced, replaced.Add(by.grace), by)
	if by.outages {
		for _, o := range h.outages[r] {
			switch {
			case o.from.After(until):
				// Outages are in order, and this one found it too old.
			case o.until.IsZero():
				return asked
			case o.until.After(until):
				until = h.excused(o.until.Add(-Relist), o.until, by)
			}
		}
	}
	return until
}

// excused is until, or as much later as the programs waited for a processor from
// the moment from on.
func (h *History) excused(from, until time.Time, by rule) time.Time {
	if !by.excuse || h.Excuse == nil {
		return until
	}
	return until.Add(min(h.Excuse(from, until.Add(MaxExcuse)), MaxExcuse))
}

// versions are the values that the object may be answered with in [asked,
// answered], the newest first, each that differs once. Where k is a slice read
// for a Service, one that belongs to another is nil.
func (h *History) versions(k Key, asked, answered time.Time, by rule) []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	whole := k
	whole.of = ""
	all := h.objects[whole]
	if len(all) == 0 {
		return []any{nil}
	}
	var values []any
	seen := make([]string, 0, 8) // there are few
	for i := len(all) - 1; i >= 0; i-- {
		v := &all[i]
		if v.from.After(answered) {
			continue
		}
		if !v.replaced.IsZero() && h.answerableUntil(k.Resource, v.replaced, asked, by).Before(asked) {
			break // the older ones were replaced before
		}
		value, what := v.value, v.content
		if k.of != "" && !belongs(value, k.of) {
			value, what = nil, all[0].content
		}
		if !slices.Contains(seen, what) {
			seen = append(seen, what)
			values = append(values, value)
		}
	}
	return values
}

// keys are those of all objects ever written.
func (h *History) keys(r Resource) []Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	var keys []Key
	for k := range h.objects {
		if k.Resource == r {
			keys = append(keys, k)
		}
	}
	return keys
}

// Describe is the object's history near the moment at, for people.
func (h *History) Describe(k Key, at time.Time, show func(any) string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	const before, after = 15 * time.Second, 3 * time.Second
	var b strings.Builder
	fmt.Fprintf(&b, "  %v\n", k)
	for _, v := range h.objects[k] {
		if !v.replaced.IsZero() && v.replaced.Before(at.Add(-before)) || v.from.After(at.Add(after)) {
			continue
		}
		from, replaced := "ever", "now"
		if !v.from.IsZero() {
			from = fmt.Sprintf("%+.3fs", v.from.Sub(at).Seconds())
		}
		if !v.replaced.IsZero() {
			replaced = fmt.Sprintf("%+.3fs", v.replaced.Sub(at).Seconds())
		}
		value := "absent"
		if v.value != nil {
			value = show(v.value)
		}
		fmt.Fprintf(&b, "    from %s to %s: %s\n", from, replaced, value)
	}
	for _, o := range h.outages[k.Resource] {
		until := "now"
		if !o.until.IsZero() {
			if o.until.Before(at.Add(-before)) {
				continue
			}
			until = fmt.Sprintf("%+.3fs", o.until.Sub(at).Seconds())
		}
		fmt.Fprintf(&b, "    outage from %+.3fs, answerable until %s\n", o.from.Sub(at).Seconds(), until)
	}
	return b.String()
}

// A window gives the versions of objects for one question under one rule.
type window struct {
	history         *History
	asked, answered time.Time
	rule            rule
	cache           map[Key][]any
	slices          map[Key][]Key // by Service
	// reduce reports whether a version of a slice can be part of the answer, and
	// in what it differs from others; nil for all.
	reduce func(k Key, v any) (what string, possible bool)
}

func newWindow(h *History, asked, answered time.Time, by rule) *window {
	return &window{history: h, asked: asked, answered: answered, rule: by, cache: map[Key][]any{}, slices: map[Key][]Key{}}
}

func (w *window) versions(k Key) []any {
	if all, ok := w.cache[k]; ok {
		return all
	}
	all := w.history.versions(k, w.asked, w.answered, w.rule)
	if k.of != "" && len(all) > 1 && w.reduce != nil {
		all = w.reduced(k, all)
	}
	w.cache[k] = all
	return all
}

// reduced leaves away what cannot be part of the answer, and of those that make
// no difference to it all but one. One at least is left.
func (w *window) reduced(k Key, all []any) []any {
	var left []any
	seen := map[string]bool{}
	for _, v := range all {
		if what, possible := w.reduce(k, v); possible && !seen[what] {
			seen[what] = true
			left = append(left, v)
		}
	}
	if len(left) == 0 {
		return all[:1]
	}
	return left
}

// each calls f once for each choice of versions of the objects that f reads
// with get, until f returns false or it was called limit times. It tells
// whether there was no choice left. f must read the same objects in the same
// order where the versions are the same.
func (w *window) each(limit int, f func(get func(Key) any) bool) bool {
	type step struct {
		key Key
		at  int
	}
	var path []step
	for range limit {
		next, chosen := 0, map[Key]any{}
		get := func(k Key) any {
			if v, ok := chosen[k]; ok {
				return v
			}
			if next == len(path) {
				path = append(path, step{key: k})
			}
			v := w.versions(k)[path[next].at]
			next++
			chosen[k] = v
			return v
		}
		if !f(get) {
			return true
		}
		path = path[:next]
		for len(path) > 0 {
			last := &path[len(path)-1]
			if last.at++; last.at < len(w.versions(last.key)) {
				break
			}
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			return true
		}
	}
	return false
}
