package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/pkg/dns/objects"
)

func apiMeta(m *objects.Meta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion}
}

// apiService is the reverse of objects.TrimService.
func apiService(s *objects.Service) corev1.Service {
	t := corev1.Service{ObjectMeta: apiMeta(&s.Meta)}
	t.CreationTimestamp = metav1.NewTime(s.Created)
	t.Spec.Type = s.Type
	t.Spec.ExternalName = s.ExternalName
	t.Spec.PublishNotReadyAddresses = s.PublishNotReady
	if s.Headless {
		t.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for _, addr := range s.ClusterIPs {
		t.Spec.ClusterIPs = append(t.Spec.ClusterIPs, addr.String())
	}
	for _, p := range s.Ports {
		t.Spec.Ports = append(t.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: int32(p.Number)})
	}
	return t
}

// apiSlice is the reverse of objects.TrimSlice.
func apiSlice(s *objects.EndpointSlice) discoveryv1.EndpointSlice {
	t := discoveryv1.EndpointSlice{ObjectMeta: apiMeta(&s.Meta), AddressType: s.AddressType}
	t.Labels = map[string]string{discoveryv1.LabelServiceName: s.Service}
	for i := range s.Ports {
		p := &s.Ports[i]
		q := discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol}
		if p.Number != 0 {
			number := int32(p.Number)
			q.Port = &number
		}
		t.Ports = append(t.Ports, q)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		q := discoveryv1.Endpoint{Addresses: []string{e.Addr.String()}}
		q.Conditions.Ready = &e.Ready
		if e.Hostname != "" {
			q.Hostname = &e.Hostname
		}
		if e.Pod {
			q.TargetRef = &corev1.ObjectReference{Kind: "Pod"}
		}
		t.Endpoints = append(t.Endpoints, q)
	}
	return t
}
