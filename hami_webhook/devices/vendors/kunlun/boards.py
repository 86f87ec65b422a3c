"""What whole Kunlunxin cards and slices have in common: lists, wings, the twin backend, the refusals, the section
(docs/spec/kunlun.md#2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

from hami_webhook.config.devices import DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName
from hami_webhook.devices import reasons
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import MUTEX, UUID_LISTS, Candidate, Check, Choice, FitRequest, Selection
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.kunlun import wings
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container


class KunlunSection(DeviceSection):
    """`kunlun`: whole cards (`resource_count_name`) and vXPU slices; one unit of the slice's memory is 1 MiB."""

    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {"resourceVCountName": ("resourceVMemoryName",)}

    resource_count_name: Annotated[ResourceName, Meaning("number of whole cards", "cards")] = ""
    resource_vcount_name: Annotated[ResourceName, Meaning("number of vXPU slices", "slices")] = ""
    resource_vmemory_name: Annotated[ResourceName, Meaning("memory of each slice", "1 MiB")] = ""


WHOLE = 98304
"""MiB of a card."""

USE_UUID = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
NOUSE_UUID = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")
_TWINS = {"kunlun": "XPU", "XPU": "kunlun"}


def _unused_by_twin(candidate: Candidate) -> bool:
    """Where a node runs both plugins, the card of this index isn't used through the other one."""
    overlay, twin = candidate.fit_request.overlay, _TWINS[candidate.device.vendor]
    inventory = overlay.view.inventories.get(twin)
    candidate.fit_request.take_steps_of(twin)
    return inventory is None or not any(
        card.index == candidate.device.index and overlay.used(twin, card.uuid).slots for card in inventory.devices
    )


IN_A_WING = Check(reasons.NUMA_NOT_FIT, lambda c: c.device.index in wings.INDICES)
UNUSED_BY_TWIN = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _unused_by_twin)


def best_admitted(fit_request: FitRequest, passed: Sequence[Candidate], *, sliced: bool) -> Choice | Rejection:
    """The best set of cards that the quota admits; `passed` may be empty."""
    cards = {card.device.index: card for card in passed}
    shared = frozenset(index for index, card in cards.items() if card.usage.slots)
    of_pod = {(claim.vendor, claim.uuid) for claim in fit_request.claims}
    own = (index for index in shared if (cards[index].device.vendor, cards[index].device.uuid) in of_pod)
    shared = frozenset(own) or shared
    label = reasons.NUMA_NOT_FIT
    for chosen in wings.card_sets(fit_request.request.count, frozenset(cards), shared, sliced=sliced):
        found = [cards[index] for index in chosen]
        if fit_request.admits(found):
            return Choice(found)
        label = reasons.RESOURCE_QUOTA_NOT_FIT
    return Rejection({label: 1}, len(fit_request.inventory.devices))


class WholeCards(Selection):
    """Cards nobody shares: the best set of a wing, or of linked cards in both (7.2)."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | Rejection:
        return best_admitted(fit_request, passed, sliced=False)


WHOLE_CARDS = WholeCards()


class Kunlunxin(Vendor):
    """What both backends share."""

    def check_amounts(self, container: Container) -> None:
        super().check_amounts(container)
        for why in self.misfits(container):
            raise BadRequest(f"{why}, so the pod would never start")

    def misfits(self, container: Container) -> Iterator[str]:
        """Why no node can ever give what the container requests."""
        raise NotImplementedError

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        """Whatever the number, a container that limits its count is ours to schedule."""
        super().admit(container, pod, device_lister)
        return self.count_name in container.limits

    def refusal(self, fit_request: FitRequest, cards: Sequence[Candidate], usual: Rejection) -> Rejection:
        """The first line that applies in the table of 7.4; where too few cards fit, what the others failed too."""
        if not usual.counts.keys().isdisjoint((reasons.NODE_INSUFFICIENT_HANDLE, reasons.RESOURCE_QUOTA_NOT_FIT)):
            return usual
        counts = dict(usual.counts)
        counts.pop(reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, None)
        apart = counts.pop(reasons.NUMA_NOT_FIT, 0) > 0
        taken = sum(self._only_taken(card) for card in cards) if fit_request.terms.policy.mutex else 0
        excluded = sum(not UUID_LISTS.passes(card) for card in cards)
        if taken:
            counts[reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT] = taken
        elif excluded:
            counts[reasons.CARD_UUID_MISMATCH] = excluded
        if not taken and (apart or not excluded):
            counts[reasons.NUMA_NOT_FIT] = 1
        return Rejection(counts, len(cards))

    def _only_taken(self, card: Candidate) -> bool:
        """Whether a card in use would fit if it needn't be idle; UUID lists aside."""
        others = (check for check in self.checks if check not in (UUID_LISTS, MUTEX))
        return card.usage.slots > 0 and all(check.passes(card) for check in others)


def misfits(name: str, count: int, *, whole: bool) -> Iterator[str]:
    """Why so many cards, or slices that are `whole` cards or not, can't be placed on any node."""
    if not count:
        return
    if count > len(wings.INDICES):
        yield f"{name} {count} can't be placed: a node has {len(wings.INDICES)} cards"
    elif whole and count not in wings.LINKED_COUNTS:
        yield f"{name} {count} can't be placed: whole cards are given out by 1, 2, 4 or 8"
