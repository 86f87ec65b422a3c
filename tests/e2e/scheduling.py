"""A scheduler for the tests: it places what waits with the program's own Fit and binds it, as its service account."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.scheduling.placer import Placement

from .deployment import ROOT, SYSTEM, Deployment, Kubectl, bound_role, service_account
from .tenants import tenant

VENDORS = enabled_vendors(builtin_device_config().config)


def scheduler_account(kubectl: Kubectl) -> None:
    """The service account that schedulers run as, with the manifests' own rights; and the device plugins', with all."""
    kubectl.apply(
        *yaml.safe_load_all((ROOT / "manifests" / "scheduler" / "rbac.yaml").read_text()),
        service_account("hami-device-plugin", SYSTEM),
        bound_role("e2e-device-plugin", "cluster-admin", "hami-device-plugin", SYSTEM),
    )


def foreign_scheduler(deployment: Deployment, system: str, name: str) -> Kubectl:
    """kubectl as the service account of another project's scheduler, which may patch and bind pods."""
    role = f"e2e-{name}"
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "update"]}
    bindings = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    deployment.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}},
        {**kind, "metadata": {"name": role}, "rules": [pods, bindings]},
        bound_role(role, role, name, system),
    )
    return tenant(deployment.kubectl, deployment.plane, deployment.folder, system, role, name)


def on_cluster(login: Path, work: Callable[[KubernetesCluster], Awaitable[Any]]) -> Any:
    """Run something with a connection."""

    async def run() -> Any:
        async with KubernetesCluster(await connect(str(login))) as cluster:
            return await work(cluster)

    return asyncio.run(run())


def place_waiting(login: Path, namespace: str, nodes: Sequence[str] | None = None, only: str = "") -> dict[str, str]:
    """Place and bind the namespace's waiting pods, in the order of their names: where each went; "" is nowhere.

    `nodes` are the candidates, all by default; `only` is the one pod it is about.
    """

    async def work(cluster: KubernetesCluster) -> dict[str, str]:
        core = Core(cluster, VENDORS, Options(), clock=time.time)
        for kind in (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.PODS):
            for item in (await cluster.list(kind)).items:
                core.caches.put(kind, item)
        went = {}
        for pod in sorted(core.state.pods_in(namespace), key=lambda pod: pod.name):
            if pod.node_name or pod.scheduler_name != "hami-scheduler" or only not in ("", pod.name):
                continue
            placement = await core.placer.place(pod, nodes)
            went[pod.name] = placement.node if isinstance(placement, Placement) else ""
        assert core.placer.events is not None
        await core.placer.events.flush()
        return went

    found: dict[str, str] = on_cluster(login, work)
    return found


def bind(
    kubectl: Kubectl, space: str, name: str, node: str, annotations: dict[str, str] | None = None, *flags: str
) -> str:
    """Bind a pod to a node; what kubectl says against it, empty if it is done."""
    meta = {"name": name, "namespace": space, "annotations": annotations or {}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    path = f"/api/v1/namespaces/{space}/pods/{name}/binding"
    done = kubectl.run("create", "--raw", path, "-f", "-", *flags, stdin=json.dumps(binding))
    return done.stderr if done.returncode else ""


def set_phase(kubectl: Kubectl, space: str, name: str, phase: str) -> None:
    """As kubelet does."""
    status = json.dumps({"status": {"phase": phase}})
    kubectl("patch", "pod", name, "-n", space, "--subresource=status", "--type=merge", "-p", status)


def messages(kubectl: Kubectl, space: str) -> str:
    """What the namespace's events say, line by line."""
    return "\n".join(item.get("message") or "" for item in kubectl.get("events", "-n", space)["items"])
