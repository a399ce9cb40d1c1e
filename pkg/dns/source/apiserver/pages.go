package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"kubedns/pkg/dns/objects"
)

// A page must have enough objects to be worth a request, and few enough that
// the encoded page is small: whole EndpointSlices of a hundred endpoints each
// are megabytes.
const (
	firstPage   = 100    // objects
	largestPage = 500    // objects
	pageWeight  = 10_000 // objects and endpoints
)

// nextPage returns how many objects to ask for next, given how many the last
// page was asked for and the weight of what came.
func nextPage(last, weight int) int {
	return min(max(last*pageWeight/max(weight, 1), 10), largestPage)
}

// listPages lists into k page by page, so that no more than one encoded page is
// in memory, and returns the list's resource version. It asks for the newest
// state: with an older one (ResourceVersion 0) the API server would ignore the
// limit.
func listPages[T objects.Object](ctx context.Context, s *Source, client rest.Interface, r objects.Resource[T], k *store[T]) (version string, err error) {
	if initial := k.beginList(); !initial {
		s.memory.RelistBegins()
		defer s.memory.RelistEnds()
	}
	o := metav1.ListOptions{Limit: firstPage}
	for {
		result := client.Get().Resource(r.Name).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx)
		page, err := result.Raw()
		if err != nil {
			return "", result.Error()
		}
		weight := 0
		meta, err := r.DecodeList(page, func(t T) {
			weight += t.Weight()
			k.put(t)
		})
		if err != nil {
			return "", err
		}
		s.contact.heard(r.Name)
		if o.Continue = meta.Continue; o.Continue != "" {
			o.Limit = int64(nextPage(int(o.Limit), weight))
			continue
		}
		k.endList()
		if s.services.listed() && s.slices.listed() {
			s.signalListed()
		}
		s.memory.ListDropped()
		return meta.ResourceVersion, nil
	}
}
