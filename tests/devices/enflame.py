"""Nodes and pods of docs/spec/enflame.md, for its tests."""

from __future__ import annotations

import json
from typing import Any

from builders import read_node

from hami_webhook.kube.objects import Node

from .fit_env import FitEnv, Placed, pod

JSON = dict[str, Any]


class R:
    """The resources' names."""

    GCU = "enflame.com/gcu"
    VGCU, PERCENT = "enflame.com/vgcu", "enflame.com/vgcu-percentage"
    SLICES = "enflame.com/drs-gcu"
    MEMORY, CORE = "enflame.com/gcu-memory", "enflame.com/gcu-core"
    SHARED_GCU, COUNT = "enflame.com/shared-gcu", "enflame.com/gcu-count"


T = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}
"""Table T of the page's section 14."""
ALLOCATED = "hami.io/enflame-vgpu-devices-allocated"
WHOLE = "hami.io/enflame-gcu-devices-allocated"


def drs_capacity(*cards: JSON, profiles: JSON | None = None) -> str:
    """The annotation of a node's DRS cards; a card is `{"index": …, "minor": …, "capacity": …}`."""
    return json.dumps({"devices": list(cards), "profiles": T if profiles is None else profiles})


def drs_card(index: int, minor: str | None = None, capacity: object = 6) -> JSON:
    return {"index": str(index), "minor": str(index) if minor is None else minor, "capacity": capacity}


def drs_node(
    name: str = "node-a", cards: int = 1, *, profiles: JSON | None = None, capacity: JSON | None = None
) -> Node:
    """A node with DRS cards of six slices."""
    text = drs_capacity(*map(drs_card, range(cards)), profiles=profiles)
    return read_node(name, capacity=capacity, **{"enflame.com/gcu-drs-capacity": text})


def shared_node(name: str = "node1", cards: int = 2, f: int = 4, health: str | None = None, **more: object) -> Node:
    """A node whose cards are shared in f slices each."""
    notes = {} if health is None else {"enflame.com/gcu-shared-capacity": health}
    return read_node(name, capacity={R.COUNT: cards, R.SHARED_GCU: cards * f, **more}, **notes)


def both_node(name: str = "n1", cards: int = 1, f: int = 4, *drs: JSON, **capacity: Any) -> Node:
    """A node whose cards may be shared, in f slices, or partitioned: into the `drs` cards, if these are given."""
    text = drs_capacity(*(drs or map(drs_card, range(cards))))
    amounts = {R.COUNT: cards, R.SHARED_GCU: cards * f, **capacity}
    return read_node(name, capacity=amounts, **{"enflame.com/gcu-drs-capacity": text})


def slices(number: int, name: str = "p", **annotations: str) -> JSON:
    """A pod that asks for DRS slices."""
    return pod(name, annotations=annotations, **{R.SLICES: number})


def share(percent: int | None, count: int = 1, name: str = "p", **annotations: str) -> JSON:
    """A pod that asks for shared cards."""
    amounts = {R.VGCU: count} | ({} if percent is None else {R.PERCENT: percent})
    return pod(name, annotations=annotations, **amounts)


def went(env: FitEnv, incoming: JSON, key: str = ALLOCATED, **how: bool) -> str:
    """What placement writes under the key, or the refusals by node, joined."""
    placed = env.place(incoming, **how)
    if isinstance(placed, Placed):
        return placed.annotations[key]
    return "; ".join(f"{name}: {why}" for name, why in placed.items()) if len(placed) > 1 else "".join(placed.values())
