"""Tables and bars of `kubectl hami`, in kubectl's form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.human_memory import human_amount
from hami_webhook.kube.message_text import counted
from hami_webhook.kubectl.budgets import HEADINGS, BudgetUse
from hami_webhook.kubectl.queue import QueuedPodUse
from hami_webhook.kubectl.report import CardUse, IdleTeam, InUse, NodeDetails, NodeUse, PodUse, QuotaUse
from hami_webhook.kubectl.subjects import SubjectUse
from hami_webhook.kubectl.workloads import RefusedReplicas, Workload

_BAR = 10
"""Characters of a bar."""
_HIGH, _FULL = 0.75, 0.95
"""Shares from which a bar is yellow, and red."""


_WIDE = 110
"""Columns of a terminal from which quotas have bars; in others the colour is that of what is used."""
_IN_USE = ("USED MEMORY", "USED CORES", "IDLE")
_LENDING = ("OWN", "BORROWED", "LENT")


def print_quotas(quotas: Sequence[QuotaUse], console: Console, now: float, *, details: bool) -> None:
    """One row for each key of each quota; with details also who uses them, and what still fits."""
    shows = details or any(key.measured is not None for quota in quotas for key in quota.keys)
    lends = any(key.nominal is not None for quota in quotas for key in quota.keys)
    more = [*(_LENDING if lends else ()), *(["REALLY USED"] if shows else [])]
    queues = any(quota.queues for quota in quotas)
    states = ("PLACED", "CHARGED, UNPLACED", *(["QUEUED"] if queues else []))
    bars = [""] if console.width >= _WIDE else []
    table = _table("NAMESPACE", "QUOTA", "KEY", "USED", "HARD", *bars, *states, "LEFT", *more)
    for quota in quotas:
        for key in quota.keys:
            used = "?" if key.used is None else human_amount(key.used, key.unit_bytes)
            shown = (key.placed, key.waiting, *([key.queued] if queues else []), key.left)
            amounts = [human_amount(each, key.unit_bytes) for each in shown]
            lending = (key.nominal, key.borrowed, key.lent) if lends else ()
            amounts += ["-" if each is None else human_amount(each, key.unit_bytes) for each in lending]
            hard = human_amount(key.hard, key.unit_bytes)
            bar = [_bar(key.used or 0, key.hard)] if bars else []
            really = [] if not shows else ["-" if key.measured is None else human_amount(key.measured, key.unit_bytes)]
            shown_used = Text(used) if bars else Text(used, _style(key.used or 0, key.hard))
            _add_row(table, quota.namespace, quota.name, key.key, shown_used, hard, *bar, *amounts, *really)
    console.print(table)
    _print_notes([f"{quota.name}: {quota.windows}" for quota in quotas if quota.windows], console)
    for quota in quotas if details else ():
        _print_details(quota, console, now)


def print_budgets(found: Sequence[BudgetUse], console: Console, now: float) -> None:
    """One row for each key of each budget, and what may be missing in their sums."""
    table = _table(*HEADINGS)
    for each in found:
        _add_row(table, *each.cells(now))
    console.print(table)
    unseen = [each for each in found if each.unseen]
    notes = [
        f"{each.quota}: up to {each.unseen:.2f}h more of {each.key} may have been held while no controller watched"
        for each in unseen
    ]
    _print_notes(notes, console)


def print_subjects(uses: Sequence[SubjectUse], console: Console) -> None:
    """One row for each key of each subject."""
    table = _table("QUOTA", "BY", "SUBJECT", "KEY", "USED", "HARD", "LEFT")
    for use in uses:
        used = Text(str(use.used), _style(use.used, use.hard))
        _add_row(table, use.quota, use.by, use.subject, use.key, used, str(use.hard), str(use.hard - use.used))
    console.print(table)


def print_refused(refused: Sequence[RefusedReplicas], console: Console, now: float) -> None:
    """A line for each workload whose replicas a quota refuses."""
    for each in refused:
        console.print(Text(f"{each.namespace}: {each.sentence(now)}"), soft_wrap=True)


def print_workload(workload: Workload, pods: Sequence[PodUse], console: Console, now: float) -> None:
    """What is refused of a workload, what would let it in, and its pods with why those wait that do."""
    console.print(Text(workload.sentence(now)), soft_wrap=True)
    if workload.refused is not None:
        quota, where = workload.refused.quota, f"-n {workload.namespace}"
        notes = (
            f"it has {workload.current} of {workload.wanted}: {workload.refused.message}",
            f"kubectl hami quota {quota} {where} lists the pods that hold it: free some of them, or ask for fewer",
            "an administrator can raise the quota, or let pods wait in its queue (docs/queues.md)",
        )
        _print_notes(notes, console)
    if pods:
        table = _titled("Pods", "POD", "STATE", "NODE", "WHY")
        for pod in pods:
            _add_row(table, pod.name, pod.state, pod.node or "-", pod.reason or "-")
        console.print(table)


def print_queue(pods: Sequence[QueuedPodUse], console: Console, now: float) -> None:
    """One row for each quota that a pod, or a group, waits for."""
    table = _table("QUOTA", "PLACE", "POD", "PRIORITY", "WAITS", "FOR")
    for pod in pods:
        place, since = "-" if pod.place is None else str(pod.place), human_duration(now - pod.since)
        _add_row(table, pod.quota or "-", place, pod.title, str(pod.priority), since, pod.waits_for)
    console.print(table)


def _print_details(quota: QuotaUse, console: Console, now: float) -> None:
    where = f"{quota.namespace}/{quota.name}".removeprefix("/")
    units = {key.key: key.unit_bytes for key in quota.keys}
    if quota.pods:
        table = _titled(f"Pods of {where}", "POD", "STATE", "NODE", "COSTS", *_IN_USE, "MODELS")
        for pod in quota.pods:
            costs = amounts_text(pod.amounts, units.get)
            in_use = _in_use(pod.in_use, now)
            _add_row(table, pod.name, pod.state, pod.node or "-", costs, *in_use, _listed(pod.models))
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
            left = [
                None if room.quota_cards is None else counted(room.quota_cards, "card"),
                None if room.quota_memory is None else _mib(room.quota_memory),
                None if room.quota_cores is None else counted(room.quota_cores, "core"),
            ]
            most = f"{_mib(room.memory)}, {counted(room.cores, 'core')}"
            _add_row(table, room.model, str(room.cards), most, ", ".join(filter(None, left)))
        console.print(table)
    _print_notes(quota.notes, console)


def print_nodes(nodes: Sequence[NodeUse], console: Console, now: float, *, details: bool) -> None:
    """One row for each vendor of each node, with the models of its cards, and the sum of several rows."""
    shows = details or any(node.in_use for node in nodes)
    table = _table("NODE", "VENDOR", "MODEL", "CARDS", "SLOTS", "MEMORY", "CORES", "PODS", *(_IN_USE if shows else ()))
    for node in [*nodes, *([_total(nodes)] if len(nodes) > 1 else [])]:
        cards = str(node.cards) if node.healthy == node.cards else f"{node.healthy}/{node.cards} healthy"
        more = _in_use(node.in_use, now) if shows else ()
        models = _listed(node.models) if node.models else ""
        _add_row(table, node.node, node.vendor, models, cards, *_bars(node), str(node.pods), *more)
    console.print(table)


def _total(nodes: Sequence[NodeUse]) -> NodeUse:
    """The sum of the rows. A pod on two nodes, as another scheduler's may be, counts for each."""
    sums = (
        sum(getattr(node, name) for node in nodes)
        for name in (
            *("cards", "healthy", "used_slots", "slots", "used_memory", "memory"),
            *("used_cores", "cores", "pods"),
        )
    )
    return NodeUse("TOTAL", "", [], *sums)


def print_cards(cards: Sequence[CardUse], console: Console, now: float, *, details: bool) -> None:
    """One row for each card, with the pods that hold it."""
    shows = details or any(card.in_use for card in cards)
    measured = [*(_IN_USE if shows else ()), *(["°C", "W"] if details else [])]
    more = [*measured, *(["VENDOR", "MODEL"] if details else [])]
    table = _table("NODE", "CARD", "SLOTS", "MEMORY", "CORES", *more, "HELD BY")
    for card in cards:
        fault = f": {card.fault}" if card.fault else ""
        uuid = card.uuid if card.healthy else f"{card.uuid} (unhealthy{fault})"
        in_use = _in_use(card.in_use, now) if shows else ()
        kind = (_rounded(card.temperature), _rounded(card.power), card.vendor, card.model) if details else ()
        _add_row(table, card.node, uuid, *_bars(card), *in_use, *kind, _listed(card.pods))
    console.print(table)


def print_pods(
    pods: Sequence[PodUse], console: Console, unit_bytes: Callable[[str], int | None], now: float, *, details: bool
) -> None:
    """One row for each pod; `unit_bytes` gives the bytes of one of a quota key's unit, 0 for what isn't memory."""
    shows = details or any(pod.in_use for pod in pods)
    more = [*(_IN_USE if shows else ()), *(["SCHEDULER", "MODELS"] if details else [])]
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
            amounts_text(pod.amounts, unit_bytes),
            *(_in_use(pod.in_use, now) if shows else ()),
            *kind,
        )
    console.print(table)
    _print_notes([f"{pod.namespace}/{pod.name}: {text}" for pod in pods for text in pod.problems], console)


def print_idle(
    teams: Sequence[IdleTeam], console: Console, unit_bytes: Callable[[str], int | None], now: float
) -> None:
    """One row for each namespace with what its idle pods hold; then these pods, who is idle for the longest first."""
    table = _table("NAMESPACE", "IDLE PODS", "OF", "UNKNOWN", "CARDS", "WOULD FREE")
    for team in teams:
        numbers = (str(each) for each in (len(team.idle), team.holding, team.unknown, team.cards))
        _add_row(table, team.namespace, *numbers, amounts_text(team.frees, unit_bytes))
    console.print(table)
    idle = sorted((pod for team in teams for pod in team.idle), key=lambda pod: -pod.idle_for(now))
    if idle:
        table = _titled("Idle pods", "NAMESPACE", "POD", "NODE", "CARDS", *_IN_USE, "WOULD FREE")
        for pod in idle:
            frees = amounts_text(pod.amounts, unit_bytes)
            _add_row(table, pod.namespace, pod.name, pod.node, _listed(pod.cards), *_in_use(pod.in_use, now), frees)
        console.print(table)


def print_node(node: NodeDetails, console: Console, now: float) -> None:
    """A node with its cards and what is wrong with it."""
    console.print(Text(node.name))
    for vendor, text in node.handshakes.items():
        console.print(Text(f"  handshake of {vendor}: {text}"))
    if node.lock:
        console.print(Text(f"  locked for a pod that is being bound: {node.lock}"))
    _print_notes(node.notes, console)
    if node.cards:
        print_cards(node.cards, console, now, details=True)


def amounts_text(amounts: Mapping[str, int], unit_bytes: Callable[[str], int | None]) -> str:
    """Amounts by quota key."""
    texts = (f"{key.removeprefix('limits.')}={human_amount(n, unit_bytes(key))}" for key, n in amounts.items())
    return ", ".join(texts) or "-"


def _in_use(use: InUse | None, now: float) -> tuple[str, str, str]:
    """Cells of `_IN_USE`; `-` is what isn't known."""
    if use is None:
        return "-", "-", "-"
    idle = "-"
    if use.idle_since is not None:
        idle = human_duration(now - use.idle_since) if use.is_idle(now) else "in use"
    return _mib(use.memory), str(use.cores), idle


def _rounded(value: float | None) -> str:
    return "-" if value is None else str(round(value))


def _print_notes(notes: Iterable[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"  {note}"), soft_wrap=True)


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """A table of plain texts."""
    table = _table(*headings)
    for row in rows:
        _add_row(table, *row)
    console.print(table)


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
    return human_amount(amount, MEBIBYTE)


def _bars(row: CardUse | NodeUse) -> Iterable[Text]:
    rows = ((row.used_slots, row.slots, 0), (row.used_memory, row.memory, MEBIBYTE), (row.used_cores, row.cores, 0))
    for used, total, unit in rows:
        if not total:  # Koordinator counts no slots
            yield Text(human_amount(used, unit))
            continue
        yield _bar(used, total).append(f" {human_amount(used, unit)} of {human_amount(total, unit)}")


def _bar(used: int, total: int) -> Text:
    share = used / total if total else 0.0
    filled = min(_BAR, max(round(share * _BAR), 1 if used else 0))
    return Text.assemble(("█" * filled, _style(used, total)), ("░" * (_BAR - filled), "dim"))


def _style(used: int, total: int) -> str:
    share = used / total if total else 0.0
    return "red" if share >= _FULL else "yellow" if share >= _HIGH else "green"
