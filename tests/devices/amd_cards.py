"""AMD's cards and pods for the tests of its page."""

from __future__ import annotations

import json
from typing import Any

from builders import read_node

from hami_webhook.kube.objects import Node

from .fit_env import CHART, JSON, FitEnv, configured, pod

COUNT, MEM, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
PERCENT = "amd.com/gpumem-percentage"
REGISTER = "hami.io/node-amd-register"
ALLOCATED, TO_ALLOCATE = "hami.io/amd-devices-allocated", "hami.io/amd-devices-to-allocate"
MODEL = "AMD Instinct MI300X VF"
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
NAMES = "amd: {resourceCountName: amd.com/gpu, resourceMemoryName: amd.com/gpumem, resourceCoreName: amd.com/gpucores"
WITH_PERCENTAGE = configured(f"{NAMES}, resourceMemoryPercentageName: {PERCENT}}}")
AMD = CHART["AMD"]


def amd(*ids: str, name: str = "amd-1", capacity: int = 20, **fields: Any) -> Node:
    """A node of MI300X cards; fields that are given are every card's."""
    mi300x = {"count": 10, "devmem": 196288, "devcore": 304, "type": MODEL, "health": True, **fields}
    cards = [{"id": uuid, "index": at, **mi300x} for at, uuid in enumerate(ids)]
    return read_node(name, capacity={COUNT: capacity}, **{REGISTER: json.dumps(cards)})


BOTH = amd("G0", "G1")


def limits(gpu: object = 1, mem: object = None, cores: object = None, percent: object = None) -> JSON:
    named = {COUNT: gpu, MEM: mem, CORES: cores, PERCENT: percent}
    return {key: value for key, value in named.items() if value is not None}


def with_limits(gpu: object = 1, mem: object = None, cores: object = None, name: str = "p", **notes: str) -> JSON:
    return pod(name, annotations=notes, **limits(gpu, mem, cores))


def record(env: FitEnv, manifest: JSON) -> str:
    return env.outcome(manifest, "AMD")
