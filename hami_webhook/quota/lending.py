"""Read whether a quota reclaims its nominal from other teams, and find invalid fields (docs/spec/queues.md#7)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.kube.quantity import Quantity, QuantityError, is_binary
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import seconds_of

MIN_RUNTIME = 600.0
"""Seconds that a pod runs before it may be evicted for another quota's pod, unless its own quota says otherwise."""


class Reclaim(Enum):
    """The values of `spec.reclaim`."""

    OFF = "off"
    DRY_RUN = "dry-run"
    ON = "on"

    @classmethod
    def of(cls, quota: ResourceQuota) -> Reclaim:
        """Read `spec.reclaim` of a quota; an unknown value means `off`."""
        return _RECLAIM.get(quota.lending.reclaim, cls.OFF) if quota.lending is not None else cls.OFF


_RECLAIM = {each.value: each for each in Reclaim}


def min_runtime(quota: ResourceQuota) -> float:
    """Seconds that a pod of the quota runs before it may be evicted for another's."""
    try:
        return _seconds(quota)
    except ValueError:
        return MIN_RUNTIME


def lending_faults(account: QuotaAccount) -> Iterator[tuple[str, str]]:
    """The fields whose values aren't right, with what is wrong and would be right.

    The API server refuses most of them by the definition of the kind; this is for objects from files, too.
    """
    quota = account.quota
    if quota.lending is None:
        return
    for key, written in quota.lending.nominal.items():
        text = _nominal_fault(written, quota.hard.get(key), may_be_bytes=key in account.bytes_per_unit)
        if text:
            yield key, f"nominal {key}: {text}"
    reclaim = quota.lending.reclaim
    if reclaim and reclaim not in _RECLAIM:
        yield "reclaim", f"reclaim: {reclaim} isn't known, so nobody is evicted; write off, dry-run or on"
    if Reclaim.of(quota) is not Reclaim.OFF and not (quota.lending.nominal or quota.windows):
        yield (
            "reclaim",
            f"reclaim: {reclaim} has no effect without nominal or windows; set nominal to the team's own amounts",
        )
    try:
        _seconds(quota)
    except ValueError as error:
        text = f"{quota.lending.min_runtime} can't be read, so it is 10m; it {error}"
        yield "reclaimMinRuntime", f"reclaimMinRuntime: {text}"


def _nominal_fault(written: object, hard: object, *, may_be_bytes: bool) -> str:
    if hard is None:
        return "has no effect, as hard doesn't limit it; limit it there, or leave it out"
    try:
        nominal, limit = Quantity.parse(written), Quantity.parse(hard)
    except QuantityError:
        return f"{written} is no amount, so nothing is the quota's own; write one that is at most hard, {hard}"
    if not 0 <= nominal.value <= limit.value:
        return f"{written} must be at least 0 and at most hard, {hard}"
    if may_be_bytes and is_binary(written) != is_binary(hard):
        return f"{written} isn't in the unit of hard, {hard}; write both with a binary suffix such as Gi, or neither"
    return ""


def _seconds(quota: ResourceQuota) -> float:
    """Raises ValueError with what would be right."""
    written = quota.lending.min_runtime if quota.lending is not None else ""
    return seconds_of(written or None, MIN_RUNTIME)
