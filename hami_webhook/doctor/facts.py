"""What the checks read of a cluster, each object once, and what they find."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Forbidden, Kind, NotFound
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.config import ConfigError
from hami_webhook.doctor.installation import (
    Effective,
    Installation,
    Process,
    assumed,
    read_effective,
    read_installation,
)
from hami_webhook.explain.live import LiveReading, read_allowed
from hami_webhook.state.cluster_view import ClusterView


class Finding(Struct, frozen=True):
    """A fault: what it is about, what is wrong, and what to do. `advice`: it works so, and could be better."""

    subject: str
    fault: str
    remedy: str
    advice: bool = False


T = TypeVar("T")
Find = Callable[["Facts"], AsyncIterator[Finding]]


class Diagnostic(Struct, frozen=True):
    """One check: `find` raises `Forbidden` where rights are lacking.

    `after` are checks whose faults explain what this one would find, so that it isn't made then.
    """

    name: str
    what: str
    find: Find
    after: Sequence[str] = ()


class Facts(Struct):
    """The cluster as its checks see it.

    `now` is the API server's clock in Unix seconds before anything was read: nothing is older than it seems by it. What
    may be newer is compared with the clock after it was read (`timed`).

    `system` is the namespace of the installation, `namespace` the user's; `view` shows what could be read of nodes,
    pods and quotas.
    """

    api: KubernetesCluster
    system: str
    namespace: str
    now: float
    effective: Effective
    reading: LiveReading
    view: ClusterView
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _installation: Installation | Forbidden | None = None
    _answers: dict[str, asyncio.Task[JSON]] = {}

    @classmethod
    async def read(cls, api: KubernetesCluster, system: str, namespace: str) -> Facts:
        """Read what most checks need. Raises `ClusterError`."""
        try:
            effective = await read_effective(api, system)
        except ConfigError:  # a check of its own says so
            effective = assumed(system)
        now = await api.time()
        reading = await read_allowed(api, namespace, claims=effective.charges_claims)
        simulation = await effective.simulation(reading.bundle, now)
        return cls(api, system, namespace, now, effective, reading, simulation.core.view)

    async def installation(self) -> Installation:
        """The Deployments of the program. Raises `Forbidden`."""
        if self._installation is None:
            try:
                self._installation = await read_installation(self.api, self.system)
            except Forbidden as error:
                self._installation = error
        if isinstance(self._installation, Forbidden):
            raise self._installation
        return self._installation

    async def process(self, role: str) -> Process | None:
        """The process of a role. Raises `Forbidden`."""
        return (await self.installation()).process(role)

    def require(self, *kinds: Kind) -> None:
        """Raise `Forbidden` unless all objects of the kinds could be read."""
        for kind in kinds:
            if kind in self.reading.unseen:
                raise Forbidden(self.reading.unseen[kind].sentence)

    async def get(self, path: str) -> JSON | None:
        """An object by its path, None if it isn't there. Raises `ClusterError`."""
        if path not in self._answers:
            self._answers[path] = asyncio.ensure_future(self.api.call("GET", path))
        try:
            return await self._answers[path]
        except NotFound:
            return None

    async def items(self, path: str) -> list[JSON]:
        """The objects of a list by its path. Raises `ClusterError`."""
        found = await self.get(path)
        return [] if found is None else list(found["items"])

    async def timed(self, read: Awaitable[T]) -> tuple[T, float, float]:
        """What a read gives, and the API server's clock before and after it, in Unix seconds. Raises `ClusterError`."""
        before = await self.api.time()
        found = await read
        return found, before, await self.api.time() + 1.0  # answers are dated in whole seconds

    async def items_now(self, path: str) -> list[JSON]:
        """The objects of a list as they are now. Raises `ClusterError`."""
        self._answers.pop(path, None)
        return await self.items(path)
