package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"kubedns/hack/bench/cluster"
	"kubedns/hack/bench/proc"
	"kubedns/hack/e2e/harness"
)

// The peers, as they are called everywhere.
const (
	kubeDNS        = "kube-dns"
	coreDNS        = "coredns"
	coreDNSCache   = "coredns-cache"
	nsd            = "nsd"
	dnsmasqCache   = "dnsmasq-cache"
	dnsmasqForward = "dnsmasq-forward"
	echo           = "echo"
)

// A peer is a server that is measured.
type peer struct {
	Name string
	// Title and About are for the reader of the report.
	Title, About string
	// Workloads are those that it is given; nil: all.
	Workloads []string
	// start starts the server where it has to listen; what it returns is
	// stopped by whoever called, also on an error.
	start func(b *bench, r *running) error
}

func peers() []peer {
	return []peer{
		{kubeDNS, "kube-dns", "this repository's, with its default flags", nil, (*bench).startKubeDNS},
		{nsd, "NSD", "the same records as a zone file; server-count 2, reuseport, no response rate limiting, minimal responses", nil, (*bench).startNSD},
		{coreDNS, "CoreDNS", "errors, kubernetes, prometheus, loadbalance; no cache", nil, func(b *bench, r *running) error {
			return b.startCoreDNS(r, b.kubeconfig, false)
		}},
		{coreDNSCache, "CoreDNS, cache", "the same with cache 30", []string{"a", "aaaa", "nxdomain", "headless", "srv", "mixed"}, func(b *bench, r *running) error {
			return b.startCoreDNS(r, b.kubeconfig, true)
		}},
		{dnsmasqCache, "dnsmasq, cached", "answers from its cache", []string{"a", "headless", "srv", "a-tcp"}, func(b *bench, r *running) error {
			return b.startDNSMasq(r, 40000)
		}},
		{dnsmasqForward, "dnsmasq, forwarding", "without a cache, forwards to kube-dns; its own processor time alone", []string{"a", "nxdomain", "headless", "srv", "mixed"}, func(b *bench, r *running) error {
			return b.startDNSMasq(r, 0)
		}},
		{echo, "echo", "the floor for Go: recvmmsg and sendmmsg in batches, one SO_REUSEPORT socket a core, no DNS", []string{"a"}, (*bench).startEcho},
	}
}

func peerNames() []string {
	var names []string
	for _, p := range peers() {
		names = append(names, p.Name)
	}
	return names
}

// running is a peer that runs.
type running struct {
	addr     netip.AddrPort
	measured *proc.Process
	behind   *proc.Process // the kube-dns that dnsmasq forwards to, or nil
}

func (r *running) stop() error {
	var err error
	for _, p := range []*proc.Process{r.measured, r.behind} {
		if p != nil {
			err = errors.Join(err, p.Stop(5*time.Second))
		}
	}
	return err
}

// startPeer starts p and waits until it answers right.
func (b *bench) startPeer(ctx context.Context, p peer) (_ *running, err error) {
	r := &running{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", p.Name, err), r.stop())
		}
	}()
	if r.addr, err = freeAddr(); err != nil {
		return nil, err
	}
	if err := p.start(b, r); err != nil {
		return nil, err
	}
	if p.Name == echo {
		return r, sleep(ctx, 200*time.Millisecond) // it has no right answers
	}
	return r, b.await(ctx, r.addr, r.measured)
}

// await waits until the server at addr answers right.
func (b *bench) await(ctx context.Context, addr netip.AddrPort, p *proc.Process) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q, _ := cluster.NewQuestions(b.cluster, 1).Next(cluster.A)
	for {
		err := b.ask(ctx, addr, cluster.A, q, false)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-p.Exited():
		case <-time.After(20 * time.Millisecond):
			continue
		}
		return fmt.Errorf("no right answer: %w; it says: %s", err, p.Log.Tail(2000))
	}
}

// ask asks q and reports whether the answer is right.
func (b *bench) ask(ctx context.Context, addr netip.AddrPort, k cluster.Kind, q *dns.Msg, tcp bool) error {
	c := dns.Client{Timeout: 2 * time.Second}
	if tcp {
		c.Net = "tcp"
	}
	q = q.Copy()
	q.Id = dns.Id()
	reply, _, err := c.ExchangeContext(ctx, q, addr.String())
	if err != nil {
		return err
	}
	return b.cluster.Check(k, q, reply, tcp)
}

func freeAddr() (netip.AddrPort, error) {
	ports, err := harness.FreePorts(1)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(ports[0])), nil
}

// freePorts returns n free ports as text.
func freePorts(n int) ([]string, error) {
	numbers, err := harness.FreePorts(n)
	if err != nil {
		return nil, err
	}
	ports := make([]string, n)
	for i, port := range numbers {
		ports[i] = strconv.Itoa(port)
	}
	return ports, nil
}

func (b *bench) startKubeDNS(r *running) error {
	return b.startKubeDNSWith(r, b.kubeconfig)
}

// startKubeDNSWith starts kube-dns with metrics, as the stock pod has it, and
// with args more.
func (b *bench) startKubeDNSWith(r *running, kubeconfig string, args ...string) (err error) {
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	args = append([]string{
		"--domain=" + cluster.Zone, "--dns-bind-address=" + r.addr.Addr().String(), "--dns-port=" + strconv.Itoa(int(r.addr.Port())),
		"--healthz-port=" + ports[0], "--nameservers=127.0.0.1:9", "--kubecfg-file=" + kubeconfig, "--drain-period=0s",
	}, args...)
	r.measured, err = proc.Start([]string{"PROMETHEUS_PORT=" + ports[1]}, b.bins.kubeDNS, args...)
	return err
}

func (b *bench) startCoreDNS(r *running, kubeconfig string, cached bool) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	cache := ""
	if cached {
		cache = "    cache 30\n"
	}
	corefile := fmt.Sprintf(`.:%d {
    bind %s
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        ttl 30
    }
    prometheus 127.0.0.1:%s
%s    loadbalance
}
`, r.addr.Port(), r.addr.Addr(), kubeconfig, ports[0], cache)
	file := filepath.Join(b.dir, "Corefile")
	if err := os.WriteFile(file, []byte(corefile), 0o600); err != nil {
		return err
	}
	r.measured, err = proc.Start(nil, b.bins.coreDNS, "-conf", file)
	return err
}

func (b *bench) startNSD(r *running) error {
	path, err := find("nsd")
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`server:
  ip-address: %s@%d
  server-count: 2
  reuseport: yes
  ipv4-edns-size: 4096
  rrl-ratelimit: 0
  rrl-whitelist-ratelimit: 0
  minimal-responses: yes
  username: ""
  zonesdir: %q
  database: ""
  pidfile: %q
  xfrdfile: ""
  zonelistfile: %q
  xfrdir: %q
remote-control:
  control-enable: no
zone:
  name: cluster.local
  zonefile: %q
`, r.addr.Addr(), r.addr.Port(), b.dir, filepath.Join(b.dir, "nsd.pid"), filepath.Join(b.dir, "zone.list"), b.dir, b.zoneFile)
	file := filepath.Join(b.dir, "nsd.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	r.measured, err = proc.Start(nil, path, "-d", "-c", file)
	return err
}

// startDNSMasq starts dnsmasq with a kube-dns behind it.
func (b *bench) startDNSMasq(r *running, cacheSize int) error {
	path, err := find("dnsmasq")
	if err != nil {
		return err
	}
	behind := &running{}
	if behind.addr, err = freeAddr(); err != nil {
		return err
	}
	if err := b.startKubeDNS(behind); err != nil {
		return err
	}
	r.behind = behind.measured
	args := []string{
		"-k", "--conf-file=/dev/null", "--pid-file=", "--log-facility=-", "--no-hosts", "--no-resolv", "--bind-interfaces",
		"--listen-address=" + r.addr.Addr().String(), "--port=" + strconv.Itoa(int(r.addr.Port())),
		"--cache-size=" + strconv.Itoa(cacheSize), "--no-negcache",
		"--server=/" + strings.TrimSuffix(cluster.Zone, ".") + "/" + behind.addr.Addr().String() + "#" + strconv.Itoa(int(behind.addr.Port())),
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	r.measured, err = proc.Start(nil, path, args...)
	return err
}

func (b *bench) startEcho(r *running) (err error) {
	r.measured, err = proc.Start(nil, b.bins.echo, r.addr.String())
	return err
}
