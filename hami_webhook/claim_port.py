"""How reviews of claims reach the quotas, and how a charge that is refused is answered."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.watches import Watches
from hami_webhook.dra.holders import key_of
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.quota.account import Refusal
from hami_webhook.quota.admission_charger import Charged, Outcome
from hami_webhook.quota.claim_charger import ClaimCharger


class ClaimPort:
    """How claims are charged: ClaimHandler's port to the quotas."""

    def __init__(self, charger: ClaimCharger, watches: Watches) -> None:
        self._charger = charger
        self._watches = watches

    async def created(self, claim: ResourceClaim, *, dry_run: bool, time_left: float | None) -> Charged:
        return await self._charged(claim, self._charger.created(claim, dry_run=dry_run, time_left=time_left))

    async def allocated(
        self, former: ResourceClaim, claim: ResourceClaim, *, dry_run: bool, time_left: float | None
    ) -> Charged:
        charging = self._charger.allocated(former, claim, dry_run=dry_run, time_left=time_left)
        return await self._charged(claim, charging)

    async def _charged(self, claim: ResourceClaim, charging: Coroutine[Any, Any, Outcome]) -> Charged:
        if not self._watches.synced:
            charging.close()
            raise unsynced(key_of(claim)[0])
        outcome = await charging
        if isinstance(outcome, Refusal):
            raise denial(outcome)
        return outcome


def unsynced(namespace: str) -> Denied:
    return Denied(503, f"quota: can't charge namespace {namespace} now: caches not synced; try again", retry_after=1)


def denial(refusal: Refusal, why: str = "") -> Denied:
    """The refusal of a charge as admission gives it; `why` there is no room, if more is known."""
    retry_after = 1 if refusal.code == 503 else None
    message = f"{refusal.message}; {why}" if why else refusal.message
    return Denied(refusal.code, message, cause="quota", retry_after=retry_after)
