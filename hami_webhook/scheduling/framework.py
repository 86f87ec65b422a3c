"""What the parts of the scheduler extender share, as plugins of kube-scheduler share the framework's Handle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from hami_webhook.cluster.api import Cluster
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.state.cluster_cache import ClusterCache

_K = TypeVar("_K")
_V = TypeVar("_V")


async def _at_once() -> None:
    pass


def keep_latest(known: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Keep the value, and of all only the latest."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        known.popitem(last=False)


class Handle(Struct, frozen=True):
    """The cluster, and what the caches show of it.

    `clock` gives Unix seconds. `ready` returns once the caches may be believed. `quotas` are a namespace's quotas from
    the cache, None if that can't be believed. `pods_complete` says whether the cache has all pods that were bound up to
    a resourceVersion.
    """

    cluster: Cluster
    state: ClusterCache
    vendors: Vendors
    clock: Callable[[], float]
    ready: Callable[[], Awaitable[None]] = _at_once
    quotas: Callable[[str], Sequence[ResourceQuota] | None] = lambda namespace: None
    pods_complete: Callable[[int], bool] = lambda version: False
    disruption_budgets: Callable[[], Iterable[PodDisruptionBudget]] = tuple
