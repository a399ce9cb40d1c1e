package pods

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// MonitoringDir has the dashboard and the rules of Prometheus.
const MonitoringDir = DeployDir + "/monitoring"

// A DashboardPanel is what matters of a panel of deploy/monitoring/dashboard.json.
type DashboardPanel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	GridPos struct {
		H, W, X, Y int
	} `json:"gridPos"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
		RefID        string `json:"refId"`
	} `json:"targets"`
}

// A Dashboard is what matters of deploy/monitoring/dashboard.json.
type Dashboard struct {
	Title         string           `json:"title"`
	UID           string           `json:"uid"`
	SchemaVersion int              `json:"schemaVersion"`
	Panels        []DashboardPanel `json:"panels"`
	Templating    struct {
		List []struct {
			Name string `json:"name"`
			Type string `json:"type"`
		} `json:"list"`
	} `json:"templating"`
}

// ReadDashboard reads deploy/monitoring/dashboard.json.
func ReadDashboard(t testing.TB) *Dashboard {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(MonitoringDir, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// WithoutVariables puts values into the place of the dashboard's variables.
func WithoutVariables(expr, rateInterval string) string {
	return strings.NewReplacer("$__rate_interval", rateInterval, "$job", "kube-dns", "$pod", ".*").Replace(expr)
}
