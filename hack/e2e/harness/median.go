package harness

import (
	"cmp"
	"slices"
)

// Median is the middle of values, the upper one of two; there must be one.
func Median[T cmp.Ordered](values []T) T {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}
