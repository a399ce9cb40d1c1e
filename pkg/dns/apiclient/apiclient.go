// Package apiclient makes clients of an API server for single API groups. A
// scheme that holds one group, with a REST client on it, is a small part of
// what client-go's clientset would bring into the program.
package apiclient

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubedns/pkg/version"
)

// Config is how to reach the API server: by a kubeconfig file, at a URL, which
// overrides the kubeconfig's, or, where both are empty, with the pod's service
// account.
func Config(kubeconfig, masterURL string) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if kubeconfig == "" && masterURL == "" {
		cfg, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			err = errors.New("no service account: not in a pod, and neither --kubecfg-file nor --kube-master-url is given")
		}
	} else {
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: masterURL}},
		).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("configuring the API server's client: %w", err)
	}
	cfg.UserAgent = UserAgent()
	// client-go's own limits, 5 a second after the first ten, would have the
	// eleventh page of a list and each one after it wait. With these, which are
	// kubelet's, no list waits, and there is still a bound should something make
	// a watch begin and end without pause.
	cfg.QPS, cfg.Burst = 50, 100
	return cfg, nil
}

// UserAgent is what the API server sees: "kube-dns/v1.0.0 (linux/amd64)
// 0123abc".
func UserAgent() string {
	return fmt.Sprintf("kube-dns/%s (%s/%s) %s", version.Version, runtime.GOOS, runtime.GOARCH, version.Revision)
}

// Core is a client for core/v1.
func Core(cfg *rest.Config) (rest.Interface, error) {
	return client(cfg, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
}

// Discovery is a client for discovery.k8s.io/v1.
func Discovery(cfg *rest.Config) (rest.Interface, error) {
	return client(cfg, "/apis", discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme)
}

// client makes one that talks protobuf. It does not change cfg.
func client(cfg *rest.Config, path string, gv schema.GroupVersion, add func(*apiruntime.Scheme) error) (rest.Interface, error) {
	scheme := apiruntime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, fmt.Errorf("registering %v: %w", gv, err)
	}
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &gv
	c.APIPath = path
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType = apiruntime.ContentTypeProtobuf
	c.AcceptContentTypes = apiruntime.ContentTypeProtobuf + "," + apiruntime.ContentTypeJSON
	r, err := restClient(c)
	if err != nil {
		return nil, fmt.Errorf("making a client for %v: %w", gv, err)
	}
	return r, nil
}

// restClient makes a client that follows changes of the CA's file.
func restClient(cfg *rest.Config) (*rest.RESTClient, error) {
	if cfg.CAFile == "" || len(cfg.CAData) > 0 {
		return rest.RESTClientFor(cfg)
	}
	t, err := newCAFile(cfg)
	if err != nil {
		return nil, err
	}
	return rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: t, Timeout: cfg.Timeout})
}
