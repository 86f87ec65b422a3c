"""What each kind of quotas is charged with: its store, the recompute of it, and the queue of its charges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from hami_webhook.charging.queue import ChargeCounts, ChargeQueue
from hami_webhook.charging.recomputer import PodReader, Recomputer, recompute_durations
from hami_webhook.charging.sources import QuotaSource
from hami_webhook.charging.store import QuotaCache, QuotaStore
from hami_webhook.devices.registry import Vendors
from hami_webhook.durations import Histogram
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.claims import ClaimReader
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.floors import is_shown
from hami_webhook.quota.ledger import UPDATE, Entry, new_attempt
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.recompute import LedgerBounds


class ChargedKind(Struct, frozen=True):
    """The quotas of one kind, and what charges them."""

    store: QuotaStore
    recomputer: Recomputer
    queue: ChargeQueue


class ChargedKinds(Struct, frozen=True, kw_only=True):
    """What the kinds of quotas have in common; `timeout` is that of a charge in seconds.

    `devices` lists the nodes' devices. `capacity` also lists claims, if claims are charged.
    """

    vendors: Vendors
    devices: ClusterCapacity
    capacity: ClusterCapacity
    pods: PodReader
    deleted: DeletedLedgers
    bounds: LedgerBounds
    timeout: float
    clock: Callable[[], float]
    claims: ClaimReader | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    new_attempt: Callable[[], str] = new_attempt
    counts: ChargeCounts = field(default_factory=ChargeCounts)
    durations: Histogram = field(default_factory=recompute_durations)

    def of(self, source: QuotaSource, cache: QuotaCache) -> ChargedKind:
        """The quotas of one kind, as they are read live and as a watch shows them."""
        store = QuotaStore(
            source,
            self.vendors,
            clock=self.clock,
            cache=cache,
            sleep=self.sleep,
            deleted=self.deleted.note,
            new_attempt=self.new_attempt,
        )
        recomputer = Recomputer(
            store,
            self.pods,
            self.vendors,
            self.capacity,
            clock=self.clock,
            bounds=self.bounds,
            deleted=self.deleted,
            durations=self.durations,
            claims=self.claims,
        )
        queue = ChargeQueue(
            store,
            clock=self.clock,
            recomputer=recomputer,
            sleep=self.sleep,
            timeout=self.timeout,
            max_ledger=self.bounds.most,
            counts=self.counts,
            shows=self._shows,
        )
        return ChargedKind(store, recomputer, queue)

    def _shows(self, account: QuotaAccount, identity: str, entry: Entry) -> bool:
        """Whether a pod was seen that costs the quota by itself what its entry says, or shows its update."""
        pod = self.pods.known.observed(identity.removeprefix(UPDATE))
        if pod is None:
            return False
        return is_shown(account, entry, pod, self.vendors, self.devices, self.clock(), self.bounds.placement_ttl)
