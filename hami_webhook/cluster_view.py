"""The cluster as the caches have it, for readers only: audits, metrics, tables and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo

from hami_webhook.caches import Caches
from hami_webhook.device_config import builtin_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.misread import Misreading, misreadings
from hami_webhook.scheduling.cluster_cache import ClusterCache


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`clock` gives Unix seconds. A placement that isn't bound counts for `placement_ttl` seconds. Handshakes are in
    the time zone `zone`, None for the local one.
    """

    caches: Caches
    vendors: Vendors
    clock: Callable[[], float]
    placement_ttl: float
    zone: tzinfo | None = None

    @property
    def state(self) -> ClusterCache:
        """Nodes and pods, as Fit needs them."""
        return self.caches.state

    def misreadings(self, quota: ResourceQuota) -> list[Misreading]:
        """What of a quota is misread, with the cards that are known now."""
        return misreadings(quota, self.vendors, builtin_vendors(), self.state)
