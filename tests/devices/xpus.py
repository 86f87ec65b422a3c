"""Kunlunxin servers and pods for the tests: cards used as wanted, taken by pods that really went there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from builders import container, read_node

from hami_webhook.kube.objects import Node

from .fit_env import JSON, FitEnv, Placed, pod

XPU, VXPU, MEM = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
USE, NOUSE = "hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"
OLD_USE, OLD_NOUSE = "baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"
REGISTER, HANDSHAKE = "hami.io/node-register-xpu", "hami.io/node-handshake-xpu"
WHOLE_ALLOCATED, INDICES = "hami.io/kunlun-allocated", "BAIDU_COM_DEVICE_IDX"
TO_ALLOCATE, ALLOCATED = "hami.io/xpu-devices-to-allocate", "hami.io/xpu-devices-allocated"
POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
QUARTER, HALF, WHOLE = 24576, 49152, 98304


def card(index: int, **fields: Any) -> JSON:
    """The register record of a P800-OAM; a field of None is left out."""
    record = {
        "id": kl(index),
        "index": index,
        "count": 4,
        "devmem": WHOLE,
        "devcore": 100,
        "type": "XPU",
        "health": True,
    }
    return {key: value for key, value in {**record, **fields}.items() if value is not None}


def kl(index: int) -> str:
    return f"KL-UUID-0{index}"


def ids(indices: Iterable[int], name: str = "n1") -> str:
    """The whole cards' ids, comma by comma."""
    return ",".join(f"{name}-kunlun-{index}" for index in indices)


def server(name: str = "n1", *, xpus: object = 0, cards: Iterable[JSON] | None = None, **annotations: str) -> Node:
    """A node with so many whole cards, and with these vXPU cards."""
    if cards is not None:
        annotations[REGISTER] = json.dumps(list(cards))
    return read_node(name, capacity={XPU: xpus} if xpus else {}, **annotations)


def whole(count: int = 1, name: str = "main") -> JSON:
    limits: JSON = {XPU: count}
    return container(name, **limits)


def slices(count: int, memory: object = None, name: str = "main") -> JSON:
    limits: JSON = {VXPU: count, **({} if memory is None else {MEM: memory})}
    return container(name, **limits)


def with_limits(*containers: JSON, name: str = "p", **annotations: str) -> JSON:
    return pod(name, *containers, annotations=annotations)


def use_whole(env: FitEnv, indices: Iterable[int], name: str = "n1") -> FitEnv:
    """Let a pod take each of these whole cards."""
    for index in indices:
        env.placed(with_limits(whole(), name=f"on-{name}-{index}", **{USE: ids([index], name)}))
    return env


def whole_cards(*used: int) -> FitEnv:
    """Eight whole cards, of which these are used."""
    return use_whole(FitEnv([server(xpus=8)]), used)


def vxpus(sizes: Mapping[int, tuple[int, int]] | None = None) -> FitEnv:
    """Eight vXPU cards, of which slices are taken: by card index how many, and of how many MiB."""
    env = FitEnv([server(cards=[card(index) for index in range(8)])])
    for index, (count, size) in (sizes or {}).items():
        for n in range(count):
            env.placed(with_limits(slices(1, size), name=f"on-{index}-{n}", **{USE: kl(index)}))
    return env


def chosen(result: Placed | dict[str, str]) -> list[int] | str:
    """The indices of the cards a pod got, container after container; or why n1 had none."""
    if not isinstance(result, Placed):
        return result["n1"]
    text = result.annotations.get(ALLOCATED) or result.annotations[WHOLE_ALLOCATED]
    entries = [entry for entry in text.replace(";", ":").split(":") if entry]
    return [int(entry.split(",")[0].rpartition("-")[2]) for entry in entries]


def entry(index: int, size: int) -> str:
    return f"{kl(index)},XPU,{size},{size * 100 // WHOLE}:"
