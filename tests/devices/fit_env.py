"""A few nodes of any vendor, and pods taken through admission and Fit on them: for the pages' worked examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import builders
import jsonpatch
from builders import container
from every_node import evaluate

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.pods import normalise
from hami_webhook.admission.requests import checked_requests
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.devices.model import Inventory
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import charge_of, price_pending
from hami_webhook.scheduling.placement_metadata import placement_annotations
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.state.cluster_cache import ClusterCache

JSON = dict[str, Any]
NOW = 1_767_225_600.0
CHART = enabled_vendors(builtin_device_config().config)
"""Every vendor, as HAMi's chart configures it."""


def configured(text: str) -> Vendors:
    """The vendors of a device-config.yaml."""
    return enabled_vendors(load_device_config(text, "test").config)


def pod(name: str = "p", /, *containers: JSON, **fields: Any) -> JSON:
    """A pod whose UID is made of its name."""
    return builders.pod(name, *containers, **{"uid": f"uid-{name}", **fields})


def placed_pod(name: str = "u", *containers: JSON, on: str = "n1", **annotations: str) -> Pod:
    """A pod that is bound and holds what its annotations say (`**{"hami.io/…-allocated": text}`)."""
    notes = {"hami.io/vgpu-node": on, "hami.io/vgpu-time": str(int(NOW)), **annotations}
    return Pod.from_object(pod(name, *containers, annotations=notes, nodeName=on))


def asked(incoming: Pod | JSON, vendors: Vendors = CHART) -> PodRequest:
    """What a pod requests that requests something."""
    found = read_pod_request(incoming if isinstance(incoming, Pod) else Pod.from_object(incoming), vendors, "spread")
    assert found is not None, "the pod asks for nothing"
    return found


def registered(vendor: Vendor, on: Node) -> Inventory:
    """What the vendor reads of a node that has its cards."""
    found = vendor.inventory(on)
    assert found is not None, "the node has none of its cards"
    return found


@dataclass(frozen=True)
class Names:
    """What a vendor with three resources calls them, to ask for its cards by; None asks for nothing."""

    count: str
    memory: str
    cores: str

    def limits(self, count: object = None, memory: object = None, cores: object = None) -> JSON:
        named = {self.count: count, self.memory: memory, self.cores: cores}
        return {name: amount for name, amount in named.items() if amount is not None}

    def container(self, *amounts: object) -> JSON:
        """As docs/adding-a-vendor.md writes it."""
        return container(**self.limits(*amounts))

    def pod(self, name: str = "p", *amounts: object) -> JSON:
        """A pod of one container that asks for one card, unless told otherwise."""
        return pod(name, self.container(*(amounts or (1,))))


@dataclass(frozen=True)
class Admitted:
    """A pod as admission leaves it, or the message it was refused with."""

    pod: JSON | None
    warnings: Sequence[str] = ()
    message: str = ""

    @property
    def patched(self) -> JSON:
        """Of one that isn't refused."""
        assert self.pod is not None, self.message
        return self.pod

    def limits(self, index: int = 0) -> JSON:
        return self._resources(index).get("limits", {})

    def requests(self, index: int = 0) -> JSON:
        return self._resources(index).get("requests", {})

    def _resources(self, index: int) -> dict[str, JSON]:
        found: dict[str, JSON] = self.patched["spec"]["containers"][index]["resources"]
        return found


@dataclass(frozen=True)
class Placed:
    """Where a pod went: the annotations written, and its debits by quota key."""

    node: str
    score: float
    annotations: Mapping[str, str]
    debits: Mapping[str, int]


@dataclass
class FitEnv:
    """Nodes, and the pods placed on them so far; `hard` is what a quota lets all of them hold together."""

    nodes: Sequence[Node]
    vendors: Vendors = field(default_factory=lambda: CHART)
    policies: SchedulingPolicies = field(default_factory=SchedulingPolicies)
    hard: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = ClusterCache(self.vendors)
        for each in self.nodes:
            self.state.set_node(each, NOW)

    def admit(self, manifest: JSON) -> Admitted:
        """Take a pod through the mutating and validating steps; a second mutation must change nothing."""
        try:
            draft = PodDraft(manifest)
            normalise(draft, self.vendors, self.state)
            after = jsonpatch.apply_patch(manifest, draft.operations())
            checked_requests(Pod.from_object(after), self.vendors, self.state)
            again = PodDraft(after)
            normalise(again, self.vendors, self.state)
        except Denied as denial:
            return Admitted(None, message=denial.message)
        assert again.operations() == [], "admission isn't idempotent"
        return Admitted(after, draft.warnings)

    def place(self, manifest: JSON, *, admit: bool = True, keep: bool = True) -> Placed | dict[str, str]:
        """Admit and place a pod: where it went, or by node why not. With `keep` it stays there."""
        if admit:
            manifest = self.admit(manifest).patched
        incoming = Pod.from_object(manifest)
        ask = read_pod_request(incoming, self.vendors, self.policies.card)
        assert ask is not None, "the pod asks for nothing"
        result = evaluate(list(self.state.views()), ask, self.vendors, self._budget(incoming), self.policies.node)
        if not result.fits:
            return {name: str(why) for name, why in result.failed.items()}
        best = result.fits[0]
        notes = placement_annotations(incoming, best.fit, best.view, self.vendors, NOW)
        meta = {**manifest["metadata"], "annotations": {**manifest["metadata"].get("annotations", {}), **notes}}
        bound = Pod.from_object({**manifest, "metadata": meta, "spec": {**manifest["spec"], "nodeName": best.fit.node}})
        if keep:
            self.state.set_pod(bound, NOW)
        debits = charge_of(bound, self.vendors, self.state.capacity, NOW).amounts
        return Placed(best.fit.node, best.score, notes, debits)

    def placed(self, manifest: JSON, *, admit: bool = True, keep: bool = True) -> Placed:
        """As `place`, for a pod that fits."""
        found = self.place(manifest, admit=admit, keep=keep)
        assert isinstance(found, Placed), found
        return found

    def outcome(self, manifest: JSON, vendor: str, *, keep: bool = True) -> str:
        """What is written of the vendor's devices when the pod is placed, under both keys alike; or the refusal's text.

        For one node.
        """
        placed = self.place(manifest, keep=keep)
        if isinstance(placed, dict):
            (why,) = placed.values()
            return why
        keys = self.vendors[vendor].keys
        texts = {placed.annotations[key] for key in (keys.allocated, keys.to_allocate) if key}
        assert len(texts) == 1, placed.annotations
        return texts.pop()

    def waiting(self, manifest: JSON) -> Mapping[str, int]:
        """What a pod is charged from its admission until it is placed."""
        incoming = Pod.from_object(self.admit(manifest).patched)
        return price_pending(incoming, self.vendors, self.state.capacity).amounts

    def used(self, vendor: str, uuid: str, name: str = "n1") -> tuple[int, int, int]:
        """Slots, MiB and cores that are taken of a card."""
        view = self.state.view(name)
        assert view is not None
        usage = view.used(vendor, uuid)
        return (usage.slots, usage.memory, usage.cores)

    def charged(self) -> Counter[str]:
        """What the pods placed so far are charged, by quota key."""
        held: Counter[str] = Counter()
        for other in self.state.pods():
            held.update(charge_of(other, self.vendors, self.state.capacity, NOW).amounts)
        return held

    def _budget(self, incoming: Pod) -> PodBudget | None:
        if not self.hard:
            return None
        held = self.charged()
        left = {key: amount - held[key] for key, amount in self.hard.items()}
        return PodBudget(left, incoming.kinds, self.vendors)

    def remove(self, name: str) -> None:
        """A pod of this name ends."""
        self.state.remove_pod(f"uid-{name}")
