"""Recorded pods once more, on the cluster of a simulation: arrivals, placements and ends in simulated time.

Source: docs/room.md#a-recorded-time. Pods are admitted, charged, queued and placed by the program's own rules. A pod
that is refused, or that no node takes, is tried again whenever another ends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.loading import Bundle, LoadedObject
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.names import NODE_STATE
from hami_webhook.kube.objects import Pod, format_time
from hami_webhook.node_filters.gates import gate_names
from hami_webhook.quota.ledger import LEDGER
from hami_webhook.simulate.node_flags import NodeChange
from hami_webhook.simulate.other_nodes import prepare
from hami_webhook.simulate.queues import released
from hami_webhook.simulate.results import Outcome
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.simulate.timeline import Timeline, covered, overlap, quantile
from hami_webhook.terminal import ShownTable, UsageError, counted, progress
from hami_webhook.usage.recorded_pods import Record, RecordedPod

if TYPE_CHECKING:
    from rich.console import Console

MOST_TRIES = 200_000
"""How often a replay admits or places a pod."""
_CHANGING = frozenset(("budget", "windows"))
"""What lets a quota's limits change with time; a replay goes by those of today."""


class Start(Struct, frozen=True):
    """When a replayed pod got its cards, and until when it holds them (Unix seconds); memory in MiB, of all cards."""

    at: float
    until: float
    cards: Sequence[tuple[str, str, str]]
    memory: int


def without_pods(bundle: Bundle) -> Bundle:
    """The cluster as no pod had ever been there, with the limits that its quotas have by themselves."""
    return replace(
        bundle,
        pods=[],
        claims=[],
        claim_templates=[],
        quotas=[replace(item, object=_unused(item.object)) for item in bundle.quotas],
        accelerator_quotas=[replace(item, object=_unused(item.object)) for item in bundle.accelerator_quotas],
    )


def _unused(quota: Mapping[str, Any]) -> dict[str, Any]:
    meta, spec = quota["metadata"], quota.get("spec")
    notes = meta.get("annotations")
    kept = {key: text for key, text in notes.items() if key != LEDGER} if isinstance(notes, Mapping) else {}
    if isinstance(spec, Mapping):
        spec = {key: value for key, value in spec.items() if key not in _CHANGING}
    return {**quota, "metadata": {**meta, "annotations": kept}, "spec": spec, "status": {}}


class Replay:
    """One run of a record on a simulation that was filled with a cluster `without_pods`."""

    def __init__(self, simulation: Simulation, record: Record) -> None:
        self._simulation, self._record = simulation, record
        tolerations = _tolerations(simulation)
        self._manifests = [self._manifest(number, pod, tolerations) for number, pod in enumerate(record.pods)]
        self._shapes = [(pod.namespace, pod.priority_class, repr(pod.containers)) for pod in record.pods]
        self._turns = [self._turn(number, pod) for number, pod in enumerate(record.pods)]
        self._waiting: set[int] = set()
        self._numbers: dict[tuple[str, str], int] = {}
        """The admitted pods by namespace and name."""
        self._starts: list[Start | None] = [None] * len(record.pods)
        self._timeline: Timeline[tuple[int, bool]] = Timeline()
        """The numbers of the pods that come (True) and go."""
        self._tries = 0

    async def run(self, advance: Callable[[], None] = lambda: None) -> Sequence[Start | None]:
        """The start of each pod, None for one that never got its cards; `advance` is called for each that comes.

        Raises `UsageError` after `MOST_TRIES`.
        """
        for number, pod in enumerate(self._record.pods):
            self._timeline.add(max(self._record.start, pod.created), (number, True))
            if pod.started is None and pod.ended is not None:
                self._timeline.add(pod.ended, (number, False))
        while self._timeline:
            at, events = self._timeline.next_together()
            if at > self._record.end:
                break
            self._simulation.now = at
            gone = [number for number, comes in events if not comes and self._leaves(number, at)]
            await self._withdraw(gone)
            new = [number for number, comes in events if comes]
            self._waiting.update(new)
            await self._try_all([*self._waiting] if gone else new)
            for _ in new:
                advance()
        return self._starts

    def _leaves(self, number: int, at: float) -> bool:
        """Whether the pod is there to go: one that never started as recorded stays if it has got its cards here."""
        start = self._starts[number]
        return number in self._waiting if start is None else start.until == at

    async def _withdraw(self, numbers: Sequence[int]) -> None:
        self._waiting.difference_update(numbers)
        meta = [self._manifests[number]["metadata"] for number in numbers]
        found = [self._simulation.cluster.peek(Kind.PODS, each["name"], each["namespace"]) for each in meta]
        await self._simulation.withdraw([raw for raw in found if raw is not None])

    async def _try_all(self, numbers: Collection[int]) -> None:
        """Admit and place pods in their turn; of equal pods that are refused, or that no node takes, only the first."""
        simulation = self._simulation
        denied, unplaced = set(), set()
        for number in sorted(numbers, key=self._turns.__getitem__):
            meta, shape = self._manifests[number]["metadata"], self._shapes[number]
            admitted = (meta["namespace"], meta["name"]) in self._numbers
            if not admitted and (shape in denied or not await self._admitted(number)):
                denied.add(shape)
                continue
            raw = simulation.cluster.peek(Kind.PODS, meta["name"], meta["namespace"])
            if raw is not None and shape not in unplaced and not gate_names(raw):
                self._count_try()
                if not self._keep(number, await simulation.place_again(Pod.from_object(raw), raw)):
                    unplaced.add(shape)
        if simulation.core.caches.queued():
            async for pod, manifest in released(simulation.core, simulation.cluster, simulation.quotas_known):
                self._count_try()
                self._keep(self._numbers[pod.namespace, pod.name], await simulation.place_again(pod, manifest))

    async def _admitted(self, number: int) -> bool:
        self._count_try()
        arrival = await self._simulation.admit(self._manifests[number])
        if arrival.pod is not None:
            self._numbers[arrival.namespace, arrival.name] = number
        return arrival.pod is not None

    def _keep(self, number: int, outcome: Outcome) -> bool:
        """Note that the pod got its cards, if so, and when it gives them back."""
        if outcome.placement is None:
            return False
        now, node = self._simulation.now, outcome.placement["node"]
        until = now + _seconds(self._record.pods[number], self._record.start)
        name = self._manifests[number]["metadata"]["name"]
        shares = {
            (node, *card): share.holder.memory if share.holder is not None else 0
            for each in self._simulation.core.state.allocations(node)
            if each.pod.name == name
            for card, share in each.shares.items()
        }
        self._starts[number] = Start(now, until, [*shares], sum(shares.values()))
        self._waiting.discard(number)
        if until <= self._record.end:
            self._timeline.add(until, (number, False))
        return True

    def _count_try(self) -> None:
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise UsageError(f"the replay would place pods more than {MOST_TRIES:,} times: give --replay fewer hours")

    def _manifest(self, number: int, pod: RecordedPod, tolerations: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
        """The pod as the record has it: it goes on each node whose cards suffice."""
        containers: dict[bool, list[Mapping[str, Any]]] = {False: [], True: []}
        for index, each in enumerate(pod.containers):
            limits = {name: str(amount) for name, amount in each.limits.items()}
            containers[each.init].append({"name": f"c{index}", "image": "recorded", "resources": {"limits": limits}})
        spec: dict[str, Any] = {"containers": containers[False], "tolerations": tolerations}
        if containers[True]:
            spec["initContainers"] = containers[True]
            spec["containers"] = spec["containers"] or [{"name": "main", "image": "recorded"}]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": pod.namespace, "name": f"recorded-{number}"},
            "spec": spec,
        }
        classed = {**manifest, "spec": {**spec, "priorityClassName": pod.priority_class}}
        try:
            self._simulation.with_priority(classed)
        except Denied:  # the class is gone, or is another one by now
            return manifest
        return classed if pod.priority_class else manifest

    def _turn(self, number: int, pod: RecordedPod) -> tuple[bool, int, float, int]:
        """Pods that ran when the record begins come first, then the most important, then the oldest."""
        if ran_before(pod, self._record.start):
            return False, 0, pod.started or 0.0, number
        try:
            spec = self._simulation.with_priority(self._manifests[number])["spec"]
        except Denied:
            spec = {}
        return True, -(spec.get("priority") or 0), pod.created, number


def ran_before(pod: RecordedPod, start: float) -> bool:
    """Whether a pod had its cards when the record begins, so that its wait isn't in the record."""
    return pod.started is not None and pod.started <= start


def _seconds(pod: RecordedPod, start: float) -> float:
    """For how long the pod holds its cards from the start of the replay on; without end if the record doesn't say."""
    return math.inf if pod.started is None or pod.ended is None else pod.ended - max(start, pod.started)


def _tolerations(simulation: Simulation) -> Sequence[Mapping[str, str]]:
    """Those of the taints that say what nodes are for: a record doesn't have them."""
    nodes = simulation.cluster.peek_all(Kind.NODES)
    keys = {str(taint.get("key")) for node in nodes for taint in (node.get("spec") or {}).get("taints") or ()}
    return [{"key": key, "operator": "Exists"} for key in sorted(keys) if not key.startswith(NODE_STATE)]


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
