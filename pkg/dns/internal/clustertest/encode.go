package clustertest

import (
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// scheme has the kinds that an API server sends here.
var scheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	err := errors.Join(corev1.AddToScheme(s), discoveryv1.AddToScheme(s))
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	return s, err
})

// Scheme has the kinds of core/v1 and discovery.k8s.io/v1.
func Scheme(tb testing.TB) *runtime.Scheme {
	tb.Helper()
	s, err := scheme()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Encode returns an object as an API server sends it in protobuf. It sets the
// object's kind.
func Encode(tb testing.TB, o runtime.Object) []byte {
	tb.Helper()
	s := Scheme(tb)
	kinds, _, err := s.ObjectKinds(o)
	if err != nil {
		tb.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	data, err := runtime.Encode(protobuf.NewSerializer(s, s), o)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}
