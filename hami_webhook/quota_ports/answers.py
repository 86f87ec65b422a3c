"""How admission answers what the quotas say of a charge."""

from __future__ import annotations

from hami_webhook.admission.denial import Denied
from hami_webhook.quota.refusals import Refusal


def unsynced(namespace: str) -> Denied:
    """The refusal of a charge while the caches may not be believed yet."""
    return Denied(503, f"quota: can't charge namespace {namespace} now: caches not synced; try again", retry_after=1)


def denial(refusal: Refusal, why: str = "") -> Denied:
    """The refusal of a charge as admission gives it; `why` there is no room, if more is known."""
    retry_after = 1 if refusal.code == 503 else None
    message = f"{refusal.message}; {why}" if why else refusal.message
    return Denied(refusal.code, message, cause="quota", retry_after=retry_after)
