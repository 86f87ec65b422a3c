"""An explanation as tables, and these on a terminal: short for a cluster of any size, or all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hami_webhook.explain.node_groups import FITS, NodeGroup, by_nearness, grouped, groups_of, lack_of
from hami_webhook.explain.report import CardReport, Change, Explanation, NodeReport, PlacementReport, QuotaReport, Taken
from hami_webhook.kube.human_memory import human_amount, human_mebibytes
from hami_webhook.kube.message_text import counted
from hami_webhook.terminal import ShownTable

if TYPE_CHECKING:
    from rich.console import Console

NEAREST = 5
"""On how many nodes of each answer changes are searched for a short answer: on all of 1,000 it would take seconds."""
_MOST_GROUPS = 12
_MOST_NODES = 3
"""How many nodes are shown card by card."""
_MOST_CHANGES = 3
"""How many changes are shown of those that the pod's owner can make, and of the others."""
_LONGEST, _LONGEST_NAME = 160, 63
"""Characters of a text, and of a name, in a short answer: both are somebody's."""


def show(explanation: Explanation, console: Console, *, everything: bool = False) -> None:
    """Print where the pod is, what would have to change, and how near nodes are to taking it."""
    console.print(explanation.title, markup=False, highlight=False, soft_wrap=True)
    for note in notes_of(explanation):
        console.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
    number = 1
    for heading, changes, left in changes_of(explanation, everything=everything):
        console.print(f"\n{heading}", markup=False, highlight=False)
        for change in changes:
            console.print(f"  {number}. {change}", markup=False, highlight=False, soft_wrap=True)
            number += 1
        if left:
            console.print(f"  and {left} more with --all", highlight=False)
    for table in tables_of(explanation, everything=everything):
        console.print(table.printable(boxed=False))
        if table.note:
            console.print(table.note, markup=False, highlight=False)


def notes_of(explanation: Explanation) -> list[str]:
    """Return the lines before the tables: notes, and the rules of kube-scheduler that aren't evaluated."""
    return [*explanation.notes, *(f"{rule.filter} isn't evaluated: {rule.why}" for rule in explanation.not_judged)]


def changes_of(explanation: Explanation, *, everything: bool = False) -> Iterator[tuple[str, Sequence[str], int]]:
    """What would let the pod in: in its namespace, and beyond it. A heading, sentences, and how many are left out."""
    namespace = explanation.namespace
    different = {_sentence(change): change for change in reversed(explanation.changes)}
    changes = [*different.values()][::-1]
    own = [change for change in changes if change.is_within(namespace)]
    others = [change for change in changes if not change.is_within(namespace)]
    for changes, where in ((own, f"in namespace {namespace}"), (others, "by an administrator")):
        if changes:
            any_of = "This" if len(changes) == 1 else "Any of these"
            shown = changes if everything else changes[:_MOST_CHANGES]
            heading = f"{any_of} would change it, {where}:"
            yield heading, [*map(_sentence, shown)], len(changes) - len(shown)


def _sentence(change: Change) -> str:
    return "; and ".join(step.text for step in change.steps)


def tables_of(explanation: Explanation, *, everything: bool = False) -> Iterator[ShownTable]:
    """Where the pod is, the nodes by their answers and the nearest card by card, and the quotas, as far as there are
    any; `everything`: every node with all of its cards.
    """
    if explanation.place is not None:
        yield placement_table(explanation.place)
    if explanation.nodes:
        yield from _all_nodes(explanation.nodes) if everything else node_tables(explanation.nodes)
    if explanation.quotas:
        yield quota_table(explanation.quotas)


def placement_table(place: PlacementReport) -> ShownTable:
    """The cards that a placed pod has."""
    cards = {(card.vendor, card.uuid): card for card in place.cards}
    rows = []
    for taken in place.devices:
        card = cards.get((taken.vendor, taken.uuid))
        usage = _usage(card) if card else "-" if taken.registered else "not registered"
        rows.append((taken.container, taken.uuid, human_mebibytes(taken.memory), str(taken.cores), usage))
    costs = ", ".join(f"{key}={amount}" for key, amount in place.debits.items())
    headings = ("container", "card", "memory", "cores", "the card now")
    return ShownTable(f"On {place.node}", headings, rows, note=f"It costs {costs}" if costs else "")


def _usage(card: CardReport) -> str:
    return (
        f"{card.used_slots}/{card.slots} slots, "
        f"{human_mebibytes(card.used_memory)}/{human_mebibytes(card.memory)}, "
        f"{card.used_cores}/{card.cores} cores"
    )


def node_tables(nodes: Sequence[NodeReport]) -> Iterator[ShownTable]:
    """The answers, where there are more than a few nodes, and the nodes that are nearest to fit."""
    nearest = by_nearness(nodes)
    if len(nodes) > _MOST_NODES:
        yield _groups(grouped(nearest))
        nearest = [node for node in nearest if node.cards or node.fits]
    if nearest:
        title = "Nodes" if len(nodes) <= _MOST_NODES else "The nearest"
        yield _in_detail(title, nearest[:_MOST_NODES])


def _groups(groups: Sequence[NodeGroup], *, everything: bool = False) -> ShownTable:
    shown = groups if everything else groups[:_MOST_GROUPS]
    cut = str if everything else _cut
    rows = [(str(len(group.nodes)), cut(group.answer), cut(group.nearest)) for group in shown]
    left = [node for group in groups[len(shown) :] for node in group.nodes]
    note = f"and {counted(len(left), 'node')} with other answers, with --all" if left else ""
    return ShownTable("Nodes", ("nodes", "answer", "nearest"), rows, note=note, amounts=frozenset(("nodes",)))


def _in_detail(title: str, nodes: Sequence[NodeReport]) -> ShownTable:
    """Nodes with what their cards lack, a row for each reason with the card that lacks the least."""
    rows: list[Sequence[str]] = []
    for node in nodes:
        cards = list(_cards(node))
        rows.append((_cut(node.name, _LONGEST_NAME), "", _cut(_verdict(node, brief=bool(cards)))))
        rows += [("", _cut(uuid, _LONGEST_NAME), _cut(text)) for uuid, text in cards]
    return ShownTable(title, ("node", "card", "why"), rows)


def _cards(node: NodeReport) -> Iterator[tuple[str, str]]:
    """The cards that a node would give; of one that doesn't fit, for each label the card that lacks the least."""
    if node.fits:
        given = {(taken.vendor, taken.uuid) for taken in node.devices}
        for card in node.cards:
            if (card.vendor, card.uuid) in given:
                yield card.uuid, f"{_given(card, node.devices)}; now {_usage(card)}"
        return
    by_label: dict[str, list[CardReport]] = defaultdict(list)
    for card in sorted(node.cards, key=lack_of):
        if card.label:
            by_label[card.label].append(card)
    for cards in sorted(by_label.values(), key=lambda cards: lack_of(cards[0])):
        more = f" and {len(cards) - 1} more" if len(cards) > 1 else ""
        yield f"{cards[0].uuid}{more}", cards[0].why


def _given(card: CardReport, devices: Sequence[Taken]) -> str:
    taken = [device for device in devices if (device.vendor, device.uuid) == (card.vendor, card.uuid)]
    return ", ".join(
        f"would give {each.container} {human_mebibytes(each.memory)} and {each.cores} cores" for each in taken
    )


def _all_nodes(nodes: Sequence[NodeReport]) -> Iterator[ShownTable]:
    if len(nodes) > _MOST_NODES:
        yield _groups(groups_of(nodes), everything=True)
    rows: list[Sequence[str]] = []
    for node in by_nearness(nodes):
        rows.append((node.name, "", "", _verdict(node)))
        for card in node.cards:
            text = _given(card, node.devices) or (f"{card.label}: {card.why}" if card.label else card.why)
            rows.append(("", card.uuid, _usage(card), text))
    yield ShownTable("Node by node", ("node", "card", "taken", "why"), rows)


def _verdict(node: NodeReport, *, brief: bool = False) -> str:
    """What refuses the pod; `brief`: the numbers are said card by card."""
    if node.fits:
        score = f"score {node.score:.2f}" if node.score is not None else ""
        return ", ".join(filter(None, (FITS, score, node.why)))
    refused = (", ".join(node.refusal.reasons), node.refusal.why) if node.refusal else ()
    rejected = (node.reason, f"container {node.container}" if brief else node.why)
    return "; ".join(": ".join(filter(None, each)) for each in (refused, rejected) if any(each))


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quota_table(quotas: Sequence[QuotaReport]) -> ShownTable:
    """Each managed key of the quotas that count the pod: what it costs, and what they leave for it."""
    headings = ("quota", "key", "used", "by pod", "hard", "pod costs", "left for pod")
    rows = []
    for quota in quotas:
        amounts = (quota.used, quota.charged, quota.hard, quota.costs, quota.most)
        texts = ("?" if amount is None else human_amount(amount, quota.unit_bytes) for amount in amounts)
        rows.append((quota.quota, quota.key, *texts))
    return ShownTable("Quotas", headings, rows, amounts=frozenset(headings[2:]))
