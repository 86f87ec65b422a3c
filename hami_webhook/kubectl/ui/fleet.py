"""What the page Overview shows: the fleet by model, what waits, quotas near their limit, and a square for each card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from urllib.parse import quote

from markupsafe import Markup, escape
from msgspec import Struct

from hami_webhook.kube.message_text import counted, first_of
from hami_webhook.kubectl.report import CardUse, KeyUse, PodUse, QuotaUse

COLOURS = {"memory": "memory promised", "cores": "cores promised", "slots": "slots in use", "health": "health"}
"""By what the squares are coloured."""
NEARLY_FULL = 80
"""Percent of a quota's key from which it is named."""
_SQUARE, _PITCH, _ACROSS, _STRIP = 9, 10, 4, 16
"""A card's square, and squares beside each other on a node; how many a row has on the Overview, and on Cluster."""
_MANY = 2000
"""Cards from which their squares are as small as that in pixels, so that all are on one screen; else twice as large."""
_LEVELS = 5


class QuotaKey(Struct, frozen=True):
    """A key of a quota: a row of the page Teams."""

    quota: QuotaUse
    key: KeyUse

    @property
    def percent(self) -> int:
        return percent(self.key.used or 0, self.key.hard)

    @property
    def full(self) -> bool:
        """Whether nothing is left of what it allows."""
        return self.key.used is not None and not self.key.left

    def of_hard(self, amount: int) -> float:
        """An amount as a part of `hard`."""
        return amount / max(self.key.hard, 1)


class FleetTotals(Struct, frozen=True):
    """The cards of the fleet together; memory in MiB."""

    nodes: int
    cards: int
    healthy: int
    held: int
    used_memory: int
    memory: int

    @classmethod
    def of(cls, cards: Sequence[CardUse]) -> FleetTotals:
        return cls(
            len({card.node for card in cards}),
            len(cards),
            sum(card.healthy for card in cards),
            sum(card.used_slots > 0 for card in cards),
            sum(card.used_memory for card in cards),
            sum(card.memory for card in cards),
        )


class ClosedCards(Struct, frozen=True):
    """The cards of nodes that take no new pods, for one reason: the names of the nodes, shortened, and why."""

    nodes: str
    cards: int
    why: str


def closed_cards(cards: Sequence[CardUse], closed: Mapping[str, str]) -> list[ClosedCards]:
    """The cards of the nodes `closed`, by why they are, most first."""
    by_reason: dict[str, list[str]] = {}
    for card in cards:
        if card.node in closed:
            by_reason.setdefault(closed[card.node], []).append(card.node)
    found = [ClosedCards(first_of([*dict.fromkeys(of)]), len(of), why) for why, of in by_reason.items()]
    return sorted(found, key=lambda each: (-each.cards, each.why))


class NodeCards(Struct, frozen=True):
    """A node's cards as Cluster lists them; `free` is what of the memory of its healthy cards isn't promised, in MiB.

    `strip` is a picture of the cards. `links` are groups of UUIDs that fast links join. `closed` is why the node takes
    no new pods, empty if it does.
    """

    node: str
    models: Sequence[str]
    cards: Sequence[CardUse]
    empty: int
    unhealthy: int
    free: int
    strip: Markup
    links: Sequence[Sequence[str]]
    closed: str

    @classmethod
    def of(cls, node: str, cards: Sequence[CardUse], links: Sequence[Sequence[str]], closed: str) -> NodeCards:
        healthy = [card for card in cards if card.healthy]
        return cls(
            node,
            models_of(cards),
            cards,
            sum(not card.used_slots for card in healthy),
            len(cards) - len(healthy),
            sum(card.memory - card.used_memory for card in healthy),
            Markup(_squares(cards, "memory", _STRIP, 1.4)),  # noqa: S704  # nothing of it is somebody else's text
            links,
            closed,
        )


def models_of(cards: Iterable[CardUse]) -> list[str]:
    return sorted({card.model for card in cards})


def percent(part: int, whole: int) -> int:
    """Rounded down, so that 100 means all of it; 100 for nothing of nothing, as there is no room."""
    return 100 * part // whole if whole else 100


def waiting(pods: Iterable[PodUse]) -> list[PodUse]:
    """The pods that hold no cards yet, those that have waited longest first."""
    return sorted((pod for pod in pods if pod.waits), key=lambda pod: (pod.created is None, pod.created or 0))


def nearly_full(quotas: Iterable[QuotaUse]) -> list[QuotaKey]:
    """The keys of quotas that are nearly used up, the fullest first."""
    found = [QuotaKey(quota, key) for quota in quotas for key in quota.keys if key.hard]
    return sorted((each for each in found if each.percent >= NEARLY_FULL), key=lambda each: -each.percent)


def used_memory(cards: Iterable[CardUse], places: Mapping[str, str]) -> Mapping[tuple[str, str, str], int]:
    """The MiB that are really used of the cards of each vendor, model and place, where that is known of any."""
    found: dict[tuple[str, str, str], int] = {}
    for card in cards:
        if card.in_use is not None:
            key = card.vendor, card.model, places.get(card.node, "")
            found[key] = found.get(key, 0) + card.in_use.memory
    return found


def fleet_map(
    cards: Sequence[CardUse], by: str, places: Mapping[str, str], closed: Mapping[str, str]
) -> list[tuple[str, Markup]]:
    """A picture of each node's cards as squares that lead to the node, by place; `cards` are sorted by node.

    `by` is one of `COLOURS`; `places` names the place of nodes, none where no label does; `closed` are the nodes that
    take no new pods, with why.
    """
    scale = 1 if len(cards) >= _MANY else 2
    groups: dict[str, list[str]] = {}
    for node, of_node in groupby(cards, key=lambda card: card.node):
        groups.setdefault(places.get(node, ""), []).append(
            _node_map(node, list(of_node), by, scale, closed.get(node, ""))
        )
    # escaped where it is made: markupsafe's own formatting takes 40 ms of a page with 1,000 nodes
    return [(place, Markup("".join(groups[place]))) for place in sorted(groups)]  # noqa: S704


def _node_map(node: str, cards: Sequence[CardUse], by: str, scale: int, closed: str) -> str:
    """A node's picture, as HTML; `closed` is why it takes no new pods, empty if it does."""
    held = sum(card.used_slots > 0 for card in cards)
    models = ", ".join(models_of(cards))
    title = f"{node}, {models}: {held} of {counted(len(cards), 'card')} held" + (f"; {closed}" if closed else "")
    # nothing of it but the title is somebody else's text
    return (
        f'<a{" class=closed" if closed else ""} href="/cluster?node={quote(node, safe="")}" tabindex="-1" '
        f'title="{escape(title)}">{_squares(cards, by, _ACROSS, scale)}</a>'
    )


def _squares(cards: Sequence[CardUse], by: str, across: int, scale: float) -> str:
    """A square for each card, so many in a row, as HTML."""
    squares: dict[str, list[str]] = {}
    for index, card in enumerate(cards):
        x, y = index % across * _PITCH, index // across * _PITCH
        squares.setdefault(_shade(card, by), []).append(f"M{x} {y}h{_SQUARE}v{_SQUARE}h-{_SQUARE}z")
    width = min(len(cards), across) * _PITCH
    height = -(-len(cards) // across) * _PITCH
    paths = "".join(f'<path class="{shade}" d="{"".join(drawn)}"/>' for shade, drawn in squares.items())
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width * scale:g}" height="{height * scale:g}" '
        f'aria-hidden="true">{paths}</svg>'
    )


def _shade(card: CardUse, by: str) -> str:
    """The class of a card's square: `sick`, or `level0` (nothing) to `level5` (all of it)."""
    if not card.healthy:
        return "sick"
    if by == "health":
        return "level1"
    part, whole = {
        "memory": (card.used_memory, card.memory),
        "cores": (card.used_cores, card.cores),
        "slots": (card.used_slots, card.slots),
    }[by]
    if not part:
        return "level0"
    return f"level{min(_LEVELS, 1 + percent(part, whole) * (_LEVELS - 1) // 100)}"
