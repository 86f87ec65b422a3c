"""Node locks that are left of a bind that broke off: its process ended, or couldn't release it (docs/placement.md).

The pod comes first on the node where it has a lock (`NodeLocks.held_by`), and finds it there. But if the node doesn't
take it any more its lock would keep all others from the node until it expires. A process that takes a lock binds the
pod soon after, or not at all; so a lock is released that had the same value for longer, and whose pod isn't bound. So
is one whose pod has been served: another extender took it for a pod that was bound meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import NoReturn

from hami_webhook.cluster.api import ClusterError
from hami_webhook.devices.lock_annotations import LockValue, NodeLock
from hami_webhook.devices.placement_annotations import is_served
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.placer import BIND_WITHIN
from hami_webhook.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)

_REQUESTS = 3
"""That a bind makes under the lock, besides its charge: a list of the node's pods, a patch of the pod, the Binding."""

_Left = tuple[str, NodeLock, str]
"""A node, a lock of it, and the lock's value."""


async def release_left_locks(
    locks: NodeLocks,
    state: ClusterCache,
    known: Collection[NodeLock],
    *,
    request_timeout: float,
    patience: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Release the locks of pods that have been served, or that any process would have bound by now, all the time.

    `known` are the locks that there are. A request fails after `request_timeout` seconds, and a bind waits up to
    `patience` seconds for a lock; it may have another one meanwhile.
    """
    before: Collection[_Left] = ()
    while True:
        found = _of_pods(state, known)
        if same := found.keys() & {*before}:
            unused = {(pod.namespace, pod.name) for pod in state.pods() if not pod.node_name or is_served(pod)}
            for left in same:
                if found[left] in unused:
                    await _release(locks, *left)
        before = found
        await sleep(patience + BIND_WITHIN + _REQUESTS * request_timeout)


async def _release(locks: NodeLocks, node: str, lock: NodeLock, value: str) -> None:
    logger.warning("a lock is released that was left of a bind", extra={"node": node, "reason": value})
    try:
        await locks.remove(node, lock, value)
    except ClusterError as error:
        logger.warning("the lock can't be released", extra={"node": node, "reason": str(error)})


def _of_pods(state: ClusterCache, known: Collection[NodeLock]) -> dict[_Left, tuple[str, str]]:
    """The namespaces and names of the pods that locks are for."""
    found = {}
    for node in state.nodes():
        for lock in known:
            value = node.annotations.get(lock.annotation)
            if value is None or not lock.names_holder:
                continue
            try:
                holder = LockValue.read(value).holder
            except ValueError:
                continue  # a bind counts its time
            if holder is not None:
                found[node.name, lock, value] = holder
    return found
