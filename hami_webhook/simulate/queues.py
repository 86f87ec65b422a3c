"""Pods of a run that quotas keep behind our gate: their release, and when those that wait start at the latest.

Source: docs/spec/cli.md, docs/spec/time.md#2. The releaser is the controller's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import QUOTA_GATE, Pod
from hami_webhook.queueing.group_turns import group_turns
from hami_webhook.queueing.held_room import HeldRoom
from hami_webhook.queueing.pod_queue import DemandCache, read_queue
from hami_webhook.queueing.promises import Promises
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.queueing.words import sentence
from hami_webhook.quota.queue_order import decide
from hami_webhook.state.caches import Change, Key


async def _yield(seconds: float) -> None:
    await asyncio.sleep(0)


async def released(
    core: Core, cluster: MemoryCluster, quotas_known: Callable[[], AbstractContextManager[None]]
) -> AsyncIterator[tuple[Pod, Mapping[str, Any]]]:
    """Release the pods whose turn has come, each with its object; who takes one places it before the next round.

    Within `quotas_known`, the caches have the quotas as they are.
    """
    releaser = QueueReleaser(cluster, core.view, core.charger, core.capacity, core.failures, sleep=_yield)
    follow = releaser.subscriptions()[Kind.PODS]
    for pod in core.caches.queued():
        follow(Change(Key(pod.namespace, pod.name, pod.uid), None, pod))
    going_on = True
    while going_on:
        going_on = False
        with quotas_known():
            await releaser.step()
        for pod in sorted(core.caches.queued(), key=lambda pod: (pod.waits_since, pod.uid)):
            raw = cluster.peek(Kind.PODS, pod.name, pod.namespace)
            if raw is None or any(gate["name"] == QUOTA_GATE for gate in raw["spec"].get("schedulingGates") or ()):
                continue
            change = core.caches.put(Kind.PODS, raw)
            follow(change)
            going_on = True
            if change.after is not None:
                yield change.after, raw


async def waits_of(core: Core) -> dict[str, str]:
    """The sentences on the pods that wait, as their conditions would have them, by UID. Nothing is written."""
    waiting, now = core.caches.queued(), core.clock()
    if not waiting:
        return {}
    queue = await read_queue(waiting, core.charger.known, core.vendors, core.capacity, DemandCache(core.clock))
    turns = group_turns(queue.waiting, queue.pods, core.state.by_namespace.there, now)
    # what no pod holds may be that of pods that can't be seen with these rights: nothing says when it ends
    rooms = await HeldRoom(core.view, unseen_for=0.0).added_to(queue.rooms, queue.accounts, {})
    decision = Promises().given(decide(turns.turns, queue.rooms, now), rooms, now, frozenset())
    of_pods = turns.of_each_pod(decision, queue.waiting)
    return {each.pod.uid: sentence(each, core.state.pod) for each in of_pods.waiting}
