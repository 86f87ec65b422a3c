"""Kunlunxin servers and pods for the tests: cards used as wanted, taken by pods that really went there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from builders import container, read_node

from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import Charge, charge_of

from .fit_env import JSON, NOW, FitEnv, Placed, pod

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


def vxpu_server(name: str = "n1", count: int = 8) -> Node:
    return server(name, cards=[card(index) for index in range(count)])


def slices(count: int, memory: int | None = None, name: str = "main", **fields: Any) -> JSON:
    return container(name, **{VXPU: count}, **({} if memory is None else {MEM: memory}), **fields)


def with_limits(*containers: JSON, name: str = "p", **annotations: str) -> JSON:
    return pod(name, *containers, annotations=annotations)


def use_whole(env: FitEnv, indices: Iterable[int], name: str = "n1") -> FitEnv:
    """Let a pod take each of these whole cards."""
    for index in indices:
        taker = with_limits(container(**{XPU: 1}), name=f"on-{name}-{index}", **{USE: ids([index], name)})
        assert isinstance(env.place(taker), Placed)
    return env


def use_slices(env: FitEnv, sizes: Mapping[int, tuple[int, int]]) -> FitEnv:
    """Let a pod take each slice: by card index how many, and of how many MiB."""
    for index, (count, size) in sizes.items():
        for n in range(count):
            placed = env.place(with_limits(slices(1, size), name=f"on-{index}-{n}", **{USE: kl(index)}))
            assert isinstance(placed, Placed), placed
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


def charge(env: FitEnv, manifest: JSON) -> Charge:
    """What a waiting pod is charged, or a placed one."""
    return charge_of(Pod.from_object(manifest), env.vendors, env.state, NOW)
