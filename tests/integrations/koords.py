"""Nodes with Koordinator's Devices, and pods taken through admission, prediction and debit on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builders import container, read_node
from devices.fit_env import NOW, pod

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.foreign_scheduler import NoNode, Prediction
from hami_webhook.devices.registry import Vendors
from hami_webhook.integrations.koordinator import Koordinator
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import Charge, charge_of

from .schedulers_env import SchedulersEnv

JSON = dict[str, Any]
K = "koordinator.sh/"
SHARED, CORE, MEMORY, RATIO, GPU = f"{K}gpu.shared", f"{K}gpu-core", f"{K}gpu-memory", f"{K}gpu-memory-ratio", f"{K}gpu"
ISOLATION, PROVIDER = "koordinator.sh/gpu-isolation-provider", "HAMi-core"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
MIB = 2**20
A10 = 23040 * MIB
ISOLATED = {ISOLATION: PROVIDER}
NPU: JSON = {"huawei.com/npu-core": 10, "huawei.com/npu-cpu": 2}

_SHORT = {"shared": SHARED, "core": CORE, "memory": MEMORY, "ratio": RATIO, "gpu": GPU}


def named(**amounts: object) -> JSON:
    """Amounts by the resources' names; `shared`, `core`, `memory`, `ratio`, `gpu` are Koordinator's."""
    return {_SHORT.get(name, name): amount for name, amount in amounts.items()}


def pod_with_limits(
    name: str = "p",
    *containers: JSON,
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    scheduler: str = "",
    init: Sequence[JSON] = (),
    **amounts: Any,
) -> JSON:
    """A pod of the containers, or of one with these limits."""
    made = pod(name, *(containers or [box(**amounts)]), init=init, annotations=notes)
    made["metadata"]["labels"] = dict(labels or {})
    if scheduler:
        made["spec"]["schedulerName"] = scheduler
    return made


def box(name: str = "main", *, sidecar: bool = False, requests: JSON | None = None, **amounts: object) -> JSON:
    """A container with these limits."""
    return container(name, sidecar=sidecar, requests=requests, **named(**amounts))


def seed_pod(name: str = "p", *, shared: int = 1, core: int = 50, ratio: int = 50, **more: Any) -> JSON:
    """The seed document's pod: all set, limits and requests alike."""
    amounts = named(shared=shared, core=core, ratio=ratio)
    return pod_with_limits(
        name, container(requests=amounts, **amounts), labels=ISOLATED, scheduler="koord-scheduler", **more
    )


def card(minor: int, memory: int | str | None = "23040Mi", *, core: int | None = 100, ratio: int | None = 100,
         health: bool = True, spot: tuple[int, str] | None = None, labels: JSON | None = None) -> JSON:  # fmt: skip
    """`A10(minor)` unless told otherwise; `spot` is NUMA node and switch."""
    reported = {CORE: core, MEMORY: memory, RATIO: ratio}
    made: JSON = {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": health,
        "labels": labels or {},
        "resources": {name: str(amount) for name, amount in reported.items() if amount is not None},
    }
    if spot is not None:
        made["topology"] = {"socketID": -1, "nodeID": spot[0], "pcieID": spot[1], "busID": f"0000:0{minor}:07.0"}
    return made


def device(name: str, cards: Iterable[JSON], *, labels: JSON | None = None, partitions: JSON | None = None) -> JSON:
    notes = {} if partitions is None else {PARTITIONS: json.dumps(partitions)}
    meta = {"name": name, "labels": labels or {}, "annotations": notes}
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    return {**kind, "metadata": meta, "spec": {"devices": list(cards)}}


def share(minor: int, *, core: object = None, memory: object = None, ratio: object = None, id: str = "") -> JSON:
    """One entry of the annotation."""
    reported = {CORE: core, MEMORY: memory, RATIO: ratio}
    entry: JSON = {
        "minor": minor,
        "resources": {name: amount for name, amount in reported.items() if amount is not None},
    }
    return {**entry, "id": id} if id else entry


def configured(**section: object) -> Vendors:
    """Koordinator with these keys of its section, and NVIDIA, as the chart has it."""
    config = builtin_device_config().config
    changed = config.section("koordinator").model_copy(update=section)
    return enabled_vendors(config.model_copy(update={"koordinator": changed}))


CHART = configured()


@dataclass
class Koords(SchedulersEnv):
    """A cluster: nodes with their cards, and the pods bound so far."""

    vendors: Vendors = field(default_factory=lambda: CHART)

    @property
    def scheduler(self) -> Koordinator:
        (found,) = (each for each in self.vendors.foreign if isinstance(each, Koordinator))
        return found

    def node(
        self, name: str = "n1", *cards: JSON, labels: JSON | None = None, device_labels: JSON | None = None,
        partitions: JSON | None = None, offers_shared: bool = True
    ) -> Koords:  # fmt: skip
        """Add a node that isolates, with a Device if it has cards; `offers_shared`: koord-manager's gate is on."""
        offered = {SHARED: 100 * max(1, len(cards))} if offers_shared else {}
        self.state.set_node(read_node(name, labels=ISOLATED if labels is None else labels, capacity=offered), NOW)
        if cards:
            self.state.set_device(name, device(name, cards, labels=device_labels, partitions=partitions))
        return self

    def predict(self, manifest: JSON) -> Prediction | NoNode:
        """Where Koordinator would place the pod, once it is admitted."""
        return self.scheduler.predict(self.admit(manifest).pod, self.state, NOW)

    def failure(self, manifest: JSON) -> str:
        """Why the only node doesn't take the pod."""
        (why,) = self.failed(manifest).values()
        return why

    def bind(self, manifest: JSON, node: str, allocated: str | None) -> Pod:
        """A pod as it is once it runs."""
        return self.keep(manifest, node, {} if allocated is None else {ALLOCATED: allocated})

    def busy(self, minor: int, *, node: str = "n1", core: int = 0, ratio: int = 0, name: str = "") -> Koords:
        """A pod that has so much of a card."""
        entry = share(minor, core=str(core), ratio=str(ratio))
        self.bind(pod_with_limits(name or f"busy-{node}-{minor}"), node, json.dumps({"gpu": [entry]}))
        return self

    def minors(self, manifest: JSON) -> list[int]:
        """The cards a pod is predicted to get, by minor, in the annotation's order."""
        return [entry["minor"] for entry in json.loads(self.predicted(manifest).annotations[ALLOCATED])["gpu"]]

    def charge(self, name: str = "p") -> Charge:
        """What a pod that is bound costs."""
        found = self.state.pod(f"uid-{name}")
        assert found is not None
        return charge_of(found, self.vendors, self.state.capacity, NOW)

    def debits(self, name: str = "p") -> dict[str, int]:
        return short(self.charge(name).amounts)

    def waiting(self, manifest: JSON) -> Mapping[str, int]:
        return short(super().waiting(manifest))


def short(amounts: Mapping[str, int]) -> dict[str, int]:
    """Charges by `shared`, `core`, …; others by their key."""
    names = {f"limits.{resource}": word for word, resource in _SHORT.items()}
    return {names.get(key, key): amount for key, amount in amounts.items()}


def a10s(count: int = 2, vendors: Vendors = CHART) -> Koords:
    """Node n1 of the page: labelled, with `count` idle A10."""
    return Koords(vendors=vendors).node("n1", *(card(minor) for minor in range(count)))


def hint(**fields: object) -> dict[str, str]:
    return {HINT: json.dumps({"gpu": fields})}


def refused(manifest: JSON) -> str:
    """What a pod is told that is refused on the page's node."""
    return a10s().refusal(manifest)
