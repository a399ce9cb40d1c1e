package site

import (
	"errors"
	"html/template"
	"net/http"

	"kubedns/pkg/dns/explain"
	"kubedns/pkg/page"
)

// explainHandler is /explain.
type explainHandler struct {
	explainer *explain.Explainer
	site      *page.Site
	page      *template.Template
}

// explainPage is what the page shows.
type explainPage struct {
	Form  explainForm
	Shown *explain.Explanation
}

// ServeHTTP answers with an explanation, or with 400 and a line that says what
// is wrong with the question.
func (h *explainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		h.site.Error(w, r, http.StatusMethodNotAllowed, "only GET")
		return
	}
	html, err := page.WantsHTML(r)
	if err != nil {
		h.site.Error(w, r, http.StatusBadRequest, "unknown format: json or html")
		return
	}
	if html && r.URL.RawQuery == "" { // the page's own link
		page.Write(w, http.StatusOK, "Explain", h.page, explainPage{})
		return
	}
	request, err := explain.ParseRequest(r.URL.RawQuery)
	if err != nil {
		h.site.Error(w, r, http.StatusBadRequest, err.Error())
		return
	}
	e, err := h.explainer.Explain(r.Context(), request)
	switch {
	case errors.Is(err, explain.ErrBusy):
		w.Header().Set("Retry-After", "1")
		h.site.Error(w, r, http.StatusServiceUnavailable, err.Error())
		return
	case err != nil:
		return // whoever asked has gone
	}
	if !html {
		page.WriteJSON(w, http.StatusOK, e)
		return
	}
	shown := explainPage{Form: explainForm{Name: e.Question.Asked, Type: e.Question.Type, Search: e.Question.Search}, Shown: e}
	page.Write(w, http.StatusOK, "Explain", h.page, shown)
}
