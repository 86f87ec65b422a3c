"""Builders of MetaX nodes and pods, short to write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builders import container, read_node

from hami_webhook.devices.model import NodeView, PodUsage, Usage
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, FitEnv, Placed, pod

JSON = dict[str, Any]
GPU, SGPU, VCORE, VMEMORY = (f"metax-tech.com/{name}" for name in ("gpu", "sgpu", "vcore", "vmemory"))
QOS, APP_CLASS, AWARE = (f"metax-tech.com/sgpu-{name}" for name in ("qos-policy", "app-class", "topology-aware"))
REGISTER = "metax-tech.com/node-gpu-devices"
SGPU_ALLOCATED, GPU_ALLOCATED = (f"hami.io/metax-{name}-devices-allocated" for name in ("sgpu", "gpu"))
PLUGIN_ALLOCATED, PLUGIN_TIME = "metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"
LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
NODE_POLICY, CARD_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
ONLINE, OFFLINE = {APP_CLASS: "online"}, {APP_CLASS: "offline"}
_SHORT = {"sgpu": SGPU, "vcore": VCORE, "vmemory": VMEMORY, "gpu": GPU}


def g(uuid: str, zone: int = 0, **fields: object) -> JSON:
    """`G(id, zone)` of the page: an idle healthy 64 GiB card with 16 slots and no QoS, changed where given."""
    card = {
        "uuid": uuid,
        "bdf": "0000:0a:00.0",
        "model": "MXC500",
        "totalDevCount": 16,
        "totalCompute": 100,
        "totalVRam": 65536,
        "numa": 0,
        "healthy": True,
        "linkZone": zone,
        **fields,
    }
    return {key: value for key, value in card.items() if value is not None}


def zoned(*zones: int, name: str = "G") -> list[JSON]:
    """Cards G1, G2, … in these link zones."""
    return [g(f"{name}{number}", zone) for number, zone in enumerate(zones, 1)]


def sgpu_node(*cards: JSON, name: str = "n1") -> Node:
    return read_node(name, **{REGISTER: json.dumps(cards)})


def gpu_node(count: int, name: str = "n1", *, losses: object = None, scores: object = None) -> Node:
    tables = {key: table for key, table in ((LOSSES, losses), (SCORES, scores)) if table is not None}
    texts = {key: table if isinstance(table, str) else json.dumps(table) for key, table in tables.items()}
    return read_node(name, capacity={GPU: count}, **texts)


def limits(**amounts: object) -> JSON:
    return {_SHORT[key]: amount for key, amount in amounts.items()}


def one(name: str = "main", *, sidecar: bool = False, **amounts: object) -> JSON:
    """A container with these amounts, by their short names."""
    return container(name, sidecar=sidecar, **limits(**amounts))


def pod_with_limits(
    name: str = "p", notes: Mapping[str, str] | None = None, *containers: JSON, **amounts: object
) -> JSON:
    """A pod with these containers, or one of these amounts; a single sGPU if nothing is said."""
    amounts = amounts if containers or "gpu" in amounts else {"sgpu": 1, **amounts}
    return pod(name, *containers, annotations=notes, **limits(**amounts))


def placed(env: FitEnv, manifest: JSON, **how: Any) -> Placed:
    found = env.place(manifest, **how)
    assert isinstance(found, Placed), found
    return found


def cards_of(found: Placed, allocated: str = SGPU_ALLOCATED) -> list[list[str]]:
    """The cards of each container, in the order written."""
    rows = found.annotations[allocated].split(";")[:-1]
    return [[card.split(",")[0] for card in row.split(":") if card] for row in rows]


def chosen(env: FitEnv, manifest: JSON, **how: Any) -> list[str]:
    """The cards of the first container."""
    return cards_of(placed(env, manifest, **how))[0]


def tenant(cores: int = 30, memory: int = 1024, slots: int = 1, *, qos: str = "best-effort", app: str = "") -> PodUsage:
    """A pod on a card."""
    notes = {QOS: qos, **({APP_CLASS: app} if app else {})}
    return PodUsage(Pod.from_object(pod_with_limits("t", notes)), slots, memory, cores)


def used(*holders: PodUsage) -> Usage:
    return Usage(
        sum(h.slots for h in holders), sum(h.memory for h in holders), sum(h.cores for h in holders), tuple(holders)
    )


def view(*cards: JSON, **usage: Usage) -> NodeView:
    """A node of these cards, and what is taken of them by uuid."""
    on = sgpu_node(*cards)
    inventory = CHART["Metax-SGPU"].inventory(on)
    assert inventory is not None
    return NodeView(on, {"Metax-SGPU": inventory}, {("Metax-SGPU", uuid): taken for uuid, taken in usage.items()})
