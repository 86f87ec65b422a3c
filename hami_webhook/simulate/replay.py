"""Recorded pods once more, on the cluster of a simulation: arrivals, placements and ends in simulated time.

Source: docs/room.md#a-recorded-time. Pods are admitted, charged, queued and placed by the program's own rules. A pod
that is refused, or that no node takes, is tried again whenever another ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.loading import Bundle
from hami_webhook.kube.names import NODE_STATE
from hami_webhook.kube.objects import Pod
from hami_webhook.node_filters.gates import gate_names
from hami_webhook.quota.ledger import LEDGER
from hami_webhook.simulate.queues import released
from hami_webhook.simulate.results import Outcome
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.simulate.timeline import Timeline
from hami_webhook.terminal import UsageError
from hami_webhook.usage.recorded_pods import Record, RecordedPod

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
