"""Nodes grouped by why they don't take a pod, the nearest misses first: of 1,000 nodes few answers are different."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from hami_webhook.devices import reasons
from hami_webhook.explain.report import CardReport, EqualCards, NodeReport
from hami_webhook.kube.human_memory import human_mebibytes
from hami_webhook.kube.message_text import first_of
from hami_webhook.terminal import natural

FITS = "fits"
_NEVER = 1.0
"""What a card lacks that no pod's end would make fit, beside its amounts."""


class NodeGroup(Struct, frozen=True):
    """Nodes with the same answer, the nearest to fit first; `nearest` says how near."""

    answer: str
    nodes: Sequence[NodeReport]
    nearest: str


def groups_of(nodes: Sequence[NodeReport]) -> list[NodeGroup]:
    """The nodes by their answers, the group with the nearest node first."""
    return grouped(by_nearness(nodes))


def grouped(nearest_first: Sequence[NodeReport]) -> list[NodeGroup]:
    """As `groups_of`, of nodes that are in order."""
    by_answer: dict[str, list[NodeReport]] = defaultdict(list)
    for node in nearest_first:
        by_answer[answer_of(node)].append(node)
    return [NodeGroup(answer, group, _nearest(answer, group)) for answer, group in by_answer.items()]


def by_nearness(nodes: Sequence[NodeReport]) -> list[NodeReport]:
    """Nodes that fit, the best first; then those that filters alone refuse; those that lack the least of their cards;
    those that lack that besides a filter's refusal; and those without cards.
    """
    lacks: dict[tuple[int, int], float | None] = {}

    def lack(node: NodeReport) -> float | None:
        cards = _like(node.cards)
        key = id(cards), node.count
        if key not in lacks:
            lacks[key] = _lack(cards, node.count)
        return lacks[key]

    return sorted(nodes, key=lambda node: _rank(node, lack))


def answer_of(node: NodeReport) -> str:
    """What a node is grouped by: what refuses the pod first, without numbers and names of its own."""
    if node.fits:
        return FITS
    if node.refusal is not None:
        return ", ".join(node.refusal.reasons)
    return node.answer or node.reason


def lack_of(card: CardReport) -> float:
    """What a card lacks for the pod's container, in cards: 0 if it passes."""
    if not card.label:
        return 0.0
    if card.needs_memory is None or card.needs_cores is None:
        return _NEVER
    amounts = ((card.needs_memory, card.used_memory, card.memory), (card.needs_cores, card.used_cores, card.cores))
    lacking = sum(max(0, needs - total + used) / total for needs, used, total in amounts if total > 0)
    if any(needs > total for needs, _, total in amounts):
        return lacking + _NEVER
    if card.label in (reasons.CARD_TIME_SLICING_EXHAUSTED, reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT):
        return lacking + card.used_slots / max(1, card.slots)
    return lacking or _NEVER


def _like(cards: Sequence[CardReport]) -> Sequence[CardReport]:
    """What equal nodes share of their cards: all but names."""
    return cards.like if isinstance(cards, EqualCards) else cards


def _lack(cards: Sequence[CardReport], count: int) -> float | None:
    """What cards lack for so many that a container asks for; None if none of them was refused."""
    if not any(card.label for card in cards):
        return None
    lacking = sorted(map(lack_of, cards))[: max(1, count)]
    return sum(lacking) + max(0, count - len(lacking))


def _rank(node: NodeReport, lack: Callable[[NodeReport], float | None]) -> tuple[int, float, list[tuple[str, int]]]:
    name = natural(node.name)
    if node.fits:
        return 0, -(node.score or 0.0), [(node.name, 0)]  # as the extender chooses among equals
    if node.refusal is not None and not node.reason:
        return 1, len(node.refusal.reasons), name
    lacking = lack(node)
    if lacking is None:
        return 4, 0.0, name
    return 2 if node.refusal is None else 3, lacking, name


def _nearest(answer: str, nodes: Sequence[NodeReport]) -> str:
    """How near the nodes of a group are, with the name of the nearest, or their names."""
    if answer == FITS:
        return f"best on {nodes[0].name}" + (f", score {nodes[0].score:.2f}" if nodes[0].score is not None else "")
    refused = [node for node in nodes if node.refusal is not None]
    if refused:
        fitting = [node for node in refused if not node.reason and node.cards]
        return f"cards would fit on {_names(fitting)}" if fitting else _names(nodes)
    for label, total, used, text in (
        (reasons.CARD_INSUFFICIENT_MEMORY, "memory", "used_memory", human_mebibytes),
        (reasons.CARD_INSUFFICIENT_CORE, "cores", "used_cores", "{} cores".format),
    ):
        shared: dict[int, tuple[Sequence[CardReport], str]] = {}
        for node in nodes:
            shared.setdefault(id(cards := _like(node.cards)), (cards, node.name))
        free = [
            (getattr(card, total) - getattr(card, used), name)
            for cards, name in shared.values()
            for card in cards
            if card.label == label
        ]
        if free:
            most, name = max(free, key=lambda each: each[0])
            return f"most free {text(most)}, on {name}"
    return _names(nodes)


def _names(nodes: Sequence[NodeReport]) -> str:
    return first_of([node.name for node in nodes])
