"""Which cards of a node Koordinator would give a pod (docs/spec/koordinator.md#7.2 to #8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from hami_webhook.devices import reasons
from hami_webhook.devices.reasons import Rejection
from hami_webhook.integrations.koordinator import partitions
from hami_webhook.integrations.koordinator.allocation_annotation import UNUSED, KoordinatorShare, Used
from hami_webhook.integrations.koordinator.device_object import KoordinatorCard, KoordinatorDevice
from hami_webhook.integrations.koordinator.hints import Hint, PartitionSpec
from hami_webhook.integrations.koordinator.keys import ISOLATION
from hami_webhook.integrations.koordinator.request import Want, percent_of, share_of
from hami_webhook.kube.objects import Node


class KoordinatorConstraints(Struct, frozen=True):
    """What a pod wants, how its user steers it, its isolation label, and how Koordinator scores."""

    want: Want
    hint: Hint = field(default_factory=Hint)
    partition: PartitionSpec | None = None
    isolation: str = ""
    most_allocated: bool = False


class Load(Struct, frozen=True):
    """A card and what is taken of it."""

    card: KoordinatorCard
    used: Used = UNUSED

    @property
    def idle(self) -> bool:
        return self.card.healthy and self.used == UNUSED

    def trouble(self, terms: KoordinatorConstraints) -> str:
        """The label of the first check that the card fails; empty if it suits. What isn't reported isn't compared."""
        card, used, want = self.card, self.used, terms.want
        if not card.healthy:
            return reasons.CARD_NOT_HEALTH
        if not terms.hint.selector.matches(card.labels):
            return reasons.CARD_TYPE_MISMATCH
        if _lacks(card.core, used.core, want.core):
            return reasons.CARD_INSUFFICIENT_CORE
        if _lacks(card.ratio, used.ratio, want.ratio) or _lacks(card.memory, used.memory, want.memory):
            return reasons.CARD_INSUFFICIENT_MEMORY
        return ""

    def score(self, terms: KoordinatorConstraints) -> int:
        return score([self], terms)

    def give(self, want: Want) -> KoordinatorShare:
        """What the pod gets of this card; memory and ratio are both filled in as far as the card reports memory."""
        card = self.card
        share = KoordinatorShare(card.minor, card.id, want.core, want.memory, want.ratio)
        if card.memory is None:
            return share
        if want.ratio is not None:
            return KoordinatorShare(card.minor, card.id, want.core, share_of(card.memory, want.ratio), want.ratio)
        return KoordinatorShare(card.minor, card.id, want.core, want.memory, percent_of(want.memory or 0, card.memory))


def _lacks(total: int | None, used: int, wanted: int | None) -> bool:
    return total is not None and wanted is not None and max(0, total - used) < wanted


def score(loads: Sequence[Load], terms: KoordinatorConstraints) -> int:
    """0 to 100 for healthy cards as one, with the request for one card: the average of what they report of memory."""
    healthy = [load for load in loads if load.card.healthy]
    parts = []
    for totals, used, wanted in (
        ([load.card.ratio for load in healthy], sum(load.used.ratio for load in healthy), terms.want.ratio),
        ([load.card.memory for load in healthy], sum(load.used.memory for load in healthy), terms.want.memory),
    ):
        total = sum(amount for amount in totals if amount is not None)
        if total:
            taken = used + (wanted or 0)
            parts.append((min(taken, total) if terms.most_allocated else max(0, total - taken)) * 100 // total)
    return sum(parts) // len(parts) if parts else 0


def loads_of(cards: KoordinatorDevice, used: Mapping[int, Used]) -> list[Load]:
    return [Load(card, used.get(card.minor, UNUSED)) for card in cards.cards]


def choose(
    node: Node, cards: KoordinatorDevice | None, used: Mapping[int, Used], terms: KoordinatorConstraints
) -> list[Load] | Rejection:
    """The cards that the pod would get, in the order of the annotation; or why the node can't serve it."""
    want = terms.want
    if cards is None:
        return Rejection(bare=reasons.NODE_INSUFFICIENT_DEVICE)
    if want.fractional and terms.isolation and node.labels.get(ISOLATION) != terms.isolation:
        return Rejection({reasons.MODE_NOT_FIT: 1}, len(cards.cards))
    if want.count > len(cards.cards):
        return Rejection(bare=reasons.NODE_INSUFFICIENT_DEVICE)
    loads = loads_of(cards, used)
    suiting = [load for load in loads if not load.trouble(terms)]
    if not want.fractional:
        partition = _partition(node, cards, loads, suiting, terms)
        if partition is not None:
            return partition
    if all(card.spot is not None for card in cards.cards) and not (want.fractional and want.count > 1):
        chosen = _within_scope(loads, suiting, terms)
        if chosen is not None:
            return chosen
    if terms.hint.scope:
        return _refusal(loads, terms, reasons.NUMA_NOT_FIT, len(suiting))
    if len(suiting) < want.count:
        return _refusal(loads, terms, reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, len(suiting) or None)
    return sorted(suiting, key=lambda load: (-load.score(terms), load.card.minor))[: want.count]


def _refusal(loads: Iterable[Load], terms: KoordinatorConstraints, label: str, number: int | None) -> Rejection:
    """The labels of the cards that don't suit, and one for those that do; `number` None leaves that out."""
    loads = list(loads)
    counts = Counter(trouble for load in loads if (trouble := load.trouble(terms)))
    return Rejection({**counts, **({} if number is None else {label: number})}, len(loads))


def _partition(
    node: Node,
    cards: KoordinatorDevice,
    loads: Sequence[Load],
    suiting: Sequence[Load],
    terms: KoordinatorConstraints,
) -> list[Load] | Rejection | None:
    """The cards of a partition of the node's table, a refusal where only such will do, else None."""
    table = partitions.table_of(cards, node.labels)
    if table is not None:
        idle = {load.card.minor for load in loads if load.idle}
        suits = {load.card.minor for load in suiting}
        found = partitions.pick(table, terms.want.count, terms.partition, suits.__contains__, idle.__contains__)
        if found is not None:
            by_minor = {load.card.minor: load for load in loads}
            return [by_minor[minor] for minor in sorted(found.minors)]
    if partitions.binds(cards, node.labels, terms.partition):
        return _refusal(loads, terms, reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, len(suiting))
    return None


_DEPTHS = {"Node": 0, "NUMANode": 1, "PCIe": 2, "Device": 3}
"""How deep in the tree a required scope is."""

Scope = tuple[int | str, ...]
"""The number of a NUMA node and the name of a switch, as far as the scope is that deep."""


def _within_scope(loads: Sequence[Load], suiting: Sequence[Load], terms: KoordinatorConstraints) -> list[Load] | None:
    """Cards of one scope of the node's topology: the deepest that has enough, and of such the fullest path."""
    want, wanted_depth = terms.want, _DEPTHS.get(terms.hint.scope or "Node", 4)
    if wanted_depth == _DEPTHS["Device"] and want.count == 1:
        wanted_depth = _DEPTHS["PCIe"]  # any card is a device by itself
    for depth in (2, 1, 0):
        if depth < wanted_depth:
            return None
        scopes = _scopes(loads, depth)
        suited = {scope: [load for load in suiting if _scope(load, depth) == scope] for scope in scopes}
        serving = [scope for scope in scopes if len(suited[scope]) >= want.count]
        if serving:
            best = max(serving, key=lambda scope: _rank(scope, loads, suited[scope], terms))  # of equals the first
            found = suited[best]
            if terms.want.fractional:
                found = sorted(found, key=lambda load: (-load.score(terms), load.card.minor))
            return found[: want.count]
    return None


def _scope(load: Load, depth: int) -> Scope:
    spot = load.card.spot
    assert spot is not None
    return (spot.numa, spot.pcie)[:depth]


def _scopes(loads: Sequence[Load], depth: int) -> list[Scope]:
    """The scopes at a depth: by the numbers of their NUMA nodes, then by the names of their switches."""
    return sorted({_scope(load, depth) for load in loads})


def _rank(
    scope: Scope, loads: Sequence[Load], suited: Sequence[Load], terms: KoordinatorConstraints
) -> tuple[int, int]:
    """How many scopes on the path are in use, and the best card's score if cards are shared."""
    used = [load for load in loads if load.used != UNUSED]
    in_use = sum(any(_scope(load, depth) == scope[:depth] for load in used) for depth in range(len(scope) + 1))
    return in_use, max(load.score(terms) for load in suited) if terms.want.fractional else 0
