"""What a replay shows: waits and use as recorded, replayed on today's nodes, and with other nodes (docs/room.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from hami_webhook.cluster.loading import LoadedObject
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import format_time
from hami_webhook.simulate.node_flags import NodeChange
from hami_webhook.simulate.other_nodes import prepare
from hami_webhook.simulate.replay import Replay, Start, ran_before
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.simulate.timeline import covered, overlap, quantile
from hami_webhook.terminal import ShownTable, UsageError, progress
from hami_webhook.usage.recorded_pods import Record, RecordedPod

if TYPE_CHECKING:
    from rich.console import Console

_CLOSE = 60.0
"""Seconds by which a start may differ from the recorded one and still count as the same."""


class Figures(Struct, frozen=True):
    """A row. Waits in seconds, of the pods that didn't run when the record begins; use in percent of all cards and of
    their memory. None is what isn't known.
    """

    run: str
    started: int
    never: int
    wait_mean: float
    wait_p95: float
    cards: float | None
    memory: float | None


class ReplayReport(Struct, frozen=True):
    """The rows, as recorded first. `close`: percent of the recorded starts that the replay on today's nodes has within
    a minute, None without any.
    """

    start: float
    end: float
    pods: int
    rows: Sequence[Figures]
    close: float | None
    sentences: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_builtins(self)
        return found

    def show(self, console: Console) -> None:
        """Print the rows as a table, and the sentences."""
        from rich.text import Text

        headings = ("run", "started", "never", "wait mean", "wait p95", "cards", "memory")
        rows = [
            (
                each.run,
                str(each.started),
                str(each.never),
                human_duration(each.wait_mean),
                human_duration(each.wait_p95),
                _percent(each.cards),
                _percent(each.memory),
            )
            for each in self.rows
        ]
        table = ShownTable("Pods with cards", headings, rows, amounts=frozenset(headings[1:]))
        console.print(table.printable())
        for sentence in self.sentences:
            console.print(Text(sentence), soft_wrap=True)


async def replayed(
    filled: Callable[[], Awaitable[Simulation]],
    record: Record,
    change: NodeChange,
    template: Sequence[LoadedObject] = (),
) -> ReplayReport:
    """Replay a record on the nodes of today and, if they are to change, on the others.

    `filled` makes a simulation of the cluster without its pods. Raises `UsageError`.
    """
    runs = {"replayed": await filled()}
    if change:
        runs["with other nodes"] = await filled()
        await prepare(runs["with other nodes"], change, template)
    capacities = {name: _capacity(simulation) for name, simulation in runs.items()}
    if not capacities["replayed"][0]:
        raise UsageError("there is nothing to replay on: no node of the cluster has registered healthy cards")
    with progress("replaying", len(runs) * len(record.pods)) as advance:
        starts = {name: await Replay(simulation, record).run(advance) for name, simulation in runs.items()}
    today = starts["replayed"]
    recorded = [_as_recorded(pod, found, record) for pod, found in zip(record.pods, today, strict=True)]
    first = _figures("as recorded", record, recorded, capacities["replayed"], cards_known=False)
    rows = [first, *(_figures(name, record, found, capacities[name]) for name, found in starts.items())]
    close = _close(record, today)
    return ReplayReport(record.start, record.end, len(record.pods), rows, close, [*_sentences(record, rows, close)])


def _as_recorded(pod: RecordedPod, replay: Start | None, record: Record) -> Start | None:
    """The recorded start, with the memory that the same pod got in the replay: a record only has what it asked for."""
    if pod.started is None:
        return None
    until = record.end if pod.ended is None else pod.ended
    return Start(pod.started, until, (), replay.memory if replay is not None else 0)


def _capacity(simulation: Simulation) -> tuple[int, int]:
    """The healthy cards, and their memory in MiB."""
    devices = [
        device
        for view in simulation.core.state.views()
        for inventory in view.inventories.values()
        for device in inventory.devices
        if view.is_healthy(device)
    ]
    return len(devices), sum(device.memory for device in devices)


def _figures(
    run: str,
    record: Record,
    starts: Sequence[Start | None],
    capacity: tuple[int, int],
    *,
    cards_known: bool = True,
) -> Figures:
    cards, memory = capacity
    span = record.end - record.start
    waits = []
    for pod, start in zip(record.pods, starts, strict=True):
        if not ran_before(pod, record.start):
            given_up = pod.ended if pod.started is None and pod.ended is not None else record.end
            waits.append(max(0.0, (given_up if start is None else start.at) - pod.created))
    spans: Mapping[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    held = 0.0
    for start in filter(None, starts):
        held += start.memory * overlap(start.at, start.until, record.start, record.end)
        for card in start.cards:
            spans[card].append((start.at, start.until))
    busy = sum(covered(each, record.start, record.end) for each in spans.values())
    return Figures(
        run,
        sum(start is not None for start in starts),
        sum(start is None for start in starts),
        fmean(waits) if waits else 0.0,
        quantile(waits, 0.95),
        round(100 * busy / (cards * span), 1) if cards and span and cards_known else None,
        round(100 * held / (memory * span), 1) if memory and span else None,
    )


def _close(record: Record, starts: Sequence[Start | None]) -> float | None:
    """Percent of the pods that started in the record whose replayed start is close to the recorded one."""
    both = [
        (pod.started, start)
        for pod, start in zip(record.pods, starts, strict=True)
        if pod.started is not None and not ran_before(pod, record.start)
    ]
    close = sum(start is not None and abs(start.at - started) <= _CLOSE for started, start in both)
    return round(100 * close / len(both), 1) if both else None


def _sentences(record: Record, rows: Sequence[Figures], close: float | None) -> Iterator[str]:
    pods, recorded, replay = record.pods, rows[0], rows[1]
    before = sum(ran_before(pod, record.start) for pod in pods)
    span = human_duration(record.end - record.start)
    yield (
        f"The record has {counted(len(pods), 'pod')} in the {span} from {format_time(record.start)} to "
        f"{format_time(record.end)}; {before} ran already when it begins."
    )
    if close is None:
        yield "No pod started in that time, so nothing says how close the replay is to the record."
    else:
        differs = replay.wait_mean - recorded.wait_mean
        which = "longer" if differs >= 0 else "shorter"
        yield (
            f"On today's nodes, the replay starts {close:g} % of the pods within a minute of their recorded start, and "
            f"its mean wait is {human_duration(abs(differs))} {which}. Compare only rows that differ by more."
        )
    yield (
        f"Card types, policies, node selectors, tolerations and labels of {counted(len(pods), 'pod')} aren't in the "
        "record: here each pod may go on each node."
    )
    if unstarted := sum(pod.started is None for pod in pods):
        yield f"{counted(unstarted, 'pod')} never started as recorded: if started here, such a pod runs to the end."
    if record.left_out:
        yield f"{counted(record.left_out, 'pod')} left out, because their series make no sense."


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:g} %"
