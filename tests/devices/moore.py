"""Moore Threads nodes and pods, for their tests."""

from __future__ import annotations

from typing import Any

from builders import container, read_node

from hami_webhook.kube.objects import Node

from .fit_env import CHART, JSON, Admitted, FitEnv

VGPU, MEM, CORE = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
NAMES = {"n": VGPU, "mem": MEM, "core": CORE}
ALLOCATED, REQUESTED = "hami.io/mthreads-vgpu-devices-allocated", "mthreads.com/request-gpu-num"
VENDOR = CHART["Mthreads"]
LIST = "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]"
BINPACK = {"hami.io/gpu-scheduler-policy": "binpack"}


def mt_node(core: object = 32, memory: object = 192, name: str = "mt-1") -> Node:
    return read_node(name, capacity={VGPU: 800, CORE: core, MEM: memory})


def with_limits(name: str = "main", *, requests: JSON | None = None, sidecar: bool = False, **limits: object) -> JSON:
    """A container with limits (and requests) under the short names of NAMES."""
    asked = {NAMES[key]: value for key, value in (requests or {}).items()}
    return container(name, requests=asked, sidecar=sidecar, **{NAMES[key]: value for key, value in limits.items()})


def env(*nodes: Node, **rest: Any) -> FitEnv:
    return FitEnv(nodes or [mt_node()], **rest)


def placed(where: FitEnv, manifest: JSON) -> str:
    """The record that placement writes, or the refusal's text."""
    return where.outcome(manifest, "Mthreads")


def admitted(manifest: JSON) -> Admitted:
    return env().admit(manifest)


def short(amounts: JSON) -> JSON:
    """Amounts under the short names."""
    return {key: amounts[name] for key, name in NAMES.items() if name in amounts}
