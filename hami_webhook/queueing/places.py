"""The places in a queue that pods take over from those that they replace (docs/spec/queues.md#3).

A recreated replica of a StatefulSet is its youngest pod: without this, a later replica that waits gets its room.
Kept for a minute and while the pods live, by the process that watched the former one go; a new leader that didn't has
each pod in the place of its own age.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, MutableMapping

from msgspec import Struct, structs

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.queue_order import QueuedPod

_KEPT = 60.0
"""Seconds for which the place of a pod that is gone is kept."""

_MOST = 256
"""Places kept for one namespace."""

_Name = tuple[str, str]
"""A namespace, and a pod's name."""


class _Left(Struct, frozen=True):
    """The place of a pod that is gone, until Unix seconds, for one with the same request."""

    place: float
    until: float
    request: str


class Places:
    """The inherited waiting times of pods that replace another one, by UID, in Unix seconds.

    A `request` is equal for pods of a namespace that cost the same while they wait.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[_Name, _Left] = OrderedDict()
        self._of_namespace: Counter[str] = Counter()
        self._inherited: dict[str, float] = {}

    def forget(self, uid: str) -> None:
        """A pod is gone that leaves no place."""
        self._inherited.pop(uid, None)

    def leave(self, pod: Pod, request: str, waited: QueuedPod | None, now: float) -> None:
        """Keep the place of a pod that is gone, or failed. `waited` is its place in the queue, if it waited.

        A pod that another gate held, or that stopped counting long ago, leaves no place: otherwise its owner could
        store places for later.
        """
        place = self._inherited.pop(pod.uid, pod.created)
        if pod.queued:
            place = None if waited is None else waited.created
        ended = now if pod.deletion_deadline is None else min(now, pod.deletion_deadline)
        self._drop_old(now)
        name = pod.namespace, pod.name
        if pod.active_deadline is not None and pod.started is not None:
            place = None  # who ends by a deadline would hold room for ever by coming again
        if place is None or pod.gated_by_others or now - ended >= _KEPT or self._of_namespace[pod.namespace] >= _MOST:
            return
        if name not in self._left:
            self._of_namespace[pod.namespace] += 1
        self._left[name] = _Left(place, ended + _KEPT, request)
        self._left.move_to_end(name)

    def come(self, pod: Pod, request: Callable[[], str], now: float) -> None:
        """A pod is there that waits: it takes the place of the one before it that had its name and its request."""
        name = pod.namespace, pod.name
        left = self._left.get(name)
        if left is None:
            return
        self._remove(name)
        if now < left.until and left.request == request() and not pod.gated_by_others:
            self._inherited[pod.uid] = left.place

    def assign(self, waiting: MutableMapping[str, QueuedPod]) -> None:
        """Give the pods that wait their places."""
        for uid, place in self._inherited.items():
            queued = waiting.get(uid)
            if queued is not None and place < queued.created:
                waiting[uid] = structs.replace(queued, created=place)

    def _drop_old(self, now: float) -> None:
        while self._left:
            name, left = next(iter(self._left.items()))
            if now < left.until:
                return
            self._remove(name)

    def _remove(self, name: _Name) -> None:
        del self._left[name]
        self._of_namespace[name[0]] -= 1
        if not self._of_namespace[name[0]]:
            del self._of_namespace[name[0]]
