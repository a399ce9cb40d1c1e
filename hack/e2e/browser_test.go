package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kubedns/hack/e2e/harness"
)

// browser is a Chromium with one tab. It reaches nothing but loopback.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // of the console, of the browser, exceptions
	requests   []string // URLs
}

// startBrowser starts Chromium until the test's end.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	harness.Require(t, err)
	dir, err := os.MkdirTemp("", "chromium-") //nolint:usetesting // Chromium may still write there when the test ends
	if err != nil {
		t.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Env("XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir), // its crash reporter writes there
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-features", "Translate,OptimizationHints,OptimizationGuideModelDownloading,OnDeviceModelService,MediaRouter"),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("proxy-server", "direct://"),
		chromedp.WSURLReadTimeout(time.Minute), // of a machine that is busy
	)
	ctx, stopAllocator := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	b := &browser{t: t}
	ctx, stop := chromedp.NewContext(ctx, chromedp.WithListener(b.event))
	b.ctx = ctx
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // waits until Chromium has ended
			t.Logf("ending Chromium: %v", err)
		}
		stop()
		stopAllocator()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// The first call starts Chromium, which lives as long as its context.
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatalf("starting Chromium: %v", err)
	}
	call(b, log.Enable, struct{}{})
	return b
}

// event notes what a page should not cause.
func (b *browser) event(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s %s: %s", e.Entry.Source, e.Entry.Level, e.Entry.Text))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, "console "+string(e.Type))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, "exception "+e.ExceptionDetails.Text)
	}
}

// check fails the test where something was complained of since the last check,
// but for what is allowed, or was asked of another server than allowed.
func (b *browser) check(server string, allowed ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		if !slices.ContainsFunc(allowed, func(a string) bool { return a != "" && strings.Contains(c, a) }) {
			b.t.Errorf("the browser complains: %s", c)
		}
	}
	if len(b.requests) == 0 {
		b.t.Error("the browser has asked for nothing")
	}
	for _, r := range b.requests {
		if u, err := url.Parse(r); err != nil || "http://"+u.Host != server {
			b.t.Errorf("the browser asked for %s, which is not at %s", r, server)
		}
	}
	b.complaints, b.requests = nil, nil
}

// do has the browser do an action, and returns what that returns.
func do[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("the browser: %v", err)
	}
	return v
}

// call gives the browser a command, and returns its result.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	return do(b, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) })
}

// open shows a page.
func (b *browser) open(url string) {
	b.t.Helper()
	do(b, chromedp.Navigate(url))
}

// emulate shows pages at a screen's width in CSS pixels, in the scheme "light"
// or "dark".
func (b *browser) emulate(width int64, scheme string) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: 800, DeviceScaleFactor: 1, Mobile: width < 600,
	})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// key presses a key.
func (b *browser) key(k string) {
	b.t.Helper()
	do(b, chromedp.KeyEvent(k))
}

// typeText types a text into what has the focus.
func (b *browser) typeText(s string) {
	b.t.Helper()
	call(b, input.InsertText, input.InsertTextParams{Text: s})
}

// eval is the value of a JavaScript expression, which the page's policy does
// not keep the debugger from.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return do(b, chromedp.Evaluate[T](expression))
}

// tabTo presses the tab key until the element of that id has the focus, and
// checks that each element on the way shows that it has it.
func (b *browser) tabTo(id string) {
	b.t.Helper()
	const focused = `(() => { const e = document.activeElement, s = getComputedStyle(e);
		return {id: e.id || e.tagName + " " + e.textContent.trim(), seen: s.outlineStyle != "none" && parseFloat(s.outlineWidth) >= 2} })()`
	for range 30 {
		b.key(kb.Tab)
		f := eval[struct {
			ID   string `json:"id"`
			Seen bool   `json:"seen"`
		}](b, focused)
		if !f.Seen {
			b.t.Errorf("%q has the focus, and does not show it", f.ID)
		}
		if f.ID == id {
			return
		}
	}
	b.t.Fatalf("the tab key does not lead to %s", id)
}

// screenshot writes the whole page as it is now to --screenshots.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	beyond := true
	size := eval[struct{ W, H float64 }](b, `({W: document.documentElement.clientWidth, H: document.documentElement.scrollHeight})`)
	png := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: size.W, Height: size.H, Scale: 1},
	}).Data
	err := errors.Join(os.MkdirAll(*screenshots, 0o755), os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644))
	if err != nil {
		b.t.Fatal(err)
	}
}
