"""Nodes with Ascend NPUs, and containers that ask for them, for their tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builders import read_node

from hami_webhook.devices.model import Inventory
from hami_webhook.devices.pod_fit import fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Node, Pod

from . import fit_env

JSON = dict[str, Any]
A, B2, B3, B4 = "Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4"
B41, C, P = "Ascend910B4-1", "Ascend910C", "Ascend310P"
CHIPS = {
    A: (15, 32768, 30),
    B2: (8, 65536, 24),
    B3: (4, 65536, 20),
    B4: (4, 32768, 20),
    B41: (4, 65536, 20),
    C: (4, 65536, 20),
    P: (7, 21527, 8),
}
"""The slots, MiB and cores that the device plugin registers."""
MODE = "huawei.com/vnpu-mode"
SOFT = {MODE: "hami-core"}
POLICY = "hami.io/gpu-scheduler-policy"


def npus(number: int, word: str = B3, /, groups: list[Any] | None = None, **fields: Any) -> list[JSON]:
    """`NPU-0`, `NPU-1`, … as the device plugin registers them: zeros left out; `groups` are their NetworkIDs."""
    made = []
    slots, memory, cores = CHIPS[word]
    for index in range(number):
        record: JSON = {"id": f"NPU-{index}", "index": index, "count": slots, "devmem": memory}
        record |= {"devcore": cores, "type": word, "health": True}
        if groups is not None and groups[index] is not None:
            record["custominfo"] = {"NetworkID": groups[index]}
        made.append({key: value for key, value in (record | fields).items() if value not in (0, False)})
    return made


def node(
    cards: list[JSON] | int = 1,
    word: str = B3,
    name: str = "n1",
    soft: bool | None = None,
    notes: Mapping[str, str] | None = None,
) -> Node:
    """A node with these NPUs, or with so many; `soft` is what it says of soft mode, nothing by default."""
    listed = npus(cards, word) if isinstance(cards, int) else cards
    annotations = {f"hami.io/node-register-{word}": json.dumps(listed), **(notes or {})}
    if soft is not None:
        annotations["hami-vnpu-core"] = "true" if soft else "false"
    return read_node(name, capacity={f"huawei.com/{word}": 4}, **annotations)


def registered(on: Node, word: str = B3, vendors: Vendors = fit_env.CHART) -> Inventory:
    """What a chip reads of a node that has some."""
    found = vendors[word].inventory(on)
    assert found is not None
    return found


def with_limits(count: object = 1, memory: object = None, core: object = None, word: str = B3) -> JSON:
    """Limits by full name, for `fit_env.container` and `fit_env.pod`."""
    named = {"": count, "-memory": memory, "-core": core}
    return {f"huawei.com/{word}{end}": value for end, value in named.items() if value is not None}


def chips(*, soft: bool = False, **fields: Any) -> Vendors:
    """A 910B3 and a 310P as in HAMi's chart, the first with these fields changed."""
    b3 = {
        "commonWord": B3,
        "resourceName": f"huawei.com/{B3}",
        "resourceMemoryName": f"huawei.com/{B3}-memory",
        "resourceCoreName": f"huawei.com/{B3}-core",
        "memoryAllocatable": 65536,
        "memoryCapacity": 65536,
        "templates": [{"name": "half", "memory": 32768}, {"name": "quarter", "memory": 16384}],
        **fields,
    }
    p = {
        "commonWord": P,
        "resourceName": f"huawei.com/{P}",
        "resourceMemoryName": f"huawei.com/{P}-memory",
        "memoryAllocatable": 21527,
        "memoryCapacity": 24576,
    }
    return fit_env.configured(json.dumps({"vnpus": {"hamiVnpuCore": soft, "configs": [b3, p]}}))


UNBOUND = fit_env.configured(
    "vnpus: [{commonWord: Ascend910C, resourceName: huawei.com/Ascend910C, memoryAllocatable: 65536,"
    " resourceMemoryName: huawei.com/Ascend910C-memory, templates: [{name: t, memory: 16384}]}]"
)
"""A 910C whose modules are not bound."""


def chosen(
    cards: list[JSON],
    *,
    word: str = B3,
    vendors: Vendors = fit_env.CHART,
    budget: Any = None,
    **amounts: Any,
) -> list[int] | str:
    """The numbers of the NPUs in the order chosen, or the refusal; `budget` takes the kinds of its containers."""
    env = fit_env.FitEnv([node(cards, word)], vendors)
    incoming = Pod.from_object(fit_env.pod(**with_limits(word=word, **amounts)))
    ask = fit_env.asked(incoming, vendors)
    view = env.state.view("n1")
    assert view is not None
    result = fit_pod(view, ask, vendors, budget and budget(incoming.kinds))
    if isinstance(result, Rejection):
        return str(result)
    return [int(device.uuid.removeprefix("NPU-")) for device in result.rows[0][word].devices]


def sick(cards: list[JSON], *which: int) -> list[JSON]:
    """The same NPUs, of which these are unhealthy."""
    return [card | ({"health": False} if card.get("index", 0) in which else {}) for card in cards]
