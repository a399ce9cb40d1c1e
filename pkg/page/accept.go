package page

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// WantsHTML reports whether a request is to be answered with HTML: as the query's
// format says, json or html, anything else of which is an error; else as the
// Accept header prefers (RFC 9110 section 12.5.1). It is JSON where neither is
// preferred, as with curl's */*.
func WantsHTML(r *http.Request) (bool, error) {
	if formats, ok := r.URL.Query()["format"]; ok {
		if len(formats) == 1 && (formats[0] == "json" || formats[0] == "html") {
			return formats[0] == "html", nil
		}
		return false, fmt.Errorf("format=%q is neither json nor html", strings.Join(formats, ","))
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return quality(accept, "text", "html") > quality(accept, "application", "json"), nil
}

// quality is the weight from 0 to 1 that an Accept header gives a media type:
// of the ranges that have it, the narrowest counts. A range that is no such
// thing, or has parameters besides q, is passed over.
func quality(accept, major, minor string) float64 {
	best, narrowest := 0.0, 0
	for part := range strings.SplitSeq(accept, ",") {
		mediaRange, parameters, _ := strings.Cut(part, ";")
		narrow := 0
		switch strings.ToLower(strings.TrimSpace(mediaRange)) {
		case major + "/" + minor:
			narrow = 3
		case major + "/*":
			narrow = 2
		case "*/*":
			narrow = 1
		}
		if weight, ok := weight(parameters); ok && narrow > narrowest {
			best, narrowest = weight, narrow
		}
	}
	return best
}

// weight is the q of a media range's parameters, 1 where there are none.
func weight(parameters string) (float64, bool) {
	parameters = strings.ToLower(strings.ReplaceAll(parameters, " ", ""))
	if parameters == "" {
		return 1, true
	}
	number, ok := strings.CutPrefix(parameters, "q=")
	q, err := strconv.ParseFloat(number, 64)
	return q, ok && err == nil && q >= 0 && q <= 1
}
