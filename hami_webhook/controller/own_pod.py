"""The pod that the process runs in: events on it, and the label by which HAMi's chart has its Service select it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NoReturn

from hami_webhook.cluster.api import Cluster, ClusterError, EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod
from hami_webhook.loops import Sleep
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)

_COMPONENT = ("app.kubernetes.io/component", "hami-scheduler")
"""The label of the pods that HAMi's chart makes for its scheduler."""
_ROLE = "hami.io/scheduler-role"
_PAUSE = 2.0
"""Seconds until a label that couldn't be written is tried again, and between two looks for a pod that isn't cached."""


class OwnPod:
    """The process's own pod, as the cache has it."""

    def __init__(
        self,
        cluster: Cluster,
        state: ClusterCache,
        object_events: ObjectEvents,
        namespace: str,
        name: str,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._object_events = object_events
        self._namespace = namespace
        self._name = name
        self._sleep = sleep
        self._changed = asyncio.Event()

    async def warn(self, reason: EventReason, message: str) -> None:
        """Record a Warning event on the pod, once it is in the cache."""
        while (pod := self._find()) is None:
            await self._sleep(_PAUSE)
        await self._object_events.warn("Pod", self._namespace, self._name, pod.uid, reason, message)

    async def record(self, reason: EventReason, message: str) -> None:
        """Record a Warning event on the pod now, each time; without its UID while it isn't in the cache."""
        pod = self._find()
        uid = pod.uid if pod is not None else ""
        with contextlib.suppress(ClusterError):
            note = EventNote("Pod", self._namespace, self._name, uid, "Warning", reason, message)
            await self._cluster.record_event(note)

    def subscriptions(self) -> Subscriptions:
        """The changes of this pod."""
        return {Kind.PODS: self._pod_changed}

    def _pod_changed(self, change: Change[Pod]) -> None:
        if (change.key.namespace, change.key.name) == (self._namespace, self._name):
            self.changed()

    def changed(self) -> None:
        """Have `keep_role` compare the label: the pod, or what the role depends on, may have changed."""
        self._changed.set()

    async def keep_role(self, answers: Callable[[], bool]) -> NoReturn:
        """Keep the pod's role label until cancelled: `leader` while this process may answer reviews, else `follower`.

        HAMi's Service has one endpoint, the leader, and none while a new one is elected; pods are then admitted without
        a review. Every replica of ours can answer, so every one that may carries the label.
        """
        while True:
            self._changed.clear()
            if await self.label("leader" if answers() else "follower"):
                await self._changed.wait()
            else:
                await self._sleep(_PAUSE)

    async def label(self, role: str) -> bool:
        """Set the role on the pod, if it is one of HAMi's chart; False if that failed."""
        pod = self._find()
        if pod is None or pod.labels.get(_COMPONENT[0]) != _COMPONENT[1] or pod.labels.get(_ROLE) == role:
            return True
        patch = {"metadata": {"uid": pod.uid, "labels": {_ROLE: role}}}
        try:
            await self._cluster.patch(Kind.PODS, self._name, patch, self._namespace)
        except ClusterError as error:
            logger.warning("the label %s of this pod can't be set to %s: %s", _ROLE, role, error)
            return False
        return True

    def _find(self) -> Pod | None:
        pods = self._state.pods_in(self._namespace)
        return next((pod for pod in pods if pod.name == self._name), None)
