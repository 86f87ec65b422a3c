"""Node locks that a former process left: it took them for pods, and ended before it bound these (docs/placement.md).

A pod that comes again finds its own lock. But if no node takes it any more its lock would keep all others from the node
until it expires. A process that takes a lock binds the pod soon after, or not at all; so a lock that this process found
at its start, and that is for a waiting pod, is let go if nothing became of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from hami_webhook.devices.lock_annotations import LockValue, NodeLock
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.placer import BIND_WITHIN

logger = logging.getLogger(__name__)

_REQUESTS = 3
"""That a bind makes under the lock, besides its charge: a list of the node's pods, a patch of the pod, the Binding."""

_Left = tuple[str, NodeLock, str]
"""A node, a lock of it, and the lock's value."""


async def release_left_locks(
    extender: Extender,
    state: ClusterCache,
    locks: Collection[NodeLock],
    *,
    request_timeout: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Release the locks that are for waiting pods now, and still are when another process would have bound these.

    `request_timeout` are the seconds after which a request fails. Raises `ClusterError`.
    """
    found = _of_waiting_pods(state, locks)
    if not found:
        return
    await sleep(BIND_WITHIN + _REQUESTS * request_timeout)
    for left, uid in _of_waiting_pods(state, locks).items():
        if left in found:
            node, lock, value = left
            logger.warning("a lock is released that a former process left", extra={"node": node, "reason": value})
            await extender.release_lock(node, uid, lock)


def _of_waiting_pods(state: ClusterCache, locks: Collection[NodeLock]) -> dict[_Left, str]:
    """The UIDs of the pods that locks are for and that aren't bound."""
    waiting = {(pod.namespace, pod.name): pod.uid for pod in state.pods() if not pod.node_name}
    found = {}
    for node in state.nodes():
        for lock in locks:
            value = node.annotations.get(lock.annotation)
            if value is None or not lock.names_holder:
                continue
            try:
                holder = LockValue.read(value).holder
            except ValueError:
                continue  # a bind counts its time
            if holder in waiting:
                found[node.name, lock, value] = waiting[holder]
    return found
