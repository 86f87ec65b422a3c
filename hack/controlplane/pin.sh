#!/usr/bin/env bash
# pin.sh v1.36.3: writes 1.36/go.mod and 1.36/go.sum, for build.sh to build that version of Kubernetes, and the etcd that
# it is built with. Kubernetes' own parts are replaced in its go.mod by folders beside it; here by their releases.
set -euo pipefail
cd "$(dirname "$0")"
version=${1:?usage: pin.sh v1.MINOR.PATCH}
minor=${version#v}
minor=${minor%.*}
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
mkdir -p "$minor"
cd "$minor"
rm -f go.sum
cat > go.mod <<MOD
module hami-webhook/hack/controlplane

go $(awk '$1 == "go" { print $2 }' "$upstream")

tool (
	go.etcd.io/etcd/server/v3
	k8s.io/kubernetes/cmd/kube-apiserver
	k8s.io/kubernetes/cmd/kube-controller-manager
	k8s.io/kubernetes/cmd/kube-scheduler
)

require k8s.io/kubernetes $version

replace (
$(sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging/.*#\t\1 => \1 v0.${version#v1.}#p" "$upstream")
)
MOD
go mod tidy
