"""Informers that keep the caches, and pass changes to subscribers by kind.

A subscriber hears of a change once the cache has it, so what it looks up is no older than what it hears. It is called
in the informer's turn: it notes what is due, and waits for nothing. How a watch is kept up is the business of
`cluster/informer.py`; why there is one stream, docs/decisions/0013-one-stream-of-changes.md says.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from math import inf

from hami_webhook.cluster.api import JSON, Cluster, Kind, WatchType
from hami_webhook.cluster.informer import Change as InformerChange
from hami_webhook.cluster.informer import Informer, Replaced
from hami_webhook.devices.registry import Vendors
from hami_webhook.loops import Loops, contained
from hami_webhook.state.caches import Caches, Subscriber

OF_CLAIMS = (Kind.RESOURCE_CLAIMS, Kind.RESOURCE_CLAIM_TEMPLATES, Kind.RESOURCE_SLICES, Kind.DEVICE_CLASSES)
"""The kinds that claims are charged by: where their API isn't served, one line says so."""
_OF_FIT = (Kind.RESOURCE_CLAIMS, Kind.RESOURCE_SLICES)
_MAY_BE_MISSING = {Kind.ACCELERATOR_QUOTAS, *OF_CLAIMS[1:]}

_LOOK_AGAIN = 5.0
"""Seconds after which a kind that isn't installed is asked for again: until then nothing of it is charged."""


def watched_kinds(vendors: Vendors, *, disruption_budgets: bool = False, charges: bool = True) -> tuple[Kind, ...]:
    """The kinds that are read: PodDisruptionBudgets where `disruption_budgets`, others where they are enabled.

    `charges`: all by which claims are charged; DeviceClasses whether they are or not, as one may keep kube-scheduler
    from placing pods with limits. Fit needs what claims hold of the devices that are published.
    """
    devices = (Kind.DEVICES,) if any(scheduler.reads_devices for scheduler in vendors.foreign) else ()
    return (
        *devices,
        *(kind for kind in Kind if kind.watched),
        *((OF_CLAIMS if charges else _OF_FIT) if vendors.drivers else (OF_CLAIMS[-1:] if charges else ())),
        *([Kind.POD_DISRUPTION_BUDGETS] if disruption_budgets else ()),
    )


class SharedInformers:
    """One informer for each kind; AcceleratorQuotas and Koordinator's Devices are watched where they are installed.

    They are there before the caches, which ask them what may be believed; `run` then fills the caches.
    """

    def __init__(
        self,
        cluster: Cluster,
        kinds: Iterable[Kind],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._informers = {
            kind: Informer(
                cluster,
                kind,
                clock=clock,
                sleep=sleep,
                random=jitter,
                look_again=_LOOK_AGAIN if kind.optional else None,
                expected=kind not in _MAY_BE_MISSING,
            )
            for kind in kinds
        }

    @property
    def synced(self) -> bool:
        """Whether every cache has had its first list, or its kind can't be listed."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def silence(self, kind: Kind) -> float:
        """Seconds since a kind's watch gave a sign of life, when its cache had all; infinite while it may lack some."""
        informer = self._informers.get(kind)
        return inf if informer is None else informer.silence

    def ages(self) -> Iterator[tuple[Kind, float]]:
        """For how many seconds the cluster hasn't been heard of by each cache that was ever filled."""
        now = self._clock()
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

    async def run(self, caches: Caches, failures: Counter[str], subscribers: Iterable[Subscriber] = ()) -> None:
        """Keep the caches until cancelled. Subscribers are notified of each change in their order, once a cache has it.

        `failures` counts unexpected exceptions by informer.
        """
        loops = Loops(failures, sleep=self._sleep)
        subscribers = list(subscribers)
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                handle = change_handler(kind, caches, failures, subscribers)
                tasks.create_task(loops.keep(_loop(kind), partial(informer.run, handle)))


def change_handler(
    kind: Kind, caches: Caches, failures: Counter[str], subscribers: Iterable[Subscriber] = ()
) -> Callable[[InformerChange], None]:
    """What an informer calls: it keeps the cache of a kind, and notifies subscribers of each change."""
    subscriptions = [each.subscriptions() for each in subscribers]
    subscribed = [each[kind] for each in subscriptions if kind in each]

    def follow(obj: JSON, *, gone: bool) -> None:
        with contained(failures, _loop(kind), _name(obj)):
            change = (caches.drop if gone else caches.put)(kind, obj)
            for changed in subscribed:
                with contained(failures, _loop(kind), _name(obj)):
                    changed(change)

    def handle(change: InformerChange) -> None:
        if isinstance(change, Replaced):
            for obj in change.items:
                follow(obj, gone=False)
        else:
            follow(change.object, gone=change.type is WatchType.DELETED)

    return handle


def _loop(kind: Kind) -> str:
    return f"{kind.value} informer"


def _name(obj: JSON) -> str:
    """The name of an object in logs."""
    meta = obj.get("metadata")
    found = meta if isinstance(meta, dict) else {}
    return f"{found.get('namespace', '')}/{found.get('name', '')}".removeprefix("/")
