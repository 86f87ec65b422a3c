"""Koordinator's GPU share: parts of cards that koord-scheduler gives out. Source: docs/spec/koordinator.md. Costs:
section 10.

Amounts are totals of a pod, spread over its GPUs: `gpu.shared: 2, gpu-memory: 8Gi` is two cards with 4 GiB each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.foreign_pods import refuse_node_name, refuse_owned
from hami_webhook.devices.foreign_scheduler import ForeignCharge, ForeignScheduler, NodeLister, NoNode, Part, Prediction
from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.devices.model import Device, PodUsage, Usage
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.reserved_annotations import OWNED_LABELS
from hami_webhook.integrations.koordinator import mutation
from hami_webhook.integrations.koordinator.allocation_annotation import KoordinatorShare, encode, read_shares, usage
from hami_webhook.integrations.koordinator.device_object import KoordinatorDevice, Sizes, read_cards
from hami_webhook.integrations.koordinator.hints import check_hints, read_hint, read_partition_spec
from hami_webhook.integrations.koordinator.keys import (
    ALIASES,
    ALLOCATED,
    CORE,
    GPU,
    ISOLATION,
    MEMORY,
    MODEL,
    NPU_CORE,
    RATIO,
    SCHEDULER_NAME,
    SCHEDULERS_OWN,
    SHARED,
)
from hami_webhook.integrations.koordinator.mutation import check_amounts
from hami_webhook.integrations.koordinator.prediction import KoordinatorConstraints, Load, choose, loads_of, score
from hami_webhook.integrations.koordinator.request import OWN, Amounts, Want, percent_of, pod_total, read, share_of
from hami_webhook.integrations.sections import KoordinatorSection
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod

_NPUS = "slices of Ascend cards aren't predicted"


def _key(resource: str) -> str:
    """The quota key of a resource."""
    return f"limits.{resource}"


class Koordinator(ForeignScheduler):
    key = "koordinator"
    title = "Koordinator"
    section_type = KoordinatorSection
    resource_names = frozenset((*OWN, *ALIASES))
    quota_keys = tuple(map(_key, (SHARED, CORE, MEMORY, RATIO, GPU)))
    byte_keys = frozenset((_key(MEMORY),))
    watched = (ALLOCATED,)
    owned = SCHEDULERS_OWN
    owned_labels = OWNED_LABELS  # for HAMi's monitor
    reads_devices = True

    def __init__(self, section: KoordinatorSection) -> None:
        self.section = section
        self.scheduler_names = section.scheduler_names
        self.injects_scheduler = section.inject_scheduler_name
        self._read: dict[str, tuple[Mapping[str, Any], KoordinatorDevice]] = {}
        self._sized: tuple[weakref.ref[NodeLister], int, Sizes] | None = None

    def scheduler_of(self, pod: Pod | PodDraft) -> str:
        """The label outranks `spec.schedulerName`."""
        return pod.labels.get(SCHEDULER_NAME) or pod.scheduler_name

    # admission (docs/spec/koordinator.md#5)

    def admit(self, pod: PodDraft, node_lister: NodeLister) -> None:
        mutation.admit(pod, self.section, node_lister)

    def check(self, pod: Pod, node_lister: NodeLister) -> None:
        refuse_node_name(pod)
        refuse_owned(pod.annotations, SCHEDULERS_OWN)
        check_amounts(pod.containers)
        check_hints(pod.annotations)

    # quota (10)

    def concerns(self, pod: Pod) -> bool:
        return ALLOCATED in pod.annotations or self.named_by(pod)

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        amounts = pod_total(pod.containers)
        want = Want.of(amounts)
        charge = ForeignCharge({}) if want is None else waiting_amounts(amounts, want, lambda: self._sizes(node_lister))
        try:
            read_shares(pod)
        except BadAnnotation as error:
            if pod.node_name:
                problem = f"{ALLOCATED} can't be read, so the amounts that the pod declares count: {error}"
                return ForeignCharge(charge.amounts, charge.floors, (problem,))
        return charge

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        """Nothing before the pod is bound: until then anybody may have written the annotation."""
        if not pod.node_name:
            return None
        try:
            shares = read_shares(pod)
        except BadAnnotation:
            return None
        return placed_amounts(shares, self._cards(node_lister, pod.node_name)) if shares else None

    # Fit (7, 8)

    def predict(self, pod: Pod, node_lister: NodeLister, now: float) -> Prediction | NoNode:
        amounts = pod_total(pod.containers)
        want = Want.of(amounts)
        assert want is not None, "the pod requests nothing of Koordinator's"
        if NPU_CORE in amounts:
            return NoNode({node.name: _NPUS for node in node_lister.nodes()})
        terms = KoordinatorConstraints(
            want,
            read_hint(pod.annotations),
            read_partition_spec(pod.annotations),
            pod.labels.get(ISOLATION, ""),
            self.section.scoring == "MostAllocated",
        )
        failed: dict[str, str] = {}
        fits: list[tuple[int, str, list[Load]]] = []
        for node in node_lister.nodes():
            outcome = self._on(node, node_lister, terms)
            if isinstance(outcome, Rejection):
                failed[node.name] = str(outcome)
            else:
                points, chosen = outcome
                fits.append((points, node.name, chosen))
        if not fits:
            return NoNode(failed)
        points, name, chosen = min(fits, key=lambda fit: (-fit[0], fit[1]))
        shares = [load.give(want) for load in chosen]
        first = next(index for index, container in enumerate(pod.containers) if any(n in OWN for n in read(container)))
        parts = tuple(map(_part, chosen, shares))
        return Prediction(name, 100.0 if points else 0.0, {first: parts}, {ALLOCATED: encode(shares)}, failed)

    def _on(
        self, node: Node, node_lister: NodeLister, terms: KoordinatorConstraints
    ) -> tuple[int, list[Load]] | Rejection:
        """The node's score before it is scaled, and the cards it would give."""
        cards = self._cards(node_lister, node.name)
        used = usage(node_lister.foreign_pods_on(node.name), cards) if cards is not None else {}
        chosen = choose(node, cards, used, terms)
        if isinstance(chosen, Rejection):
            return chosen
        assert cards is not None
        return score(loads_of(cards, used), terms), chosen

    def cards(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[Device, Usage]]:
        found = self._cards(node_lister, node.name)
        if found is None:
            return
        taken = [(pod, usage((pod,), found)) for pod in node_lister.foreign_pods_on(node.name)]
        for card in found.cards:
            shares = ((pod, used[card.minor]) for pod, used in taken if card.minor in used)
            yield (
                Device(
                    vendor=self.key,
                    uuid=card.name,
                    index=card.minor,
                    slots=0,
                    memory=(card.memory or 0) // MEBIBYTE,
                    cores=card.core or 0,
                    type=found.labels.get(MODEL, ""),
                    healthy=card.healthy,
                ),
                Usage.of(tuple(PodUsage(pod, 1, each.memory // MEBIBYTE, each.core) for pod, each in shares)),
            )

    # Device objects (3)

    def _cards(self, node_lister: NodeLister, node: str) -> KoordinatorDevice | None:
        """The node's GPUs, None if it has no Device object; each version of it is read once."""
        device = node_lister.device(node)
        known = self._read.get(node)
        if device is None:
            self._read.pop(node, None)
            return None
        if known is None or known[0] is not device:
            known = self._read[node] = (device, read_cards(device))
        return known[1]

    def _sizes(self, node_lister: NodeLister) -> Sizes:
        """The sizes of all nodes' cards, recomputed once a node has changed."""
        known = self._sized
        if known is None or (known[0](), known[1]) != (node_lister, node_lister.version):
            cards = (self._cards(node_lister, node.name) for node in node_lister.nodes())
            sizes = Sizes.of(each for each in cards if each is not None)
            known = self._sized = weakref.ref(node_lister), node_lister.version, sizes
        return known[2]


def _part(load: Load, share: KoordinatorShare) -> Part:
    return Part(load.card.name, (share.memory or 0) // MEBIBYTE, share.core or 0)


def waiting_amounts(amounts: Amounts, want: Want, sizes: Callable[[], Sizes]) -> ForeignCharge:
    """What a pod is charged until it is placed: what it says, and the least that the rest of it can come to.

    `sizes` is only called where something depends on the card.
    """
    floors: tuple[str, ...] = ()
    memory, ratio = want.memory or 0, want.ratio or 0
    if want.ratio is not None:
        memory, floors = share_of(sizes().smallest or 0, want.ratio), (MEMORY,)
    elif want.memory is not None:
        ratio, floors = percent_of(want.memory, sizes().largest or 0), (RATIO, GPU)
    found = {
        SHARED: want.count,
        CORE: amounts.get(CORE, 0),
        MEMORY: want.count * memory,
        RATIO: amounts[RATIO] if want.ratio is not None else want.count * ratio,
        GPU: want.count * max(want.core or 0, ratio),
    }
    return _tally(found, frozenset(map(_key, floors)))


def placed_amounts(shares: Iterable[KoordinatorShare], cards: KoordinatorDevice | None) -> ForeignCharge:
    """What a pod costs by what it was given; numbers that weren't written are completed from its node's cards."""
    found = dict.fromkeys((SHARED, CORE, MEMORY, RATIO, GPU), 0)
    problems = []
    for written in shares:
        share = written.completed(cards.card(written.minor) if cards is not None else None)
        if share.memory is None or share.ratio is None:
            lacking = " and ".join(
                name for name, amount in ((MEMORY, share.memory), (RATIO, share.ratio)) if amount is None
            )
            problems.append(
                f"{ALLOCATED} has no {lacking} for minor {share.minor}, and the card isn't known, so it counts as 0"
            )
        core, ratio = share.core or 0, share.ratio or 0
        for resource, amount in ((SHARED, 1), (CORE, core), (MEMORY, share.memory or 0), (RATIO, ratio)):
            found[resource] += amount
        found[GPU] += max(core, ratio)
    return _tally(found, problems=tuple(problems))


def _tally(amounts: Amounts, floors: frozenset[str] = frozenset(), problems: tuple[str, ...] = ()) -> ForeignCharge:
    return ForeignCharge({_key(name): amount for name, amount in amounts.items() if amount}, floors, problems)
