"""Reviews of ResourceClaims: a new one, and what one is allocated (docs/spec/dra.md#7).

A claim that asks for no device of ours costs nothing, and none is changed.
"""

from __future__ import annotations

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import UNCHANGED, Answer, ClaimReview, audit_of
from hami_webhook.charging.claims import ClaimCharger
from hami_webhook.cluster.watches import NoWatches, Watches
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.holders import key_of
from hami_webhook.quota.refusals import Refusal
from hami_webhook.quota_ports.answers import denial, unsynced


class ClaimHandler:
    """Answers reviews of claims. `charger` is None where claims aren't charged."""

    def __init__(self, charger: ClaimCharger | None = None, watches: Watches | None = None) -> None:
        self._charger = charger
        self._watches = watches or NoWatches()

    async def review(self, review: ClaimReview, time_left: float | None = None) -> Answer:
        """The answer to a review of a claim. Raises `Denied` for a refusal."""
        if review.kind != "ResourceClaim":
            raise Denied(400, f"/claims reviews ResourceClaims, not {review.kind or 'objects without a kind'}")
        is_new = review.operation == "CREATE" and not review.subresource
        if self._charger is None or not (is_new or (review.operation, review.subresource) == ("UPDATE", "status")):
            return UNCHANGED
        if not self._watches.synced:
            raise unsynced(key_of(review.object)[0])
        if is_new:
            outcome = await self._charger.created(review.object, dry_run=review.dry_run, time_left=time_left)
        else:
            outcome = await self._charger.allocated(
                review.old_object, review.object, dry_run=review.dry_run, time_left=time_left
            )
        if isinstance(outcome, Refusal):
            raise denial(outcome)
        return Answer(warnings=outcome.warnings, audit=audit_of(outcome.amounts))


async def claim_inventory(claims: ClaimCache, watches: Watches) -> DeviceInventory:
    """The devices and classes of ResourceClaims as they are known now. Raises `Denied` while they aren't."""
    if not watches.synced:
        raise Denied(503, "ResourceClaims: caches not synced; try again", retry_after=1)
    await claims.prepare_classes()
    return claims.inventory
