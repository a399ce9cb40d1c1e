package dns

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"kubedns/pkg/dns/apiclient"
)

// How long to wait before asking an API server again that has failed. A
// reflector's own wait grows to a minute, which is a minute of old answers
// after an outage; with this one a hundred instances ask an API server that is
// away 30 times a second at the most, both lists together, and all have come
// back 10 s after it has.
const (
	firstRetry = time.Second
	maxRetry   = 10 * time.Second
	// maxSuggested is how much longer an API server can ask to be left alone.
	maxSuggested = 30 * time.Second
	// spreadRelist is the time over which lists are spread that something has
	// caused which all instances saw at once, as a restart of the API server.
	// The reflector has waited 0.8 to 1.6 s already.
	spreadRelist = 2 * time.Second
)

// A backoff tells how long to wait. Its zero value is that of a first failure.
type backoff struct{ last time.Duration }

// after is how long to wait after err: what the API server asks for, if it
// does (Retry-After), else 1, 2, 4, 8, 10, 10… s; less up to half of it, so
// that those who failed together do not try again together.
func (b *backoff) after(err error) time.Duration {
	b.last = min(max(firstRetry, 2*b.last), maxRetry)
	wait := b.last - rand.N(b.last/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		suggested := min(time.Duration(seconds)*time.Second, maxSuggested)
		wait = max(wait, suggested+rand.N(suggested/2))
	}
	return wait
}

// sleep waits for d; the error is that of ctx, when that was done first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// lister lists and watches one resource for a reflector, with waits of its
// own.
type lister struct {
	cluster  *cluster
	resource string
	client   rest.Interface
	// once is a list that may fail; it returns the list's resource version.
	once func(context.Context) (string, error)
	// events makes a watch of the response to one.
	events func(context.Context, io.ReadCloser) watch.Interface

	// version is the last list's resource version; nil before the first list.
	version atomic.Pointer[string]
}

// list lists until that succeeds or ctx is done. For the reflector the list is
// empty: its objects are kept already.
func (l *lister) list(ctx context.Context) (runtime.Object, error) {
	if l.version.Load() != nil {
		if err := sleep(ctx, rand.N(spreadRelist)); err != nil {
			return nil, err
		}
	}
	var b backoff
	for expired := false; ; {
		version, err := l.once(ctx)
		if err == nil {
			l.version.Store(&version)
			return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		l.cluster.failed(l.resource, err)
		// Pages that the API server no longer has: the list begins anew, and at
		// once, unless that happens again.
		if apierrors.IsResourceExpired(err) && !expired {
			expired = true
			continue
		}
		if err := sleep(ctx, b.after(err)); err != nil {
			return nil, err
		}
	}
}

// needsList is an error after which the reflector must list. It hides what the
// error is: where a connection was refused the reflector would go on with the
// watch, as it takes the API server for the same as before. But behind it may
// be an etcd that was restored to an older state, whose resource versions
// stand for something else by now.
type needsList struct{ error }

// watch begins a watch from o.ResourceVersion, when the API server has time for
// it.
func (l *lister) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	var b backoff
	for {
		w, err := l.begin(ctx, o)
		switch {
		case err == nil:
			return w, nil
		case !apierrors.IsTooManyRequests(err):
			return nil, needsList{err}
		}
		// A list would be still more of a burden.
		l.cluster.failed(l.resource, err)
		if err := sleep(ctx, b.after(err)); err != nil {
			return nil, err
		}
	}
}

// begin begins a watch, which is not to be from a version that is yet to come.
// A connection that ends before the response is an error, as one that is
// refused: what comes next is a list.
func (l *lister) begin(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	body, err := l.client.Get().Resource(l.resource).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, err
	}
	if listed := l.version.Load(); listed == nil || *listed != o.ResourceVersion {
		if err := apiclient.CheckVersion(ctx, l.client, "", l.resource, o); err != nil {
			return nil, errors.Join(err, body.Close())
		}
	}
	return l.events(ctx, body), nil
}

// watchFailed is told by the reflector why it lists anew.
func (l *lister) watchFailed(err error) {
	var n needsList
	if errors.As(err, &n) {
		err = n.error
	}
	l.cluster.failed(l.resource, err)
}
