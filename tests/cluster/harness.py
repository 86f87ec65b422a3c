"""What a contract case is given: a cluster under test, its administrator, and objects to make.

A case uses a fresh namespace and only the port, but for what an administrator does, which the harness provides. On a
real API server they need no other component (no scheduler, no controllers, no kubelet).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import builders

from hami_webhook.cluster.api import JSON, Cluster, Kind, WatchEvent, WatchType

GPU, MEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"
WAIT = 20.0
"""Seconds a real server may take to show what it must show."""


class Harness(Protocol):
    """A cluster under test and its administrator."""

    @property
    def cluster(self) -> Cluster: ...

    async def namespace(self) -> str:
        """A namespace nobody else uses."""
        ...

    async def create(self, kind: Kind, obj: JSON) -> JSON: ...

    async def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object at once."""
        ...

    async def recorded(self, namespace: str) -> list[tuple[str, str, int]]:
        """The reason, message and count of the namespace's events."""
        ...

    async def outdated(self, kind: Kind, namespace: str) -> str | None:
        """A resourceVersion too old to watch from, or None if that can't be had."""
        ...

    async def moment(self) -> None:
        """Wait a little between two looks at something that comes in time."""
        ...


Case = Callable[[Harness], Awaitable[None]]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def pod(namespace: str, name: str = "p", **meta: Any) -> JSON:
    made = builders.pod(name, namespace=namespace)
    return {**made, "metadata": {**made["metadata"], **meta}}


def quota(namespace: str, hard: JSON | None = None, name: str = "q") -> JSON:
    return builders.quota(name, namespace=namespace, **(hard or {GPU: "4", MEM: "20000"}))


def lease(name: str, holder: str, **meta: Any) -> JSON:
    return {"metadata": {"name": name, **meta}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}}


async def make_quota(harness: Harness, used: JSON | None = None) -> tuple[str, JSON]:
    """A fresh namespace and its quota `q`, with `used` in its status."""
    namespace = await harness.namespace()
    made = await harness.create(Kind.RESOURCE_QUOTAS, quota(namespace))
    if used is not None:
        made = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": {"used": used}}, namespace)
    return namespace, made


async def make_pod(harness: Harness, **meta: Any) -> tuple[str, JSON]:
    namespace = await harness.namespace()
    return namespace, await harness.create(Kind.PODS, pod(namespace, **meta))


async def watched(
    cluster: Cluster, kind: Kind, version: str, namespace: str, count: int, *, node: str = ""
) -> list[WatchEvent]:
    """The first `count` events after `version` in a namespace, without bookmarks and the mark of a coming deletion."""
    events: list[WatchEvent] = []
    async with asyncio.timeout(WAIT):
        async for event in cluster.watch(kind, version, node=node):
            meta = event.object["metadata"]
            marked = event.type is WatchType.MODIFIED and "deletionTimestamp" in meta
            if event.type is not WatchType.BOOKMARK and not marked and meta.get("namespace") == namespace:
                events.append(event)
            if len(events) == count:
                break
    return events


def version_of(obj: JSON) -> str:
    return str(obj["metadata"]["resourceVersion"])


def at(version: str, **meta: Any) -> JSON:
    return {"metadata": {"resourceVersion": version, **meta}}
