package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

const (
	coreVersion      = "v1"
	discoveryVersion = "discovery.k8s.io/v1"
)

// reader gathers the objects of several files.
type reader struct {
	objects  Objects
	problems []string
	more     int                  // problems without a line, as there are maxProblems
	seen     map[objectKey]string // where each object was found
}

// maxProblems bounds the lines about one reading: a directory of something else
// shall not flood the log.
const maxProblems = 1000

type objectKey struct{ kind, namespace, name string }

func newReader() *reader {
	return &reader{seen: make(map[objectKey]string)}
}

// problem notes one line about the object (which may be "") at where.
func (r *reader) problem(where, object, format string, args ...any) {
	if len(r.problems) == maxProblems {
		r.more++
		return
	}
	if object != "" {
		where += ": " + object
	}
	r.problems = append(r.problems, where+": "+oneLine(fmt.Sprintf(format, args...)))
}

// allProblems returns the lines, with one about those that are left out.
func (r *reader) allProblems() []string {
	if r.more == 0 {
		return r.problems
	}
	return slices.Concat(r.problems, []string{fmt.Sprintf("and %d more", r.more)})
}

// parse adds the objects of a file with the given name, content and
// modification time. It is an error when the content is not YAML or JSON, or
// not of the shape that its kind has; then some objects may have been added.
func (r *reader) parse(file string, data []byte, modified time.Time) error {
	docs, err := documents(file, data)
	if err != nil {
		return err
	}
	for _, doc := range docs {
		if err := r.document(doc, modified); err != nil {
			return fmt.Errorf("%s: %w", doc.where, err)
		}
	}
	return nil
}

// typeMeta is what tells kinds apart.
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func (t typeMeta) String() string { return t.APIVersion + " " + t.Kind }

// isList reports whether t is a kind of list that is read, and of which kind its
// items are: none for List, which has items of any kind.
func (t typeMeta) isList() (items typeMeta, ok bool) {
	switch t {
	case typeMeta{coreVersion, "List"}:
		return typeMeta{}, true
	case typeMeta{coreVersion, "ServiceList"}:
		return typeMeta{coreVersion, "Service"}, true
	case typeMeta{coreVersion, "NodeList"}:
		return typeMeta{coreVersion, "Node"}, true
	case typeMeta{discoveryVersion, "EndpointSliceList"}:
		return typeMeta{discoveryVersion, "EndpointSlice"}, true
	}
	return typeMeta{}, false
}

// document adds the object or the list of objects in doc.
func (r *reader) document(doc document, modified time.Time) error {
	t, err := readTypeMeta(doc.json)
	if err != nil {
		return err
	}
	itemType, isList := t.isList()
	if !isList {
		return r.object(doc.where, doc.json, t, modified)
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc.json, &list); err != nil {
		return fmt.Errorf("%s: %w", t.Kind, err)
	}
	for i, item := range list.Items {
		own, err := readTypeMeta(item)
		if err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
		// The items of a typed list say nothing of their kind when the list
		// comes from an API server.
		if own == (typeMeta{}) {
			own = itemType
		}
		if _, nested := own.isList(); nested {
			r.problem(fmt.Sprintf("%s, item %d", doc.where, i+1), own.Kind, "skipped: a list within a list")
			continue
		}
		if err := r.object(fmt.Sprintf("%s, item %d", doc.where, i+1), item, own, modified); err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
	}
	return nil
}

// readTypeMeta returns the kind of an object. What is no object at all is an
// error: it may be the first half of a file that is being written.
func readTypeMeta(data []byte) (typeMeta, error) {
	var t typeMeta
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return t, errors.New("not an object with apiVersion and kind")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &t); err != nil {
		return t, err
	}
	return t, nil
}

// object adds one object of kind t, or a line on why not.
func (r *reader) object(where string, data []byte, t typeMeta, modified time.Time) error {
	switch t {
	case typeMeta{coreVersion, "Service"}:
		s := new(corev1.Service)
		if err := r.decode(where, data, t, s, &s.ObjectMeta); err != nil {
			return err
		}
		s.TypeMeta = metav1.TypeMeta{Kind: t.Kind, APIVersion: t.APIVersion}
		s.Status = corev1.ServiceStatus{}
		defaultService(s)
		if r.accept(where, s, &s.ObjectMeta, t, modified, true, func() error { return checkService(s) }) {
			r.objects.Services = append(r.objects.Services, s)
		}
	case typeMeta{discoveryVersion, "EndpointSlice"}:
		s := new(discoveryv1.EndpointSlice)
		if err := r.decode(where, data, t, s, &s.ObjectMeta); err != nil {
			return err
		}
		s.TypeMeta = metav1.TypeMeta{Kind: t.Kind, APIVersion: t.APIVersion}
		defaultSlice(s)
		if r.accept(where, s, &s.ObjectMeta, t, modified, true, func() error { return checkSlice(s) }) {
			r.objects.EndpointSlices = append(r.objects.EndpointSlices, s)
		}
	case typeMeta{coreVersion, "Node"}:
		// Only metadata counts, so only metadata has to have its shape.
		var m struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &m); err != nil {
			return fmt.Errorf("%s: %w", t.Kind, err)
		}
		n := &corev1.Node{
			TypeMeta:   metav1.TypeMeta{Kind: t.Kind, APIVersion: t.APIVersion},
			ObjectMeta: m.Metadata,
		}
		if r.accept(where, n, &n.ObjectMeta, t, modified, false, func() error { return checkSubdomain("metadata.name", n.Name) }) {
			r.objects.Nodes = append(r.objects.Nodes, n)
		}
	default:
		r.problem(where, objectName(t.Kind, metadataOf(data)), "skipped: %s", whyNotRead(t))
	}
	return nil
}

// whyNotRead says why an object of kind t is not read.
func whyNotRead(t typeMeta) string {
	switch {
	case t.Kind == "" || t.APIVersion == "":
		return "no apiVersion or no kind"
	case t.Kind == "EndpointSlice" && strings.HasPrefix(t.APIVersion, "discovery.k8s.io/"):
		return fmt.Sprintf("apiVersion %s is not read, only %s", printable(t.APIVersion), discoveryVersion)
	case t == typeMeta{coreVersion, "Endpoints"}, t == typeMeta{coreVersion, "EndpointsList"}:
		return "Endpoints are not read, only EndpointSlices of " + discoveryVersion
	}
	return fmt.Sprintf("%s is not read", printable(t.String()))
}

// decode reads data into the object o, whose metadata is m, and notes fields
// that o does not have.
func (r *reader) decode(where string, data []byte, t typeMeta, o any, m *metav1.ObjectMeta) error {
	ignored, err := kjson.UnmarshalStrict(data, o)
	if err != nil {
		return fmt.Errorf("%s: %w", objectName(t.Kind, metadataOf(data)), err)
	}
	for _, e := range ignored {
		r.problem(where, objectName(t.Kind, *m), "ignored: %v", e)
	}
	return nil
}

// accept completes the metadata m of the object o, after its kind's defaults,
// and checks them, then the rest with check. It reports whether o is valid and
// new, and notes why not.
func (r *reader) accept(where string, o any, m *metav1.ObjectMeta, t typeMeta, modified time.Time, namespaced bool, check func() error) bool {
	*m = metav1.ObjectMeta{
		Name:              m.Name,
		Namespace:         m.Namespace,
		Labels:            m.Labels,
		Annotations:       m.Annotations,
		UID:               m.UID,
		CreationTimestamp: m.CreationTimestamp,
	}
	if !namespaced {
		m.Namespace = ""
	} else if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
	if m.CreationTimestamp.IsZero() {
		m.CreationTimestamp = metav1.Unix(modified.Unix(), 0) // whole seconds, as in an API server
	}
	object := objectName(t.Kind, *m)
	err := checkMeta(m, namespaced)
	if err == nil {
		err = check()
	}
	if err != nil {
		r.problem(where, object, "skipped: %v", err)
		return false
	}
	key := objectKey{t.Kind, m.Namespace, m.Name}
	if first, ok := r.seen[key]; ok {
		r.problem(where, object, "skipped: already in %s", first)
		return false
	}
	version, err := contentVersion(o)
	if err != nil {
		r.problem(where, object, "skipped: %v", err)
		return false
	}
	m.ResourceVersion = version
	r.seen[key] = where
	return true
}

// contentVersion returns a resourceVersion for o, which has none yet: equal for
// equal content, a decimal number as in an API server, never 0, which there
// means any version.
func contentVersion(o any) (string, error) {
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(o); err != nil {
		return "", err
	}
	return strconv.FormatUint(max(h.Sum64(), 1), 10), nil
}

// metadataOf returns the metadata of an object of any kind, as far as they can
// be read: for messages.
func metadataOf(data []byte) metav1.ObjectMeta {
	var o struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &o); err != nil {
		return metav1.ObjectMeta{}
	}
	return metav1.ObjectMeta{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
}

// objectName names an object in messages: "Service default/web".
func objectName(kind string, m metav1.ObjectMeta) string {
	name := m.Name
	if name == "" {
		name = "(no name)"
	}
	if m.Namespace != "" {
		name = m.Namespace + "/" + name
	}
	if kind == "" {
		kind = "object"
	}
	return printable(kind + " " + name)
}

// printable returns s, quoted where it has what does not belong in a log, and
// cut where it is too long for a line.
func printable(s string) string {
	const limit = 160
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	if q := strconv.QuoteToASCII(s); q != `"`+s+`"` {
		return q
	}
	return s
}
