package apiclient

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// versionTimeout is how long CheckVersion waits for the API server.
const versionTimeout = 10 * time.Second

// CheckVersion asks whether the API server has come as far as the resource
// version that a watch began from, whose options are o. Where etcd was restored
// to an older state it may not have, and such a watch, which is no error, stays
// silent until as much has happened again. The error is then one for which
// apierrors.IsResourceExpired holds: list anew. It may also be that of the
// request, which lists at most one object of the resource; the namespace is
// empty for all.
func CheckVersion(ctx context.Context, client rest.Interface, namespace, resource string, o metav1.ListOptions) error {
	// The watch is open meanwhile, and its events wait.
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	since, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return nil //nolint:nilerr // "", or what this cannot compare
	}
	page, err := client.Get().Namespace(namespace).Resource(resource).VersionedParams(&metav1.ListOptions{
		Limit: 1, FieldSelector: o.FieldSelector, LabelSelector: o.LabelSelector,
	}, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Get()
	if err != nil {
		return err
	}
	list, err := apimeta.ListAccessor(page)
	if err != nil {
		return err
	}
	now, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	if err != nil || now >= since {
		return nil //nolint:nilerr // as above
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("the API server is at resource version %d, before the %d that it had: its state is an older one", now, since))
}
