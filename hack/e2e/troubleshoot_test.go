package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
)

// reports is the Service that docs/operate/troubleshoot.md has beside those of
// deploy/samples.
const reports = `
apiVersion: v1
kind: Service
metadata: {name: reports, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reports-7kq2d, namespace: shop, labels: {kubernetes.io/service-name: reports}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.244.0.51], conditions: {ready: false}}]
`

// transcripts finds a command of kube-dns explain and what it prints.
var transcripts = regexp.MustCompile("(?s)\n```\n\\$ (kube-dns explain [^\n]*)\n(.*?)\n```\n")

// differs is what differs from run to run.
var differs = regexp.MustCompile(`(hostmaster\S* |resourceVersion |created |as they are for )[^ ,]+`)

// TestTroubleshoot compares each transcript in docs/operate/troubleshoot.md
// with what the program prints.
func TestTroubleshoot(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate/troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	samples, services, config := "../../deploy/samples", t.TempDir(), t.TempDir()
	if err := os.CopyFS(services, os.DirFS(samples)); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		filepath.Join(services, "reports.yaml"): reports,
		filepath.Join(config, "stubDomains"):    `{"corp.example": ["192.0.2.53"]}`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := kubeDNS(t)
	complete := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: bin, Args: []string{"--manifests=" + services, "--config-dir=" + config},
	})
	incomplete := harness.StartKubeDNS(t, harness.KubeDNSOptions{
		Binary: bin, Args: []string{"--kube-master-url=http://" + harness.DeadNameserver}, NoWait: true,
	})
	all := transcripts.FindAllStringSubmatch(string(text), -1)
	if len(all) < 11 {
		t.Fatalf("only %d transcripts are there", len(all))
	}
	for _, m := range all {
		command, want := m[1], strings.ReplaceAll(m[2], "127.0.0.1:10153", harness.DeadNameserver)
		t.Run(command, func(t *testing.T) {
			k := complete
			if strings.Contains(want, "(not-complete)") {
				k = incomplete
			}
			server := strings.TrimPrefix(k.Healthz, "http://")
			line := strings.Replace(command, "kube-dns explain", bin+" explain --server="+server, 1)
			// The lists have failed, where that is what is shown.
			harness.Eventually(t, 20*time.Second, func() error {
				out, err := exec.CommandContext(t.Context(), "bash", "-c", line).Output()
				var exit *exec.ExitError // 1 where the name does not resolve
				if err != nil && !errors.As(err, &exit) {
					return err
				}
				if got := string(out); steady(got) != steady(want) {
					return fmt.Errorf("%s\nprints\n%s\nwant\n%s", command, got, want)
				}
				return nil
			})
		})
	}
}

// steady takes out what differs from run to run.
func steady(text string) string {
	return strings.TrimSpace(differs.ReplaceAllString(text, "${1}X"))
}
