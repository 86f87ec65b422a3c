"""The only code that ends pods of a cluster for others: whatever policy decided it, with an event on who goes.

What was decided may be old: a victim is ended only if it is still the pod that was chosen, and one that is gone, or is
going, counts as ended. A write whose answer was lost may have been done, so the second try of a deletion that finds
nobody has succeeded. One that finds the victim is made only if the room is still needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVarTuple

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Cluster, Conflict, EventNote, Kind, NotFound, Unavailable
from hami_webhook.evictions.policies import Ending, EvictionPolicy
from hami_webhook.kube.conditions import with_condition
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod, format_time

_Args = TypeVarTuple("_Args")

_RETRY = 1.0
_LONGEST_GRACE = 600
"""Seconds of grace of one that is evicted by the API: what is lent comes back in a bounded time, whatever it says."""


class NotNeeded(Exception):
    """A victim is spared: the pods that it was to go for no longer need its room."""


class Eviction(Struct, frozen=True):
    """What was decided: the `victims` go for the pods of `places`, of which the first stands for all.

    Their nodes, where these are known, are kept for them until Unix seconds. `why` returns the text of a victim's
    event; None: kube-scheduler's text. `needed` returns whether the pods still need the room; it is asked before each
    try of a deletion. `deleted` are the UIDs of those whose deletion was tried.
    """

    policy: EvictionPolicy
    places: Sequence[tuple[Pod, str]]
    victims: Sequence[Pod]
    until: float = 0.0
    why: Callable[[Pod], str] | None = None
    needed: Callable[[], bool] = lambda: True
    deleted: set[str] = set()

    @property
    def pods(self) -> list[Pod]:
        return [pod for pod, _ in self.places]

    @property
    def first(self) -> Pod:
        return self.places[0][0]

    def said_of(self, victim: Pod) -> str:
        """Why it goes, for an event."""
        if self.why is not None:
            return self.why(victim)
        node = self.places[0][1] if self.policy.nominated else victim.node_name
        return f"Preempted by pod {self.first.uid} on node {node}"


class Executor:
    """Ends victims. `record` writes an event, best effort; `clock` gives Unix seconds."""

    def __init__(
        self,
        cluster: Cluster,
        record: Callable[[EventNote], Awaitable[object]],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._record = record
        self._clock = clock
        self.sleep = sleep

    async def end(self, victim: Pod, eviction: Eviction) -> bool:
        """End one of the victims; whether it was there.

        Raises `ClusterError`, `EvictionRefused` for a budget, and `NotNeeded`.
        """
        steps = {Ending.BY_DELETION: self._delete, Ending.BY_EVICTION_API: self._evict}
        there = await self.again(eviction.policy, steps[eviction.policy.ending], victim, eviction)
        if there:
            await self.say(victim, "Normal", eviction.policy.evicted, eviction.said_of(victim))
        return there

    async def again(self, policy: EvictionPolicy, step: Callable[[*_Args], Awaitable[bool]], *args: *_Args) -> bool:
        """Try a step until the API server answers; whether it had anything to do."""
        for _ in range(policy.tries - 1):
            try:
                return await step(*args)
            except (Unavailable, Conflict):
                await self.sleep(_RETRY)
        return await step(*args)

    async def say(self, pod: Pod, kind: str, reason: EventReason, message: str) -> None:
        """Record an event on a pod; `kind` is Normal or Warning."""
        await self._record(EventNote("Pod", pod.namespace, pod.name, pod.uid, kind, reason, message))

    async def _delete(self, victim: Pod, eviction: Eviction) -> bool:
        """As kube-scheduler does: with the condition by which controllers see that the pod was preempted."""
        try:
            live = await self._cluster.get(Kind.PODS, victim.name, victim.namespace)
            meta, status = live["metadata"], live.get("status") or {}
            if meta["uid"] != victim.uid:
                raise NotFound(f"pod {victim.key} is another one by now")
            if meta.get("deletionTimestamp") is None:
                if not eviction.needed():  # it may be seconds ago that this was asked
                    raise NotNeeded
                conditions = _with_disruption_target(status.get("conditions") or [], eviction.first, self._clock())
                patch: JSON = {
                    "metadata": {"uid": victim.uid, "resourceVersion": meta["resourceVersion"]},
                    "status": {"conditions": conditions},
                }
                await self._cluster.patch_status(Kind.PODS, victim.name, patch, victim.namespace)
                eviction.deleted.add(victim.uid)
                await self._cluster.delete_pod(victim.namespace, victim.name, victim.uid)
        except NotFound:
            return victim.uid in eviction.deleted
        return True

    async def _evict(self, victim: Pod, eviction: Eviction) -> bool:
        grace = _LONGEST_GRACE if (victim.grace_period or 0) > _LONGEST_GRACE else None
        try:
            await self._cluster.evict_pod(victim.namespace, victim.name, victim.uid, grace)
        except (Conflict, NotFound):
            return False
        return True


def _with_disruption_target(conditions: Sequence[JSON], preemptor: Pod, now: float) -> list[JSON]:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{preemptor.scheduler_name}: preempting to accommodate a higher priority pod",
        "lastTransitionTime": format_time(now),
    }
    return with_condition(conditions, target)
