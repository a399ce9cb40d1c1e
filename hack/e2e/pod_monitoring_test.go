package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// A ruleFile is a file of Prometheus's rules.
type ruleFile struct {
	Groups []ruleGroup `json:"groups"`
}

type ruleGroup struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func readRules(t testing.TB) *ruleFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pods.MonitoringDir, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var r ruleFile
	if err := yaml.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// monitoringMetrics are the names of the metrics that rules and dashboard
// read, less those that rules record; by name where each is used.
func monitoringMetrics(t testing.TB) map[string]string {
	t.Helper()
	used := map[string]string{}
	var recorded []string
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			if rule.Record != "" {
				recorded = append(recorded, rule.Record)
			}
			for _, name := range metricNames(rule.Expr) {
				used[name] = "rule " + rule.Record + rule.Alert
			}
		}
	}
	for _, p := range pods.ReadDashboard(t).Panels {
		for _, target := range p.Targets {
			for _, name := range metricNames(target.Expr) {
				used[name] = "panel " + p.Title
			}
		}
	}
	for _, name := range append(recorded, "up") {
		delete(used, name)
	}
	return used
}

var (
	notNames    = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(by|without|on|ignoring|group_left|group_right) *\([^)]*\)`)
	identifiers = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
)

// metricNames are the names of the metrics in an expression of PromQL.
func metricNames(expr string) []string {
	var names []string
	for _, found := range identifiers.FindAllString(notNames.ReplaceAllString(expr, " "), -1) {
		name := strings.TrimSpace(found)
		if !strings.HasSuffix(name, "(") && !slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestMetricNames(t *testing.T) {
	got := metricNames(`sum by (a_label, le) (rate(one_total{job="x", le="two"}[5m])) / ignoring (cause) group_left () three:ratio > 0.1 and on (server) four`)
	if want := []string{"one_total", "three:ratio", "four"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMonitoring has Prometheus's own tool look at deploy/monitoring.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		harness.Require(t, fmt.Errorf("promtool is not installed: %w", err))
	}
	run := func(t *testing.T, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = pods.MonitoringDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	t.Run("check rules", func(t *testing.T) { run(t, "check", "rules", "rules.yaml") })
	t.Run("test rules", func(t *testing.T) { run(t, "test", "rules", "rules_test.yaml") })
	t.Run("every alert has a test", func(t *testing.T) {
		tests, err := os.ReadFile(filepath.Join(pods.MonitoringDir, "rules_test.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range readRules(t).Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" {
					continue
				}
				if !strings.Contains(string(tests), rule.Alert) {
					t.Errorf("%s is in no test", rule.Alert)
				}
				if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
					t.Errorf("%s lacks its severity, summary or description", rule.Alert)
				}
			}
		}
	})
	t.Run("scrape.yaml", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(pods.MonitoringDir, "scrape.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := yaml.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		// Debian's Prometheus has no service discovery of Kubernetes, and
		// rejects what it does not have.
		for _, job := range config["scrape_configs"].([]any) {
			delete(job.(map[string]any), "kubernetes_sd_configs")
		}
		delete(config, "rule_files")
		if text, err = yaml.Marshal(config); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "prometheus.yml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, "check", "config", "--syntax-only", file)
	})
	t.Run("dashboard.json", func(t *testing.T) { checkDashboard(t, run) })
}

func checkDashboard(t *testing.T, promtool func(*testing.T, ...string)) {
	t.Helper()
	d := pods.ReadDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 36 || len(d.Panels) < 15 {
		t.Errorf("title %q, UID %q, schema %d, %d panels", d.Title, d.UID, d.SchemaVersion, len(d.Panels))
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "job", "pod"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q, want %q", variables, want)
	}
	var rules ruleFile
	if err := yaml.Unmarshal([]byte(`{"groups": [{"name": "dashboard"}]}`), &rules); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.Type == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q: its ID is another's, or it has no title, type or target", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, `job="$job", pod=~"$pod"`) {
				t.Errorf("%q does not select job and pod: %s", p.Title, target.Expr)
			}
			rules.Groups[0].Rules = append(rules.Groups[0].Rules, rule{Record: fmt.Sprintf("panel_%d_%s", p.ID, target.RefID), Expr: pods.WithoutVariables(target.Expr, "5m")})
		}
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard-rules.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// checkMetricNames fails for each metric that rules or dashboard read and that
// is neither among those that the pod exports nor in the programs' source: some
// have no value before there is something to count.
func checkMetricNames(t *testing.T, p *pods.Pod) {
	t.Helper()
	exported := map[string]bool{}
	for _, path := range []string{"10054/metrics", "10055/metrics", "10056/metrics"} {
		_, body := p.Get(t, path)
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "#") {
				exported[line[:strings.IndexAny(line, "{ ")]] = true
			}
		}
	}
	source := programSource(t)
	seen := 0
	for name, where := range monitoringMetrics(t) {
		switch {
		case exported[name]:
			seen++
		case strings.Contains(source, `"`+name+`"`), strings.Contains(source, `"`+strings.TrimSuffix(name, "_bucket")+`"`):
		default:
			t.Errorf("%s reads %s, which no program exports", where, name)
		}
	}
	if seen < 20 {
		t.Errorf("only %d metrics of rules and dashboard are exported by the pod", seen)
	}
}

// programSource is the text of all programs and packages.
func programSource(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"../../cmd", "../../pkg"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// TestDeployREADME holds deploy/README.md and docs/operate/alerts.md against
// what is there.
func TestDeployREADME(t *testing.T) {
	alerts := readPage(t, "docs/operate/alerts.md")
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			if rule.Alert != "" && !regexp.MustCompile(`\b`+rule.Alert+`\b`).MatchString(alerts) {
				t.Errorf("the alert %s is not there", rule.Alert)
			}
		}
	}
	for _, alert := range regexp.MustCompile(`\bKubeDNS[A-Za-z]+`).FindAllString(alerts, -1) {
		if !slices.ContainsFunc(readRules(t).Groups, func(g ruleGroup) bool {
			return slices.ContainsFunc(g.Rules, func(r rule) bool { return r.Alert == alert })
		}) {
			t.Errorf("there is no alert %s", alert)
		}
	}
	readme := readPage(t, "deploy/README.md")
	for _, dir := range []string{"overlays", "components"} {
		entries, err := os.ReadDir(filepath.Join(pods.DeployDir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if !strings.Contains(readme, entry.Name()) {
				t.Errorf("%s/%s is not there", dir, entry.Name())
			}
		}
	}
}
