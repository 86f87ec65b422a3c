"""An explanation as tables, and these on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hami_webhook.explain.report import CardReport, Change, Explanation, NodeReport, PlacementReport, QuotaReport, Taken
from hami_webhook.terminal import ShownTable

if TYPE_CHECKING:
    from rich.console import Console

MOST_CHANGES = 5
"""How many changes are shown."""


def show(explanation: Explanation, console: Console) -> None:
    """Print where the pod is, node by node and card by card, and what would have to change."""
    title = f"{explanation.namespace}/{explanation.name} {explanation.verdict}"
    console.print(title, markup=False, highlight=False)
    for note in explanation.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    for rule in explanation.not_judged:
        console.print(f"  {rule.filter} isn't judged: {rule.why}", markup=False, highlight=False)
    for table in tables_of(explanation):
        console.print(table.printable())
        if table.note:
            console.print(table.note, markup=False, highlight=False)
    if explanation.changes:
        console.print("Any of these would change it:" if len(explanation.changes) > 1 else "This would change it:")
        for number, change in enumerate(explanation.changes[:MOST_CHANGES], start=1):
            text = f"  {number}. {sentence(change)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        left = len(explanation.changes) - MOST_CHANGES
        if left > 0:
            console.print(f"  and {left} more with -o json", highlight=False)


def sentence(change: Change) -> str:
    return "; and ".join(step.text for step in change.steps)


def tables_of(explanation: Explanation) -> Iterator[ShownTable]:
    """Where the pod is, the nodes card by card, and the quotas, as far as there are any."""
    if explanation.place is not None:
        yield _placed(explanation.place)
    if explanation.nodes:
        yield _nodes(explanation.nodes)
    if explanation.quotas:
        yield _quotas(explanation.quotas)


def _placed(place: PlacementReport) -> ShownTable:
    cards = {(card.vendor, card.uuid): card for card in place.cards}
    rows = []
    for taken in place.devices:
        card = cards.get((taken.vendor, taken.uuid))
        usage = _usage(card) if card else "not registered"
        rows.append((taken.container, taken.uuid, f"{taken.memory} MiB", str(taken.cores), usage))
    costs = ", ".join(f"{key}={amount}" for key, amount in place.debits.items())
    headings = ("container", "card", "memory", "cores", "the card now")
    return ShownTable(f"On {place.node}", headings, rows, note=f"It costs {costs}" if costs else "")


def _usage(card: CardReport) -> str:
    return (
        f"{card.used_slots}/{card.slots} slots, {card.used_memory}/{card.memory} MiB, "
        f"{card.used_cores}/{card.cores} cores"
    )


def _nodes(nodes: Sequence[NodeReport]) -> ShownTable:
    rows: list[Sequence[str]] = []
    sections = set()
    for node in nodes:
        first = (node.name, _verdict(node))
        for card in [_row(card, node.devices) for card in node.cards] or [("-", "-", "-")]:
            rows.append((*first, *card))
            first = ("", "")
        sections.add(len(rows) - 1)
    return ShownTable("Nodes", ("node", "verdict", "card", "taken", "why"), rows, frozenset(sections))


def _verdict(node: NodeReport) -> str:
    if node.fits:
        return f"fits, score {node.score or 0:.2f}"
    refused = (*node.refusal.reasons, node.refusal.why) if node.refusal else ()
    return "\n".join(text for text in (*refused, node.reason, node.why) if text)


def _row(card: CardReport, devices: Sequence[Taken]) -> tuple[str, str, str]:
    taken = [device for device in devices if (device.vendor, device.uuid) == (card.vendor, card.uuid)]
    if taken:
        text = "\n".join(f"would give {t.container} {t.memory} MiB and {t.cores} cores" for t in taken)
    elif card.label:
        text = f"{card.label}: {card.why}"
    else:
        text = card.why or "-"
    return card.uuid, _usage(card), text


def _quotas(quotas: Sequence[QuotaReport]) -> ShownTable:
    headings = ("quota", "key", "used", "of it this pod", "hard", "this placement costs", "may cost")
    rows = []
    for quota in quotas:
        costing = "?" if quota.costs is None else str(quota.costs)
        used = "?" if quota.used is None else str(quota.used)
        rows.append((quota.quota, quota.key, used, str(quota.charged), str(quota.hard), costing, str(quota.most)))
    return ShownTable("Quotas", headings, rows)
