"""Nodes and pods of both Iluvatar families, for their tests."""

from __future__ import annotations

from typing import Any

from builders import container, read_node

from hami_webhook.devices.model import Request
from hami_webhook.kube.objects import Container, ContainerKind, Node

from .fit_env import JSON, FitEnv, configured

VGPU, VMEM, VCORE = "iluvatar.ai/BI-V150-vgpu", "iluvatar.ai/BI-V150.vMem", "iluvatar.ai/BI-V150.vCore"
OLD, OLD_MEM, OLD_CORE = "iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core"
REGISTER = "hami.io/node-BI-V150-register"
ALLOCATED, TO_ALLOCATE = "hami.io/BI-V150-devices-allocated", "hami.io/BI-V150-devices-to-allocate"
OLD_SECTION = f"iluvatar: {{resourceCountName: {OLD}, resourceMemoryName: {OLD_MEM}, resourceCoreName: {OLD_CORE}}}"
BOTH = configured(
    f"iluvatars: [{{chipName: x, commonWord: BI-V150, resourceCountName: {VGPU}, resourceMemoryName: {VMEM}, "
    f"resourceCoreName: {VCORE}}}]\n{OLD_SECTION}"
)
A, B = "GPU-1111,100,32768,100,BI-V150,0,true:", "GPU-2222,100,32768,100,BI-V150,1,true:"
AMOUNTS = {"n": VGPU, "mem": VMEM, "core": VCORE}
OLD_AMOUNTS = {"n": OLD, "mem": OLD_MEM, "core": OLD_CORE}


def chip_node(cards: str = A + B, name: str = "ilu-1", **notes: str) -> Node:
    return read_node(name, capacity={VGPU: 200}, **{REGISTER: cards, **notes})


def old_node(core: object = 200, memory: object = 256, name: str = "old-1") -> Node:
    return read_node(name, capacity={OLD_CORE: core, OLD_MEM: memory})


def with_limits(name: str = "main", *, old: bool = False, requests: JSON | None = None, **amounts: object) -> JSON:
    """A container with limits (and requests) under the short names of AMOUNTS."""
    names = OLD_AMOUNTS if old else AMOUNTS
    limits: JSON = {names[key]: value for key, value in amounts.items()}
    return container(name, requests={names[key]: value for key, value in (requests or {}).items()}, **limits)


def env(*nodes: Node, **rest: Any) -> FitEnv:
    return FitEnv(nodes or [chip_node()], BOTH, **rest)


def where_it_goes(where: FitEnv, manifest: JSON) -> str:
    """The record that placement writes, or the refusal's text."""
    return where.outcome(manifest, "BI-V150")


def extracted(old: bool, limits: JSON, requests: JSON) -> Request | None:
    """What a container with these amounts asks."""
    vendor = BOTH["Iluvatar" if old else "BI-V150"]
    names = OLD_AMOUNTS if old else AMOUNTS
    written = [{names[key]: value for key, value in given.items()} for given in (limits, requests)]
    return vendor.request(Container("main", ContainerKind.APP, written[0], written[1]))
