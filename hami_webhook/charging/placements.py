"""Charging a placement that costs more than the pod's charge so far, before its annotations are written.

Source: docs/spec/quota.md#8. It chooses no node and writes no pod. In a namespace without quotas nothing is read at
all: the quotas are those that the cache shows, without a list.
"""

from __future__ import annotations

from collections.abc import Callable

from hami_webhook.charging.queue import ChargeResult
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.cluster.api import ClusterError
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import Rejected
from hami_webhook.quota.placements import PodPlacement
from hami_webhook.quota.placing import PlacementRequest
from hami_webhook.quota.pricing import Charge, ChargeOn, ClusterCapacity
from hami_webhook.quota.refusals import Refusal


class NoRoom(Rejected):
    """A quota no longer has room for this placement: take the next best node."""


class PlacementCharger:
    """Charges placements: `placing` entries in the quotas that cover a pod."""

    def __init__(
        self,
        queues: ChargeQueues,
        vendors: Vendors,
        capacity: ClusterCapacity,
        *,
        clock: Callable[[], float],
        placement_ttl: float,
    ) -> None:
        self._queues = queues
        self._vendors = vendors
        self._capacity = capacity
        self._clock = clock
        self._placement_ttl = placement_ttl

    async def charge(
        self, pod: Pod, actual: Charge, on_cards: ChargeOn | None = None, seconds: float | None = None
    ) -> ChargeResult:
        """Charge what `actual` costs beyond the pod's present charge; for `seconds` at most.

        The caller releases the result if it couldn't write the annotations, but not if the write may have succeeded.
        Raises `NoRoom` or `ClusterError`.
        """
        placement = PodPlacement(
            pod, actual, on_cards, self._vendors, self._capacity, self._clock(), self._placement_ttl
        )
        request = PlacementRequest(pod, placement.placing, placement.is_covered)
        outcome = await self._queues.charge(self._queues.limiting(pod, actual), request, lambda: seconds)
        if isinstance(outcome, Refusal):
            raise NoRoom(outcome.message) if outcome.code == 403 else ClusterError(outcome.message)
        return outcome
