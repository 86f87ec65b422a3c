"""Volcano's vGPUs: pods with `volcano.sh/vgpu-*` (docs/spec/volcano.md).

Volcano places them. Here they are put into a form it can place, charged, and their debit is read from what it wrote;
`simulate` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from hami_webhook.devices.foreign_scheduler import ForeignCharge, ForeignScheduler, NodeLister, NoNode, Prediction
from hami_webhook.devices.model import Device, Usage
from hami_webhook.integrations.sections import VolcanoSection
from hami_webhook.integrations.volcano.annotation_keys import ALLOCATED, ASCEND, BIND_PHASE, BIND_TIME, NODE, OWNED
from hami_webhook.integrations.volcano.costs import Costs
from hami_webhook.integrations.volcano.ids_annotation import node_of, rows_of
from hami_webhook.integrations.volcano.normalisation import Admission
from hami_webhook.integrations.volcano.placement import predict, usage_of
from hami_webhook.integrations.volcano.registration import Registry
from hami_webhook.integrations.volcano.vgpu_cards import VolcanoCards
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole


class Volcano(ForeignScheduler):
    key = "volcano"
    title = "Volcano"
    section_type = VolcanoSection
    watched = (ALLOCATED, BIND_PHASE, BIND_TIME, NODE)
    owned = OWNED
    keys = VolcanoCards.keys

    def __init__(self, section: VolcanoSection) -> None:
        self.scheduler_names = section.scheduler_names
        self.injects_scheduler = section.inject_scheduler_name
        self._cards = VolcanoCards(section)
        self._registry = Registry(section)
        self._admission = Admission(section, self._cards, self._registry)
        self._costs = Costs(self._cards, self._registry, counts_instances=section.mig_debit == "instance")
        self.resource_names = frozenset(self._cards.resource_names)
        keys = (self._costs.count_key, self._costs.memory_key, self._costs.core_key)
        self.quota_keys = tuple(key for key in keys if key)

    def writes(self, key: str) -> bool:
        return key in OWNED or ASCEND.fullmatch(key) is not None

    def requested_by(self, pod: Pod | PodDraft) -> bool:
        """A count of 0 takes away whatever else its container names."""
        return any(
            parse_whole(self._amount(container, self._cards.count_name)) != 0
            and any(parse_whole(self._amount(container, name) or 0) != 0 for name in self.resource_names)
            for container in pod.containers
        )

    @staticmethod
    def _amount(container: Container | ContainerDraft, name: str) -> Any:
        return container.limits.get(name, container.requests.get(name))

    def node_of(self, pod: Pod) -> str:
        return node_of(pod)

    def admit(self, pod: PodDraft, node_lister: NodeLister) -> None:
        self._admission.admit(pod, node_lister)

    def check(self, pod: Pod, node_lister: NodeLister) -> None:
        self._admission.check(pod)

    def concerns(self, pod: Pod) -> bool:
        return ALLOCATED in pod.annotations or self.named_by(pod)

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        return self._costs.waiting(pod, node_lister)

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        return self._costs.placed(pod, node_lister, now)

    def predict(self, pod: Pod, node_lister: NodeLister, now: float) -> Prediction | NoNode:
        return predict(self._cards, self._registry, pod, node_lister, now)

    def cards(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[Device, Usage]]:
        found = self._registry.registration(node)
        if found is None:
            return
        block = self._cards.block
        taken = usage_of(found, node_lister.foreign_pods_on(node.name), block, node_lister.now)
        for device in found.devices:
            usage = taken.get((self.key, device.uuid), Usage())
            yield (
                replace(device, memory=device.memory * block),
                Usage.of(tuple(replace(each, memory=each.memory * block) for each in usage.holders)),
            )

    def remarks(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[EventReason, str]]:
        """MIG instances that more than one live entry names (section 13)."""
        return _held_twice(node, node_lister)


def _held_twice(node: Node, node_lister: NodeLister) -> Iterator[tuple[EventReason, str]]:
    holders: dict[str, list[str]] = {}
    for pod in node_lister.foreign_pods_on(node.name):
        for row in rows_of(pod, node_lister.now) or ():
            for entry in row:
                if entry.place is not None and node_of(pod) == node.name:
                    holders.setdefault(f"{entry.uuid}{entry.place}", []).append(pod.key)
    found = [f"{name} is held by {', '.join(pods)}" for name, pods in sorted(holders.items()) if len(pods) > 1]
    if found:
        yield "DuplicateMigInstance", "; ".join(found)
