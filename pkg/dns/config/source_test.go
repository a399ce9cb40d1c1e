package config

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFixed(t *testing.T) {
	for _, cfg := range []*Config{nil, {Federations: map[string]string{"fed": "example.org"}}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var got []Update
			done := make(chan error)
			go func() { done <- Fixed(cfg).Run(ctx, func(u Update) { got = append(got, u) }) }()
			time.Sleep(time.Hour) // the bubble's
			synctest.Wait()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			want := cfg
			if want == nil {
				want = &Config{}
			}
			if len(got) != 1 || !got[0].Config.Equal(want) || got[0].Err != nil || got[0].Origin != "flags" || got[0].Time.IsZero() {
				t.Errorf("updates %+v, want one with %+v", got, want)
			}
		})
	}
}
