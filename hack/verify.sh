#!/usr/bin/env bash
# Checks what needs no test: formatting, tidy modules, dependencies that are
# needed, the direction of imports, scripts, file modes, what the docs refer to,
# and that nothing of it changed the work tree. go vet is part of `make lint`.
#
# Usage: verify.sh 'MODULE...' 'OWN MODULE...'   (directories; see the Makefile)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
modules=$1 own=$2
failed=0

fail() {
	echo "verify: $1" >&2
	failed=1
}

unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 -r gofmt -l)
[ -z "$unformatted" ] || fail "not formatted by gofmt: $unformatted"

for module in $modules; do
	(cd "$module" && go mod tidy -diff) || fail "go mod tidy in $module"
done

# What a module requires itself, and not for a dependency's sake, some package
# of it imports, tests included; what it replaces is among its dependencies.
# `go mod tidy` looks at files for other systems as well, and leaves replace
# directives alone.
needed() {
	local imports path
	imports=$(go list -f '{{join .Imports "\n"}}{{"\n"}}{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}' ./... | sort -u)
	while read -r path; do
		grep -qE "^${path//./\\.}(/|\$)" <<<"$imports" || echo "$path is required, and no package here imports it"
	done < <(go list -m -f '{{if not (or .Main .Indirect)}}{{.Path}}{{end}}' all | grep .)
	while read -r path; do
		go list -m "$path" >/dev/null 2>&1 || echo "$path is replaced, and not depended on"
	done < <(go mod edit -json | awk '/"Replace": \[/ { on = 1 } on && /"Old"/ { old = 1 } old && /"Path"/ { gsub(/[",]/, "", $2); print $2; old = 0 }')
}
for module in $own; do
	unneeded=$(cd "$module" && needed) || fail "looking at the dependencies of $module"
	[ -z "$unneeded" ] || fail "dependencies of $module: $unneeded"
done

# unsafe is for sending and receiving messages in batches, and nothing else.
unsafe=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 grep -lE '^(import )?[[:space:]]*([._[:alnum:]]+ )?"unsafe"' |
	grep -vE '^(pkg/dns/server/udp(_[a-z0-9]+)?\.go|pkg/dns/server/udp(_[a-z0-9]+)*_test\.go|hack/bench/(load|echo)/[a-z]+\.go)$' || true)
[ -z "$unsafe" ] || fail "unsafe outside what batches need: $unsafe"
linkname=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 grep -lE '^//go:linkname' || true)
[ -z "$linkname" ] || fail "go:linkname: $linkname"

# never PACKAGES FORBIDDEN WHY: no package of PACKAGES may depend on an import
# path that matches the regular expression FORBIDDEN. Packages that do not
# exist are not checked.
never() {
	local packages=() package deps found
	for package in $1; do
		if compgen -G "${package%/...}/*.go" >/dev/null || [[ $package == */... && -d ${package%/...} ]]; then
			packages+=("./$package")
		fi
	done
	[ ${#packages[@]} -gt 0 ] || return 0
	deps=$(go list -deps "${packages[@]}")
	found=$(grep -E "$2" <<<"$deps" || true)
	[ -z "$found" ] || fail "$1 must not import $found: $3"
}

never 'cmd/sidecar cmd/dnsmasq-nanny pkg/sidecar/... pkg/dnsmasq/...' '^k8s\.io/client-go(/|$)' \
	'client-go only where the cluster is watched'
never 'pkg/dns/...' '^kubedns/(cmd|pkg/dnsmasq|pkg/sidecar)(/|$)' 'the programs do not import each other'
# Through the configuration, which validates federations, the nanny has
# pkg/dns/federation as well; golangci-lint sees that it does not import it.
never 'pkg/dnsmasq/...' '^kubedns/(cmd(/.*)?|pkg/sidecar(/.*)?|pkg/dns|pkg/dns/(server|treecache)(/.*)?)$' \
	'the nanny reads the configuration, and nothing else of kube-dns'
never 'pkg/sidecar/...' '^kubedns/(cmd(/.*)?|pkg/dns|pkg/dns/(server|treecache|federation)(/.*)?)$' \
	"the sidecar takes dnsmasq's counters, and nothing of kube-dns"
never 'pkg/dns/qname' '^(kubedns/(cmd|pkg/(dns$|dns/[^q]|[^d]))|[a-z0-9-]+(\.[a-z0-9-]+)+/)' 'the forms of names need nothing else'
parts='pkg/dns/objects pkg/dns/source/... pkg/dns/records pkg/dns/treecache pkg/dns/skydns pkg/dns/server
	pkg/dns/forward pkg/dns/config/... pkg/dns/federation pkg/dns/apiclient'
never "$parts" '^kubedns/pkg/dns$' 'pkg/dns puts these together'
never 'pkg/dns/objects pkg/dns/records pkg/dns/treecache pkg/dns/federation' \
	'^(k8s\.io/client-go|github\.com/golang/glog)(/|$)' 'these are pure: no I/O, no log'
never 'pkg/dns/objects' '^kubedns/pkg/dns/(records|source|skydns|server|forward)(/|$)' 'objects know of nothing above them'
never 'pkg/dns/records' '^kubedns/pkg/dns/(source|skydns|server|forward)(/|$)' 'records are made of objects alone'
never 'pkg/dns/skydns pkg/dns/server pkg/dns/forward pkg/dns/treecache' '^kubedns/pkg/dns/(objects|source|records)(/|$)' \
	'answers come from the tree, not from the objects or their source'
never 'pkg/dns/source' '^kubedns/pkg/dns/source/' 'the interface does not know who implements it'
never 'pkg/dns/source/manifests pkg/dns/source/snapshot' '^k8s\.io/client-go(/|$)' \
	'client-go only where the cluster is watched'
# A package depends on itself, so explain is left out.
never "$(go list ./pkg/... | sed -n '/^kubedns\/pkg\/dns\/explain$/d; s/^kubedns\///p' | tr '\n' ' ')" '^kubedns/pkg/dns/explain$' \
	'what a name resolves to is explained by the status site and `kube-dns explain` alone'
never 'cmd/kube-dns/site' '^kubedns/cmd/kube-dns/app$' 'app puts the site together, and the site knows nothing of app'
never 'pkg/page pkg/resolvconf pkg/localaddr' '^(kubedns/(cmd|pkg/(dns|dnsmasq|sidecar|version))|[a-z0-9-]+(\.[a-z0-9-]+)+)(/|$)' \
	"pages, resolv.conf and local addresses need the standard library alone"
never './...' '^(k8s\.io/kubernetes|k8s\.io/client-go/kubernetes)(/|$)' 'a scheme of two groups is enough'

# By folder, as a module under hack may have any path.
from_hack=$(go list -deps -f '{{.Dir}}' ./cmd/... ./pkg/... | grep "^$PWD/hack/" || true)
[ -z "$from_hack" ] || fail "cmd and pkg must not depend on hack, which is for building and testing: $from_hack"

while IFS= read -r -d '' file; do
	[ -f "$file" ] || continue
	read -r -n 64 first <"$file" || true
	mode=$(stat -c %a "$file")
	if [[ $first == '#!'* ]]; then
		[ "$mode" = 755 ] || fail "$file has a #! line and mode $mode, not 755"
		if [[ $first == *sh ]]; then
			bash -n "$file" || fail "$file is no valid shell"
		fi
	elif [ "$mode" != 644 ]; then
		fail "$file has mode $mode, not 644"
	fi
done < <(git ls-files -z --cached --others --exclude-standard)

for entry in $(git ls-files --cached --others --exclude-standard | cut -d/ -f1 | sort -u); do
	case $entry in
	.* | cmd | pkg | build | deploy | docs | hack | Makefile | go.mod | go.sum | README.md | CONTRIBUTING.md | LICENSE) ;;
	*) fail "$entry does not belong at the top level" ;;
	esac
done

# README.md is what a newcomer reads first.
size=$(wc -c <README.md)
[ "$size" -le 8192 ] || fail "README.md has $size octets, more than 8192: move something to docs"
go run ./hack/verifydocs || fail 'the docs refer to what does not exist'

git --no-pager diff --exit-code || fail 'the work tree differs from the index'
exit "$failed"
