"""The queues of the quotas that may cover a pod, and a charge to all of them or to none (docs/spec/quota.md#5.2).

No compare-and-swap covers two objects, so Q10 is kept by order: charge the one, then the other, and take the first out
again if the second refuses. Q1 holds for each at every moment, as both only ever charge too much. A process that ends
between the two leaves a charge that expires: a quota errs by refusing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hami_webhook.charging.queue import ChargeQueue, ChargeResult, Outcome
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import ALL_NAMESPACES, ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import Cluster
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.batch import Request
from hami_webhook.quota.known_quotas import KnownQuotas
from hami_webhook.quota.pricing import Charge, ClusterCapacity
from hami_webhook.quota.refusals import Refusal


class ChargeQueues:
    """Where quotas are charged: `own` are ResourceQuotas, `shared` AcceleratorQuotas."""

    def __init__(self, own: ChargeQueue, shared: ChargeQueue | None = None) -> None:
        self.own = own
        self.shared = shared
        self._releasing: set[asyncio.Task[None]] = set()

    def limiting(self, pod: Pod, charge: Charge) -> list[ChargeQueue]:
        """The queues to quotas that may limit what a pod costs, as the caches show them."""
        if self.shared is None:
            return [self.own]
        known = self.shared.store.known(ALL_NAMESPACES)
        return [self.own, self.shared] if known is None or known.limit(pod, charge) else [self.own]

    async def covering(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that cover a namespace's pods, by a live list. Raises `ClusterError`."""
        quotas = [*await self.own.store.listed(namespace)]
        if self.shared is not None:
            listed = await self.shared.store.listed(ALL_NAMESPACES)
            quotas += [quota for quota in listed if namespace in (quota.namespaces or ())]
        return quotas

    async def charge(
        self,
        queues: Sequence[ChargeQueue],
        request: Request,
        time_left: Callable[[], float | None] = lambda: None,
        known: KnownQuotas | None = None,
    ) -> Outcome:
        """Charge one queue after the other.

        If one refuses, or nobody waits any more, take the charge out of all of them.

        `time_left` is in seconds. `known` are the quotas of the first queue, if the caller has just read them.
        """
        charged: list[ChargeResult] = []
        try:
            for queue in queues:
                outcome = await queue.charge(request, time_left(), None if charged else known)
                if isinstance(outcome, Refusal):
                    return outcome
                charged.append(outcome)
        finally:
            if len(charged) < len(queues):
                await self._release(charged)
        amounts = {label: counted for each in charged for label, counted in each.amounts.items()}
        warnings = tuple(warning for each in charged for warning in each.warnings)
        return ChargeResult(amounts, warnings, tuple(part for each in charged for part in each.parts))

    async def _release(self, charged: Sequence[ChargeResult]) -> None:
        """Release charges, even if the caller is cancelled meanwhile."""
        for each in reversed(charged):
            releasing = asyncio.create_task(each.release())
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
            await asyncio.shield(releasing)


def live_queues(
    cluster: Cluster, vendors: Vendors, capacity: ClusterCapacity, clock: Callable[[], float]
) -> ChargeQueues:
    """The queue of ResourceQuotas alone, without caches: every read is live."""
    store = QuotaStore(ResourceQuotas(cluster), vendors, clock=clock)
    recomputer = Recomputer(store, PodReader(cluster), vendors, capacity, clock=clock)
    return ChargeQueues(ChargeQueue(store, clock=clock, recomputer=recomputer))
