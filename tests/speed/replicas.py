"""Replicas that charge the same quotas, as far as that is simulated: what their watches show, and what charges."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quota.objects import vendors

from hami_webhook.charging.queue import ChargeQueue
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.pricing import ClusterCapacity

VENDORS = vendors()


@dataclass
class Watched:
    """The quotas as a replica's informer shows them, one of each namespace."""

    shown: dict[str, ResourceQuota]
    store: QuotaStore = field(init=False)

    def silence(self) -> float:
        return 0.0

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        return [self.shown[scope]]

    def show(self, version: ResourceQuota) -> None:
        if int(version.resource_version) > int(self.shown[version.namespace].resource_version):
            self.shown[version.namespace] = version
            self.store.shown(version)


def charger(
    watched: Watched,
    source: ResourceQuotas,
    cluster: MemoryCluster,
    clock: Callable[[], float],
    dice: random.Random,
    exists: Callable[[str], bool],
) -> ChargeQueue:
    """What charges in a replica; `exists` says whether the pod with a UID was created."""
    watched.store = QuotaStore(source, VENDORS, clock=clock, cache=watched, jitter=dice.random)
    recomputer = Recomputer(watched.store, PodReader(cluster), VENDORS, ClusterCapacity(), clock=clock)
    return ChargeQueue(watched.store, clock=clock, recomputer=recomputer, shows=lambda account, uid, entry: exists(uid))
