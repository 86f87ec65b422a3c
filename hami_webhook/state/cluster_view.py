"""The cluster as the caches have it, for readers only: audits, metrics, tables and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import tzinfo

from msgspec import Struct

from hami_webhook.device_config import builtin_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim, Holder
from hami_webhook.dra.holders import Key as ClaimKey
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.quota_lint import Misreading, misreadings
from hami_webhook.state.caches import Caches
from hami_webhook.state.cluster_cache import ClusterCache


class ClusterView(Struct, frozen=True):
    """`clock` gives Unix seconds.

    A placement that isn't bound counts for `placement_ttl` seconds. Handshakes are in the time zone `zone`, None for
    the local one. `capacity`: the cards and claims on which charges depend.
    """

    caches: Caches
    vendors: Vendors
    capacity: ClusterCapacity
    clock: Callable[[], float]
    placement_ttl: float
    zone: tzinfo | None = None

    @property
    def state(self) -> ClusterCache:
        """Nodes and pods, as Fit needs them."""
        return self.caches.state

    def claims_in(self, namespace: str = "") -> Iterator[BareClaim]:
        """Yield the claims, of one namespace or all, that are charged without a pod; quotas treat each like a pod."""
        return self.caches.claims.bare(self._live, namespace)

    def bare_claim(self, key: ClaimKey) -> BareClaim | None:
        """A claim if it is charged by itself."""
        return self.caches.claims.bare_claim(key, self._live)

    def _live(self, uid: str) -> Pod | None:
        pod = self.state.pod(uid)
        return pod if pod is not None and not pod.ended(self.clock()) else None

    def holder(self, pod: Pod) -> Holder:
        """Return what claims hold, and will cost: a pod's own claims, or a claim that is charged by itself."""
        found = self.capacity.claims.of(pod) if self.capacity.claims is not None else None
        return found or Holder()

    def misreadings(self, quota: ResourceQuota) -> list[Misreading]:
        """What of a quota is misread, with the cards that are known now."""
        return misreadings(quota, self.vendors, builtin_vendors(), self.state)
