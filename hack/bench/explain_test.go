package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/fakeapi"
	"kubedns/hack/bench/load"
	"kubedns/hack/bench/proc"
)

var (
	explainRounds  = flag.Int("explain.rounds", 0, "measure what /explain costs in so many rounds; 0 for not at all")
	explainSeconds = flag.Int("explain.seconds", 4, "how long each part of a round takes")
)

// explainRate is how many explanations a second are asked for.
const explainRate = 100

// TestExplainCost measures how many questions the DNS port answers, as fast as
// it can, without and with 100 requests a second of /explain, and what
// processor time kube-dns takes for each: in rounds, each with both, in turn
// with one and the other first. It asserts nothing of the figures, which are
// for a machine that does nothing else:
//
//	go test -run TestExplainCost -v -explain.rounds=7 .
func TestExplainCost(t *testing.T) {
	if *explainRounds == 0 {
		t.Skip("a measurement: -explain.rounds=7")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "kube-dns")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/kube-dns")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	c := cluster.New(cluster.Small)
	api, err := fakeapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := api.WriteKubeconfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Start(nil, bin, "--dns-bind-address=127.0.0.1", "--dns-port="+ports[0], "--healthz-port="+ports[1],
		"--nameservers=127.0.0.1:9", "--kubecfg-file="+kubeconfig, "--drain-period=0s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(5 * time.Second); err != nil {
			t.Error(err)
		}
	})
	addr := "127.0.0.1:" + ports[1]
	awaitReady(t, "http://"+addr)
	usage := func() time.Duration {
		t.Helper()
		u, err := p.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.CPU
	}
	alone := func() float64 { // ms of processor time for an explanation, while no question comes
		t.Helper()
		before := usage()
		stop := explainSteadily(t, addr, c)
		select {
		case <-time.After(time.Duration(*explainSeconds) * time.Second):
		case <-t.Context().Done():
		}
		n := stop()
		return (usage() - before).Seconds() * 1e3 / float64(n)
	}
	var questions bytes.Buffer
	if err := cluster.NewQuestions(c, 1).Write(&questions, cluster.Mixed, 200_000); err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(ports[0])
	if err != nil {
		t.Fatal(err)
	}
	o := load.Options{
		Server: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(number)), Questions: questions.Bytes(),
		Sockets: 16, Outstanding: 100, Duration: time.Duration(*explainSeconds) * time.Second,
	}
	var without, with, cpuWithout, cpuWith, explained, each []float64
	measure := func(explain bool) {
		stop := func() int { return 0 }
		if explain {
			stop = explainSteadily(t, addr, c)
		}
		before := usage()
		r, err := load.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		spent := usage() - before
		n := stop()
		qps := float64(r.Answered) / r.Elapsed.Seconds()
		cpu := float64(spent.Nanoseconds()) / 1e3 / float64(r.Answered)
		t.Logf("explain %-5v %7.0f questions/s, %5.2f µs of processor time for each, %d lost, p99 %v, %d explanations", explain, qps, cpu, r.Lost, r.P99, n)
		if !explain {
			without, cpuWithout = append(without, qps), append(cpuWithout, cpu)
			return
		}
		with, cpuWith = append(with, qps), append(cpuWith, cpu)
		explained = append(explained, float64(n)/r.Elapsed.Seconds())
	}
	measure(false) // to warm up
	without, cpuWithout = nil, nil
	for round := range *explainRounds {
		measure(round%2 == 1)
		measure(round%2 == 0)
		each = append(each, alone())
	}
	t.Logf("medians of %d rounds: %.0f questions/s without, %.0f with %.0f explanations/s: %.1f %% less", *explainRounds,
		middle(without), middle(with), middle(explained), 100*(1-middle(with)/middle(without)))
	t.Logf("processor time of kube-dns for an explanation while no question comes: %.2f ms", middle(each))
	t.Logf("processor time of kube-dns for a question: %.2f µs without, %.2f µs with: %.1f %% more",
		middle(cpuWithout), middle(cpuWith), 100*(middle(cpuWith)/middle(cpuWithout)-1))
}

func middle(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func awaitReady(t *testing.T, base string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(base + "/readiness")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("not ready in 30 s")
		}
	}
}

// explainClients are the connections that explanations are asked for on.
const explainClients = 4

// explainSteadily asks for explanations at an even rate, of what operators ask
// about: names that are there and names that are not. It costs the machine as
// little as a client can. stop returns how many were answered.
func explainSteadily(t *testing.T, addr string, c *cluster.Cluster) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered atomic.Int64
	for k := range explainClients {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer conn.Close()
			tick := time.NewTicker(explainClients * time.Second / explainRate)
			defer tick.Stop()
			r := bufio.NewReader(conn)
			for i := k; ; i += explainClients {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				s := c.Services[i*37%len(c.Services)]
				name := []string{s.DNSName(), s.Name + "x." + s.Namespace + ".svc." + cluster.Zone, s.Name + "." + s.Namespace + "x.svc." + cluster.Zone, "_htp._tcp." + s.DNSName()}[i%4]
				if err := explainOnce(conn, r, name); err != nil {
					t.Errorf("explaining %s: %v", name, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	return func() int {
		cancel()
		wg.Wait()
		return int(answered.Load())
	}
}

func explainOnce(conn net.Conn, r *bufio.Reader, name string) error {
	if _, err := fmt.Fprintf(conn, "GET /explain?name=%s HTTP/1.1\r\nHost: bench\r\n\r\n", name); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"reason": "`))) {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}
