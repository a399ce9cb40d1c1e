// Package configmap is the source of configurations that watches one ConfigMap
// through the API server. What the ConfigMap says is package config's to parse.
//
// Run lists and watches in the goroutine of its caller; client-go runs one or
// two more for its connection, which end with the context.
package configmap

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubedns/pkg/dns/apiclient"
	"kubedns/pkg/dns/config"
)

// Source watches one ConfigMap.
//
// It reports nothing until the API server has said what there is, however long
// that takes: a ConfigMap that is slow to come is not the default configuration.
// A ConfigMap that does not exist is, also one that is deleted later. While the
// API server is away, what was reported last stays.
//
// Reported is each version of the ConfigMap, also one that differs in its
// metadata alone: Update.Version is the version an operator sees.
type Source struct {
	client    rest.Interface
	namespace string
	name      string
	onError   func(error)
	// backoff is the time between attempts to list or watch.
	backoff wait.Backoff
}

// New is the source that watches the ConfigMap namespace/name with a field
// selector, so that a Role for this one name is enough (get, list, watch). The
// client is one for core/v1. onError is told why a list
// or watch failed, each time; it goes on regardless. It can be nil, is called
// by one goroutine at a time, and must not block.
func New(client rest.Interface, namespace, name string, onError func(error)) *Source {
	if onError == nil {
		onError = func(error) {}
	}
	return &Source{
		client: client, namespace: namespace, name: name, onError: onError,
		backoff: apiclient.ReflectorBackoff(),
	}
}

// Run is as config.Source has it. It returns no error.
func (s *Source) Run(ctx context.Context, report func(config.Update)) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, s.name)
	lw := cache.NewListWatchFromClient(s.client, "configmaps", s.namespace, selector)
	watchConfigMap := lw.WatchFuncWithContext
	lw.WatchFuncWithContext = func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		w, err := watchConfigMap(ctx, opts)
		// One that goes on after another may not begin in the future. (A list
		// that streams says so itself.)
		if err == nil && opts.SendInitialEvents == nil {
			opts.FieldSelector = selector.String()
			if err = apiclient.CheckVersion(ctx, s.client, s.namespace, "configmaps", opts); err != nil {
				w.Stop()
				w = nil
			}
		}
		// A reflector keeps these errors to itself. An API server too old for a
		// streaming list (before Kubernetes 1.32) says so with "invalid", and
		// is asked for a plain list then.
		if err != nil && ctx.Err() == nil && (opts.SendInitialEvents == nil || !apierrors.IsInvalid(err)) {
			s.onError(fmt.Errorf("watching %s: %w", s.origin(), err))
		}
		return w, err
	}
	store := &store{source: s, report: report}
	reflector := cache.NewReflectorWithOptions(lw, &corev1.ConfigMap{}, store, cache.ReflectorOptions{
		Name: s.origin(), Backoff: &s.backoff,
	})
	apiclient.Reflect(ctx, reflector, s.backoff, func(err error) {
		s.onError(fmt.Errorf("listing %s: %w", s.origin(), err))
	})
	return nil
}

// origin is "ConfigMap kube-system/kube-dns".
func (s *Source) origin() string { return "ConfigMap " + s.namespace + "/" + s.name }

// update is what obj says, nil being the absent ConfigMap. It does not change
// or keep obj.
func (s *Source) update(obj *corev1.ConfigMap) config.Update {
	u := config.Update{Origin: s.origin(), Time: time.Now()}
	if obj == nil {
		u.Config = &config.Config{}
		return u
	}
	u.Version = obj.ResourceVersion
	u.Config, u.Warnings, u.Err = config.Parse(obj.Data)
	for _, key := range slices.Sorted(maps.Keys(obj.BinaryData)) {
		u.Warnings = append(u.Warnings, fmt.Sprintf("key %q ignored, as it is in binaryData", key))
	}
	return u
}

// store is what the reflector writes to, from one goroutine. It holds no more
// than the version reported last.
type store struct {
	source *Source
	report func(config.Update)
	// reported is false before the first report. version is then that of the
	// ConfigMap, with its UID, "" when it was absent.
	reported bool
	version  string
}

// Replace is called with what a list found.
func (st *store) Replace(objs []any, _ string) error {
	for _, obj := range objs {
		if cm, ok := st.ours(obj); ok {
			st.see(cm)
			return nil
		}
	}
	st.see(nil)
	return nil
}

// Add is called when the ConfigMap has come into being.
func (st *store) Add(obj any) error {
	if cm, ok := st.ours(obj); ok {
		st.see(cm)
	}
	return nil
}

// Update is called when the ConfigMap has changed.
func (st *store) Update(obj any) error { return st.Add(obj) }

// Delete is called when the ConfigMap is gone.
func (st *store) Delete(obj any) error {
	if _, ok := st.ours(obj); ok {
		st.see(nil)
	}
	return nil
}

// Resync is not called, as the reflector has no period for it.
func (st *store) Resync() error { return nil }

// ours reports whether obj is the ConfigMap: not everything that speaks the API
// (a proxy, a fake) knows field selectors.
func (st *store) ours(obj any) (*corev1.ConfigMap, bool) {
	cm, ok := obj.(*corev1.ConfigMap)
	return cm, ok && cm.Name == st.source.name && cm.Namespace == st.source.namespace
}

// see reports cm, nil being the absent one, unless it was reported last.
func (st *store) see(cm *corev1.ConfigMap) {
	version := ""
	if cm != nil {
		version = string(cm.UID) + "/" + cm.ResourceVersion
	}
	if st.reported && st.version == version {
		return
	}
	st.reported, st.version = true, version
	st.report(st.source.update(cm))
}
