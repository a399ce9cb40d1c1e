package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// A phase is what happened to the questions of a part of the load.
type phase struct {
	name               string
	from, to           time.Time
	asked, lost, wrong int
	slowest            time.Duration
	notes              map[string]int
}

func summarize(phases []phase, list []pods.LoadAnswer) []phase {
	for i := range phases {
		p := &phases[i]
		p.notes = map[string]int{}
		for _, a := range list {
			if a.Asked.Before(p.from) || !a.Asked.Before(p.to) {
				continue
			}
			p.asked++
			switch {
			case a.Lost:
				p.lost++
				p.notes[a.Kind+" lost"]++
			case a.Wrong != "":
				p.wrong++
				p.notes[a.Kind+" "+a.Wrong]++
			default:
				p.slowest = max(p.slowest, a.Took)
			}
		}
	}
	return phases
}

// TestPodUnderFaults asks a pod questions without a pause while its
// configuration changes, its programs are killed and it is stopped.
//
// It is not parallel, so that only its own two pods are busy.
func TestPodUnderFaults(t *testing.T) {
	for _, tt := range []struct{ name, dir string }{
		{"base", pods.DeployDir},
		{"direct", filepath.Join(pods.DeployDir, "overlays", "direct")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !pods.InOwnNetwork(t) {
				return
			}
			pods.PrepareNetwork(t, nil)
			testFaults(t, tt.dir)
		})
	}
}

func testFaults(t *testing.T, dir string) {
	t.Helper()
	c := ownCluster(t)
	pods.MakeObjects(t, c)
	outside := []string{pods.StartLoadUpstream(t), pods.StartLoadUpstream(t)}
	stubs := []string{harness.StartUpstream(t, pods.StubConfig(t)), harness.StartUpstream(t, pods.StubConfig(t))}
	config := func(stub, upstream, more string) map[string]string {
		return map[string]string{
			"stubDomains":         fmt.Sprintf(`{"corp.example.net": [%q]%s}`, stub, more),
			"upstreamNameservers": fmt.Sprintf(`[%q]`, upstream),
		}
	}
	p := pods.Start(t, c, dir)
	p.AwaitHealthy(t)
	p.SetConfig(t, config(stubs[0], outside[0], ""))
	inForce := func(server string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, func() error {
			if _, body := p.Get(t, "10056/metrics"); !strings.Contains(body, fmt.Sprintf("server=%q", server)) {
				return fmt.Errorf("%s is not in force", server)
			}
			return nil
		})
	}
	inForce(stubs[0])
	inForce(outside[0])

	load := pods.StartLoad(t, pods.Server)
	var phases []phase
	begin := func(name string) {
		now := time.Now()
		if len(phases) > 0 {
			phases[len(phases)-1].to = now
		}
		phases = append(phases, phase{name: name, from: now})
	}
	// The load has to go on for a while to show something.
	settle := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.Context().Done():
		}
	}
	begin("nothing happens")
	settle(4 * time.Second)

	begin("the stub domain's server changes")
	p.SetConfig(t, config(stubs[1], outside[0], ""))
	inForce(stubs[1])
	settle(3 * time.Second)
	begin("the upstream nameserver changes")
	p.SetConfig(t, config(stubs[1], outside[1], ""))
	inForce(outside[1])
	settle(3 * time.Second)
	begin("a stub domain is added")
	p.SetConfig(t, config(stubs[1], outside[1], fmt.Sprintf(`, "more.example.net": [%q]`, stubs[0])))
	inForce(stubs[0])
	settle(3 * time.Second)

	begin("kill -9 of kube-dns")
	before := p.PID(t, "kubedns")
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, time.Minute, func() error {
		status, body := p.Get(t, "8081/readiness")
		if status != http.StatusOK {
			return fmt.Errorf("/readiness answers %d %s", status, body)
		}
		if p.PID(t, "kubedns") == before {
			return fmt.Errorf("the old process is there")
		}
		return nil
	})
	settle(4 * time.Second)

	begin("kill -9 of dnsmasq")
	if err := syscall.Kill(p.DnsmasqPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	settle(4 * time.Second)

	begin("podman pod stop")
	stopped := make(chan error, 1)
	go func() {
		out, err := p.Podman(t.Context(), "pod", "stop", "--time", "20", p.Name)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		stopped <- err
	}()
	// A pod that ends is taken out of the Service, which takes a while to
	// reach every node.
	harness.Eventually(t, 20*time.Second, func() error {
		if status, _ := p.Get(t, "8081/readiness"); status == http.StatusOK {
			return fmt.Errorf("it is still ready")
		}
		return nil
	})
	settle(4 * time.Second)
	load.End()
	phases[len(phases)-1].to = time.Now()
	if err := <-stopped; err != nil {
		t.Errorf("stopping the pod: %v", err)
	}
	took := time.Since(phases[len(phases)-1].from)
	phases = summarize(phases, load.Stop())

	checkPhases(t, phases, took)
}

// checkPhases wants no question lost or answered wrongly, but where a program
// was killed. The pod took so long to end.
func checkPhases(t *testing.T, phases []phase, took time.Duration) {
	t.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "| | questions | lost | wrong answers | slowest answer | |\n|---|---|---|---|---|---|\n")
	for _, ph := range phases {
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %v | %s |\n", ph.name, ph.asked, ph.lost, ph.wrong, ph.slowest.Round(time.Millisecond), notes(ph.notes))
	}
	t.Logf("the pod ended %v after it was told to\n%s", took.Round(100*time.Millisecond), &table)
	for _, ph := range phases {
		if ph.asked < pods.LoadRate {
			t.Errorf("%s: only %d questions were asked", ph.name, ph.asked)
		}
		if !strings.HasPrefix(ph.name, "kill") && ph.lost+ph.wrong > 0 {
			t.Errorf("%s: %d questions lost, %d answered wrongly: %v", ph.name, ph.lost, ph.wrong, ph.notes)
		}
	}
}

// notes says what went wrong how often.
func notes(m map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[key], key))
	}
	return strings.Join(parts, ", ")
}
