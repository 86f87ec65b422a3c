"""Reviews of ResourceClaims: a new one, and what one is allocated (docs/spec/dra.md#7).

What is charged is the caller's; a claim that asks for no device of ours costs nothing, and none is changed.
"""

from __future__ import annotations

from typing import Protocol

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.ports import ChargedPod
from hami_webhook.admission.review import UNCHANGED, Answer, ClaimReview, audit_of
from hami_webhook.kube.claims_wire import ResourceClaim


class ClaimCharging(Protocol):
    """The quotas that claims are charged to. Both raise `Denied`."""

    async def created(self, claim: ResourceClaim, *, dry_run: bool, time_left: float | None) -> ChargedPod:
        """Charge a new claim, unless it is covered by its pod's charge."""
        ...

    async def allocated(
        self, former: ResourceClaim, claim: ResourceClaim, *, dry_run: bool, time_left: float | None
    ) -> ChargedPod:
        """Charge the devices that this update newly allocates to a claim."""
        ...


class ClaimHandler:
    """Answers reviews of claims. `charging` is None where claims aren't charged."""

    def __init__(self, charging: ClaimCharging | None) -> None:
        self._charging = charging

    async def review(self, review: ClaimReview, time_left: float | None = None) -> Answer:
        """The answer to a review of a claim. Raises `Denied` for a refusal."""
        if review.kind != "ResourceClaim":
            raise Denied(400, f"/claims reviews ResourceClaims, not {review.kind or 'objects without a kind'}")
        if self._charging is None:
            return UNCHANGED
        if review.operation == "CREATE" and not review.subresource:
            charged = await self._charging.created(review.object, dry_run=review.dry_run, time_left=time_left)
        elif review.operation == "UPDATE" and review.subresource == "status":
            charged = await self._charging.allocated(
                review.old_object, review.object, dry_run=review.dry_run, time_left=time_left
            )
        else:
            return UNCHANGED
        return Answer(warnings=charged.warnings, audit=audit_of(charged.amounts))
