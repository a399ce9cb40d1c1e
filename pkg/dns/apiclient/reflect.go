package apiclient

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// ReflectorBackoff is how long to wait after a watch that ended before
// everything is listed: as a reflector does by itself, but for the longest,
// since with its 30 s a change would take up to a minute after an outage.
func ReflectorBackoff() wait.Backoff {
	return wait.Backoff{Duration: 800 * time.Millisecond, Cap: 10 * time.Second, Steps: 20, Factor: 2, Jitter: 1}
}

// Reflect has r list and watch, again and again, until ctx is done; failed is
// told of each error before that. Two minutes without a failure make the wait
// short again.
func Reflect(ctx context.Context, r *cache.Reflector, backoff wait.Backoff, failed func(error)) {
	const calm = 2 * time.Minute
	// The error is that of ctx, and being done is no failure.
	_ = backoff.DelayWithReset(clock.RealClock{}, calm).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		return false, nil
	})
}
