"""An explanation as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hami_webhook.explain.report import CardReport, Change, Explanation, NodeReport, PlacementReport, QuotaReport, Taken

_MOST_CHANGES = 5


def show(explanation: Explanation, console: Console) -> None:
    """Print where the pod is, node by node and card by card, and what would have to change."""
    console.print(escape(f"{explanation.namespace}/{explanation.name} {explanation.verdict}"), highlight=False)
    for note in explanation.notes:
        console.print(escape(f"  {note}"), highlight=False)
    if explanation.place is not None:
        console.print(_placed(explanation.place))
        if explanation.place.debits:
            text = ", ".join(f"{key}={amount}" for key, amount in explanation.place.debits.items())
            console.print(escape(f"It costs {text}"), highlight=False)
    if explanation.nodes:
        console.print(_nodes(explanation.nodes))
    if explanation.quotas:
        console.print(_quotas(explanation.quotas))
    if explanation.changes:
        console.print("Any of these would change it:" if len(explanation.changes) > 1 else "This would change it:")
        for number, change in enumerate(explanation.changes[:_MOST_CHANGES], start=1):
            console.print(escape(f"  {number}. {_change(change)}"), highlight=False, soft_wrap=True)
        left = len(explanation.changes) - _MOST_CHANGES
        if left > 0:
            console.print(f"  and {left} more with -o json", highlight=False)


def _change(change: Change) -> str:
    return "; and ".join(step.text for step in change.steps)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _placed(place: PlacementReport) -> Table:
    table = _table(f"On {escape(place.node)}", "container", "card", "memory", "cores", "the card now")
    cards = {(card.vendor, card.uuid): card for card in place.cards}
    for taken in place.devices:
        card = cards.get((taken.vendor, taken.uuid))
        table.add_row(
            escape(taken.container),
            escape(taken.uuid),
            f"{taken.memory} MiB",
            str(taken.cores),
            _usage(card) if card else "not registered",
        )
    return table


def _usage(card: CardReport) -> str:
    return (
        f"{card.used_slots}/{card.slots} slots, {card.used_memory}/{card.memory} MiB, "
        f"{card.used_cores}/{card.cores} cores"
    )


def _nodes(nodes: Sequence[NodeReport]) -> Table:
    table = _table("Nodes", "node", "verdict", "card", "taken", "why")
    for node in nodes:
        verdict = _verdict(node)
        rows = [_row(card, node.devices) for card in node.cards] or [("-", "-", "-")]
        for index, row in enumerate(rows):
            first = (escape(node.name), escape(verdict)) if index == 0 else ("", "")
            table.add_row(*first, *(escape(cell) for cell in row), end_section=index == len(rows) - 1)
    return table


def _verdict(node: NodeReport) -> str:
    if node.fits:
        return f"fits, score {node.score or 0:.2f}"
    return "\n".join(text for text in (node.reason, node.why) if text)


def _row(card: CardReport, devices: Sequence[Taken]) -> tuple[str, str, str]:
    taken = [device for device in devices if (device.vendor, device.uuid) == (card.vendor, card.uuid)]
    if taken:
        text = "\n".join(f"would give {t.container} {t.memory} MiB and {t.cores} cores" for t in taken)
    elif card.label:
        text = f"{card.label}: {card.why}"
    else:
        text = card.why or "-"
    return card.uuid, _usage(card), text


def _quotas(quotas: Sequence[QuotaReport]) -> Table:
    headings = ("quota", "key", "used", "of it this pod", "hard", "this placement costs", "may cost")
    table = _table("Quotas", *headings)
    for quota in quotas:
        costs = "?" if quota.costs is None else str(quota.costs)
        used = "?" if quota.used is None else str(quota.used)
        amounts = (used, str(quota.charged), str(quota.hard), costs, str(quota.most))
        table.add_row(escape(quota.quota), escape(quota.key), *amounts)
    return table
