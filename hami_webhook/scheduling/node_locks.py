"""Node locks on the wire (docs/spec/core.md#9.4), and a fair queue before them.

HAMi's device plugins find the pod that kubelet asks them to serve by the lock on its node, and take the lock away when
they are done; so one pod at a time is bound to a node. Pods wait here in the order they came, instead of failing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.devices.placement_annotations import NODE
from hami_webhook.kube.objects import Pod, format_time, is_subdomain, parse_time

LOCK = COMMON_LOCK.annotation
_TRIES = 5
_POLL = 0.05


class LockContended(ClusterError):
    """Somebody else holds the lock, and did so for as long as we could wait."""


@dataclass(frozen=True, slots=True)
class LockValue:
    """A lock's value: since when (Unix seconds) and by which pod (None for the bare time of old versions)."""

    since: float
    holder: tuple[str, str] | None

    @classmethod
    def read(cls, text: str) -> LockValue:
        """Raises ValueError for what is no lock's value."""
        time, *holder = text.split(",")
        try:
            if len(holder) not in (0, 2) or not all(map(is_subdomain, holder)):
                raise ValueError
            return cls(parse_time(time), (holder[0], holder[1]) if holder else None)
        except ValueError:
            raise ValueError(f"{text[:100]!r} isn't a time, or a time, a namespace and a pod") from None


class NodeLocks:
    """The locks of all nodes. `expires` and `patience` are seconds: a lock's life, and the wait for one."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Callable[[], float],
        expires: float = 300.0,
        patience: float = 28.0,
        seen: Callable[[str, str], str | None] = lambda node, annotation: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._expires = expires
        self._patience = patience
        self._seen = seen
        """The lock's value as a cache knows it: looked at often, and believed only as far as it saves reads."""
        self._sleep = sleep
        self._jitter = jitter
        self._queues: dict[str, asyncio.Lock] = {}
        self._taken: dict[tuple[str, str], tuple[str, str]] = {}
        self._waiting: dict[str, int] = {}
        self._first_seen: dict[tuple[str, str], tuple[str, float]] = {}
        """By node and annotation a value whose time can't be believed, and when a bind saw it first."""

    @asynccontextmanager
    async def turn(self, node: str, pod: Pod | None = None) -> AsyncIterator[float]:
        """This pod's turn at a node, first come first served; gives the time (Unix seconds) to have the lock by.

        A pod that has the node's lock from before, when its bind broke off, goes first: all others wait for just it.
        Raises `LockContended` if the turn doesn't come in time.
        """
        deadline = self._clock() + self._patience
        if pod is not None and (self._seen(node, LOCK) or "").endswith(_owner(pod)):
            yield deadline
            return
        queue = self._queues.setdefault(node, asyncio.Lock())
        self._waiting[node] = self._waiting.get(node, 0) + 1
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await queue.acquire()
            except TimeoutError:
                raise LockContended(self._contention(node)) from None
            try:
                yield deadline
            finally:
                queue.release()
        finally:
            self._waiting[node] -= 1
            if not self._waiting[node]:
                del self._waiting[node], self._queues[node]

    async def take(self, node: str, pod: Pod, deadline: float, lock: NodeLock = COMMON_LOCK) -> None:
        """Have a lock of the node for the pod; waits for whoever has it. Raises `LockContended`, `ClusterError`."""
        tries = 0
        while True:
            try:
                held = await self._try(node, pod, lock)
            except Conflict:
                tries += 1
                if tries == _TRIES:
                    raise
                await self._sleep(0.1 * 2 ** (tries - 1) * (0.5 + self._jitter() / 2))
                continue
            if held is None:
                return
            tries = 0
            await self._wait_for_a_change(node, held, deadline, lock)

    async def _wait_for_a_change(self, node: str, held: str, deadline: float, lock: NodeLock) -> None:
        """Wait while the cache shows the lock as it was; look live every second in any case."""
        looked = self._clock()
        while self._seen(node, lock.annotation) == held and self._clock() - looked < 1.0:
            if self._clock() >= deadline:
                raise LockContended(self._contention(node, lock))
            await self._sleep(_POLL)
        if self._clock() >= deadline:
            raise LockContended(self._contention(node, lock))
        await self._sleep(_POLL)

    async def _try(self, node: str, pod: Pod, lock: NodeLock) -> str | None:
        """Take the lock if it is free, expired or its holder is gone; the value of another's lock otherwise.

        The pod's own lock stays as it is, so that who binds twice finds it.
        """
        found = await self._cluster.get(Kind.NODES, node)
        meta = found["metadata"]
        text: str | None = (meta.get("annotations") or {}).get(lock.annotation)
        if text is not None:
            held = self._read(node, text, lock)
            if held is not None:
                if held.holder == (pod.namespace, pod.name):
                    return None
                if not await self._holder_is_gone(held, node):
                    return text
        value = format_time(self._clock()) + (_owner(pod) if lock.names_holder else "")
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {lock.annotation: value}}}
        await self._cluster.patch(Kind.NODES, node, patch)
        self._first_seen.pop((node, lock.annotation), None)
        self._taken[node, lock.annotation] = (_owner(pod), value)
        return None

    def _read(self, node: str, text: str, lock: NodeLock) -> LockValue | None:
        """The lock if it counts; None for one that is too old, or that nobody can mean, of a lock without a holder.

        A value that can't be read, or is of the future, was taken when it was first seen here. Raises `ClusterError`
        for the former as long as it isn't too old, as HAMi does for ever.
        """
        now = self._clock()
        held: LockValue | None = None
        problem = ""
        try:
            held = LockValue.read(text)
        except ValueError as error:
            if not lock.names_holder:
                return None
            problem = str(error)
        since = held.since if held is not None and held.since <= now else self._seen_since(node, text, lock, now)
        left = since + self._life(lock) - now
        if left < 0:
            return None
        if held is None:
            raise ClusterError(
                f"node {node}: {lock.annotation} can't be read, and is ignored in {_spoken(round(left))}: {problem}"
            )
        return held

    def _seen_since(self, node: str, text: str, lock: NodeLock, now: float) -> float:
        """When a bind first met the lock with this value."""
        known = self._first_seen.get((node, lock.annotation))
        if known is None or known[0] != text:
            known = self._first_seen[node, lock.annotation] = (text, now)
        return known[1]

    def _life(self, lock: NodeLock) -> float:
        return self._expires if lock == COMMON_LOCK else lock.expires

    async def _holder_is_gone(self, held: LockValue, node: str) -> bool:
        """Whether nobody will let this lock go: its pod is gone, or bound or placed elsewhere."""
        if held.holder is None:
            return False
        namespace, name = held.holder
        try:
            found = await self._cluster.get(Kind.PODS, name, namespace)
        except NotFound:
            return True
        bound = (found.get("spec") or {}).get("nodeName")
        if bound:
            return bool(bound != node)
        placed = (found["metadata"].get("annotations") or {}).get(NODE, node)
        return bool(placed != node)

    async def release(self, node: str, pod: Pod, lock: NodeLock = COMMON_LOCK) -> None:
        """Let the lock go if this pod has it; best effort, as it expires."""
        owner, value = self._taken.get((node, lock.annotation), ("", ""))
        if owner == _owner(pod):
            del self._taken[node, lock.annotation]
        for _ in range(_TRIES):
            with contextlib.suppress(Conflict):
                found = await self._cluster.get(Kind.NODES, node)
                text = (found["metadata"].get("annotations") or {}).get(lock.annotation, "")
                if not (text.endswith(_owner(pod)) or (owner == _owner(pod) and text == value)):
                    return
                version = found["metadata"]["resourceVersion"]
                await self._cluster.patch(
                    Kind.NODES, node, {"metadata": {"resourceVersion": version, "annotations": {lock.annotation: None}}}
                )
                return

    def _contention(self, node: str, lock: NodeLock = COMMON_LOCK) -> str:
        if not lock.names_holder:
            return f"node {node} has been locked within {lock.expires / 60:g} minutes"
        if self._patience <= 0:
            return f"node {node} has been locked within {_spoken(self._expires)}: node lock contention"
        return f"timed out after {_spoken(self._patience)} waiting for node {node} to be unlocked: node lock contention"


def _owner(pod: Pod) -> str:
    """How the value of a lock ends that the pod has."""
    return f",{pod.namespace},{pod.name}"


def _spoken(seconds: float) -> str:
    """A duration as Go prints it: `5m0s`, `28s`, `500ms`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h{minutes}m{rest:g}s" if hours else f"{minutes}m{rest:g}s" if minutes else f"{rest:g}s"
