#!/usr/bin/env bash
# Builds the control plane that the end-to-end tests run against: kube-apiserver, kube-controller-manager, kube-scheduler
# and etcd, in the versions that the go.mod of a minor version pins (K8S=1.36, which is the default: 1.36/go.mod), through
# the Go module proxy. The binaries go into
#   ${XDG_CACHE_HOME:-~/.cache}/hami-webhook/<kubernetes version>/
# once per machine and version; a second call finds them and ends at once. Where go.mod has kube-scheduler alone, the others
# are those of the minor version before. Prints that folder on standard output;
# everything else goes to standard error. `build.sh --where` prints the folder and builds nothing (exit 1: not built).
# KUBEBUILDER_ASSETS, when set, names a folder that has the binaries already, and is used instead.
set -euo pipefail
cd "$(dirname "$0")"
minor=${K8S:-1.36}
[ -f "$minor/go.mod" ] || { echo "controlplane: K8S must be one of $(echo 1.*/ | tr -d /), not $minor" >&2; exit 2; }
cd "$minor"

programs=(etcd kube-apiserver kube-controller-manager kube-scheduler)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
folder=${KUBEBUILDER_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/hami-webhook/$version}

missing() {
  local program
  for program in "${programs[@]}"; do [ -x "$folder/$program" ] || echo "$program"; done
}

if [ -z "$(missing)" ]; then
  echo "$folder"
  exit 0
fi
if [ "${1:-}" = --where ]; then
  echo "$folder"
  exit 1
fi
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  echo "controlplane: KUBEBUILDER_ASSETS is $folder, which lacks $(missing | paste -sd' '); unset it to build them here" >&2
  exit 1
fi
if ! command -v go >/dev/null; then
  echo "controlplane: building Kubernetes $version needs Go $(awk '$1 == "go" { print $2 }' go.mod) or newer on the PATH;" \
    "or set KUBEBUILDER_ASSETS to a folder with ${programs[*]}" >&2
  exit 1
fi

tools=(k8s.io/kubernetes/cmd/kube-scheduler)
before=
if grep -q k8s.io/kubernetes/cmd/kube-apiserver go.mod; then
  tools+=(k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager})
else
  before=$(K8S=1.$((${minor#1.} - 1)) ../build.sh)
fi
export CGO_ENABLED=0
export GOTOOLCHAIN=auto # the Go that go.mod asks for comes through the proxy as well, if it is newer than ours
# The versions that the programs print and serve at /version; the commit's time keeps the build reproducible.
stamp="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitTreeState=clean"

echo "controlplane: building ${tools[*]##*/} $version into $folder; 10 to 20 minutes on two cores, once" >&2
started=$SECONDS
mkdir -p "$(dirname "$folder")"
partial=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$partial"' EXIT
go build -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w $stamp" -o "$partial/" "${tools[@]}"
if [ -n "$before" ]; then
  ln -s "$before"/{etcd,kube-apiserver,kube-controller-manager} "$partial/"
else
  go build -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w" -o "$partial/etcd" go.etcd.io/etcd/server/v3
fi

chmod 755 "$partial"
# Whoever built at the same time and was first has the same programs: theirs stay.
mv -T "$partial" "$folder" 2>/dev/null || { [ -z "$(missing)" ] || { rm -rf "$folder" && mv -T "$partial" "$folder"; }; }
echo "controlplane: ready in $((SECONDS - started)) s" >&2
echo "$folder"
