"""Tables and bars of `kubectl hami`, in kubectl's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hami_webhook.kubectl.report import CardUse, NodeDetails, NodeUse, PodUse, QuotaUse

_BAR = 10
"""Characters of a bar."""
_HIGH, _FULL = 0.75, 0.95
"""Shares from which a bar is yellow, and red."""


def print_quotas(quotas: Sequence[QuotaUse], console: Console, *, details: bool) -> None:
    """One row for each key of each quota; with details also who uses them, and what still fits."""
    table = _table("NAMESPACE", "QUOTA", "KEY", "USED", "HARD", "", "WAITING", "PLACED", "LEFT")
    for quota in quotas:
        for key in quota.keys:
            used = "?" if key.used is None else str(key.used)
            amounts = (str(key.waiting), str(key.placed), str(key.left))
            bar = _bar(key.used or 0, key.hard)
            _add_row(table, quota.namespace, quota.name, key.key, used, str(key.hard), bar, *amounts)
    console.print(table)
    for quota in quotas if details else ():
        _print_details(quota, console)


def _print_details(quota: QuotaUse, console: Console) -> None:
    where = f"{quota.namespace}/{quota.name}".removeprefix("/")
    if quota.pods:
        table = _titled(f"Pods of {where}", "POD", "STATE", "NODE", "COSTS", "MODELS")
        for pod in quota.pods:
            _add_row(table, pod.name, pod.state, pod.node or "-", amounts_text(pod.amounts), _listed(pod.models))
        console.print(table)
    if quota.models:
        table = _titled(f"Placed pods of {where} by model", "MODEL", "PODS", "SLOTS", "MEMORY", "CORES")
        for model in quota.models:
            _add_row(
                table, model.model, *(str(n) for n in (model.pods, model.slots)), _mib(model.memory), str(model.cores)
            )
        console.print(table)
    if quota.room:
        headings = ("MODEL", "CARDS WITH ROOM", "MOST ON ONE CARD", "THE QUOTA LEAVES")
        table = _titled(f"What still fits in {where}", *headings)
        for room in quota.room:
            left = {"cards": room.quota_cards, "MiB": room.quota_memory, "cores": room.quota_cores}
            text = ", ".join(f"{amount} {unit}" for unit, amount in left.items() if amount is not None)
            _add_row(table, room.model, str(room.cards), f"{_mib(room.memory)}, {room.cores} cores", text)
        console.print(table)
    _print_notes(quota.notes, console)


def print_nodes(nodes: Sequence[NodeUse], console: Console, *, details: bool) -> None:
    """One row for each vendor of each node."""
    table = _table(
        "NODE", "VENDOR", "CARDS", "SLOTS", "MEMORY (MiB)", "CORES", "PODS", *(["MODELS"] if details else [])
    )
    for node in nodes:
        cards = str(node.cards) if node.healthy == node.cards else f"{node.healthy}/{node.cards} healthy"
        more = [_listed(node.models)] if details else []
        _add_row(table, node.node, node.vendor, cards, *_bars(node), str(node.pods), *more)
    console.print(table)


def print_cards(cards: Sequence[CardUse], console: Console, *, details: bool) -> None:
    """One row for each card, with the pods that hold it."""
    more = ["VENDOR", "MODEL"] if details else []
    table = _table("NODE", "CARD", "SLOTS", "MEMORY (MiB)", "CORES", *more, "HELD BY")
    for card in cards:
        uuid = card.uuid if card.healthy else f"{card.uuid} (unhealthy)"
        kind = (card.vendor, card.model) if details else ()
        _add_row(table, card.node, uuid, *_bars(card), *kind, _listed(card.pods))
    console.print(table)


def print_pods(pods: Sequence[PodUse], console: Console, *, details: bool) -> None:
    """One row for each pod."""
    more = ["SCHEDULER", "MODELS"] if details else []
    table = _table("NAMESPACE", "POD", "STATE", "NODE", "CARDS", "COSTS", *more)
    for pod in pods:
        kind = (pod.scheduler or "-", _listed(pod.models)) if details else ()
        _add_row(
            table,
            pod.namespace,
            pod.name,
            pod.state,
            pod.node or "-",
            _listed(pod.cards),
            amounts_text(pod.amounts),
            *kind,
        )
    console.print(table)
    _print_notes([f"{pod.namespace}/{pod.name}: {text}" for pod in pods for text in pod.problems], console)


def print_node(node: NodeDetails, console: Console) -> None:
    """A node with its cards and what is wrong with it."""
    console.print(Text(node.name))
    for vendor, text in node.handshakes.items():
        console.print(Text(f"  handshake of {vendor}: {text}"))
    if node.lock:
        console.print(Text(f"  locked for a pod that is being bound: {node.lock}"))
    _print_notes(node.notes, console)
    if node.cards:
        print_cards(node.cards, console, details=True)


def amounts_text(amounts: Mapping[str, int]) -> str:
    """Amounts by quota key."""
    return ", ".join(f"{key.removeprefix('limits.')}={amount}" for key, amount in amounts.items()) or "-"


def _print_notes(notes: Iterable[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"  {note}"), soft_wrap=True)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    return table


def _titled(title: str, *headings: str) -> Table:
    table = _table(*headings)
    table.title, table.title_justify, table.title_style = Text(f"\n{title}"), "left", "bold"
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """Add cells in which nothing is markup: models and annotations are anybody's text."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _listed(texts: Sequence[str]) -> Text:
    return Text(", ".join(texts) or "-")


def _mib(amount: int) -> str:
    return f"{amount} MiB"


def _bars(row: CardUse | NodeUse) -> Iterable[Text]:
    pairs = ((row.used_slots, row.slots), (row.used_memory, row.memory), (row.used_cores, row.cores))
    return (_bar(used, total).append(f" {used}/{total}") for used, total in pairs)


def _bar(used: int, total: int) -> Text:
    share = used / total if total else 0.0
    filled = min(_BAR, max(round(share * _BAR), 1 if used else 0))
    style = "red" if share >= _FULL else "yellow" if share >= _HIGH else "green"
    return Text.assemble(("█" * filled, style), ("░" * (_BAR - filled), "dim"))
