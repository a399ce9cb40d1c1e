package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/e2e/harness"
)

// controlPlane is a real etcd and kube-apiserver with a cluster's objects.
type controlPlane struct {
	*harness.ControlPlane
	cluster    *cluster.Cluster
	kubeconfig string
}

// startControlPlane starts etcd and kube-apiserver, which are built where they
// are not there yet, with the objects of shape. etcd's data stays in the cache:
// making the objects takes much longer than starting with them.
func (b *bench) startControlPlane(ctx context.Context, shape cluster.Shape) (_ *controlPlane, err error) {
	paths, err := command(ctx, b.top, nil, "bash", "hack/e2e/controlplane.sh")
	if err != nil {
		return nil, err
	}
	b.results.Versions["kube-apiserver"] = apiServerVersion(paths)
	name := "cluster-" + shape.Hash() + "-" + b.results.Versions["kube-apiserver"]
	dir := filepath.Join(b.cache, name)
	filled := filepath.Join(dir, "filled")
	if _, err := os.Stat(filled); err != nil {
		// Nothing, or what a run left that was stopped on the way.
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	c := &controlPlane{cluster: cluster.New(shape), kubeconfig: filepath.Join(b.dir, name+".kubeconfig")}
	if c.ControlPlane, err = harness.StartControlPlane(ctx, dir); err != nil {
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	if err := c.WriteKubeconfig(c.kubeconfig, ""); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filled); err == nil {
		return c, nil
	}
	say("making %v in a real API server; the next run finds them", shape)
	start := time.Now()
	if err := c.fill(ctx); err != nil {
		return nil, fmt.Errorf("making the objects: %w", err)
	}
	say("  took %v", time.Since(start).Round(time.Second))
	return c, os.WriteFile(filled, nil, 0o644)
}

// apiServerVersion is the version in the path that controlplane.sh prints of
// kube-apiserver: .../kube-apiserver-v1.2.3-go1.26.0/kube-apiserver.
func apiServerVersion(paths string) string {
	for line := range strings.Lines(paths) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "kube-apiserver="); ok {
			words := strings.Split(filepath.Base(filepath.Dir(path)), "-")
			if len(words) > 2 {
				return strings.TrimPrefix(words[2], "v")
			}
		}
	}
	return "unknown"
}

// fillers is how many requests are under way while objects are made.
const fillers = 16

// fill makes the objects.
func (c *controlPlane) fill(ctx context.Context) error {
	cfg := rest.CopyConfig(c.Admin)
	cfg.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	create := metav1.CreateOptions{}
	for _, name := range c.cluster.NamespaceNames() {
		if _, err := client.CoreV1().Namespaces().Create(ctx, cluster.NamespaceObject(name), create); err != nil {
			return err
		}
	}
	return parallel(ctx, fillers, len(c.cluster.Services), func(ctx context.Context, i int) error {
		s := &c.cluster.Services[i]
		if _, err := client.CoreV1().Services(s.Namespace).Create(ctx, s.Object(), create); err != nil {
			return err
		}
		for _, slice := range s.SliceObjects() {
			if _, err := client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, slice, create); err != nil {
				return err
			}
		}
		return nil
	})
}

// parallel calls f with 0 to n-1, by so many goroutines, until one fails.
func parallel(ctx context.Context, goroutines, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// restart kills the API server and starts it anew, with a past that no watch
// can go on from: everything is listed again.
func (c *controlPlane) restart(ctx context.Context) error {
	// A watch that was at an older revision than the new server's first is
	// told that it is too old.
	touched := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, GenerateName: "bench-"}}
	made, err := c.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, touched, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := c.Client.CoreV1().ConfigMaps(made.Namespace).Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := c.KillAPIServer(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// marker is a Service that is made to see whether a server has heard of what
// came after a restart.
func marker() cluster.Service {
	s := cluster.New(cluster.Shape{Namespaces: 1, ClusterIP: 1}).Services[0]
	s.Namespace, s.Name = "ns-00", "marker"
	s.ClusterIP = s.ClusterIP.Prev().Prev() // 10.99.255.255, which no other has
	return s
}

// setMarker makes the marker, or deletes it where it is there.
func (c *controlPlane) setMarker(ctx context.Context, there bool) error {
	s := marker()
	services := c.Client.CoreV1().Services(s.Namespace)
	if there {
		_, err := services.Create(ctx, s.Object(), metav1.CreateOptions{})
		return err
	}
	if err := services.Delete(ctx, s.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// listed tells how many EndpointSlices the API server has sent in lists, by
// its own metrics, since it started: at the beginning of watches.
func (c *controlPlane) listed(ctx context.Context) (int, error) {
	text, err := c.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return initEvents(string(text), "endpointslices")
}

// initEvents adds up the samples of apiserver_init_events_total that are of
// the resource.
func initEvents(metrics, resource string) (n int, err error) {
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(line, "apiserver_init_events_total{")
		if !ok || !strings.Contains(rest, `resource="`+resource+`"`) {
			continue
		}
		var value float64
		if _, serr := fmt.Sscanf(rest[strings.LastIndexByte(rest, '}')+1:], "%g", &value); serr != nil {
			err = errors.Join(err, fmt.Errorf("the metric %q: %w", line, serr))
		}
		n += int(value)
	}
	return n, err
}
