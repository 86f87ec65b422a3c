"""Node locks on the wire (docs/spec/core.md#9.4), and a fair queue before them.

HAMi's device plugins find the pod that kubelet allocates for by the lock on its node, and take the lock away when
they are done; so one pod at a time is bound to a node. Pods wait here instead of failing: the namespaces take turns.

A free lock is taken by one patch, for the resourceVersion that the cache shows; after a conflict the node is read.
Waiting costs no calls: the cache shows when it is free. No lock is taken from a pod that kubelet may still allocate
for, or the plugin gives its devices to another: so its holder has to be gone, elsewhere or served for half a second. A
value has a pod's name, which other pods may have later: so what was written here is kept with the UID. Nodes may write
anything: no value stops one for longer than a lock lives, counted from when it was seen first if it can't be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from math import inf

from msgspec import Struct

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.config.go_syntax import format_go_duration
from hami_webhook.devices.lock_annotations import COMMON_LOCK, LockValue, NodeLock
from hami_webhook.devices.placement_annotations import NODE, is_served
from hami_webhook.kube.objects import MalformedObject, Pod, format_time
from hami_webhook.scheduling.fair_lock import FairLock
from hami_webhook.scheduling.framework import keep_latest
from hami_webhook.state.cluster_cache import ClusterCache

LOCK = COMMON_LOCK.annotation
_TRIES = 5
_POLL = 0.05
"""Seconds between reads of a node while the cache is behind."""
_BEHIND_WAITS = 20
"""So often is a cache that is behind waited for, before the node is read."""
_READ_AGAIN = 5.0
"""Seconds without a change after which the node is read all the same: its watch may be silent, the holder gone."""
_RETURNED = 10_000
_ALLOCATE_WITHIN = 0.5
"""Seconds after a bind, or after the plugin has said that it is done, before a lock is taken over: kubelet may still
call the plugin for a pod that is gone by now, and the plugin serves who the lock names; or it may be about to unlock.
"""
_AVOIDED = 60.0
"""Seconds for which a node is the last choice after a bind gave up its lock."""
_UNKNOWN = -1


class LockContended(ClusterError):
    """Somebody else holds the lock, and did so for as long as we could wait."""


class _TakenLock(Struct, frozen=True):
    """A lock that was taken here: for which pod, its value, and the resourceVersion of the node with it."""

    pod: Pod
    value: str
    version: int = 0


class _HeldLock(Struct, frozen=True):
    """Another pod's lock: its value, the Unix seconds from which it may be taken over if nothing changes, and a
    resourceVersion at which the node had it.
    """

    value: str
    free_at: float = inf
    version: int = 0


class ShownNodes(Struct, frozen=True):
    """Nodes as a cache has them: by name the value of an annotation, the resourceVersion (None and "" if it doesn't
    have them), and the pods that hold devices there.
    """

    annotation: Callable[[str, str], str | None] = lambda node, annotation: None
    version: Callable[[str], str] = lambda node: ""
    pods_on: Callable[[str], Iterable[Pod]] | None = None

    @classmethod
    def of(cls, state: ClusterCache) -> ShownNodes:
        """As the extender's cache has them."""

        def annotation(name: str, annotation: str) -> str | None:
            node = state.node(name)
            return node.annotations.get(annotation) if node is not None else None

        def version(name: str) -> str:
            node = state.node(name)
            return node.resource_version if node is not None else ""

        return cls(annotation, version, lambda name: (allocation.pod for allocation in state.allocations(name)))


class NodeLocks:
    """The locks of all nodes. `expires` and `patience` are seconds: a lock's life, and the wait for one.

    `shown` is what the cache shows of nodes: `node_changed` is to be called when it may be otherwise. `annotations` are
    those of all locks.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Callable[[], float],
        expires: float = 300.0,
        patience: float = 28.0,
        shown: ShownNodes | None = None,
        annotations: Collection[str] = (LOCK,),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._expires = expires
        self._patience = patience
        shown = shown or ShownNodes()
        self._seen = shown.annotation
        self._version = shown.version
        self._pods_on = shown.pods_on
        self._annotations = annotations
        self._sleep = sleep
        self._jitter = jitter
        self._queues: dict[str, FairLock] = {}
        self._taken: dict[tuple[str, str], _TakenLock] = {}
        self._waiting: dict[str, int] = {}
        self._first_seen: dict[tuple[str, str], tuple[str, float]] = {}
        """By node and annotation a value whose time is implausible, and when a bind saw it first."""
        self._locked: dict[str, str | None] = {}
        """The nodes that have locks by the cache, with the value of the common one."""
        self._changes: dict[str, asyncio.Event] = {}
        self._others: dict[str, int] = {}
        """By node the resourceVersion with which the cache showed a lock last that wasn't taken here."""
        self._failed: dict[str, float] = {}
        """By node when a bind last gave up its lock."""
        self._last_bind: dict[str, float] = {}
        """By node the end of the last turn."""
        self._over: dict[tuple[str, str], tuple[str, float]] = {}
        """By node and annotation the value whose holder has no more use for it by the cache, and since when."""
        self._returned: OrderedDict[str, None] = OrderedDict()
        """The UIDs of the latest pods that were to be bound where they had a lock."""

    def node_changed(self, node: str) -> None:
        """The cache shows another version of the node, or of pods there."""
        values = {annotation: self._seen(node, annotation) for annotation in self._annotations}
        if any(values.values()):
            self._locked[node] = values.get(LOCK)
        else:
            self._locked.pop(node, None)
        for annotation, value in values.items():
            if value is not None and not self._taken_here(node, annotation, value):
                self._others[node] = _number(self._version(node))
        if (waited := self._changes.get(node)) is not None:
            waited.set()
        if not self._version(node) and node not in self._waiting:
            self._forget(node)

    def _forget(self, node: str) -> None:
        """The node is gone: new ones have other names."""
        for annotation in self._annotations:
            self._taken.pop((node, annotation), None)
            self._first_seen.pop((node, annotation), None)
            self._over.pop((node, annotation), None)
        for known in (self._changes, self._others, self._last_bind, self._failed):
            known.pop(node, None)

    @property
    def busy(self) -> set[str]:
        """The nodes at which a pod would wait: others wait there, or the cache shows a lock."""
        return self._locked.keys() | self._waiting.keys()

    @property
    def contended(self) -> set[str]:
        """The nodes whose lock a bind gave up in the last minute: whatever they offer, others are better."""
        now = self._clock()
        return {node for node, at in self._failed.items() if now < at + _AVOIDED}

    def held_by(self, pod: Pod) -> list[str]:
        """The nodes whose lock the pod has by the cache, of a bind that broke off: all others wait there for it.

        None once the pod was tried on one of them, as a node can write such a lock itself, to have the pod.
        """
        if pod.uid in self._returned:
            return []
        owner = _owner(pod)
        named = [node for node, value in self._locked.items() if value is not None and value.endswith(owner)]
        return [node for node in named if self._has_lock(node, pod)]

    def _taken_here(self, node: str, annotation: str, value: str) -> bool:
        taken = self._taken.get((node, annotation))
        return taken is not None and taken.value == value

    @asynccontextmanager
    async def turn(self, node: str, pod: Pod | None = None) -> AsyncIterator[float]:
        """This pod's turn at a node, of its namespace's; gives the time (Unix seconds) to have the lock by.

        A pod that has the node's lock from before, when its bind broke off, goes first: all others wait for just it.
        Raises `LockContended` if the turn doesn't come in time.
        """
        deadline = self._clock() + self._patience
        if pod is not None and self._has_lock(node, pod):
            keep_latest(self._returned, pod.uid, None, _RETURNED)
            yield deadline
            self._last_bind[node] = self._clock()
            return
        queue = self._queues.setdefault(node, FairLock())
        self._waiting[node] = self._waiting.get(node, 0) + 1
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await queue.acquire(pod.namespace if pod is not None else "")
            except TimeoutError:
                raise LockContended(self._contention(node)) from None
            try:
                yield deadline
            finally:
                self._last_bind[node] = self._clock()
                queue.release()
        finally:
            self._waiting[node] -= 1
            if not self._waiting[node]:
                del self._waiting[node], self._queues[node]

    def _has_lock(self, node: str, pod: Pod) -> bool:
        """Whether the cache shows that the pod has the node's lock, and not one of the same name before it."""
        value, taken = self._seen(node, LOCK) or "", self._taken.get((node, LOCK))
        if taken is not None and taken.value == value:
            return taken.pod.uid == pod.uid
        return value.endswith(_owner(pod))

    async def take(self, node: str, pod: Pod, deadline: float, lock: NodeLock = COMMON_LOCK) -> int | None:
        """Have a lock of the node for the pod; waits for its holder. Raises `LockContended`, `ClusterError`.

        Returns the resourceVersion up to which others may have had the lock; None if that isn't known.
        """
        tries = 0
        live = not self._version(node)
        known = _HeldLock("")
        while True:
            try:
                held = None if live else self._held_for_another(node, pod, lock)
                if held is None:
                    since = await self._try(node, pod, lock, known, live=live)
                    if isinstance(since, int):
                        return None if since == _UNKNOWN else since
                    held = since
            except Conflict:
                if live:
                    tries += 1
                    if tries == _TRIES:
                        raise
                    await self._sleep(0.1 * 2 ** (tries - 1) * (0.5 + self._jitter() / 2))
                live = True
                continue
            tries, known = 0, held
            live = not await self._changed(node, held, deadline, lock)

    def _held_for_another(self, node: str, pod: Pod, lock: NodeLock) -> _HeldLock | None:
        """The lock, if it is what this process wrote for another pod, by the cache or before that shows it.

        None as well if the cache shows that it may be taken over.
        """
        taken = self._taken.get((node, lock.annotation))
        if taken is None or taken.pod.uid == pod.uid:
            return None
        free_at = self._free_by_cache(node, taken.value, lock)
        held = _HeldLock(taken.value, free_at, taken.version)
        is_held = self._is_behind(node, held) or self._seen(node, lock.annotation) == taken.value
        return held if is_held and self._clock() < free_at else None

    def _free_by_cache(self, node: str, value: str, lock: NodeLock) -> float:
        """From when (Unix seconds) the lock may be taken over, by what the cache shows of its holder; infinity while
        that has devices of the node that haven't been allocated.
        """
        key = node, lock.annotation
        taken = self._taken.get(key)
        is_ours = taken is not None and taken.value == value
        if self._pods_on is None or not (is_ours or lock.names_holder):
            return inf
        pods = self._pods_on(node)
        if taken is not None and is_ours:
            holders = [each for each in pods if each.uid == taken.pod.uid]
        else:
            holders = [each for each in pods if value.endswith(_owner(each))]
        if not all(map(is_served, holders)):
            self._over.pop(key, None)
            return inf
        if self._over.get(key, ("", 0.0))[0] != value:
            since = self._clock() if holders else self._last_bind.get(node, -inf)
            self._over[key] = (value, since)
        return self._over[key][1] + _ALLOCATE_WITHIN

    async def _changed(self, node: str, held: _HeldLock, deadline: float, lock: NodeLock) -> bool:
        """Wait for the cache to show another value of the lock, or that it may be taken over; whether it is the former.

        Else the node is to be read.
        """
        shown, was_over = self._seen(node, lock.annotation), self._free_by_cache(node, held.value, lock) < inf
        waits = 0  # a cache that is behind catches up sooner than a busy API server answers two more reads for each pod
        while shown != held.value and (not waits or self._is_behind(node, held)) and waits < _BEHIND_WAITS:
            await self._node_change(node, max(0.0, min(_POLL, deadline - self._clock())))
            waits += 1
        until = min(deadline, held.free_at, self._clock() + _READ_AGAIN)
        while self._seen(node, lock.annotation) == held.value == shown and self._clock() < until:
            await self._node_change(node, until - self._clock())
            free_at = self._free_by_cache(node, held.value, lock)
            if free_at < inf and not was_over:  # else the API server has been asked
                until = min(until, free_at)
            was_over = free_at < inf
        if self._clock() >= deadline:
            self._failed[node] = self._clock()
            raise LockContended(self._contention(node, lock))
        return self._seen(node, lock.annotation) != shown

    def _is_behind(self, node: str, held: _HeldLock) -> bool:
        """Whether the cache shows the node as it was before it had this lock: it would look free."""
        return _number(self._version(node)) < held.version

    async def _node_change(self, node: str, seconds: float) -> None:
        """Return when the cache shows another version of the node, or after so many seconds."""
        change = self._changes.setdefault(node, asyncio.Event())
        change.clear()
        waits = [asyncio.ensure_future(change.wait()), asyncio.ensure_future(self._sleep(seconds))]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in waits:
                each.cancel()

    async def _try(self, node: str, pod: Pod, lock: NodeLock, known: _HeldLock, *, live: bool) -> int | _HeldLock:
        """Take the lock if it is free or its holder has no more use for it; gives it if it is another's.

        By the cache alone if it shows the lock free, and not `live`. The pod's own lock is renewed, so that who binds
        twice finds it. `known` is the lock as it was found last. Returns what `take` does, -1 for None.
        """
        version = "" if live or self._seen(node, lock.annotation) is not None else self._version(node)
        others = self._others.get(node, 0) if version else _UNKNOWN
        if not version:
            found = await self._cluster.get(Kind.NODES, node)
            meta = found["metadata"]
            version = meta["resourceVersion"]
            text: str | None = (meta.get("annotations") or {}).get(lock.annotation)
            if text is not None and (held := self._read(node, text, lock)) is not None:
                kept = await self._kept(node, pod, lock, known, text, held, version)
                if kept is not None:
                    return kept
        value = format_time(self._clock()) + (_owner(pod) if lock.names_holder else "")
        before = self._taken.get((node, lock.annotation))
        self._taken[node, lock.annotation] = _TakenLock(pod, value)  # the watch may be quicker than the answer
        try:
            patch = {"metadata": {"resourceVersion": version, "annotations": {lock.annotation: value}}}
            stored = await self._cluster.patch(Kind.NODES, node, patch)
        except BaseException:  # what may have been taken here may be another extender's, of the same second
            if before is not None:
                self._taken[node, lock.annotation] = before
            else:
                del self._taken[node, lock.annotation]
            raise
        self._taken[node, lock.annotation] = _TakenLock(pod, value, _number(stored["metadata"]["resourceVersion"]))
        self._first_seen.pop((node, lock.annotation), None)
        self._over.pop((node, lock.annotation), None)  # a pod of the same name may have had the same value
        return others

    async def _kept(
        self, node: str, pod: Pod, lock: NodeLock, known: _HeldLock, text: str, held: LockValue, version: str
    ) -> int | _HeldLock | None:
        """What `_try` returns of a lock that is there and counts; None if it may be taken over."""
        taken = self._taken.get((node, lock.annotation))
        holder = taken.pod if taken is not None and taken.value == text else None
        if held.holder == (pod.namespace, pod.name) and (holder is None or holder.uid == pod.uid):
            await self._renew(node, pod, lock, held, version, ours=holder is not None)
            return _UNKNOWN
        free_at = await self._free_at(held, holder, node)
        if free_at < inf:  # since when that was so
            free_at = min(free_at, self._free_by_cache(node, text, lock))
        if known.value == text:
            free_at = min(free_at, known.free_at)
        return _HeldLock(text, free_at, _number(version)) if self._clock() < free_at else None

    async def _renew(self, node: str, pod: Pod, lock: NodeLock, held: LockValue, version: str, *, ours: bool) -> None:
        """Write another time into a lock that the pod has from before.

        It may be `ours`, of a bind whose answer was lost. Else a former process took it, or another scheduler's
        extender that binds the same pod right now. That one must not let it go when its bind fails, or ours would leave
        the pod without a lock; nor may we, so it isn't ours then.
        """
        value = format_time(max(self._clock(), held.since + 1)) + _owner(pod)
        patch = {"metadata": {"resourceVersion": version, "annotations": {lock.annotation: value}}}
        stored = await self._cluster.patch(Kind.NODES, node, patch)
        if ours:
            version = stored["metadata"]["resourceVersion"]
            self._taken[node, lock.annotation] = _TakenLock(pod, value, _number(version))

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
            self._failed[node] = now
            ignored = format_go_duration(round(left))
            raise ClusterError(f"node {node}: {lock.annotation} can't be read, and is ignored in {ignored}: {problem}")
        return held

    def _seen_since(self, node: str, text: str, lock: NodeLock, now: float) -> float:
        """When a bind first met the lock with this value."""
        known = self._first_seen.get((node, lock.annotation))
        if known is None or known[0] != text:
            known = self._first_seen[node, lock.annotation] = (text, now)
        return known[1]

    def _life(self, lock: NodeLock) -> float:
        return self._expires if lock == COMMON_LOCK else lock.expires

    async def _free_at(self, held: LockValue, taken_for: Pod | None, node: str) -> float:
        """From when (Unix seconds) the lock may be taken over; infinity while its holder may need it.

        `taken_for` is the pod that it was taken for, if that was here.
        """
        if taken_for is not None:
            namespace, name = taken_for.namespace, taken_for.name
        elif held.holder is not None:
            namespace, name = held.holder
        else:
            return inf
        bound = self._last_bind.get(node, -inf)  # it may be that pod's: a bind keeps a lock that the pod had already
        try:
            found = Pod.from_object(await self._cluster.get(Kind.PODS, name, namespace))
        except NotFound:
            return bound + _ALLOCATE_WITHIN
        except MalformedObject:
            return inf
        is_another = taken_for is not None and found.uid != taken_for.uid
        elsewhere = (found.node_name or found.annotations.get(NODE, node)) != node
        if is_another or elsewhere or found.ended(self._clock()):
            return bound + _ALLOCATE_WITHIN
        if found.node_name and is_served(found):
            return self._clock() + _ALLOCATE_WITHIN
        return inf

    async def release(self, node: str, pod: Pod, lock: NodeLock = COMMON_LOCK) -> None:
        """Let the lock go if it was taken here for this pod; best effort, as it expires.

        One that the pod had already stays: another scheduler's extender may be binding the same pod under it.
        """
        taken = self._taken.get((node, lock.annotation))
        if taken is not None and taken.pod.uid == pod.uid:
            del self._taken[node, lock.annotation]
            await self.remove(node, lock, taken.value)

    async def remove(self, node: str, lock: NodeLock, value: str) -> None:
        """Let a lock go that still has this value; a bind that finds its pod's lock gives it another."""
        for _ in range(_TRIES):
            with contextlib.suppress(Conflict):
                found = await self._cluster.get(Kind.NODES, node)
                if (found["metadata"].get("annotations") or {}).get(lock.annotation) != value:
                    return
                version = found["metadata"]["resourceVersion"]
                patch = {"metadata": {"resourceVersion": version, "annotations": {lock.annotation: None}}}
                await self._cluster.patch(Kind.NODES, node, patch)
                return

    def _contention(self, node: str, lock: NodeLock = COMMON_LOCK) -> str:
        if not lock.names_holder:
            return f"node {node} has been locked within {lock.expires / 60:g} minutes"
        if self._patience <= 0:
            return f"node {node} has been locked within {format_go_duration(self._expires)}: node lock contention"
        waited = format_go_duration(self._patience)
        return f"timed out after {waited} waiting for node {node} to be unlocked: node lock contention"


def _owner(pod: Pod) -> str:
    """How the value of a lock ends that the pod has."""
    return f",{pod.namespace},{pod.name}"


def _number(version: str) -> int:
    """A resourceVersion as the number that it is; one that is none is later than any."""
    return int(version) if version.isascii() and version.isdigit() else sys.maxsize
