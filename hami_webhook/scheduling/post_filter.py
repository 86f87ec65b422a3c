"""Preemption for a pod that no node takes: who is evicted is decided, written down, and done (docs/preemption.md).

`consider` decides before the pod's filter is answered, so the next pod finds the devices kept; `run` writes to the
cluster afterwards, so kube-scheduler isn't kept waiting. The nomination is written before anybody is evicted: a process
that ends in between has evicted nobody for nothing, and the next one finds what was meant. It must not evict for a pod
that others are ending for already, nor beyond a tenant's limits, nor place: the pod is filtered and bound as any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NoReturn, TypeVarTuple

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import JSON, ClusterError, Conflict, EventNote, Kind, NotFound, Unavailable
from hami_webhook.devices.placement_annotations import NOMINATED_NODE, NOMINATED_UNTIL
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod, ResourceQuota, format_time
from hami_webhook.kube.shown import first_of
from hami_webhook.logs import of_pod
from hami_webhook.scheduling.event_recorder import record_event
from hami_webhook.scheduling.framework import Handle, SchedulingQueue
from hami_webhook.scheduling.placer import CycleState, Placer
from hami_webhook.scheduling.preemption.eviction_limits import LimitReached
from hami_webhook.scheduling.preemption.nominations import Nomination, Nominations
from hami_webhook.scheduling.preemption.quota_room import QuotaRoom
from hami_webhook.scheduling.preemption.victims import (
    Effort,
    NodeSnapshot,
    Preemptor,
    Victims,
    choosing_node,
    selecting_victims,
)
from hami_webhook.scheduling.protocol import Proposal
from hami_webhook.time_slices import TimeSlices

logger = logging.getLogger(__name__)

_Args = TypeVarTuple("_Args")

_HELD = 60.0
"""Seconds that devices are kept for a nominated pod after its victims should be gone."""
_DEFAULT_GRACE = 30.0
_TRIES = 5
_ROUNDS = 3
"""A node that changed while victims were looked for is looked at again as often."""
_RETRY = 1.0
_TOLD = 10
"""As many victims as an event names."""

OUTCOMES = ("evicting", "waiting", "dry-run", "no-candidates", "policy-never", "limited", "failed")
"""What is decided for a pod that no node takes, and evictions that failed."""

REASON_PREEMPTED: Final = "Preempted"
REASON_PREEMPTING: Final = "Preempting"
REASON_DRY_RUN: Final = "PreemptionDryRun"
REASON_FAILED: Final = "PreemptionFailed"
REASON_LIMITED: Final = "PreemptionLimited"


class _Decision(Struct, frozen=True):
    """What was decided for a pod, or for those of a group: who is to be evicted, and their nominations until Unix
    seconds.

    `listed` names the victims for an event. Of a group no `nominatedNodeName` is written: kube-scheduler would
    offer that node alone.
    """

    places: Sequence[tuple[Pod, str]]
    victims: Sequence[Pod]
    until: float
    listed: str
    group: bool = False

    @property
    def first(self) -> Pod:
        return self.places[0][0]


class _Retry(Struct, frozen=True):
    """When (Unix seconds) others may be evicted for the pods of a namespace, or for its groups."""

    name: str
    at: float


class Preemption:
    """Evicts pods for those that no node takes.

    `queue` is notified of a pod that was refused, and that something was freed, where kube-scheduler should try the pod
    again. `dry_run`: nobody is evicted, and an event says who would be.
    """

    def __init__(
        self,
        handle: Handle,
        placer: Placer,
        nominations: Nominations,
        queue: SchedulingQueue,
        *,
        dry_run: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = handle.cluster
        self._state = handle.state
        self._vendors = handle.vendors
        self._clock = handle.clock
        self._ready = handle.ready
        self._disruption = handle.disruption_budgets
        self._placer = placer
        self._nominations = nominations
        self._queue = queue
        self.dry_run = dry_run
        self._sleep = sleep
        self._decided: asyncio.Queue[_Decision | _Retry | Pod] = asyncio.Queue()
        """What is to be done: evictions to be written, pods to be tried again, and nominations to be withdrawn."""
        self._retried: set[str] = set()
        """The names of the retries that are due."""
        self._offered_again: str = ""
        self._spent: dict[tuple[str, str], tuple[PodDisruptionBudget, frozenset[str]]] = {}
        self.counts: Counter[str] = Counter()
        """Decisions by outcome."""
        self.victims = 0
        """Pods evicted."""

    @property
    def nominations(self) -> Nominations:
        """What is kept for those that others were evicted for."""
        return self._nominations

    async def consider(self, pod: Pod, found: CycleState) -> None:
        """Decide who is evicted for a pod that fits on none of the nodes that kube-scheduler offered.

        It is decided on what `found` was found on, or on how the node chosen is when the search is over; and only for a
        pod that the API server shows with this priority, whatever a request says.
        """
        shown = self._state.pod(pod.uid)
        if shown is None or shown.priority != pod.priority:
            return
        nominated = self._nominations.of(pod.uid)
        if self._is_postponed(pod, found.candidates, nominated):
            return
        room = self._nominations.room(pod, found.accounts)
        preemptor = Preemptor(found.request, found.budget, self._vendors, self.budgets(), self._clock(), room)
        victims = await self._choose(preemptor, found, nominated)
        shown = self._state.pod(pod.uid)
        if shown is None or shown.node_name or shown.deletion_time is not None:
            return
        if victims is None:
            self._find_no_victims(pod, nominated)
        elif self.dry_run:
            self.counts["dry-run"] += 1
            if victims.pods:
                self._placer.record(pod, "Normal", REASON_DRY_RUN, f"would evict {listed(victims)}")
        elif victims.pods and (reached := self._nominations.limits.reached([pod], len(victims.pods))):
            self.report_limit(pod, reached)
        else:
            self.counts["evicting" if victims.pods else "waiting"] += 1
            if nominated is None or nominated.node != victims.node or victims.pods:
                self._nominate(pod, victims, room)

    def awaited(self, pod: Pod) -> str:
        """The node that the pod is nominated to, while kube-scheduler sees its victims ending there; else empty.

        kube-scheduler evicts nobody for the pod then, and leaves it nominated.
        """
        node = pod.nominated_node
        return node if node and self._nominations.limits.are_seen_ending(pod.uid, node) else ""

    def _is_postponed(self, pod: Pod, names: Sequence[str], nominated: Nomination | None) -> bool:
        """Whether nobody is looked for now: the pod evicts nobody, waits already, or is offered more nodes at once."""
        if pod.preemption_policy == "Never":
            self.counts["policy-never"] += 1
            return True
        if pod.nominated_node and [pod.nominated_node] == [*names] and self._offered_again != pod.uid:
            # kube-scheduler tries the nominated node by itself first, and offers the others after that
            self._offered_again = pod.uid
            return True
        self._offered_again = ""
        waits = self._nominations.limits.waits(pod.uid)
        if not waits and nominated is not None and nominated.node not in names:
            waits = self._nominations.waits(pod, nominated.node)  # kube-scheduler evicts there, for CPU or memory
        if waits:
            self.counts["waiting"] += 1
        return waits

    def _find_no_victims(self, pod: Pod, nominated: Nomination | None) -> None:
        """No eviction would help the pod; a nomination of this process ends with that."""
        if nominated is not None and self._is_from_before(nominated):
            self.counts["waiting"] += 1
            return
        self.counts["no-candidates"] += 1
        if nominated is not None and not self.dry_run:
            self._nominations.withdraw(pod.uid)
            self._decided.put_nowait(pod)

    async def complete(
        self, pod: Pod, proposed: Mapping[str, Proposal], quotas: Sequence[ResourceQuota]
    ) -> dict[str, Proposal]:
        """kube-scheduler's candidates with all victims that the pod needs there, its devices counted too.

        Nodes where evictions wouldn't help are left out; all are for a pod that others are evicted for already. So are
        those where pods would be evicted for devices beyond the limits.
        """
        limits = self._nominations.limits
        nominated = self._nominations.of(pod.uid)
        if limits.waits(pod.uid) or (nominated is not None and self._nominations.waits(pod, nominated.node)):
            return {}
        found = await self._placer.consider(pod, [*proposed], quotas)
        if found is None:
            return dict(proposed)
        if not isinstance(found, CycleState):
            return {}
        room = self._nominations.room(pod, found.accounts)
        if nominated is not None and room is not None and room.ending:
            return {}
        preemptor = Preemptor(found.request, found.budget, self._vendors, self.budgets(), self._clock())
        completed, slices = {}, TimeSlices()
        victims_by_node: dict[str, Sequence[Pod]] = {}
        reached: LimitReached | None = None
        for node, proposal in proposed.items():
            victims = await self._victims_beside(proposal, preemptor, node, slices)
            if victims is None or (victims.pods and self.dry_run):
                continue
            if victims.pods and (over_limit := limits.reached([pod], len(victims.pods))):
                reached = over_limit
                continue
            victims_by_node[node] = victims.pods
            more = [each.uid for each in victims.pods]
            completed[node] = Proposal((*proposal.victims, *more), proposal.violations + victims.violations)
        if reached is not None:
            self.report_limit(pod, reached)
        if any(victims_by_node.values()):  # kube-scheduler evicts those of one node
            uids = {each.uid for pods in victims_by_node.values() for each in pods}
            limits.evicted([pod], uids, max(map(len, victims_by_node.values())))
        return completed

    async def _victims_beside(
        self, proposal: Proposal, preemptor: Preemptor, node: str, slices: TimeSlices
    ) -> Victims | None:
        """The victims that the pod needs on a node once those proposed are gone; None where evictions don't help."""
        view = self._state.view(node)
        if view is None:
            return None
        snapshot = self._nominations.snapshot(view, preemptor.pod)
        ending = {*snapshot.ending, *proposal.victims}
        return await slices.run(selecting_victims(preemptor, replace(snapshot, ending=ending), Effort(64, 512)))

    async def _choose(self, preemptor: Preemptor, found: CycleState, nominated: Nomination | None) -> Victims | None:
        pod, failed, slices = preemptor.pod, found.filtered.failed, TimeSlices()
        waits_at = {node: why for node, why in failed.items() if nominated is not None and node == nominated.node}
        for node in self._nominations.candidates(pod, waits_at):
            waiting = await slices.run(selecting_victims(preemptor, node))
            if waiting is not None and not waiting.pods:  # once its victims are gone, if nobody else has to go
                return waiting
        if nominated is not None and self._is_from_before(nominated):
            failed = waits_at  # a former process may have evicted there already: nobody elsewhere as well
        looked_at: dict[str, NodeSnapshot] = {}
        nodes = (looked_at.setdefault(node.name, node) for node in self._nominations.candidates(pod, failed))
        victims = await slices.run(choosing_node(preemptor, nodes))
        for _ in range(_ROUNDS):
            if victims is None or not slices.interruptions:
                return victims
            # others had their turn meanwhile: who is evicted is decided on the node as it is now, or not at all
            now = next(self._nominations.candidates(pod, {victims.node: failed[victims.node]}), None)
            if now is None:
                return None
            if now.same_as(looked_at[now.name]) and self._are_there(victims.pods):
                return victims
            looked_at[now.name] = now
            victims = await slices.run(selecting_victims(preemptor, now))
        return None

    def _are_there(self, pods: Iterable[Pod]) -> bool:
        shown = [self._state.pod(each.uid) for each in pods]
        return all(each is not None and each.deletion_time is None for each in shown)

    def report_limit(self, pod: Pod, reached: LimitReached) -> None:
        """Report that nobody is evicted for the pod now, and have it tried again when that may be otherwise."""
        self.counts["limited"] += 1
        self._placer.record(pod, "Warning", REASON_LIMITED, f"preemption evicts nobody now: {reached.reason}")
        if reached.until:
            self.try_again(pod.namespace, reached.until)

    def try_again(self, name: str, at: float) -> None:
        """Have kube-scheduler try pods again at a time (Unix seconds); once for each name at a time."""
        if name not in self._retried:
            self._retried.add(name)
            self._decided.put_nowait(_Retry(name, at))

    def _is_from_before(self, nominated: Nomination) -> bool:
        """Whether pods are ending on the node that may have been evicted for the pod before the start.

        Not all of its victims may have been evicted then: the rest may be, but nobody elsewhere.
        """
        known = self._nominations.limits.is_known(nominated.pod.uid)
        return not known and self._clock() < nominated.until and self._nominations.waits(nominated.pod, nominated.node)

    def _nominate(self, pod: Pod, victims: Victims, room: QuotaRoom | None) -> None:
        ending = self._nominations.ending(victims.node) | (room.ending if room is not None else set())
        self.nominate([(pod, victims.node)], victims.pods, ending, listed(victims), group=False)

    def nominate(
        self,
        places: Sequence[tuple[Pod, str]],
        victims: Sequence[Pod],
        ending: Iterable[str],
        listed: str,
        *,
        group: bool = True,
    ) -> None:
        """Keep nodes for pods, evict the victims, and wait for those that are `ending` there, too."""
        now = self._clock()
        graces = {
            each.uid: now + (_DEFAULT_GRACE if each.grace_period is None else each.grace_period) for each in victims
        }
        going = [each for each in map(self._state.pod, ending) if each is not None]
        until = max([self._nominations.gone_by(going), *graces.values()]) + _HELD
        self._nominations.nominate(places, until, graces)
        self._spend(victims)
        self._decided.put_nowait(_Decision(places, victims, until, listed, group))

    def budgets(self) -> list[PodDisruptionBudget]:
        """The PodDisruptionBudgets, less what was evicted since their status was written."""
        budgets = []
        for budget in self._disruption():
            seen, spent = self._spent.get((budget.namespace, budget.name), (None, frozenset[str]()))
            if seen is budget:
                budgets.append(replace(budget, allowed=budget.allowed - len(spent), disrupted=budget.disrupted | spent))
            else:
                self._spent.pop((budget.namespace, budget.name), None)
                budgets.append(budget)
        return budgets

    def _spend(self, pods: Sequence[Pod]) -> None:
        for budget in self._disruption():
            key = budget.namespace, budget.name
            seen, spent = self._spent.get(key, (None, frozenset[str]()))
            covered = frozenset(pod.name for pod in pods if budget.covers(pod))
            if covered:
                self._spent[key] = budget, covered | (spent if seen is budget else frozenset())

    async def run(self) -> NoReturn:
        """Evict who was decided on, until cancelled. Nominations from before the start are looked at again first."""
        await self._ready()
        for nomination in self._nominations.all():
            self._queue.refused(nomination.pod.uid)
            self._queue.freed()
        async with asyncio.TaskGroup() as tasks:
            while True:
                decided = await self._decided.get()
                match decided:
                    case Pod():
                        tasks.create_task(self._withdraw(decided))
                    case _Retry():
                        tasks.create_task(self._retry(decided))
                    case _Decision():
                        tasks.create_task(self._carry_out(decided))

    async def _retry(self, retry: _Retry) -> None:
        """Have kube-scheduler try the pods again for which others may be evicted by then."""
        await self._sleep(max(0.0, retry.at - self._clock()))
        self._retried.discard(retry.name)
        self._queue.freed()

    async def _carry_out(self, eviction: _Decision) -> None:
        first, victims = eviction.first, eviction.victims
        try:
            await asyncio.gather(*(self._again(self._write_nomination, eviction, *each) for each in eviction.places))
            deleted: set[str] = set()
            evicted = await asyncio.gather(*(self._again(self._evict, each, eviction, deleted) for each in victims))
        except ClusterError as error:
            about = {**of_pod(first), "node": eviction.places[0][1], "reason": str(error)}
            logger.warning("preemption failed", extra=about)
            self.counts["failed"] += 1
            self._nominations.limits.failed(first.uid)
            for victim in victims:
                self._nominations.spare(victim.uid)
            for pod, _ in eviction.places:
                self._nominations.withdraw(pod.uid)
                await self._withdraw(pod)
                self._queue.refused(pod.uid)
            await self._record(first, "Warning", REASON_FAILED, str(error))
            self._queue.freed()
            return
        if any(evicted):
            self.victims += sum(evicted)
            await self._record(first, "Normal", REASON_PREEMPTING, f"evicted {eviction.listed}")
        if not eviction.group:
            await self._keep_nominated_node(*eviction.places[0])

    async def _again(self, step: Callable[[*_Args], Awaitable[bool]], *args: *_Args) -> bool:
        """Try a step until the API server answers; whether it had anything to do."""
        for _ in range(_TRIES - 1):
            try:
                return await step(*args)
            except (Unavailable, Conflict):
                await self._sleep(_RETRY)
        return await step(*args)

    async def _write_nomination(self, eviction: _Decision, pod: Pod, node: str) -> bool:
        """Write down on the pod what it waits for, before anybody is evicted."""
        annotations = {NOMINATED_NODE: node, NOMINATED_UNTIL: str(int(eviction.until))}
        patch: JSON = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        await self._cluster.patch(Kind.PODS, pod.name, patch, pod.namespace)
        if not eviction.group:
            await self._set_nominated_node(pod, node)
        return True

    async def _set_nominated_node(self, pod: Pod, node: str) -> None:
        patch: JSON = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}}
        await self._cluster.patch_status(Kind.PODS, pod.name, patch, pod.namespace)

    async def _keep_nominated_node(self, pod: Pod, node: str) -> None:
        """Write `nominatedNodeName` again if kube-scheduler took it away at the end of the cycle in which it was set.

        It does so no more once it sees that the victims are ending.
        """
        for _ in range(_TRIES):
            await self._sleep(_RETRY)
            shown, nomination = self._state.pod(pod.uid), self._nominations.of(pod.uid)
            if shown is None or nomination is None or nomination.node != node:
                return
            if shown.nominated_node != node:
                with contextlib.suppress(ClusterError):
                    await self._set_nominated_node(pod, node)

    async def _evict(self, victim: Pod, eviction: _Decision, deleted: set[str]) -> bool:
        """Evict one pod as kube-scheduler does; whether it was there.

        `deleted` are the UIDs of those that an earlier try deleted, though its answer may have been lost.
        """
        try:
            live = await self._cluster.get(Kind.PODS, victim.name, victim.namespace)
            meta, status = live["metadata"], live.get("status") or {}
            if meta["uid"] != victim.uid:
                raise NotFound(f"pod {victim.key} is another one by now")
            if meta.get("deletionTimestamp") is None:
                conditions = _with_disruption_target(status.get("conditions") or [], eviction.first, self._clock())
                patch: JSON = {
                    "metadata": {"uid": victim.uid, "resourceVersion": meta["resourceVersion"]},
                    "status": {"conditions": conditions},
                }
                await self._cluster.patch_status(Kind.PODS, victim.name, patch, victim.namespace)
                deleted.add(victim.uid)
                await self._cluster.delete_pod(victim.namespace, victim.name, victim.uid)
        except NotFound:
            if victim.uid not in deleted:
                return False
        node = victim.node_name if eviction.group else eviction.places[0][1]
        message = f"Preempted by pod {eviction.first.uid} on node {node}"
        await self._record(victim, "Normal", REASON_PREEMPTED, message)
        return True

    async def _withdraw(self, pod: Pod) -> None:
        """Take away what says that a pod is nominated."""
        annotations = {NOMINATED_NODE: None, NOMINATED_UNTIL: None}
        try:
            patch: JSON = {"metadata": {"uid": pod.uid, "annotations": annotations}}
            await self._cluster.patch(Kind.PODS, pod.name, patch, pod.namespace)
            await self._set_nominated_node(pod, "")
        except ClusterError as error:
            logger.warning("the nomination can't be withdrawn", extra={**of_pod(pod), "reason": str(error)})

    async def _record(self, pod: Pod, kind: str, reason: EventReason, message: str) -> None:
        note = EventNote("Pod", pod.namespace, pod.name, pod.uid, kind, reason, message)
        await record_event(self._cluster, note)


def listed(victims: Victims) -> str:
    """The victims and where they are, for an event."""
    there = [pod.key for pod in victims.pods if pod.node_name == victims.node]
    elsewhere = [pod.key for pod in victims.pods if pod.node_name != victims.node]
    parts = ((there, f"from node {victims.node}"), (elsewhere, "from other nodes, for its quota"))
    return "; ".join(_counted(names, where) for names, where in parts if names)


def _counted(names: Sequence[str], where: str) -> str:
    return f"{len(names)} pod{'s' if len(names) > 1 else ''} {where}: {first_of(names, _TOLD)}"


def _with_disruption_target(conditions: Sequence[JSON], preemptor: Pod, now: float) -> list[JSON]:
    """The conditions of a pod with that by which Kubernetes' controllers see that it was preempted."""
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{preemptor.scheduler_name}: preempting to accommodate a higher priority pod",
        "lastTransitionTime": format_time(now),
    }
    return [*(each for each in conditions if each.get("type") != "DisruptionTarget"), target]
