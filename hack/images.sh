#!/usr/bin/env bash
# Builds the container images of kube-dns, dnsmasq-nanny and sidecar with
# buildah, podman or docker, whichever is there, for amd64 and arm64. Nothing is
# emulated and no registry is needed: the programs are cross-compiled, and
# dnsmasq and its libraries are taken out of Debian's packages for each
# architecture. `make images` calls it.
#
# Each image is tagged PREFIX/NAME:VERSION-ARCH, and PREFIX/NAME:VERSION is the
# list of both, where PREFIX is REGISTRY or localhost/kubedns. The images depend
# on the revision, Debian's packages and the version of the tool alone: the
# times in them are SOURCE_DATE_EPOCH, by default the last commit's.
#
# Environment:
#   VERSION, REVISION, LDFLAGS  as the Makefile has them
#   REGISTRY=registry.example.org/dns  name the images so, and push them there
#   ENGINE=buildah|podman|docker       in place of the first that is there
#   ARCHES='amd64 arm64'
#   APT_MAX_AGE=minutes                how old a list of Debian's packages may be; 720
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${VERSION:?}" "${REVISION:?}" "${LDFLAGS:?}"
GO=${GO:-go}
ARCHES=${ARCHES:-amd64 arm64}
prefix=${REGISTRY:-localhost/kubedns}
tag=${VERSION//+/_} # what a tag may not have
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
stage=bin/images
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kubedns/debian

fail() {
	echo "images.sh: $1" >&2
	exit 1
}

engine=${ENGINE:-}
if [ -z "$engine" ]; then
	for engine in buildah podman docker ''; do
		if [ -n "$engine" ] && command -v "$engine" >/dev/null && { [ "$engine" != docker ] || docker info >/dev/null 2>&1; }; then
			break
		fi
	done
	[ -n "$engine" ] || fail 'none of buildah, podman and docker is here (Debian: apt-get install buildah)'
fi

# debs ARCH prints the files of the packages that dnsmasq-base depends on, of
# Debian's newest release of each, security updates included. apt gets an
# installation of its own, so that this machine's architecture and packages do
# not matter, nor change.
debs() {
	local dir=$cache/$1 apt
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
		fail 'dnsmasq comes from packages, which needs apt-get and dpkg-deb (a machine with Debian or Ubuntu)'
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	exec 9>"$dir/lock"
	flock 9
	: >"$dir/status"
	apt=(apt-get -qq -o "APT::Architecture=$1" -o "APT::Architectures=$1" -o APT::Sandbox::User= -o Debug::NoLocking=1
		-o "Dir::State=$dir" -o "Dir::State::Lists=$dir/lists" -o "Dir::State::status=$dir/status"
		-o "Dir::Cache=$dir" -o "Dir::Cache::archives=$dir/archives")
	if [ -z "$(find "$dir/done" -mmin "-${APT_MAX_AGE:-720}" 2>/dev/null)" ]; then
		rm -rf "$dir/done" "$dir"/archives/*.deb
		"${apt[@]}" update >&2
		"${apt[@]}" install -y --download-only --no-install-recommends dnsmasq-base >&2
		touch "$dir/done"
	fi
	exec 9>&-
	ls "$dir"/archives/*.deb
}

# program NAME DIR ARCH puts the program and the licence into DIR.
program() {
	mkdir -p "$2/usr/share/doc/kube-dns"
	CGO_ENABLED=0 GOOS=linux GOARCH=$3 "$GO" build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o "$2/$1" "./cmd/$1"
	cp LICENSE "$2/usr/share/doc/kube-dns/copyright"
}

# nanny DIR ARCH adds dnsmasq to DIR, and the folders and users that it wants.
nanny() {
	local list
	mapfile -t list < <(debs "$2")
	[ ${#list[@]} -gt 0 ] || fail "no packages for $2"
	"$GO" run ./build/debfiles -program /usr/sbin/dnsmasq -out "$1" "${list[@]}" >"$stage/dnsmasq-nanny/packages-$2"
	mkdir -p "$1/etc" "$1/run/dnsmasq-nanny" "$1/tmp"
	printf '%s\n' root:x:0:0::/:/nonexistent nobody:x:65534:65534::/:/nonexistent \
		dnsmasq:x:1001:1001::/:/nonexistent >"$1/etc/passwd"
	printf '%s\n' root:x:0: nogroup:x:65534: dnsmasq:x:1001: >"$1/etc/group"
}

# image NAME TITLE LICENSES
image() {
	local name=$1 arch dir labels instances=()
	rm -rf "${stage:?}/$name"
	for arch in $ARCHES; do
		dir=$stage/$name/$arch
		program "$name" "$dir" "$arch"
		if [ "$name" = dnsmasq-nanny ]; then nanny "$dir" "$arch"; fi
		# Whatever the umask; nobody has to write but to the two folders that
		# are for it where the pod mounts nothing there.
		chmod -R u=rwX,go=rX "$dir"
		for writable in run/dnsmasq-nanny tmp; do
			if [ -d "$dir/$writable" ]; then chmod 1777 "$dir/$writable"; fi
		done
		find "$dir" -exec touch --no-dereference --date="@$epoch" {} +
		labels=(
			--label "org.opencontainers.image.title=$name"
			--label "org.opencontainers.image.description=$2"
			--label "org.opencontainers.image.version=$VERSION"
			--label "org.opencontainers.image.revision=$REVISION"
			--label "org.opencontainers.image.licenses=$3"
		)
		if [ "$name" = dnsmasq-nanny ]; then
			labels+=(--label "kube-dns.dnsmasq.version=$(awk '$1 == "dnsmasq-base" { print $2 }' "$stage/$name/packages-$arch")")
		fi
		build "$prefix/$name:$tag-$arch" "$arch" "build/$name/Dockerfile" "$stage/$name" "${labels[@]}"
		instances+=("$prefix/$name:$tag-$arch")
	done
	join "$prefix/$name:$tag" "${instances[@]}"
}

# build TAG ARCH DOCKERFILE CONTEXT LABEL...
build() {
	local name=$1 arch=$2 file=$3 context=$4 before now
	shift 4
	before=$("$engine" images --quiet "$name" 2>/dev/null || true)
	case $engine in
	buildah)
		buildah bud --quiet --isolation chroot --layers=false --timestamp "$epoch" --platform "linux/$arch" \
			--build-arg "TARGETARCH=$arch" "$@" --tag "$name" --file "$file" "$context" >/dev/null
		;;
	podman)
		podman build --quiet --isolation chroot --layers=false --timestamp "$epoch" --platform "linux/$arch" \
			--build-arg "TARGETARCH=$arch" "$@" --tag "$name" --file "$file" "$context" >/dev/null
		;;
	docker)
		SOURCE_DATE_EPOCH=$epoch docker build --quiet --provenance=false --platform "linux/$arch" \
			--build-arg "TARGETARCH=$arch" --build-arg "SOURCE_DATE_EPOCH=$epoch" "$@" --tag "$name" --file "$file" "$context" >/dev/null
		;;
	*) fail "ENGINE=$engine: buildah, podman or docker" ;;
	esac
	# What the tag named before is of no use any more, unless something else
	# names or uses it: then this fails.
	now=$("$engine" images --quiet "$name")
	if [ -n "$before" ] && [ "$before" != "$now" ]; then "$engine" rmi "$before" >/dev/null 2>&1 || true; fi
}

# join LIST IMAGE... makes the list of the images of all architectures, pushes
# it where there is a registry, and says what there is now.
join() {
	local list=$1 image
	shift
	case $engine in
	buildah | podman)
		"$engine" manifest rm "$list" >/dev/null 2>&1 || true
		"$engine" manifest create "$list" >/dev/null
		for image in "$@"; do "$engine" manifest add "$list" "containers-storage:$image" >/dev/null; done
		if [ -n "${REGISTRY:-}" ]; then "$engine" manifest push --all "$list" "docker://$list"; fi
		;;
	docker)
		# Docker keeps lists in registries alone.
		if [ -n "${REGISTRY:-}" ]; then
			for image in "$@"; do docker push --quiet "$image"; done
			docker manifest create --amend "$list" "$@" >/dev/null
			docker manifest push "$list"
		fi
		;;
	esac
	for image in "$@"; do describe "$image"; done
}

# describe IMAGE prints its name, digest and size.
describe() {
	case $engine in
	buildah)
		buildah images --json "$1" | sed -n 's/.*"size": "\(.*\)",/\1/p' | head -n 1 | tr -d ' ' | {
			read -r size
			echo "$1 $(buildah inspect --type image --format '{{.FromImageDigest}}' "$1") $size"
		}
		;;
	*) "$engine" image inspect --format "$1 {{if .Digest}}{{.Digest}}{{else}}{{.Id}}{{end}} {{.Size}} bytes" "$1" 2>/dev/null ||
		"$engine" image inspect --format "$1 {{.Id}} {{.Size}} bytes" "$1" ;;
	esac
}

image kube-dns "Answers DNS questions about a Kubernetes cluster's Services" Apache-2.0
image dnsmasq-nanny "Runs dnsmasq, the cache in front of kube-dns, and gives it its servers" 'Apache-2.0 AND GPL-2.0-only'
image sidecar "Probes kube-dns and dnsmasq, and exports dnsmasq's counters" Apache-2.0
