#!/usr/bin/env bash
# Runs kube-dns, dnsmasq under its nanny in front of it, and the sidecar, without
# privileges on this machine, asks a question of each kind, and goes on serving
# until it is interrupted. `make run` calls it.
#
# The Services are those of the manifests in deploy/samples, or, where
# KUBECONFIG is set, those of the cluster that it names.
set -euo pipefail
cd "$(dirname "$0")/.."

address=127.0.0.1
dns_port=${DNS_PORT:-10053}
health_port=${HEALTH_PORT:-8081}
metrics_port=${METRICS_PORT:-10055}
upstream_port=${UPSTREAM_PORT:-10153}
dnsmasq_port=${DNSMASQ_PORT:-5353}
sidecar_port=${SIDECAR_PORT:-10054}
run=.run
pids=()

stop() {
	trap - EXIT
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
}
trap stop EXIT
trap 'exit 0' INT TERM

# install PACKAGE for COMMAND where that is missing.
install() {
	command -v "$2" >/dev/null && return
	[ -x "/usr/sbin/$2" ] && return
	local sudo=()
	if [ "$(id -u)" -ne 0 ]; then sudo=(sudo); fi
	if ! command -v apt-get >/dev/null; then
		echo "run.sh: $2 is missing, and there is no apt-get to install it: install the package that has it" >&2
		exit 1
	fi
	echo "installing $1, for $2"
	"${sudo[@]}" apt-get update -qq
	"${sudo[@]}" apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

# start LOG COMMAND... in the background.
start() {
	local log=$run/$1
	shift
	"$@" >"$log" 2>&1 &
	pids+=($!)
}

# ready URL waits until it answers 200.
ready() {
	for _ in $(seq 300); do
		curl -sf -o /dev/null "$1" && return
		kill -0 "${pids[-1]}" 2>/dev/null || break
		sleep 0.1
	done
	echo "run.sh: $1 does not answer 200: $(curl -s "$1" || true)" >&2
	tail -n 5 "$run"/*.log >&2
	exit 1
}

# answering PORT waits until somebody answers DNS there.
answering() {
	for _ in $(seq 100); do
		dig "@$address" -p "$1" +tries=1 +time=1 CH TXT version.bind >/dev/null 2>&1 && return
		kill -0 "${pids[-1]}" 2>/dev/null || break
		sleep 0.1
	done
	echo "run.sh: nobody answers DNS on $address:$1" >&2
	tail -n 5 "$run"/*.log >&2
	exit 1
}

# ask PORT NAME TYPE [DIG OPTION...] shows the question and what came of it.
ask() {
	local port=$1 name=$2 type=$3 reply
	shift 3
	printf '\n$ dig @%s -p %s %s %s %s\n' "$address" "$port" "$name" "$type" "$*"
	reply=$(dig "@$address" -p "$port" "$name" "$type" "$@" +tries=1 +time=5 +noall +comments +answer) || true
	awk '/^;; ->>HEADER/ { sub(/,.*/, "", $6); print "  " $6 } /^[^;]/ { print "  " $0 }' <<<"$reply"
}

install bind9-dnsutils dig
install dnsmasq-base dnsmasq
install curl curl
PATH=$PATH:/usr/sbin
mkdir -p "$run"
rm -f "$run"/*.log

if [ -n "${KUBECONFIG:-}" ]; then
	source=(--kubecfg-file="$KUBECONFIG")
	echo "Services: those of the cluster in $KUBECONFIG"
else
	source=(--manifests=deploy/samples --nameservers="$address:$upstream_port")
	echo "Services: those of the manifests in deploy/samples (KUBECONFIG=... make run: a cluster's)"
	# Stands in for the nameservers of a network: it knows example.org.
	start upstream.log dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --no-resolv --no-hosts \
		--listen-address="$address" --bind-interfaces --port="$upstream_port" --local-ttl=60 \
		--local=/example.org/ --host-record=www.example.org,192.0.2.80,2001:db8::80 \
		--local=/corp.example/ --host-record=wiki.corp.example,192.0.2.81 \
		--local=/in-addr.arpa/ --local=/ip6.arpa/
fi

# The stub domain corp.example, as a mounted ConfigMap has it.
mkdir -p "$run/config" "$run/nanny"
printf '{"corp.example": ["%s:%s"]}\n' "$address" "$upstream_port" >"$run/config/stubDomains"
rm -f "$run/config/upstreamNameservers"
if [ -z "${KUBECONFIG:-}" ]; then
	printf '["%s:%s"]\n' "$address" "$upstream_port" >"$run/config/upstreamNameservers"
fi

PROMETHEUS_PORT=$metrics_port start kube-dns.log bin/kube-dns "${source[@]}" \
	--dns-bind-address="$address" --dns-port="$dns_port" --healthz-port="$health_port" --v=2
ready "http://$address:$health_port/readiness"

zone="$address#$dns_port"
start dnsmasq-nanny.log bin/dnsmasq-nanny -v=2 -logtostderr -configDir="$run/config" -restartDnsmasq=true \
	-dnsmasqExec="$(command -v dnsmasq)" -stateDir="$run/nanny" -kubednsServer="$address:$dns_port" -- \
	-k --cache-size=1000 --no-negcache --dns-loop-detect --log-facility=- --conf-file=/dev/null --no-hosts \
	--port="$dnsmasq_port" --listen-address="$address" --bind-interfaces --user="$(id -un)" \
	--server="/cluster.local/$zone" --server="/in-addr.arpa/$zone" --server="/ip6.arpa/$zone"
answering "$dnsmasq_port"
start sidecar.log bin/sidecar --v=2 --dnsmasq-port="$dnsmasq_port" --prometheus-addr="$address" --prometheus-port="$sidecar_port" \
	--probe="kubedns,$address:$dns_port,kubernetes.default.svc.cluster.local,5,SRV" \
	--probe="dnsmasq,$address:$dnsmasq_port,kubernetes.default.svc.cluster.local,5,SRV" \
	--probe="through,$address:$dnsmasq_port,kubernetes.default.svc.cluster.local,5,SRV,uncached"
for label in kubedns dnsmasq through; do ready "http://$address:$sidecar_port/healthcheck/$label"; done

ask "$dns_port" kubernetes.default.svc.cluster.local A
ask "$dns_port" kubernetes.default.svc.cluster.local SRV
if [ -z "${KUBECONFIG:-}" ]; then
	ask "$dns_port" api.shop.svc.cluster.local AAAA
	ask "$dns_port" _https._tcp.api.shop.svc.cluster.local SRV
	ask "$dns_port" db.shop.svc.cluster.local A
	ask "$dns_port" db-0.db.shop.svc.cluster.local A
	ask "$dns_port" storefront.default.svc.cluster.local A
	ask "$dns_port" partner.shop.svc.cluster.local A
	ask "$dns_port" '*.shop.svc.cluster.local' A +tcp
	ask "$dns_port" -x 10.96.20.7
	ask "$dns_port" www.example.org A
fi
ask "$dns_port" 10-244-0-7.default.pod.cluster.local A
ask "$dns_port" no-such-service.default.svc.cluster.local A
ask "$dns_port" cluster.local SOA

# Through dnsmasq, as pods ask: it caches, and forwards the stub domain.
ask "$dnsmasq_port" kubernetes.default.svc.cluster.local A
if [ -z "${KUBECONFIG:-}" ]; then ask "$dnsmasq_port" wiki.corp.example A; fi

show() { printf '\n$ curl %s\n' "$1"; curl -s "$1" | grep -E "${2:-.}" | sed 's/^/  /'; }
show "http://$address:$sidecar_port/healthcheck/kubedns"
show "http://$address:$sidecar_port/healthcheck/dnsmasq"
show "http://$address:$sidecar_port/metrics" '^kubedns_(probe_success|dnsmasq_(hits|up))'

cat <<TEXT

kube-dns serves on $address:$dns_port, dnsmasq on $dnsmasq_port, until you press ctrl-C.
Try, in another terminal:
  dig @$address -p $dns_port web.shop.svc.cluster.local
  dig @$address -p $dnsmasq_port wiki.corp.example
  curl $address:$sidecar_port/healthcheck/through
  curl $address:$health_port/readiness
  curl '$address:$health_port/cache?name=shop.svc.cluster.local'
  curl -s $address:$metrics_port/metrics | grep kubedns_
  and change a file in deploy/samples: its records follow.
  and change $run/config/stubDomains: dnsmasq forwards to the new servers, without a restart.
The logs are $run/*.log.
TEXT
wait -n "${pids[@]}" || true
echo "run.sh: a program has ended; its last lines:" >&2
tail -n 5 "$run"/*.log >&2
exit 1
