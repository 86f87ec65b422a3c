"""Pods, nodes and quotas to make, short to write."""

from __future__ import annotations

import functools
from typing import Any

import orjson

from hami_webhook.admission.review import API_VERSIONS, Review
from hami_webhook.cluster.api import JSON
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.wire import ReviewedPod, convert
from hami_webhook.quota.account import QuotaAccount

GPU, MEM, CORES = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
KEYS = {"gpu": GPU, "mem": MEM, "cores": CORES}
TEAM = "team"
NOON = 1767268800.0
ALLOCATED = "hami.io/vgpu-devices-allocated"
_AMOUNTS = {
    "gpu": "nvidia.com/gpu",
    "mem": "nvidia.com/gpumem",
    "percent": "nvidia.com/gpumem-percentage",
    "cores": "nvidia.com/gpucores",
}
LARGE, SMALL = 24576, 16384


@functools.cache
def vendors(factor: int = 1) -> Vendors:
    config = builtin_device_config().config
    assert config.nvidia is not None
    return enabled_vendors(config.model_copy(update={"nvidia": config.nvidia.model_copy(
        update={"memory_factor": factor})}))  # fmt: skip


def container(name: str = "main", *, sidecar: bool = False, **amounts: object) -> JSON:
    """`gpu`, `mem`, `percent`, `cores` are limits; anything else goes into both limits and requests as it is."""
    limits = {_AMOUNTS.get(key, key): str(amount) for key, amount in amounts.items()}
    made: JSON = {"name": name, "image": "registry.invalid/none", "resources": {"limits": limits}}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


def pod(
    name: str = "p",
    *containers: JSON,
    init: tuple[JSON, ...] = (),
    annotations: dict[str, str] | None = None,
    spec: JSON | None = None,
    status: JSON | None = None,
    uid: str = "",
    namespace: str = TEAM,
    **amounts: object,
) -> JSON:
    """A pod of the containers given, or of one with these amounts."""
    meta: JSON = {"name": name, "namespace": namespace, "annotations": annotations or {}} | (
        {"uid": uid} if uid else {}
    )
    made: JSON = {"metadata": meta, "spec": {"containers": list(containers) or [container(**amounts)], **(spec or {})}}
    if init:
        made["spec"]["initContainers"] = list(init)
    return made | ({"status": status} if status else {})


def read_pod(*args: Any, **kwargs: Any) -> Pod:
    return Pod.from_object(pod(*args, **kwargs))


def card(uuid: str, memory: int, **fields: object) -> JSON:
    made = {"id": uuid, "index": 0, "count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA-A", "numa": 0}
    return {**made, "mode": "hami-core", "health": True, **fields}


def node(name: str, *cards: JSON, labels: dict[str, str] | None = None) -> JSON:
    register = orjson.dumps(list(cards)).decode()
    meta = {"name": name, "labels": labels or {}, "annotations": {"hami.io/node-nvidia-register": register}}
    return {"metadata": meta, "status": {"allocatable": {"nvidia.com/gpu": "10"}}}


def quota(
    name: str = "gpu-quota",
    *,
    spec: JSON | None = None,
    keys: JSON | None = None,
    namespace: str = TEAM,
    **hard: object,
) -> JSON:
    """A quota of `gpu`, `mem`, `cores`; `keys` are further keys of spec.hard."""
    limits = {KEYS[key]: str(amount) for key, amount in hard.items()} | (keys or {})
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": limits, **(spec or {})}}


def accelerator_quota(name: str = "all", selector: JSON | None = None, spec: JSON | None = None, **hard: int) -> JSON:
    """An AcceleratorQuota of `gpu`, `mem`, `cores`, of all namespaces unless there is a selector."""
    limits = {KEYS[key]: amount for key, amount in hard.items()}
    return {"metadata": {"name": name}, "spec": {"namespaceSelector": selector or {}, "hard": limits, **(spec or {})}}


def books(obj: JSON, of: Vendors | None = None) -> QuotaAccount:
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
