package soak

import (
	"errors"
	"fmt"
	"slices"

	"kubedns/hack/e2e/harness"
)

// A Sample is what kube-dns uses at a quiet moment: no question under way, no
// TCP connection open, every watch open.
type Sample struct {
	Goroutines, Descriptors int
	// Memory is resident, in bytes.
	Memory int64
}

// How growth is told from noise.
const (
	// slack is by how many the goroutines or descriptors of the last samples
	// may exceed those of the first.
	slack = 2
	// memoryFactor and memorySlack are by how much memory may.
	memoryFactor = 1.10
	memorySlack  = 4 << 20
	// memorySamples are the fewest that memory is judged by.
	memorySamples = 6
)

// Growth is an error where what kube-dns uses has grown. The first sample is
// of when it is warm.
//
// The least of the last two samples must not exceed the most of the first two,
// of fewer than four samples the last one the first, by more than two
// goroutines or descriptors: at quiet moments those are the same but for one
// or two that are just ending, while what leaks once for each of several
// faults has added up. The median memory of the last third must not exceed
// that of the first by more than a tenth and 4 MiB.
func Growth(samples []Sample) error {
	n := len(samples)
	if n < 2 {
		return fmt.Errorf("%d samples are too few to see growth", n)
	}
	ends := 1
	if n >= 4 {
		ends = 2
	}
	var errs []error
	for _, what := range []struct {
		name string
		of   func(Sample) int
	}{
		{"goroutines", func(s Sample) int { return s.Goroutines }},
		{"descriptors", func(s Sample) int { return s.Descriptors }},
	} {
		first, last := values(samples[:ends], what.of), values(samples[n-ends:], what.of)
		if grown := slices.Min(last) - slices.Max(first); grown > slack {
			errs = append(errs, fmt.Errorf("%s have grown by %d: %v", what.name, grown, values(samples, what.of)))
		}
	}
	if n >= memorySamples {
		memory := values(samples, func(s Sample) int64 { return s.Memory })
		first, last := harness.Median(memory[:n/3]), harness.Median(memory[n-n/3:])
		if last > int64(memoryFactor*float64(first))+memorySlack {
			errs = append(errs, fmt.Errorf("memory has grown from %d to %d bytes: %v", first, last, memory))
		}
	}
	return errors.Join(errs...)
}

func values[T any](samples []Sample, of func(Sample) T) []T {
	all := make([]T, 0, len(samples))
	for _, s := range samples {
		all = append(all, of(s))
	}
	return all
}
