package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubedns/hack/e2e/harness"
	"kubedns/hack/e2e/pods"
)

// perf is what dnsperf says.
type perf struct {
	qps, averageMS float64
	lost           int
}

// dnsperf asks the pod the questions in file for some seconds.
func dnsperf(t testing.TB, file string, seconds int) perf {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "dnsperf", "-d", file, "-s", "127.0.0.1", "-p", "53",
		"-c", "16", "-q", "100", "-l", strconv.Itoa(seconds)).CombinedOutput()
	if err != nil {
		t.Fatalf("dnsperf: %v: %s", err, out)
	}
	number := func(pattern string) float64 {
		m := regexp.MustCompile(pattern).FindSubmatch(out)
		if m == nil {
			t.Fatalf("no %s in %s", pattern, out)
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return perf{
		qps: number(`Queries per second: +([0-9.]+)`), averageMS: 1000 * number(`Average Latency \(s\): +([0-9.]+)`),
		lost: int(number(`Queries lost: +([0-9]+)`)),
	}
}

const measuredServices = 1000

// questionFiles writes a file for dnsperf for each kind of question, and one
// that has them as a pod's resolver asks: for each outside name the misses of
// the search path come first.
func questionFiles(t testing.TB) (names []string, files map[string]string) {
	t.Helper()
	var cluster, misses, outside, mixed strings.Builder
	for i := range measuredServices {
		line := fmt.Sprintf("svc-%d.measure.svc.cluster.local A\n", i)
		cluster.WriteString(line)
		mixed.WriteString(line)
		if i%3 != 0 {
			continue
		}
		name := fmt.Sprintf("host-%d.load.example.org", i)
		for _, search := range []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"} {
			line := name + "." + search + " A\n"
			misses.WriteString(line)
			mixed.WriteString(line)
		}
		outside.WriteString(name + " A\n")
		mixed.WriteString(name + " A\n")
	}
	dir := t.TempDir()
	files = map[string]string{}
	for _, kind := range []struct {
		name string
		text *strings.Builder
	}{{"cluster names", &cluster}, {"search-path misses", &misses}, {"outside names", &outside}, {"mixed", &mixed}} {
		file := filepath.Join(dir, strings.ReplaceAll(kind.name, " ", "-"))
		if err := os.WriteFile(file, []byte(kind.text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, kind.name)
		files[kind.name] = file
	}
	return names, files
}

// layouts measures the base and the overlay direct with the same questions, and
// adds the tables to file.
func layouts(t *testing.T, file string) {
	t.Helper()
	pods.RequireTools(t, "dnsperf")
	pods.PrepareNetwork(t, nil)
	var table, memory strings.Builder
	fmt.Fprintf(&table, "| questions | layout | questions/s | µs of processor time for each: kube-dns | dnsmasq | together | average answer (ms) |\n|---|---|---|---|---|---|---|\n")
	fmt.Fprintf(&memory, "| layout | moment | kube-dns | nanny | dnsmasq | sidecar |\n|---|---|---|---|---|---|\n")
	for _, layout := range []struct{ name, dir string }{
		{"base", pods.DeployDir},
		{"direct", filepath.Join(pods.DeployDir, "overlays", "direct")},
	} {
		t.Run(layout.name, func(t *testing.T) {
			c := startCluster(t)
			if err := c.EnsureNamespace(t.Context(), "measure"); err != nil {
				t.Fatal(err)
			}
			inParallel(t, measuredServices, func(i int) error {
				_, err := c.Client.CoreV1().Services("measure").Create(t.Context(), harness.ClusterIPService(fmt.Sprintf("svc-%d", i), ""), metav1.CreateOptions{})
				return err
			})
			p := pods.Start(t, c, layout.dir)
			p.AwaitHealthy(t)
			upstream := pods.StartLoadUpstream(t)
			p.SetConfig(t, map[string]string{"upstreamNameservers": fmt.Sprintf(`[%q]`, upstream)})
			harness.Eventually(t, 20*time.Second, func() error {
				if _, body := p.Get(t, "10056/metrics"); !strings.Contains(body, fmt.Sprintf("server=%q", upstream)) {
					return errors.New("the upstream nameserver is not in force")
				}
				return nil
			})
			pids := []int{p.PID(t, "kubedns"), p.PID(t, "dnsmasq"), p.DnsmasqPID(t), p.PID(t, "sidecar")}
			rss := func(moment string) {
				fmt.Fprintf(&memory, "| %s | %s |", layout.name, moment)
				for _, pid := range pids {
					fmt.Fprintf(&memory, " %.1f MB |", float64(harness.ProcessUsage(t, pid).RSS)/1000)
				}
				memory.WriteString("\n")
			}
			rss("ready, 1,000 Services")
			names, files := questionFiles(t)
			for _, name := range names {
				dnsperf(t, files[name], 1)
				before := [2]harness.Usage{harness.ProcessUsage(t, pids[0]), harness.ProcessUsage(t, pids[2])}
				start := time.Now()
				result := dnsperf(t, files[name], 8)
				took := time.Since(start)
				after := [2]harness.Usage{harness.ProcessUsage(t, pids[0]), harness.ProcessUsage(t, pids[2])}
				questions := result.qps * 8
				each := func(i int) float64 {
					return float64((after[i].CPU - before[i].CPU).Microseconds()) / questions
				}
				fmt.Fprintf(&table, "| %s | %s | %.0f | %.1f | %.1f | %.1f | %.2f |\n", name, layout.name, result.qps, each(0), each(1), each(0)+each(1), result.averageMS)
				if result.lost > 0 {
					t.Logf("%s: %d lost in %v", name, result.lost, took)
				}
			}
			rss("after the questions above")
			fillCache(t, 11000)
			rss("dnsmasq's cache full, 10,000 names")
			connections, total := tcpMemory(t, pids[2], 200)
			fmt.Fprintf(&memory, "| %s | %d TCP connections | | | %.1f MB in all | |\n", layout.name, connections, float64(total)/1000)
		})
	}
	t.Logf("\n%s\n%s", &table, &memory)
	if err := appendFile(file, "Layouts\n\n"+table.String()+"\n"+memory.String()+"\n"); err != nil {
		t.Error(err)
	}
}

// inParallel calls f for 0 to n-1.
func inParallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	next := make(chan int)
	errs := make(chan error, n)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

// fillCache asks for n outside names once each.
func fillCache(t testing.TB, n int) {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "fill-%d.load.example.org A\n", i)
	}
	file := filepath.Join(t.TempDir(), "fill")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "dnsperf", "-d", file, "-s", "127.0.0.1", "-p", "53", "-c", "4", "-q", "50", "-n", "1").CombinedOutput(); err != nil {
		t.Fatalf("dnsperf: %v: %s", err, out)
	}
}

// tcpMemory opens TCP connections to the pod, asks one question over each, and
// returns how many dnsmasq processes there are then besides the first, and the
// memory of all in kB, shared pages counted once.
func tcpMemory(t testing.TB, pid, n int) (connections, kilobytes int) {
	t.Helper()
	for range n {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", pods.Server)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		m := new(dns.Msg)
		m.SetQuestion("svc-1.measure.svc.cluster.local.", dns.TypeA)
		co := &dns.Conn{Conn: conn}
		if err := errors.Join(conn.SetDeadline(time.Now().Add(10*time.Second)), co.WriteMsg(m)); err != nil {
			t.Fatal(err)
		}
		if _, err := co.ReadMsg(); err != nil {
			t.Fatalf("connection %d: %v", connections, err)
		}
		connections++
	}
	group, err := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("grep -l '^NSpid:' /proc/[0-9]*/status | cut -d/ -f3 | while read p; do [ \"$(cut -d' ' -f5 /proc/$p/stat 2>/dev/null)\" = %d ] && echo $p; done; true", pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(group)) {
		text, err := os.ReadFile("/proc/" + field + "/smaps_rollup")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); fields[0] == "Pss:" {
				n, _ := strconv.Atoi(fields[1])
				kilobytes += n
			}
		}
	}
	return connections, kilobytes
}

// size measures kube-dns's memory with more and more objects, and adds the
// table to file.
func size(t *testing.T, file string) {
	t.Helper()
	c := startCluster(t)
	ctx := t.Context()
	if err := c.EnsureNamespace(ctx, "size"); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| Services | endpoints in EndpointSlices | of headless Services | ready after | RSS once ready | RSS after 20 s | highest RSS |\n|---|---|---|---|---|---|---|\n")
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, ""); err != nil {
		t.Fatal(err)
	}
	binary, err := harness.Build(ctx, dir, "kube-dns", false)
	if err != nil {
		t.Fatal(err)
	}
	services, endpoints, headless := 0, 0, 0
	grow := func(n, each int, none bool) {
		from := services
		inParallel(t, n, func(i int) error {
			name := fmt.Sprintf("service-%d", from+i)
			s := harness.ClusterIPService(name, "")
			if none {
				s.Spec.ClusterIP = corev1.ClusterIPNone
			}
			if _, err := c.Client.CoreV1().Services("size").Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return err
			}
			for at := 0; at < each; at += 100 {
				if err := createEndpoints(ctx, c, name, from+i, at, min(100, each-at), none); err != nil {
					return err
				}
			}
			return nil
		})
		services += n
		endpoints += n * each
		if none {
			headless += n * each
		}
	}
	measure := func() {
		start := time.Now()
		k := harness.StartKubeDNS(t, harness.KubeDNSOptions{Binary: binary, Kubeconfig: kubeconfig})
		ready := time.Since(start)
		u := harness.ProcessUsage(t, k.PID())
		timer := time.NewTimer(20 * time.Second)
		defer timer.Stop()
		<-timer.C
		v := harness.ProcessUsage(t, k.PID())
		if status, body := k.Get(t, "/readiness"); status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
		if n, _ := k.ScrapeMetrics(t).Value("kubedns_services"); int(n) < services {
			t.Errorf("it knows %v Services, want %d", n, services)
		}
		fmt.Fprintf(&table, "| %d | %d | %d | %.1f s | %.0f MB | %.0f MB | %.0f MB |\n",
			services, endpoints, headless, ready.Seconds(), float64(u.RSS)/1000, float64(v.RSS)/1000, float64(v.HWM)/1000)
		if err := k.Stop(15); err != nil {
			t.Error(err)
		}
	}
	measure()
	grow(1000, 3, false)
	measure()
	grow(4000, 3, false)
	measure()
	grow(5000, 3, false)
	measure()
	grow(70, 1000, true)
	measure()
	t.Logf("\n%s", &table)
	if err := appendFile(file, "Size\n\n"+table.String()+"\n"); err != nil {
		t.Error(err)
	}
}

// createEndpoints makes an EndpointSlice as the controller makes them.
func createEndpoints(ctx context.Context, c *harness.ControlPlane, service string, number, at, n int, hostnames bool) error {
	s := harness.Slice(fmt.Sprintf("%s-%d", service, at), service, at)
	for i := range n {
		k := number*3 + i
		if hostnames {
			k = 1<<20 + number%70*1000 + at + i
		}
		e := discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+k>>16, k>>8&255, k&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", k%500)),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "size", Name: fmt.Sprintf("%s-7c5ddbdf54-%05d", service, at+i), UID: "2f0f6c1e-0000-4000-8000-000000000000"},
		}
		if hostnames {
			e.Hostname = new(fmt.Sprintf("%s-%d", service, at+i))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	_, err := c.Client.DiscoveryV1().EndpointSlices("size").Create(ctx, s, metav1.CreateOptions{})
	return err
}

func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
