#!/usr/bin/env bash
# Builds the control plane of the end-to-end tests, etcd and kube-apiserver,
# from the Go modules beside this script, and prints the two binaries' paths:
#
#   etcd=/home/you/.cache/kubedns/controlplane/etcd-v3.7.3-go1.26.8/etcd
#   kube-apiserver=/home/you/.cache/kubedns/controlplane/kube-apiserver-v1.37.2-go1.26.8/kube-apiserver
#
# A binary stays in the cache until its version or Go's changes: the first
# build takes minutes, a second call nothing.
#
# Usage: controlplane.sh [-n]
#   -n  build nothing, only print where the binaries are or would be
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kubedns/controlplane
build=true
case ${1-} in
'') ;;
-n) build=false ;;
*)
	echo "usage: $0 [-n]" >&2
	exit 2
	;;
esac

go_version=$(cd "$here/etcd" && go env GOVERSION)
# Blanks and slashes occur in the versions of development builds of Go.
go_version=${go_version//[^A-Za-z0-9._-]/_}

# binary NAME MODULE prints NAME=PATH, once PATH is built.
binary() {
	local name=$1 module=$2 version dir tmp
	version=$(awk -v m="$module" '$1 == "require" { $0 = substr($0, 9) } $1 == m { print $2; exit }' "$here/$name/go.mod")
	if [ -z "$version" ]; then
		echo "$0: $name/go.mod does not require $module" >&2
		return 1
	fi
	dir=$cache/$name-$version-$go_version
	if $build && [ ! -x "$dir/$name" ]; then
		mkdir -p "$dir"
		# One build at a time: whoever waited finds the binary made.
		exec 9>"$dir/lock"
		flock 9
		if [ ! -x "$dir/$name" ]; then
			echo "building $name $version with $go_version; the first time this takes minutes" >&2
			tmp=$(mktemp "$dir/.$name.XXXXXX")
			# shellcheck disable=SC2064
			trap "rm -f '$tmp'" EXIT
			(cd "$here/$name" && CGO_ENABLED=0 go build -mod=readonly -ldflags='-s -w' -o "$tmp" .)
			chmod 755 "$tmp"
			mv "$tmp" "$dir/$name"
			trap - EXIT
		fi
		exec 9>&-
	fi
	echo "$name=$dir/$name"
}

binary etcd go.etcd.io/etcd/server/v3
binary kube-apiserver k8s.io/kubernetes
