// Package cluster makes the cluster that is measured, as Kubernetes objects
// and as a zone file, and the questions that are asked about it. The same
// shape and seed always give the same.
package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Zone is the cluster domain.
const Zone = "cluster.local."

// SliceSize is how many endpoints an EndpointSlice has at most: what the
// controller that writes them in a real cluster does by default.
const SliceSize = 100

// Big is the Service that Shape.Big gives endpoints to; it is in namespace
// ns-00.
const Big = "big"

// A Shape says how large a cluster is.
type Shape struct {
	Namespaces int `json:"namespaces"`
	ClusterIP  int `json:"clusterIPServices"`
	Headless   int `json:"headlessServices"`
	Endpoints  int `json:"endpointsEach"` // of each headless Service
	Big        int `json:"big,omitempty"` // endpoints of one more headless Service; 0: there is none
}

// Small and Large are the two clusters that are measured.
var (
	Small = Shape{Namespaces: 50, ClusterIP: 5000, Headless: 500, Endpoints: 20}
	Large = Shape{Namespaces: 50, ClusterIP: 9000, Headless: 1000, Endpoints: 100}
)

// Services is how many there are.
func (s Shape) Services() int {
	n := s.ClusterIP + s.Headless
	if s.Big > 0 {
		n++
	}
	return n
}

// Slices is how many EndpointSlices there are.
func (s Shape) Slices() int {
	return s.Headless*sliceCount(s.Endpoints) + sliceCount(s.Big)
}

func sliceCount(endpoints int) int { return (endpoints + SliceSize - 1) / SliceSize }

// String is the shape in words.
func (s Shape) String() string {
	return fmt.Sprintf("%d cluster-IP Services with two ports and %d headless ones with %d endpoints each", s.ClusterIP, s.Headless, s.Endpoints)
}

// layout changes when the objects made of a Shape do.
const layout = "1"

// Hash names the objects of the shape, for a cache.
func (s Shape) Hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %+v", layout, s))
	return hex.EncodeToString(sum[:6])
}

// A Cluster is what a Shape is made into. Nobody changes it.
type Cluster struct {
	Shape
	Services []Service
}

// A Service is one of the cluster's.
type Service struct {
	Namespace, Name string
	ClusterIP       netip.Addr // the zero Addr: headless
	Endpoints       []Endpoint // of a headless Service
}

// An Endpoint is one of a Service's.
type Endpoint struct {
	Addr     netip.Addr
	Hostname string // "" in every other headless Service, as of a Deployment
}

// Port is one of the two that every Service has.
type Port struct {
	Name   string
	Number int32
}

// Ports are every Service's.
func Ports() []Port { return []Port{{"http", 80}, {"metrics", 9090}} }

// Headless reports whether the Service has no cluster IP.
func (s *Service) Headless() bool { return !s.ClusterIP.IsValid() }

// DNSName is the Service's, with the dot at the end.
func (s *Service) DNSName() string { return s.Name + "." + s.Namespace + ".svc." + Zone }

// New makes the cluster of a shape.
func New(shape Shape) *Cluster {
	c := &Cluster{Shape: shape}
	clusterIP := netip.AddrFrom4([4]byte{10, 100, 0, 0}) // within 10.96.0.0/12
	pod := netip.AddrFrom4([4]byte{172, 16, 0, 0})
	endpoints := func(service string, n int, named bool) []Endpoint {
		list := make([]Endpoint, n)
		for i := range list {
			pod = pod.Next()
			list[i].Addr = pod
			if named {
				list[i].Hostname = service + "-" + strconv.Itoa(i)
			}
		}
		return list
	}
	for i := range shape.ClusterIP {
		clusterIP = clusterIP.Next()
		c.Services = append(c.Services, Service{Namespace: namespace(i % shape.Namespaces), Name: fmt.Sprintf("app-%04d", i), ClusterIP: clusterIP})
	}
	for i := range shape.Headless {
		name := fmt.Sprintf("db-%04d", i)
		c.Services = append(c.Services, Service{
			Namespace: namespace(i % shape.Namespaces), Name: name,
			Endpoints: endpoints(name, shape.Endpoints, i%2 == 0),
		})
	}
	if shape.Big > 0 {
		c.Services = append(c.Services, Service{Namespace: namespace(0), Name: Big, Endpoints: endpoints(Big, shape.Big, false)})
	}
	return c
}

func namespace(i int) string { return fmt.Sprintf("ns-%02d", i) }

// NamespaceNames are the cluster's.
func (c *Cluster) NamespaceNames() []string {
	names := make([]string, c.Namespaces)
	for i := range names {
		names[i] = namespace(i)
	}
	return names
}

// Object is the Service as Kubernetes has it.
func (s *Service) Object() *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name,
			Labels: map[string]string{
				"app.kubernetes.io/name": s.Name, "app.kubernetes.io/part-of": s.Namespace, "app.kubernetes.io/managed-by": "Helm",
			},
			Annotations: map[string]string{"meta.helm.sh/release-name": s.Name, "meta.helm.sh/release-namespace": s.Namespace},
		},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: corev1.ClusterIPNone,
			Selector:  map[string]string{"app.kubernetes.io/name": s.Name},
		},
	}
	if !s.Headless() {
		o.Spec.ClusterIP = s.ClusterIP.String()
	}
	for _, p := range Ports() {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Number, Protocol: corev1.ProtocolTCP})
	}
	return o
}

// SliceObjects are the Service's EndpointSlices as Kubernetes has them.
func (s *Service) SliceObjects() []*discoveryv1.EndpointSlice {
	var list []*discoveryv1.EndpointSlice
	for from := 0; from < len(s.Endpoints); from += SliceSize {
		o := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: fmt.Sprintf("%s-%03d", s.Name, from/SliceSize),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: s.Name,
					discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
					corev1.IsHeadlessService:     "",
					"app.kubernetes.io/name":     s.Name,
				},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Service", Name: s.Name, UID: uid("service", s.Namespace, s.Name),
				}},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for _, p := range Ports() {
			protocol := corev1.ProtocolTCP
			o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Number, Protocol: &protocol})
		}
		for i, e := range s.Endpoints[from:min(from+SliceSize, len(s.Endpoints))] {
			yes, no := true, false
			node := fmt.Sprintf("node-%02d", (from+i)%40)
			pod := fmt.Sprintf("%s-%d", s.Name, from+i)
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{e.Addr.String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
				NodeName:   &node,
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: pod, UID: uid("pod", s.Namespace, pod)},
			})
			if e.Hostname != "" {
				o.Endpoints[i].Hostname = &e.Hostname
			}
		}
		list = append(list, o)
	}
	return list
}

// NamespaceObject is a namespace as Kubernetes has it.
func NamespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// uid looks like a UUID and is the same for the same words.
func uid(words ...string) types.UID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", words))
	x := hex.EncodeToString(sum[:16])
	return types.UID(x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:])
}

// Stamp gives an object what the API server would: a UID, the time it was made
// and a resource version.
func Stamp(o metav1.Object, kind string, version uint64) {
	o.SetUID(uid(kind, o.GetNamespace(), o.GetName()))
	o.SetCreationTimestamp(metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	o.SetResourceVersion(strconv.FormatUint(version, 10))
}
