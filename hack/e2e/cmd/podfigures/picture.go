package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

const (
	pictureLength   = 150 * time.Second
	prometheusPort  = 9090
	pictureInterval = "20s" // of rates: four polls of dnsmasq
)

// picture runs a pod under load while this and that happens to it, has a real
// Prometheus scrape it, and draws the panels of the dashboard from that into
// the SVG file.
func picture(t *testing.T, file string) {
	t.Helper()
	pods.RequireTools(t, "prometheus")
	pods.PrepareNetwork(t, nil)
	c := startCluster(t)
	pods.MakeObjects(t, c)
	upstream := pods.StartLoadUpstream(t)
	stubs := []string{harness.StartUpstream(t, pods.StubConfig(t)), harness.StartUpstream(t, pods.StubConfig(t))}
	config := func(stub string) map[string]string {
		return map[string]string{
			"stubDomains": fmt.Sprintf(`{"corp.example.net": [%q]}`, stub), "upstreamNameservers": fmt.Sprintf(`[%q]`, upstream),
		}
	}
	p := pods.Start(t, c, pods.DeployDir)
	p.AwaitHealthy(t)
	p.SetConfig(t, config(stubs[0]))
	startPrometheus(t)
	load := pods.StartLoad(t, pods.Server)
	start := time.Now()
	at := func(second int, what string, do func() error) {
		t.Helper()
		timer := time.NewTimer(time.Until(start.Add(time.Duration(second) * time.Second)))
		defer timer.Stop()
		<-timer.C
		if do == nil {
			return
		}
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	var events []pictureEvent
	event := func(second int, what string, do func() error) {
		t.Helper()
		at(second, what, do)
		events = append(events, pictureEvent{time.Now(), what})
	}
	for i := range 15 {
		harness.CreateService(t, c, "default", harness.ClusterIPService(fmt.Sprintf("picture-%d", i), ""))
		at(2*i, "", nil)
	}
	event(35, "stub domain changes", func() error { p.SetConfig(t, config(stubs[1])); return nil })
	event(50, "dnsmasq killed", func() error { return syscall.Kill(p.DnsmasqPID(t), syscall.SIGKILL) })
	event(65, "kube-dns killed", func() error { return syscall.Kill(p.PID(t, "kubedns"), syscall.SIGKILL) })
	event(85, "API server killed", c.KillAPIServer)
	event(115, "API server starts", func() error { return c.StartAPIServer(t.Context()) })
	event(130, "ConfigMap refused", func() error {
		p.SetConfig(t, map[string]string{"stubDomains": `{"corp.example.net": ["192.0.2.300"]}`, "upstreamNameservers": fmt.Sprintf(`[%q]`, upstream)})
		return nil
	})
	at(int(pictureLength/time.Second), "", nil)
	load.Stop()
	if err := c.Client.CoreV1().Services("default").Delete(t.Context(), "picture-0", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	svg := drawDashboard(t, pods.ReadDashboard(t), events, start)
	if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
		t.Fatal(err)
	}
}

// startPrometheus starts a Prometheus that scrapes the pod every second, with
// the labels that scrape.yaml gives, and evaluates the rules.
func startPrometheus(t testing.TB) {
	t.Helper()
	rules, err := filepath.Abs(filepath.Join(pods.MonitoringDir, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := "global: {scrape_interval: 1s, evaluation_interval: 5s}\nrule_files: [" + rules + "]\nscrape_configs:\n- job_name: kube-dns\n  static_configs:\n"
	for port, container := range map[string]string{"10055": "kubedns", "10056": "dnsmasq", "10054": "sidecar"} {
		text += fmt.Sprintf("  - {targets: [127.0.0.1:%s], labels: {pod: kube-dns-7c5ddbdf54-2k8xm, container: %s}}\n", port, container)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", prometheusPort), "--log.level=warn")
	var log harness.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("prometheus: %v: %s", err, log.Tail(2000))
		}
	})
	harness.Eventually(t, 30*time.Second, func() error {
		status, body, err := harness.Get(t.Context(), http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/-/ready", prometheusPort))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
}

// A series is a line of a panel.
type series struct {
	labels map[string]string
	legend string
	points [][2]float64 // seconds since 1970, value
}

// queryRange asks Prometheus for the values of expr from start until now.
func queryRange(ctx context.Context, expr string, start time.Time) ([]series, error) {
	q := url.Values{"query": {expr}, "step": {"1"}}
	q.Set("start", strconv.FormatInt(start.Unix(), 10))
	q.Set("end", strconv.FormatInt(start.Add(pictureLength).Unix(), 10))
	status, body, err := harness.Get(ctx, http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/api/v1/query_range?%s", prometheusPort, q.Encode()))
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("%d %s", status, body)
	}
	var reply struct {
		Data struct {
			Result []struct {
				Metric map[string]string   `json:"metric"`
				Values [][]json.RawMessage `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		return nil, err
	}
	var list []series
	for _, r := range reply.Data.Result {
		s := series{labels: r.Metric}
		for _, v := range r.Values {
			var at float64
			var text string
			if err := errors.Join(json.Unmarshal(v[0], &at), json.Unmarshal(v[1], &text)); err != nil {
				return nil, err
			}
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				s.points = append(s.points, [2]float64{at, value})
			}
		}
		if len(s.points) > 0 {
			list = append(list, s)
		}
	}
	return list, nil
}

// A pictureEvent is something that was done to the pod.
type pictureEvent struct {
	at   time.Time
	what string
}

// Sizes of the picture, in pixels.
const (
	panelWidth, panelHeight  = 340, 214
	plotLeft, plotTop        = 46, 30
	plotWidth, plotHeight    = panelWidth - plotLeft - 12, 112
	pictureColumns           = 4
	pictureTop, legendHeight = 56, 13
)

var palette = []string{"#3274d9", "#e0662f", "#37872d", "#a352cc", "#c4162a", "#7d6b00", "#0b7a75", "#8a8a8a"}

// drawDashboard draws the panels in the dashboard's order as an SVG.
func drawDashboard(t testing.TB, d *pods.Dashboard, events []pictureEvent, start time.Time) string {
	t.Helper()
	rows := (len(d.Panels) + pictureColumns - 1) / pictureColumns
	width, height := pictureColumns*panelWidth+10, pictureTop+rows*panelHeight+10
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#f4f5f7"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="12" y="22" font-size="16" font-weight="bold">%s</text>`+"\n", escape(d.Title))
	var names []string
	for i, e := range events {
		names = append(names, fmt.Sprintf("%d %s (%.0f s)", i+1, e.what, e.at.Sub(start).Seconds()))
	}
	fmt.Fprintf(&b, `<text x="12" y="42" fill="#555">One pod under %d questions a second. %s</text>`+"\n", pods.LoadRate, escape(strings.Join(names, ", ")))
	empty := 0
	for i, p := range d.Panels {
		var lines []series
		for _, target := range p.Targets {
			found, err := queryRange(t.Context(), pods.WithoutVariables(target.Expr, pictureInterval), start)
			if err != nil {
				t.Fatalf("panel %q: %v", p.Title, err)
			}
			for _, s := range found {
				s.legend = legend(target.LegendFormat, s.labels)
				lines = append(lines, s)
			}
		}
		if len(lines) == 0 {
			empty++
			t.Logf("panel %q has no data", p.Title)
		}
		drawPanel(&b, 10+i%pictureColumns*panelWidth, pictureTop+i/pictureColumns*panelHeight, p, lines, events, start)
	}
	if empty > 0 {
		t.Errorf("%d panels of %d have no data", empty, len(d.Panels))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

var legendLabel = regexp.MustCompile(`\{\{ *([a-z_]+) *\}\}`)

func legend(format string, labels map[string]string) string {
	return legendLabel.ReplaceAllStringFunc(format, func(m string) string {
		return labels[legendLabel.FindStringSubmatch(m)[1]]
	})
}

func drawPanel(b *strings.Builder, x, y int, p pods.DashboardPanel, lines []series, events []pictureEvent, start time.Time) {
	top := 0.0
	for _, s := range lines {
		for _, point := range s.points {
			top = max(top, point[1])
		}
	}
	top = niceTop(top)
	px := func(at float64) float64 {
		return float64(plotLeft) + (at-float64(start.Unix()))/pictureLength.Seconds()*plotWidth
	}
	py := func(v float64) float64 { return plotTop + plotHeight*(1-v/top) }
	fmt.Fprintf(b, `<g transform="translate(%d,%d)"><rect width="%d" height="%d" fill="#fff" stroke="#d8d9da"/>`+"\n", x, y, panelWidth-8, panelHeight-8)
	fmt.Fprintf(b, `<text x="8" y="18" font-weight="bold">%s</text>`+"\n", escape(p.Title))
	for _, v := range []float64{0, top / 2, top} {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#e3e3e3"/><text x="%d" y="%.1f" text-anchor="end" font-size="9" fill="#555">%s</text>`+"\n",
			plotLeft, py(v), plotWidth, plotLeft-4, py(v)+3, escape(withUnit(v, p.FieldConfig.Defaults.Unit)))
	}
	for s := 0.0; s < pictureLength.Seconds(); s += 30 {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" font-size="9" fill="#555">%.0f s</text>`+"\n", px(float64(start.Unix())+s), plotTop+plotHeight+11, s)
	}
	for i, e := range events {
		at := px(float64(e.at.UnixMilli()) / 1000)
		fmt.Fprintf(b, `<path d="M%.1f %dv%d" stroke="#999" stroke-dasharray="2 2"/><text x="%.1f" y="%d" font-size="8" fill="#777">%d</text>`+"\n", at, plotTop, plotHeight, at+1, plotTop+7, i+1)
	}
	slices.SortStableFunc(lines, func(a, b series) int { return strings.Compare(a.legend, b.legend) })
	legendX, legendY := 8, plotTop+plotHeight+24
	for i, s := range lines {
		color := palette[i%len(palette)]
		var path strings.Builder
		last := math.Inf(-1)
		for _, point := range s.points {
			command := "L"
			if point[0]-last > 2 {
				command = "M"
			}
			last = point[0]
			fmt.Fprintf(&path, "%s%.1f %.1f", command, px(point[0]), py(point[1]))
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.3"/>`+"\n", &path, color)
		w := 22 + 6*len(s.legend)
		if legendX+w > panelWidth-12 && legendX > 8 {
			legendX = 8
			legendY += legendHeight
		}
		if legendY < panelHeight-10 {
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="3" fill="%s"/><text x="%d" y="%d" font-size="10">%s</text>`+"\n",
				legendX, legendY-5, color, legendX+14, legendY, escape(s.legend))
		}
		legendX += w
	}
	b.WriteString("</g>\n")
}

// niceTop is the next number at or above v that is 1, 2 or 5 times a power of ten.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*power*1.0001 {
			return factor * power
		}
	}
	return 10 * power
}

// withUnit writes v as Grafana writes it with the unit.
func withUnit(v float64, unit string) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch unit {
	case "percentunit":
		return number(v*100) + " %"
	case "reqps", "ops":
		return number(v) + "/s"
	case "bytes":
		return number(v/1e6) + " MB"
	case "s":
		if v > 0 && v < 0.5 {
			return number(v*1000) + " ms"
		}
		return number(v) + " s"
	}
	return number(v)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}
