#!/usr/bin/env bash
# pin.sh v1.36.3: writes 1.36/go.mod and 1.36/go.sum, for build.sh to build that version of Kubernetes, and the etcd that
# it is built with. Kubernetes' own parts are replaced in its go.mod by folders beside it; here by their releases.
# pin.sh v1.38.0-beta.0 scheduler MODULE=MODULE@VERSION…: of a beta whose API server's modules aren't all on the proxy,
# kube-scheduler alone, with other versions of what the proxy lacks.
set -euo pipefail
cd "$(dirname "$0")"
version=${1:?usage: pin.sh v1.MINOR.PATCH [scheduler [REPLACEMENT…]]}
minor=$(grep -o '^1\.[0-9]*' <<< "${version#v}")
export GOTOOLCHAIN=auto # the Go that its go.mod asks for, if that is newer than ours
tools=(k8s.io/kubernetes/cmd/kube-scheduler)
[ "${2:-}" = scheduler ] || tools=(go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager} "${tools[@]}")
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
mkdir -p "$minor"
cd "$minor"
rm -f go.sum
cat > go.mod <<MOD
module hami-webhook/hack/controlplane

go $(awk '$1 == "go" { print $2 }' "$upstream")

tool (
$(printf '\t%s\n' "${tools[@]}")
)

require k8s.io/kubernetes $version

replace (
$(sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging/.*#\t\1 => \1 v0.${version#v1.}#p" "$upstream")
)
MOD
for replacement in "${@:3}"; do go mod edit -replace="$replacement"; done
go mod tidy -e # what nobody but tests of Kubernetes imports may be missing on the proxy
go list -deps tool > /dev/null
