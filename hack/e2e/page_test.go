package e2e

import (
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/miekg/dns"

	"kubedns/hack/e2e/harness"
)

var screenshots = flag.String("screenshots", "", "folder to write pictures of the pages to")

// screens are a phone and a desk, by day and by night.
var screens = []struct {
	name   string
	width  int64
	scheme string
}{
	{"phone-light", 375, "light"}, {"phone-dark", 375, "dark"}, {"desk-light", 1280, "light"}, {"desk-dark", 1280, "dark"},
}

// markup is what must not come through as such.
const markup = `<img src=x onerror=alert(1)><b>bold</b>`

// measure has what is wrong with the page that is shown, a line each: it is
// wider than the screen, or a text's contrast is less than WCAG 2.2 has for
// level AA (1.4.3), or that of a field's border (1.4.11).
const measure = `(() => {
	const wrong = [], root = document.documentElement;
	document.querySelectorAll("details").forEach(d => d.open = true);
	if (root.scrollWidth > root.clientWidth) {
		const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre") && e.getBoundingClientRect().right > root.clientWidth + 1);
		wrong.push("wider than the screen: " + root.scrollWidth + " > " + root.clientWidth + " by " + wide.map(e => e.tagName + "." + e.className).join(" "));
	}
	const rgb = s => {
		const m = s.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
		if (!m) throw new Error("colour " + s);
		return {c: [m[1], m[2], m[3]].map(Number), alpha: m[4] === undefined ? 1 : Number(m[4])};
	};
	const luminance = c => {
		const [r, g, b] = c.map(v => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const ratio = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
	const behind = e => {
		for (; e; e = e.parentElement) {
			const b = rgb(getComputedStyle(e).backgroundColor);
			if (b.alpha == 1) return b.c;
			if (b.alpha != 0) throw new Error("half a background at " + e.tagName);
		}
		return [255, 255, 255];
	};
	let texts = 0;
	const text = (what, style, back) => {
		texts++;
		const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
		const r = ratio(rgb(style.color).c, back);
		if (r < (large ? 3 : 4.5)) wrong.push("contrast " + r.toFixed(2) + " of " + what.trim().slice(0, 40));
		if (size < 12) wrong.push("text of " + size + " px: " + what.trim().slice(0, 40));
	};
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (walk.currentNode.data.trim() == "" || e.closest("svg, datalist") || e.getClientRects().length == 0) continue;
		text(walk.currentNode.data, getComputedStyle(e), behind(e));
	}
	for (const e of document.querySelectorAll("input")) {
		text("the placeholder of " + e.name, getComputedStyle(e, "::placeholder"), behind(e));
		text("the value of " + e.name, getComputedStyle(e), behind(e));
		const r = ratio(rgb(getComputedStyle(e).borderTopColor).c, behind(e.parentElement));
		if (r < 3) wrong.push("contrast " + r.toFixed(2) + " of the border of " + e.name);
	}
	for (const e of document.querySelectorAll(".key, svg .area")) {
		const style = getComputedStyle(e), colour = e.closest("svg") ? style.fill : style.backgroundColor;
		const r = ratio(rgb(colour).c, behind(e.closest("svg") ? e.closest("figure") : e.parentElement));
		if (r < 3) wrong.push("contrast " + r.toFixed(2) + " of " + e.className.baseVal);
	}
	if (texts == 0) wrong.push("no text");
	return wrong;
})()`

// TestPages uses the pages of kube-dns and of the sidecar in a real browser.
func TestPages(t *testing.T) {
	b := startBrowser(t)
	k, configDir := startForPages(t)
	sidecar := startSidecar(t, k.Addr)
	explain := func(name, qtype, search string) string {
		return "/explain?" + url.Values{"name": {name}, "type": {qtype}, "search": {search}}.Encode()
	}
	for _, p := range []struct {
		name, server, path string
		says               []string
		allowed            string // what the browser may complain of
	}{
		{name: "status", server: k.Healthz, path: "/", says: []string{"Ready", "cluster.local.", "an update was refused", markup, "fails"}},
		{name: "config", server: k.Healthz, path: "/config", says: []string{
			"was refused, and what was in force stays", markup, "file " + filepath.Join(configDir, "upstreamNameservers"), "--healthz-port"}},
		{name: "sidecar", server: sidecar, path: "/", says: []string{"Probe kubedns: right answer", "Probe broken: failing", "dnsmasq: answers", "Hit ratio"}},
		{name: "explain", server: k.Healthz, path: explain("web.shop", "AAAA", "shop"), says: []string{"does not resolve", "no-such-type", "web.shop.cluster.local."}},
		{name: "explain-headless", server: k.Healthz, path: explain("db.shop.svc.cluster.local", "SRV", ""), says: []string{"EndpointSlice"}},
		{name: "explain-outside", server: k.Healthz, path: explain("www.example.org", "", ""), says: []string{"resolves", "Upstream nameservers", harness.DeadNameserver}},
		{name: "explain-markup", server: k.Healthz, path: explain(markup, "A", ""), says: []string{"Bad Request"}, allowed: "400"},
		{name: "error", server: k.Healthz, path: "/explain?format=html&type=" + url.QueryEscape(markup) + "&name=a", says: []string{"Bad Request", "type has a character"}, allowed: "400"},
	} {
		t.Run(p.name, func(t *testing.T) {
			b.t = t
			b.open(p.server + p.path)
			shown := eval[string](b, `document.body.innerText`)
			for _, s := range p.says {
				if !strings.Contains(shown, s) {
					t.Errorf("the page does not say %q:\n%s", s, shown)
				}
			}
			if n := eval[int](b, `document.querySelectorAll("img, script, b, [style]").length`); n != 0 {
				t.Errorf("%d elements that should not be there", n)
			}
			for _, screen := range screens {
				b.emulate(screen.width, screen.scheme)
				for _, wrong := range eval[[]string](b, measure) {
					t.Errorf("%s: %s", screen.name, wrong)
				}
				b.screenshot(p.name + "-" + screen.name)
			}
			b.check(p.server, p.allowed)
		})
	}
	for _, screen := range screens {
		t.Run("form "+screen.name, func(t *testing.T) {
			b.t = t
			b.emulate(screen.width, screen.scheme)
			b.open(k.Healthz + "/")
			testForm(t, b, k.Healthz, screen.name)
			b.check(k.Healthz)
		})
	}
	for _, width := range []int64{320, 360} {
		t.Run(fmt.Sprintf("rcodes at %d px", width), func(t *testing.T) {
			b.t = t
			b.emulate(width, "light")
			b.open(k.Healthz + "/")
			testRcodesFit(t, b)
			b.screenshot(fmt.Sprintf("rcodes-%d", width))
			b.check(k.Healthz)
		})
	}
	t.Run("accessible", func(t *testing.T) {
		b.t = t
		b.open(k.Healthz + "/")
		testAccessible(t, b)
		b.check(k.Healthz)
	})
}

// testRcodesFit holds that a phone shows the tables of rcodes without a
// sideways scroll, each number beside the name of its column, and that they are
// tables still.
func testRcodesFit(t *testing.T, b *browser) {
	t.Helper()
	type table struct {
		Label                   string
		ScrollWidth, Visible    int
		Rows, Cells, Cut, Names int
	}
	tables := eval[[]table](b, `(() => {
		document.querySelectorAll("details").forEach(d => d.open = true);
		return [...document.querySelectorAll("[role=region]")].filter(r => r.getAttribute("aria-label").startsWith("Questions and rcodes")).map(r => {
			const cells = [...r.querySelectorAll("td")], right = r.getBoundingClientRect().right + 0.5;
			const name = c => getComputedStyle(c, "::before").content;
			return {
				Label: r.getAttribute("aria-label"), ScrollWidth: r.scrollWidth, Visible: r.clientWidth, Rows: r.querySelectorAll("tbody tr").length,
				Cells: cells.length, Cut: cells.filter(c => c.getBoundingClientRect().right > right || c.scrollWidth > c.clientWidth).length,
				Names: cells.filter(c => /NOERROR|NXDOMAIN|REFUSED|SERVFAIL|a second/.test(name(c))).length,
			};
		});
	})()`)
	if len(tables) != 2 {
		t.Fatalf("tables of rcodes: %+v, want two", tables)
	}
	for _, table := range tables {
		if table.ScrollWidth > table.Visible || table.Cut > 0 {
			t.Errorf("%s: %d px wide in %d, %d cells cut", table.Label, table.ScrollWidth, table.Visible, table.Cut)
		}
		if table.Rows == 0 || table.Cells != 5*table.Rows || table.Names != table.Cells {
			t.Errorf("%s: %+v, want five cells with their names in each row", table.Label, table)
		}
	}
	heads := 0
	for _, n := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if !n.Ignored && n.Role != nil && n.Name != nil && string(n.Role.Value) == `"columnheader"` && string(n.Name.Value) == `"NXDOMAIN"` {
			heads++
		}
	}
	if heads != len(tables) {
		t.Errorf("%d heads of columns NXDOMAIN in the accessibility tree, want %d", heads, len(tables))
	}
}

// testForm asks why a name resolves as a person would who has no mouse.
func testForm(t *testing.T, b *browser, server, screen string) {
	t.Helper()
	// The first tab leads past the links on top.
	b.key(kb.Tab)
	if got := eval[string](b, `document.activeElement.textContent`); got != "To the content" {
		t.Errorf("the first tab leads to %q", got)
	}
	if top := eval[float64](b, `document.activeElement.getBoundingClientRect().top`); top < 0 {
		t.Errorf("the link to the content has the focus out of sight, at %v", top)
	}
	b.key(kb.Enter)
	if got := eval[string](b, `document.activeElement.id`); got != "content" {
		t.Errorf("the link to the content leads to %q", got)
	}
	b.tabTo("name")
	b.typeText("web")
	b.tabTo("type")
	b.typeText("A")
	b.tabTo("search")
	b.typeText("shop")
	b.screenshot("form-" + screen)
	b.key(kb.Enter)
	b.awaitPage(server+"/explain?name=web&type=A&search=shop", "web.shop.svc.cluster.local. A resolves")
	// The page has the form too, filled in: another name in place of that one.
	b.tabTo("name")
	if got := eval[string](b, `document.activeElement.value + " " + document.getElementById("search").value`); got != "web shop" {
		t.Errorf("the form has %q in it", got)
	}
	b.key("nosuch") // what has the focus by tab is marked as a whole
	b.key(kb.Enter)
	b.awaitPage(server+"/explain?name=nosuch&type=A&search=shop", "does not resolve")
}

// awaitPage waits until the browser shows the page of url with a heading that
// has the text.
func (b *browser) awaitPage(url, heading string) {
	b.t.Helper()
	type shown struct{ URL, Headings string }
	harness.Eventually(b.t, 10*time.Second, func() error {
		// One that is asked while the page goes has no answer.
		got, err := chromedp.Run(b.ctx, chromedp.Evaluate[shown](`({URL: location.href, Headings: [...document.querySelectorAll("h2")].map(e => e.textContent.replace(/\s+/g, " ")).join("; ")})`))
		if err != nil {
			return err
		}
		if got.URL != url || !strings.Contains(got.Headings, heading) {
			return fmt.Errorf("the browser shows %+v, want %s with %q", got, url, heading)
		}
		return nil
	})
}

// testAccessible looks at what a screen reader makes of the page.
func testAccessible(t *testing.T, b *browser) {
	t.Helper()
	found := map[string]int{}
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		return strings.Trim(string(v.Value), `"`)
	}
	for _, n := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored {
			continue
		}
		role, name := text(n.Role), text(n.Name)
		found[role+" "+name]++
		if role == "image" {
			found[role+" "+name+": "+text(n.Description)]++
		}
		switch role {
		case "textbox", "combobox", "button", "link", "image", "region", "navigation", "search":
			if name == "" {
				t.Errorf("a %s has no name", role)
			}
		}
	}
	for _, want := range []string{
		"banner ", "main ", "navigation Pages", "search Explain a name", "image Questions a second by rcode",
		"textbox Name or address", "combobox Type", "textbox Asked in namespace", "button Explain",
		"heading Status", "region Questions", "region Questions and rcodes", "table ", "columnheader NXDOMAIN",
	} {
		if found[want] == 0 {
			t.Errorf("the tree lacks %q; it has %v", want, found)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(s string) bool {
		return strings.HasPrefix(s, "image Questions a second by rcode: The last 10m0s: at most ")
	}) {
		t.Errorf("the chart is not described; the tree has %v", found)
	}
}

// startForPages starts a kube-dns that has something to show: questions with
// all four rcodes, an upstream that fails, an update with markup that was
// refused.
func startForPages(t *testing.T) (*harness.KubeDNS, string) {
	t.Helper()
	configDir := t.TempDir()
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(configDir, "upstreamNameservers"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	upstream := harness.StartUpstream(t, "testdata/upstream.conf")
	write(fmt.Sprintf(`[%q, %q]`, harness.DeadNameserver, upstream))
	samples, err := filepath.Abs("../../deploy/samples")
	if err != nil {
		t.Fatal(err)
	}
	k := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: kubeDNS(t), Args: []string{"--manifests=" + samples, "--config-dir=" + configDir},
	})
	for i := range 40 {
		ask(t, harness.Question{Server: k.Addr, Name: "web.shop.svc." + zone, Type: dns.TypeA})
		if i%4 == 0 {
			ask(t, harness.Question{Server: k.Addr, Name: "nosuch.shop.svc." + zone, Type: dns.TypeA})
			ask(t, harness.Question{Server: k.Addr, Name: zone, Type: dns.TypeAXFR, TCP: true})
			ask(t, harness.Question{Server: k.Addr, Name: "www.example.org.", Type: dns.TypeA})
		}
	}
	write(fmt.Sprintf(`[%q]`, markup))
	harness.Eventually(t, 15*time.Second, func() error {
		if v, _ := k.ScrapeMetrics(t).Value("kubedns_config_last_reload_successful"); v != 0 {
			return fmt.Errorf("kubedns_config_last_reload_successful is %v", v)
		}
		return nil
	})
	return k, configDir
}

// startSidecar starts a sidecar beside a dnsmasq, and returns its URL once it
// has probed.
func startSidecar(t *testing.T, kubeDNS string) string {
	t.Helper()
	// A dnsmasq that knows of two servers, one of which is not there.
	upstream := harness.StartUpstream(t, "testdata/upstream2.conf")
	conf := filepath.Join(t.TempDir(), "dnsmasq.conf")
	text := fmt.Sprintf("no-resolv\nno-hosts\nall-servers\nserver=%s\nserver=%s\n", strings.ReplaceAll(upstream, ":", "#"),
		strings.ReplaceAll(harness.DeadNameserver, ":", "#"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dnsmasq := harness.StartUpstream(t, conf)
	ports, err := harness.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(dnsmasq)
	if err != nil {
		t.Fatal(err)
	}
	harness.StartProgram(t, program(t, "sidecar", false), "--prometheus-addr=127.0.0.1", fmt.Sprintf("--prometheus-port=%d", ports[0]),
		"--dnsmasq-addr="+host, "--dnsmasq-port="+port, "--dnsmasq-poll-interval-ms=500",
		"--probe=kubedns,"+kubeDNS+",web.shop.svc.cluster.local,0.5,A", "--probe=dnsmasq,"+dnsmasq+",www.example.org,0.5,A",
		"--probe=broken,"+harness.DeadNameserver+",www.example.org,0.5,A")
	server := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	harness.Eventually(t, 20*time.Second, func() error {
		_, body, err := harness.Get(t.Context(), http.DefaultClient, server+"/")
		if err == nil && (!strings.Contains(body, `"hitRatio"`) || strings.Count(body, `"ok": true`) != 2) {
			err = fmt.Errorf("not all is known yet: %s", body)
		}
		return err
	})
	return server
}
