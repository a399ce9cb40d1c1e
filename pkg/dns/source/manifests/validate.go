package manifests

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What an API server refuses, as far as it is about names, addresses and ports:
// what records are made of. Everything else is let pass.

// Bounds of an EndpointSlice: the API's own.
const (
	maxEndpoints         = 1000
	maxEndpointAddresses = 100
	maxSlicePorts        = 20000
)

// defaultService does what an API server does to a new Service.
func defaultService(s *corev1.Service) {
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Protocol == "" {
			s.Spec.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	switch {
	case len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "":
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	case len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIP == "":
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
}

// defaultSlice does what an API server does to a new EndpointSlice.
func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		if s.Ports[i].Name == nil {
			s.Ports[i].Name = new("")
		}
		if s.Ports[i].Protocol == nil {
			s.Ports[i].Protocol = new(corev1.ProtocolTCP)
		}
	}
}

// checkMeta checks what all kinds have.
func checkMeta(m *metav1.ObjectMeta, namespaced bool) error {
	if m.Name == "" {
		return errors.New("no metadata.name")
	}
	if namespaced {
		if err := checkLabel("metadata.namespace", m.Namespace); err != nil {
			return err
		}
	}
	// A time zone can lead out of the years that RFC 3339 can write.
	if year := m.CreationTimestamp.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("metadata.creationTimestamp: year %d", year)
	}
	return nil
}

// checkService checks a Service that has its defaults.
func checkService(s *corev1.Service) error {
	// An API server asks for an RFC 1035 label here, which begins with a
	// letter, unless RelaxedServiceNameValidation lets it begin with a digit.
	if err := checkLabel("metadata.name", s.Name); err != nil {
		return err
	}
	if err := checkServicePorts(s.Spec.Ports); err != nil {
		return err
	}
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return checkClusterIPs(&s.Spec)
	case corev1.ServiceTypeExternalName:
		if len(s.Spec.ClusterIPs) > 0 {
			return errors.New("spec.clusterIP: not for type ExternalName")
		}
		// The name may end in a dot.
		return checkSubdomain("spec.externalName", strings.TrimSuffix(s.Spec.ExternalName, "."))
	}
	return fmt.Errorf("spec.type: %s is not a type of Service", printable(string(s.Spec.Type)))
}

// checkClusterIPs checks the cluster IPs of a Service that is not of type
// ExternalName: "None", or one or two addresses of different families.
func checkClusterIPs(spec *corev1.ServiceSpec) error {
	ips := spec.ClusterIPs
	if len(ips) == 0 {
		return errors.New("no spec.clusterIP, and no API server here to allocate one (None makes it headless)")
	}
	if ips[0] != spec.ClusterIP {
		return errors.New("spec.clusterIP: not the first of spec.clusterIPs")
	}
	if ips[0] == corev1.ClusterIPNone {
		if len(ips) > 1 {
			return errors.New("spec.clusterIPs: None and others")
		}
		return nil
	}
	if len(ips) > 2 {
		return errors.New("spec.clusterIPs: more than two")
	}
	var families []corev1.IPFamily
	for _, ip := range ips {
		addr, err := parseIP(ip)
		if err != nil {
			return fmt.Errorf("spec.clusterIPs: %w", err)
		}
		if addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
			return fmt.Errorf("spec.clusterIPs: %s cannot be a cluster IP", addr)
		}
		family := corev1.IPv4Protocol
		if addr.Is6() {
			family = corev1.IPv6Protocol
		}
		families = append(families, family)
	}
	if len(families) == 2 && families[0] == families[1] {
		return fmt.Errorf("spec.clusterIPs: two of family %s", families[0])
	}
	for i, family := range spec.IPFamilies {
		if i >= len(families) || family != families[i] {
			return errors.New("spec.ipFamilies: not those of spec.clusterIPs")
		}
	}
	return nil
}

// checkServicePorts checks the ports of a Service.
func checkServicePorts(ports []corev1.ServicePort) error {
	seen := make(map[string]bool, len(ports))
	for i, p := range ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		if p.Name == "" && len(ports) > 1 {
			return fmt.Errorf("%s.name: required where there are several ports", field)
		}
		if err := checkPort(field, p.Name, p.Protocol, p.Port); err != nil {
			return err
		}
		if seen[p.Name] {
			return fmt.Errorf("%s.name: %s comes twice", field, p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// checkPort checks what the ports of Services and of EndpointSlices share.
func checkPort(field, name string, protocol corev1.Protocol, port int32) error {
	if name != "" {
		if err := checkLabel(field+".name", name); err != nil {
			return err
		}
	}
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		return fmt.Errorf("%s.protocol: %s is none of TCP, UDP, SCTP", field, printable(string(protocol)))
	}
	if port < 1 || port > 65535 {
		return fmt.Errorf("%s.port: %d is not from 1 to 65535", field, port)
	}
	return nil
}

// checkSlice checks an EndpointSlice that has its defaults.
func checkSlice(s *discoveryv1.EndpointSlice) error {
	if err := checkSubdomain("metadata.name", s.Name); err != nil {
		return err
	}
	service, ok := s.Labels[discoveryv1.LabelServiceName]
	if !ok {
		return fmt.Errorf("no label %s", discoveryv1.LabelServiceName)
	}
	if err := checkLabel("label "+discoveryv1.LabelServiceName, service); err != nil {
		return err
	}
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		return errors.New("no addressType")
	default:
		return fmt.Errorf("addressType: %s is none of IPv4, IPv6, FQDN", printable(string(s.AddressType)))
	}
	if len(s.Ports) > maxSlicePorts {
		return fmt.Errorf("ports: more than %d", maxSlicePorts)
	}
	seen := make(map[string]bool, len(s.Ports))
	for i, p := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		port := int32(1) // none means every port: valid
		if p.Port != nil {
			port = *p.Port
		}
		if err := checkPort(field, *p.Name, *p.Protocol, port); err != nil {
			return err
		}
		if seen[*p.Name] {
			return fmt.Errorf("%s.name: %q comes twice", field, *p.Name)
		}
		seen[*p.Name] = true
	}
	if len(s.Endpoints) > maxEndpoints {
		return fmt.Errorf("endpoints: more than %d", maxEndpoints)
	}
	for i := range s.Endpoints {
		if err := checkEndpoint(s.AddressType, &s.Endpoints[i]); err != nil {
			return fmt.Errorf("endpoints[%d].%w", i, err)
		}
	}
	return nil
}

// checkEndpoint checks one endpoint of a slice of the given type.
func checkEndpoint(t discoveryv1.AddressType, e *discoveryv1.Endpoint) error {
	if n := len(e.Addresses); n == 0 || n > maxEndpointAddresses {
		return fmt.Errorf("addresses: %d of them, not from 1 to %d", n, maxEndpointAddresses)
	}
	for _, a := range e.Addresses {
		if err := checkAddress(t, a); err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
	}
	if e.Hostname != nil {
		return checkLabel("hostname", *e.Hostname)
	}
	return nil
}

// checkAddress checks one address of an endpoint.
func checkAddress(t discoveryv1.AddressType, address string) error {
	if t == discoveryv1.AddressTypeFQDN {
		if !isSubdomain(address) || !strings.Contains(address, ".") {
			return fmt.Errorf("%s is not a domain name of at least two labels", printable(address))
		}
		return nil
	}
	addr, err := parseIP(address)
	if err != nil {
		return err
	}
	if addr.Is4() != (t == discoveryv1.AddressTypeIPv4) {
		return fmt.Errorf("%s is not of type %s", addr, t)
	}
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast() {
		return fmt.Errorf("%s cannot be an endpoint", addr)
	}
	return nil
}

// parseIP parses an IP address, which has neither a zone nor the form of an
// IPv4 address mapped to IPv6: that would be of either family.
func parseIP(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address", printable(s))
	}
	return addr, nil
}

// checkLabel checks that the value of a field is an RFC 1123 label.
func checkLabel(field, value string) error {
	if len(validation.IsDNS1123Label(value)) > 0 {
		return fmt.Errorf("%s: %q is not a DNS label (RFC 1123: a-z, 0-9 and - within, at most 63 octets)", field, shorten(value))
	}
	return nil
}

// checkSubdomain checks that the value of a field consists of RFC 1123 labels.
func checkSubdomain(field, value string) error {
	if !isSubdomain(value) {
		return fmt.Errorf("%s: %q is not a domain name (RFC 1123 labels with dots between them, at most 253 octets)", field, shorten(value))
	}
	return nil
}

// isSubdomain reports whether name consists of RFC 1123 labels. An API server
// does not look at the length of each; no DNS message can carry one of more
// than 63 octets (RFC 1035 section 2.3.4).
func isSubdomain(name string) bool {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > validation.DNS1123LabelMaxLength {
			return false
		}
	}
	return true
}

// shorten cuts s where it is too long for a message.
func shorten(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
