"""Pods and quotas of one team, and what is read of them."""

from __future__ import annotations

import functools

import builders

from hami_webhook.admission.review import API_VERSIONS, Review
from hami_webhook.cluster.api import JSON
from hami_webhook.config.drivers import DraSection
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.kube.wire import ReviewedPod, convert
from hami_webhook.quota.account import QuotaAccount

GPU, MEM, CORES = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
KEYS = {"gpu": GPU, "mem": MEM, "cores": CORES}
TEAM = "team"
NOON = 1767268800.0
ALLOCATED = "hami.io/vgpu-devices-allocated"
LARGE, SMALL = 24576, 16384


@functools.cache
def vendors(factor: int = 1) -> Vendors:
    config = builtin_device_config().config
    nvidia = config.section("nvidia").model_copy(update={"memory_factor": factor})
    return enabled_vendors(config.model_copy(update={"nvidia": nvidia}))


@functools.cache
def claiming_vendors(*, converting: frozenset[str] | None = None) -> Vendors:
    """The same where claims are charged; `converting` are the drivers that limits become claims for, else all."""
    dra = DraSection(enabled=True)
    if converting is not None:
        others = {row: row.model_copy(update={"convert": False}) for row in dra.devices if row.driver not in converting}
        dra = dra.model_copy(update={"devices": tuple([others.get(row, row) for row in dra.devices])})
    return enabled_vendors(builtin_device_config().config.model_copy(update={"dra": dra}))


pod = functools.partial(builders.pod, namespace=TEAM)
read_pod = functools.partial(builders.read_pod, namespace=TEAM)
quota = functools.partial(builders.quota, namespace=TEAM)


def account_of(obj: JSON, of: Vendors | None = None) -> QuotaAccount:
    return QuotaAccount.read(ResourceQuota.from_object(obj), of or vendors())


def full(**amounts: int) -> dict[str, int]:
    """Amounts by managed key."""
    return {KEYS[key]: amount for key, amount in amounts.items()}


def allocation(*rows: list[tuple[str, int, int]]) -> str:
    """The allocated annotation: a row per container, of (uuid, MiB, cores)."""
    return "".join("".join(f"{u},NVIDIA,{m},{c}:" for u, m, c in row) + ";" for row in rows)


def creation(name: str, manifest: JSON, *, namespace: str = TEAM, dry_run: bool = False) -> Review:
    """The review of a new pod."""
    pod = convert(manifest, ReviewedPod, "pod")
    return Review(
        API_VERSIONS[0], name, "CREATE", "Pod", "", namespace, name, pod, old_object=ReviewedPod(), dry_run=dry_run
    )


def change(before: JSON, after: JSON, *, namespace: str = TEAM, dry_run: bool = False) -> Review:
    """The review of a pod's update."""
    name = after["metadata"]["name"]
    old, new = convert(before, ReviewedPod, "pod"), convert(after, ReviewedPod, "pod")
    return Review(API_VERSIONS[0], name, "UPDATE", "Pod", "", namespace, name, new, old_object=old, dry_run=dry_run)
