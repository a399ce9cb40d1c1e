package app

import (
	"fmt"
	"html/template"

	"kubedns/pkg/page"
)

// explainForm is what the form of /explain is filled with; the template "form"
// is executed with it.
type explainForm struct {
	Name   string // as asked for: a name or an address
	Type   string // empty: A
	Search string // the namespace whose search path a pod has; empty for none
}

// formTemplate asks for /explain by GET. A field left empty comes as empty.
const formTemplate = `{{define "form"}}
<form action="explain" method="get" role="search" aria-label="Explain a name">
<div class="wide"><label for="name">Name or address</label>
<input id="name" name="name" value="{{.Name}}" required maxlength="1024" autocapitalize="none" autocomplete="off" spellcheck="false" placeholder="web.shop.svc.cluster.local"></div>
<div><label for="type">Type</label>
<input id="type" name="type" value="{{.Type}}" maxlength="20" list="types" autocapitalize="characters" autocomplete="off" spellcheck="false" placeholder="A">
<datalist id="types"><option value="A"><option value="AAAA"><option value="SRV"><option value="PTR"><option value="CNAME"><option value="TXT"><option value="MX"><option value="NS"><option value="SOA"><option value="ANY"></datalist></div>
<div><label for="search">Asked in namespace</label>
<input id="search" name="search" value="{{.Search}}" maxlength="63" autocapitalize="none" autocomplete="off" spellcheck="false" placeholder="none" aria-describedby="search-hint"></div>
<button type="submit">Explain</button>
</form>
<p class="hint" id="search-hint">With a namespace, the name is looked up as a pod there would, along its search path.</p>
{{end}}`

// newSite returns the pages of kube-dns's health port. Their templates come
// from parsePage.
func newSite() (*page.Site, error) {
	return page.New("kube-dns",
		page.Link{Path: "./", Text: "Status"},
		page.Link{Path: "explain", Text: "Explain"},
		page.Link{Path: "config", Text: "Configuration"},
		page.Link{Path: "cache", Text: "Cache"},
	)
}

// parsePage returns the template of a page, for page.Write. The text defines
// "body", and can use "form".
func parsePage(site *page.Site, text string) (*template.Template, error) {
	t, err := site.Parse(formTemplate, text)
	if err != nil {
		return nil, fmt.Errorf("kube-dns's pages: %w", err)
	}
	return t, nil
}
