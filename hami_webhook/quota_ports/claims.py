"""How reviews of ResourceClaims reach the quotas (docs/spec/dra.md#7)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from hami_webhook.admission.denial import Denied
from hami_webhook.charging.claims import ClaimCharger
from hami_webhook.charging.queue import ChargeResult, Outcome
from hami_webhook.cluster.watches import Watches
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.holders import key_of
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.quota.refusals import Refusal
from hami_webhook.quota_ports.answers import denial, unsynced


class ClaimPort:
    """How claims are charged: ClaimHandler's port to the quotas."""

    def __init__(self, charger: ClaimCharger, watches: Watches) -> None:
        self._charger = charger
        self._watches = watches

    async def created(self, claim: ResourceClaim, *, dry_run: bool, time_left: float | None) -> ChargeResult:
        return await self._charged(claim, self._charger.created(claim, dry_run=dry_run, time_left=time_left))

    async def allocated(
        self, former: ResourceClaim, claim: ResourceClaim, *, dry_run: bool, time_left: float | None
    ) -> ChargeResult:
        charging = self._charger.allocated(former, claim, dry_run=dry_run, time_left=time_left)
        return await self._charged(claim, charging)

    async def _charged(self, claim: ResourceClaim, charging: Coroutine[Any, Any, Outcome]) -> ChargeResult:
        if not self._watches.synced:
            charging.close()
            raise unsynced(key_of(claim)[0])
        outcome = await charging
        if isinstance(outcome, Refusal):
            raise denial(outcome)
        return outcome


async def claim_inventory(claims: ClaimCache, watches: Watches) -> DeviceInventory:
    """The devices and classes of ResourceClaims as they are known now. Raises `Denied` while they aren't."""
    if not watches.synced:
        raise Denied(503, "ResourceClaims: caches not synced; try again", retry_after=1)
    await claims.prepare_classes()
    return claims.inventory
