"""Builders of nodes, cards and pods for the tests of devices, and one-line questions about where a pod goes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import builders
import jsonpatch
from builders import ALLOCATED as ALLOCATED
from builders import CORES, GPU, MEM, PERCENT, PRIORITY, SCORES
from builders import REGISTER as REGISTER
from builders import card as card

from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import Allocation, DeviceHold, Inventory, Kinds, NodeView, Request, Usage
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendors.nvidia import Nvidia
from hami_webhook.devices.vendors.nvidia.mig import MigInstance, MigPlacement
from hami_webhook.devices.vendors.nvidia.section import NvidiaSection
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod

JSON = dict[str, Any]

RESOURCES = {"gpu": GPU, "mem": MEM, "percent": PERCENT, "cores": CORES, "priority": PRIORITY}
CHART = {
    "resource_count_name": GPU,
    "resource_memory_name": MEM,
    "resource_memory_percentage_name": PERCENT,
    "resource_core_name": CORES,
    "resource_priority_name": PRIORITY,
    "default_gpu_num": 1,
    "memory_factor": 1,
    "gpu_core_policy": "default",
}
HANDSHAKE = "hami.io/node-handshake"
MIG_RECORDS = "hami.io/vgpu-mig-allocations"


def nvidia(**section: Any) -> Nvidia:
    """The vendor with the chart's section, changed where given."""
    return Nvidia(NvidiaSection.model_validate({**CHART, **section}))


def vendors(**section: Any) -> Vendors:
    return Vendors([nvidia(**section)])


# nodes


def profile(name: str, memory: int, core: int, *placements: tuple[int, int]) -> JSON:
    return {
        "name": name,
        "memoryMB": memory,
        "core": core,
        "sliceCount": placements[0][1] if placements else 0,
        "placements": [{"start": start, "size": size} for start, size in placements],
    }


A100_PROFILES = [
    profile("1g.5gb", 5120, 14, *((start, 1) for start in range(7))),
    profile("2g.10gb", 10240, 28, (0, 2), (2, 2), (4, 2)),
    profile("3g.20gb", 20480, 42, (0, 4), (4, 4)),
]


def mig_card(uuid: str, profiles: Sequence[JSON] = A100_PROFILES, **fields: Any) -> JSON:
    return card(uuid, **{"count": 7, "mode": "mig", "migProfiles": list(profiles), **fields})


def node(
    *cards: JSON, name: str = "n1", scores: Any = None, cordon: str | None = None, allocatable: int | None = None
) -> Node:
    """A node that registers the cards, in order; `scores` by pair, or as written."""
    notes = {REGISTER: "[]"} if not cards else {}
    if scores is not None:
        notes[SCORES] = scores if isinstance(scores, str) else json.dumps(score_records(scores))
    if cordon is not None:
        notes["hami.io/device-cordon"] = cordon
    return builders.read_node(name, *cards, capacity={} if allocatable is None else {GPU: allocatable}, **notes)


def registered(on: Node) -> Inventory:
    """What NVIDIA reads of a node that has cards."""
    found = nvidia().inventory(on)
    assert found is not None
    return found


def score_records(pairs: Mapping[tuple[str, str], Any]) -> list[JSON]:
    """The annotation's records of symmetric pair scores."""
    table: dict[str, JSON] = {}
    for (x, y), value in pairs.items():
        table.setdefault(x, {})[y] = value
        table.setdefault(y, {})[x] = value
    return [{"uuid": uuid, "score": score} for uuid, score in table.items()]


def used(slots: int = 1, memory: int = 0, cores: int = 0, *instances: tuple[str, int, int]) -> Usage:
    """What is taken of a card; instances as (profile, start, size)."""
    marks = tuple(MigInstance(name, MigPlacement(start, size)) for name, start, size in instances)
    return Usage(slots, memory, cores, marks=marks)


def view(on: Node, usage: Mapping[str, Usage] | None = None, closed: Sequence[str] = ()) -> NodeView:
    """The node with what is taken of its cards, as placement sees it."""
    inventory = nvidia().inventory(on)
    return NodeView(
        on,
        {} if inventory is None else {"NVIDIA": inventory},
        {("NVIDIA", uuid): taken for uuid, taken in (usage or {}).items()},
        frozenset(("NVIDIA", uuid) for uuid in closed),
    )


# pods


def container(name: str = "main", **amounts: Any) -> JSON:
    """A container with limits under the short names of RESOURCES; `requests` and other fields are taken as they are."""
    limits = {RESOURCES[key]: value for key, value in amounts.items() if key in RESOURCES}
    resources: JSON = {"limits": limits} if limits else {}
    if "requests" in amounts:
        resources["requests"] = {RESOURCES[key]: value for key, value in amounts["requests"].items()}
    rest = {key: value for key, value in amounts.items() if key not in RESOURCES and key != "requests"}
    return {"name": name, "resources": resources, **rest}


def init(name: str = "init", **amounts: Any) -> JSON:
    return container(name, **amounts) | {"_init": True}


def sidecar(name: str = "sidecar", **amounts: Any) -> JSON:
    return container(name, **amounts) | {"_init": True, "restartPolicy": "Always"}


def raw_pod(*containers: JSON, annotations: Mapping[str, str] | None = None, **spec: Any) -> JSON:
    items = [{key: value for key, value in item.items() if key != "_init"} for item in containers]
    inits = [item for item, given in zip(items, containers, strict=True) if "_init" in given]
    apps = [item for item, given in zip(items, containers, strict=True) if "_init" not in given]
    return builders.pod("p", *apps, init=inits, namespace="ns", uid="u", annotations=dict(annotations or {}), **spec)


def pod(*containers: JSON, policy: str | None = None, annotations: Mapping[str, str] | None = None, **spec: Any) -> Pod:
    """A pod of these containers; init containers come first whatever the order given."""
    notes = {**(annotations or {}), **({} if policy is None else {GPU_POLICY: policy})}
    return Pod.from_object(raw_pod(*containers, annotations=notes, **spec))


def one(**amounts: Any) -> JSON:
    """A container that asks for one card unless told otherwise."""
    return container("main", **{"gpu": 1, **amounts})


def admitted(raw: JSON, **section: Any) -> tuple[Pod, PodDraft]:
    """The pod after NVIDIA's admission of every container; a second admission must change nothing more."""
    draft = _admit(raw, **section)
    assert _admit(jsonpatch.apply_patch(raw, draft.operations()), **section).operations() == []
    return draft.result(), draft


def _admit(raw: JSON, **section: Any) -> PodDraft:
    vendor, draft = nvidia(**section), PodDraft(raw)
    for item in draft.containers:
        vendor.admit(item, draft, NO_DEVICES)
    return draft


# where it goes


def ask(incoming: Pod, default_policy: str = "spread", **section: Any) -> PodRequest:
    found = read_pod_request(incoming, vendors(**section), default_policy)
    assert found is not None
    return found


def fitted(incoming: Pod, on: NodeView, budget: Any = None, **section: Any) -> NodeFit | Rejection:
    return fit_pod(on, ask(incoming, **section), vendors(**section), budget)


def placed(incoming: Pod, on: NodeView, budget: Any = None, **section: Any) -> NodeFit:
    result = fitted(incoming, on, budget, **section)
    assert isinstance(result, NodeFit), str(result)
    return result


def record(incoming: Pod, on: NodeView, budget: Any = None, **section: Any) -> str:
    """The record that placement writes on the pod, or the refusal's text."""
    result = fitted(incoming, on, budget, **section)
    if isinstance(result, Rejection):
        return str(result)
    return nvidia(**section).encode(incoming, result.rows, on.node, 0)[ALLOCATED]


def chosen(incoming: Pod, on: NodeView, budget: Any = None, **section: Any) -> str:
    """The cards of the pod's first container with any, separated by blanks, or the refusal's text."""
    result = fitted(incoming, on, budget, **section)
    if isinstance(result, Rejection):
        return str(result)
    return " ".join(device.uuid for device in first_allocation(result).devices)


def first_allocation(fit: NodeFit) -> Allocation:
    return next(row["NVIDIA"] for row in fit.rows if row)


def claims(fit: NodeFit) -> list[DeviceHold]:
    return fit.claims()


def debit(fit: NodeFit, kinds: Kinds, *, init_finished: bool = False) -> tuple[int, int, int]:
    """Slots, MiB and cores that quota counts for the placement."""
    total = per_vendor(fit.claims(), kinds, init_finished=init_finished).get("NVIDIA", Debit())
    return (total.slots, total.memory, total.cores)


def extracted(section: Mapping[str, Any] | None = None, **amounts: Any) -> Request | None:
    """What a container with these amounts asks."""
    return nvidia(**(section or {})).request(pod(container(**amounts)).containers[0])


@dataclass(frozen=True)
class Room:
    """A budget of so many MiB (and slots, cores) for all the pod's cards together."""

    kinds: Kinds
    memory: int = 10**9
    slots: int = 10**9
    cores: int = 10**9

    def on(self, view: NodeView) -> Room:
        return self

    def admits(self, taken: Sequence[DeviceHold]) -> bool:
        total = sum(per_vendor(taken, self.kinds).values(), Debit())
        return total.memory <= self.memory and total.slots <= self.slots and total.cores <= self.cores

    def cost(self, taken: Sequence[DeviceHold]) -> tuple[int, ...]:
        total = sum(per_vendor(taken, self.kinds).values(), Debit())
        return (total.memory, total.cores, total.slots)


def room(incoming: Pod, **limits: int) -> Room:
    return Room(incoming.kinds, **limits)
