#!/usr/bin/env bash
# Builds helm in the version below, through the Go module proxy, into
#   ${XDG_CACHE_HOME:-~/.cache}/hami-webhook/helm-<version>/
# once per machine and version; a second call finds it and ends at once. Prints the program's path on standard output;
# everything else goes to standard error. `build.sh --where` prints the path and builds nothing (exit 1: not built).
set -euo pipefail

version=v3.21.4
go_version=1.26
# The Kubernetes version that `helm template` assumes without a cluster: that of the client in helm's go.mod.
kubernetes=36
folder=${XDG_CACHE_HOME:-$HOME/.cache}/hami-webhook/helm-$version

if [ -x "$folder/helm" ] || [ "${1:-}" = --where ]; then
  echo "$folder/helm"
  [ -x "$folder/helm" ]
  exit
fi
if ! command -v go >/dev/null; then
  echo "helm: building helm $version needs Go $go_version or newer on the PATH" >&2
  exit 1
fi

echo "helm: building $version into $folder; 3 to 7 minutes on two cores, once" >&2
started=$SECONDS
mkdir -p "$(dirname "$folder")"
partial=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$partial"' EXIT
module=helm.sh/helm/v3
stamp="-X $module/internal/version.version=$version -X $module/internal/version.metadata="
for package in chartutil lint/rules; do
  stamp+=" -X $module/pkg/$package.k8sVersionMajor=1 -X $module/pkg/$package.k8sVersionMinor=$kubernetes"
done
export CGO_ENABLED=0 GOBIN=$partial
go install -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w $stamp" "$module/cmd/helm@$version"

chmod 755 "$partial"
# Whoever built at the same time and was first has the same program: theirs stays.
mv -T "$partial" "$folder" 2>/dev/null || [ -x "$folder/helm" ]
echo "helm: ready in $((SECONDS - started)) s" >&2
echo "$folder/helm"
