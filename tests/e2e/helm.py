"""What helm installs of our chart on a cluster, and takes away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from helm_program import CHART, RELEASE, Helm

from .deployment import SYSTEM, eventually
from .installation import Cluster

MADE_WHILE_IT_RAN = {
    ("Secret", SYSTEM, "hami-webhook-tls"),
    ("Lease", SYSTEM, "hami-scheduler"),
    ("Lease", SYSTEM, "hami-scheduler-controller"),
}
"""What goes with the namespace only, beside what every namespace has."""
DEFINED = "acceleratorquotas.hami.io"
KEPT = {("CustomResourceDefinition", "", DEFINED), ("APIService", "", "v1alpha1.hami.io")}
"""What helm leaves, as users' AcceleratorQuotas would go with it."""
OF_A_NAMESPACE = {
    ("Namespace", "", SYSTEM),
    ("ServiceAccount", SYSTEM, "default"),
    ("ConfigMap", SYSTEM, "kube-root-ca.crt"),
}


@contextlib.contextmanager
def installed(
    cluster: Cluster,
    helm: Helm,
    *arguments: str | Path,
    chart: Path = CHART,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """`helm install --wait`, and `helm uninstall` at the end of the block: what is left goes with the namespace."""
    before = cluster.objects()
    try:
        with _release(cluster, helm, chart, *arguments, meanwhile=meanwhile):
            yield
        eventually(lambda: left(cluster, before) - MADE_WHILE_IT_RAN - KEPT, set())
    finally:
        cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")
        cluster.kubectl("delete", "crd", DEFINED, "--ignore-not-found")
    eventually(lambda: cluster.objects() - before, set())


@contextlib.contextmanager
def _release(
    cluster: Cluster, helm: Helm, chart: Path, *arguments: str | Path, meanwhile: Callable[[], None]
) -> Iterator[None]:
    try:
        with helm.start(*helm.on_release("install", chart, "--create-namespace", *arguments)) as process:
            try:
                meanwhile()
                output, errors = process.communicate(timeout=300)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, errors + output + cluster.logs()
        yield
    finally:
        helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--ignore-not-found")


def left(cluster: Cluster, before: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """What there is that wasn't, but for what every namespace has, and what a test adds to ours."""
    new = cluster.objects() - before - OF_A_NAMESPACE
    return {each for each in new if not each[-1].startswith("hami-device-plugin")}
