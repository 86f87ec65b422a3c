"""Informers that keep the caches, and tell subscribers of changes by kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from hami_webhook.assembly import Core
from hami_webhook.caches import Change
from hami_webhook.cluster.api import JSON, Kind, WatchType
from hami_webhook.cluster.informer import Change as InformerChange
from hami_webhook.cluster.informer import Informer, Replaced
from hami_webhook.controller.loops import Loops, contained

Subscriptions = Mapping[Kind, Callable[[Change[Any]], None]]

_OPTIONAL = (Kind.DEVICES, Kind.ACCELERATOR_QUOTAS)
_LOOK_AGAIN = 5.0
"""Seconds after which a kind that isn't installed is asked for again: until then nothing of it is charged."""

_WATCHED = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS, Kind.PODS)


class Subscriber(Protocol):
    """Who wants to know of changes."""

    def subscriptions(self) -> Subscriptions:
        """What is called after each change in the cache, by kind."""
        ...


class SharedInformers:
    """One informer for each kind that the core reads; of AcceleratorQuotas and Koordinator's Devices where they are
    installed. Subscribers are told of each change in their order, once the cache has it.

    `disruption_budgets`: PodDisruptionBudgets are watched too.
    """

    def __init__(
        self,
        core: Core,
        subscribers: Iterable[Subscriber] = (),
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        disruption_budgets: bool = False,
    ) -> None:
        self._core = core
        self._subscriptions = [each.subscriptions() for each in subscribers]
        self._loops = Loops(core.failures, sleep=sleep)
        devices = (Kind.DEVICES,) if any(scheduler.reads_devices for scheduler in core.vendors.foreign) else ()
        self._informers = {
            kind: Informer(
                core.cluster,
                kind,
                self._handler(kind),
                clock=core.clock,
                sleep=sleep,
                random=jitter,
                look_again=_LOOK_AGAIN if kind in _OPTIONAL else None,
                expected=kind is not Kind.ACCELERATOR_QUOTAS,
            )
            for kind in (*devices, *_WATCHED, *([Kind.POD_DISRUPTION_BUDGETS] if disruption_budgets else ()))
        }
        core.caches.current_within = self._informers[Kind.RESOURCE_QUOTAS].alive_within
        core.caches.namespaces_current_within = self._informers[Kind.NAMESPACES].alive_within
        core.caches.accelerator_quotas.alive_within = self._informers[Kind.ACCELERATOR_QUOTAS].alive_within

    @property
    def synced(self) -> bool:
        """Whether every cache has had its first list, or its kind can't be listed."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def ages(self) -> Iterator[tuple[Kind, float]]:
        """For how many seconds the cluster hasn't been heard of by each cache that was ever filled."""
        now = self._core.clock()
        for kind, informer in self._informers.items():
            if informer.last_alive is not None:
                yield kind, max(0.0, now - informer.last_alive)

    def sizes(self) -> Iterator[tuple[Kind, int]]:
        """How many objects each cache has."""
        yield from ((kind, informer.size) for kind, informer in self._informers.items())

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()

    def pods_complete(self, version: int) -> bool:
        """Whether the cache has all pods that were bound before a node got this resourceVersion.

        Not for a version of before the last list of nodes, which may hide what happened to them until then.
        """
        shown, listed = self._informers[Kind.PODS].version, self._informers[Kind.NODES].listed
        return shown.isdigit() and listed.isdigit() and int(shown) >= max(version, int(listed))

    async def run(self) -> None:
        """Keep the caches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(self._loops.keep(f"{kind.value} informer", informer.run))

    def _handler(self, kind: Kind) -> Callable[[InformerChange], None]:
        loop, caches = f"{kind.value} informer", self._core.caches
        subscribed = [subscriptions[kind] for subscriptions in self._subscriptions if kind in subscriptions]

        def follow(obj: JSON, *, gone: bool) -> None:
            with contained(self._core.failures, loop, _name(obj)):
                change = (caches.drop if gone else caches.put)(kind, obj)
                for changed in subscribed:
                    with contained(self._core.failures, loop, _name(obj)):
                        changed(change)

        def handle(change: InformerChange) -> None:
            if isinstance(change, Replaced):
                for obj in change.items:
                    follow(obj, gone=False)
            else:
                follow(change.object, gone=change.type is WatchType.DELETED)

        return handle


def _name(obj: JSON) -> str:
    """The name of an object in logs."""
    meta = obj.get("metadata")
    found = meta if isinstance(meta, dict) else {}
    return f"{found.get('namespace', '')}/{found.get('name', '')}".removeprefix("/")
