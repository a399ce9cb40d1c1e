package apiserver

import (
	"context"
	"errors"
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

// How long to wait before asking an API server again after a failure. A
// reflector's own wait grows to between 30 and 60 s: answers are old for up to a
// minute after an outage, for 23 s on average. This one grows to between 5 and
// 10 s, which is 4 s on average. A hundred instances then ask an API server that
// is down 27 times a second, both lists together, in place of 4 times.
const (
	firstRetry = time.Second
	maxRetry   = 10 * time.Second
	// maxSuggested bounds the wait that an API server can ask for.
	maxSuggested = 30 * time.Second
	// spreadRelist is the time over which lists are spread: what causes them,
	// such as a restart of the API server, is seen by all instances at once.
	// The reflector has waited 0.8 to 1.6 s already.
	spreadRelist = 2 * time.Second
)

// A backoff computes how long to wait. Its zero value is ready for a first
// failure.
type backoff struct{ last time.Duration }

// after returns how long to wait after err: what the API server asks for, if it
// does (Retry-After), else 1, 2, 4, 8, 10, 10… s, less a random part of up to
// half, so that those who failed together do not try again together.
func (b *backoff) after(err error) time.Duration {
	b.last = min(max(firstRetry, 2*b.last), maxRetry)
	wait := b.last - rand.N(b.last/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		suggested := min(time.Duration(seconds)*time.Second, maxSuggested)
		wait = max(wait, suggested+rand.N(suggested/2))
	}
	return wait
}

// sleep waits for d. It returns the error of ctx if that is done first.
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

// lister lists and watches one resource for a reflector, with its own backoff.
type lister struct {
	contact  *contact
	resource string
	client   rest.Interface
	// listOnce lists once and returns the list's resource version.
	listOnce func(context.Context) (string, error)
	decoders decoders // of the events of a watch
	// spreadRelist is the time over which lists after the first are spread.
	spreadRelist time.Duration

	// version is the last list's resource version; nil before the first list.
	version atomic.Pointer[string]
}

// list lists until that succeeds or ctx is done. The list that the reflector
// gets is empty: its objects are in the store already.
func (l *lister) list(ctx context.Context) (runtime.Object, error) {
	if l.version.Load() != nil {
		if err := sleep(ctx, rand.N(l.spreadRelist)); err != nil {
			return nil, err
		}
	}
	var b backoff
	for expired := false; ; {
		version, err := l.listOnce(ctx)
		if err == nil {
			l.version.Store(&version)
			return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		l.contact.failed(l.resource, err)
		// The API server no longer has the next page. List again at once, unless
		// this has happened before.
		if apierrors.IsResourceExpired(err) && !expired {
			expired = true
			continue
		}
		if err := sleep(ctx, b.after(err)); err != nil {
			return nil, err
		}
	}
}

// relistError is an error after which the reflector must list. It hides the
// error inside: after a refused connection the reflector would go on with the
// watch, as it takes the API server for the same as before. But its etcd may
// have been restored to an older state, in which resource versions stand for
// something else.
type relistError struct{ error }

// watch begins a watch from o.ResourceVersion. While the API server is too busy
// it waits and asks again.
func (l *lister) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	var b backoff
	for {
		w, err := l.begin(ctx, o)
		switch {
		case err == nil:
			return w, nil
		case !apierrors.IsTooManyRequests(err):
			return nil, relistError{err}
		}
		// To list would burden the API server still more.
		l.contact.failed(l.resource, err)
		if err := sleep(ctx, b.after(err)); err != nil {
			return nil, err
		}
	}
}

// begin begins a watch, unless the API server has not reached the version to
// watch from. A connection that ends before the response is an error, as one
// that is refused is: the reflector lists after it.
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
	return watchEvents(ctx, l.contact, l.resource, l.decoders, body), nil
}

// watchFailed is called with the reason why the reflector lists again.
func (l *lister) watchFailed(err error) {
	var relist relistError
	if errors.As(err, &relist) {
		err = relist.error
	}
	l.contact.failed(l.resource, err)
}
