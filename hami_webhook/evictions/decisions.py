"""What was decided for pods that no node takes, carried out beside the filters that it was decided in.

The nomination is written before anybody is evicted: a process that ends in between has evicted nobody for nothing, and
the next one finds what was meant. Where the API server refuses a part all is taken back that can be: who is evicted by
then is gone, and the pod is a pod like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace

from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.devices.placement_annotations import NOMINATED_NODE, NOMINATED_UNTIL
from hami_webhook.evictions.executor import Eviction, Executor, NotNeeded
from hami_webhook.evictions.limits import DisruptionBudgets, EvictionLimits, LimitReached
from hami_webhook.evictions.policies import EvictionPolicy
from hami_webhook.kube.message_text import first_of
from hami_webhook.kube.objects import Pod
from hami_webhook.logs import of_pod
from hami_webhook.quota.runtime import grace_of
from hami_webhook.scheduling.event_recorder import record_event
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import Placer
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.state.nominations import Nomination, Nominations

logger = logging.getLogger(__name__)

_HELD = 60.0
"""Seconds that devices are kept for a nominated pod after its victims should be gone."""
_TRIES = 5
_RETRY = 1.0
_LISTED = 10
"""As many victims as an event names."""

OUTCOMES = ("evicting", "waiting", "dry-run", "no-candidates", "policy-never", "limited", "failed")
"""What is decided for a pod that no node takes, and evictions that failed."""


class Decisions:
    """Carries out while `run` runs, and counts.

    `queue` is notified if a pod was refused, and if something was freed, so that kube-scheduler tries the pod again.
    `dry_run`: nobody is evicted, and an event says who would be.
    """

    def __init__(
        self,
        handle: Handle,
        placer: Placer,
        nominations: Nominations,
        limits: EvictionLimits,
        queue: RequeueTrigger,
        *,
        dry_run: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster = handle.cluster
        self._state = handle.state
        self._clock = handle.clock
        self._ready = handle.ready
        self._placer = placer
        self.nominations = nominations
        self.limits = limits
        self._queue = queue
        self.dry_run = dry_run
        self._sleep = sleep
        self._executor = Executor(cluster, lambda note: record_event(cluster, note), clock=handle.clock, sleep=sleep)
        self.budgets = DisruptionBudgets(handle.disruption_budgets)
        self._due: asyncio.Queue[partial[Coroutine[Any, Any, None]]] = asyncio.Queue()
        """What is to be done: evictions, retries, and withdrawals of nominations."""
        self._retried: set[str] = set()
        """The names of the retries that are due."""
        self.counts: Counter[str] = Counter()
        """Decisions by outcome."""
        self.victims = 0
        """Pods evicted."""

    # what is decided

    def decide(self, eviction: Eviction, ending: Collection[str]) -> str:
        """Evict the victims, and keep the nodes for the pods. Return the outcome.

        In a dry run, or beyond the limits of the pods' namespace, no pod is evicted. `ending` are the UIDs of pods
        there that are waited for, too.
        """
        policy, victims = eviction.policy, eviction.victims
        if self.dry_run:
            self.counts["dry-run"] += 1
            if victims:
                self._placer.record(eviction.first, "Normal", policy.dry_run, f"would evict {_listed(eviction)}")
            return "dry-run"
        if victims and (reached := self.limits.reached(policy, eviction.pods, len(victims))):
            self.report_limit(eviction.first, policy, reached)
            return "limited"
        self.keep(eviction, ending)
        return "evicting" if victims else "waiting"

    def keep(self, eviction: Eviction, ending: Collection[str]) -> bool:
        """Carry out a decision without checking dry run and limits.

        Return whether it differs from what is under way.
        """
        pods, victims, now = eviction.pods, eviction.victims, self._clock()
        self.counts["evicting" if victims else "waiting"] += 1
        known = [self.nominations.of(pod.uid) for pod in pods]
        if not victims and [each and each.node for each in known] == [node for _, node in eviction.places]:
            return False
        gone_by = {each.uid: now + grace_of(each) for each in victims}
        going = [each for each in map(self._state.pod, ending) if each is not None]
        until = max([self.nominations.gone_by(going), *gone_by.values()]) + _HELD
        self.nominations.nominate(eviction.places, until, gone_by)
        new = [pod for pod in pods if victims or not self.limits.is_known(pod.uid)]
        if new:
            self.limits.evicted(new, gone_by)
        self.budgets.spend(victims)
        needed = partial(self._are_waiting, pods)
        self._due.put_nowait(partial(self._carry_out, replace(eviction, until=until, needed=needed)))
        return True

    def report_limit(self, pod: Pod, policy: EvictionPolicy, reached: LimitReached) -> None:
        """Report that nobody is evicted for the pod now, and have it tried again when that may be otherwise."""
        self.counts["limited"] += 1
        self._placer.record(pod, "Warning", policy.blocked, f"preemption evicts nobody now: {reached.reason}")
        if reached.until:
            self.try_again(pod.namespace, reached.until)

    def try_again(self, name: str, at: float) -> None:
        """Have kube-scheduler try pods again at a time (Unix seconds); once for each name at a time."""
        if name not in self._retried:
            self._retried.add(name)
            self._due.put_nowait(partial(self._retry, name, at))

    def withdraw(self, pod: Pod) -> None:
        """No eviction helps a pod that is nominated."""
        if not self.dry_run:
            self.nominations.withdraw(pod.uid)
            self._due.put_nowait(partial(self._withdraw, pod))

    def may_be_from_before(self, nominated: Nomination) -> bool:
        """Whether pods are ending on the node that may have been evicted for the pod before the start.

        If only some victims were evicted then, the others still may be, but no pods elsewhere.
        """
        pod, known = nominated.pod, self.limits.is_known(nominated.pod.uid)
        return not known and self._clock() < nominated.until and self.nominations.waits(pod, nominated.node)

    # what is done

    async def run(self) -> NoReturn:
        """Carry out until cancelled. Nominations from before the start are looked at again first."""
        await self._ready()
        for nomination in self.nominations.all():
            self._queue.refused(nomination.pod.uid)
            self._queue.freed()
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task((await self._due.get())())

    async def _retry(self, name: str, at: float) -> None:
        await self._sleep(max(0.0, at - self._clock()))
        self._retried.discard(name)
        self._queue.freed()

    async def _carry_out(self, eviction: Eviction) -> None:
        executor, policy, first = self._executor, eviction.policy, eviction.first
        try:
            await _together(executor.again(policy, self._write, eviction, *each) for each in eviction.places)
            if not eviction.needed():
                raise NotNeeded
            evicted = await _together(executor.end(each, eviction) for each in eviction.victims)
        except NotNeeded:
            await self._take_back(eviction)
            return
        except ClusterError as error:
            about = {**of_pod(first), "node": eviction.places[0][1], "reason": str(error)}
            logger.warning("preemption failed", extra=about)
            self.counts["failed"] += 1
            await self._take_back(eviction)
            for pod in eviction.pods:
                self._queue.refused(pod.uid)
            await executor.say(first, "Warning", "PreemptionFailed", str(error))
            self._queue.freed()
            return
        if any(evicted):
            self.victims += sum(evicted)
            await executor.say(first, "Normal", policy.evicting, f"evicted {_listed(eviction)}")
        if policy.nominated:
            await self._keep_nominated_node(*eviction.places[0])

    def _are_waiting(self, pods: Sequence[Pod]) -> bool:
        """Whether all are still there, and have no place: one may have found it while its nomination was written."""
        shown = [self._state.pod(pod.uid) for pod in pods]
        return all(each is not None and not each.node_name and each.deletion_time is None for each in shown)

    async def _take_back(self, eviction: Eviction) -> None:
        """Nobody is to go any longer, and no node is kept."""
        self.limits.failed(eviction.first.uid)
        for victim in eviction.victims:
            self.nominations.spare(victim.uid)
        for pod in eviction.pods:
            self.nominations.withdraw(pod.uid)
            await self._withdraw(pod)

    async def _write(self, eviction: Eviction, pod: Pod, node: str) -> bool:
        """Write down on the pod what it waits for, before anybody is evicted."""
        await self._annotate(pod, {NOMINATED_NODE: node, NOMINATED_UNTIL: str(int(eviction.until))})
        if eviction.policy.nominated:
            await self._set_nominated_node(pod, node)
        return True

    async def _withdraw(self, pod: Pod) -> None:
        """Take away what says that a pod is nominated."""
        try:
            await self._annotate(pod, {NOMINATED_NODE: None, NOMINATED_UNTIL: None})
            await self._set_nominated_node(pod, "")
        except ClusterError as error:
            logger.warning("the nomination can't be withdrawn", extra={**of_pod(pod), "reason": str(error)})

    async def _annotate(self, pod: Pod, annotations: JSON) -> None:
        patch: JSON = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        await self._cluster.patch(Kind.PODS, pod.name, patch, pod.namespace)

    async def _set_nominated_node(self, pod: Pod, node: str) -> None:
        patch: JSON = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}}
        await self._cluster.patch_status(Kind.PODS, pod.name, patch, pod.namespace)

    async def _keep_nominated_node(self, pod: Pod, node: str) -> None:
        """Write `nominatedNodeName` again if kube-scheduler took it away at the end of the cycle in which it was set.

        It does so no more once it sees that the victims are ending.
        """
        for _ in range(_TRIES):
            await self._sleep(_RETRY)
            shown, nomination = self._state.pod(pod.uid), self.nominations.of(pod.uid)
            if shown is None or nomination is None or nomination.node != node:
                return
            if shown.nominated_node != node:
                with contextlib.suppress(ClusterError):
                    await self._set_nominated_node(pod, node)


async def _together(steps: Iterable[Coroutine[Any, Any, bool]]) -> list[bool]:
    """What each step returns. The first failure stops the others: none goes on behind what is taken back for it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step) for step in steps]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _listed(eviction: Eviction) -> str:
    return listed(eviction.victims, eviction.places[0][1] if eviction.policy.nominated else "")


def listed(victims: Sequence[Pod], node: str = "") -> str:
    """The victims for an event; where they are, if they leave a node for one pod."""
    there = [pod.key for pod in victims if node in ("", pod.node_name)]
    elsewhere = [pod.key for pod in victims if node not in ("", pod.node_name)]
    parts = ((there, f" from node {node}" if node else ""), (elsewhere, " from other nodes, for its quota"))
    return "; ".join(
        f"{len(names)} pod{'s' if len(names) > 1 else ''}{where}: {first_of(names, _LISTED)}"
        for names, where in parts
        if names
    )
