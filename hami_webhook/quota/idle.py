"""Which pods of a quota hold cards and compute nothing, and what becomes of them (docs/spec/time.md#5).

Pure: what was measured comes in. Who computes is for the nodes to say; here is for how long who doesn't may stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import Enforcement, label_of, seconds_of
from hami_webhook.quota.holdings import placed_at
from hami_webhook.quota.pricing import ClusterCapacity, charge_of

IDLE_AFTER, IDLE = "hami.io/quota-idle-after", "hami.io/quota-idle"
"""The annotations; an AcceleratorQuota has fields of these names."""

_WARN, _EVICT = "Warn", "Evict"


class IdleRule(Struct, frozen=True):
    """What a quota says of its pods that compute nothing for `after` seconds."""

    quota: str
    after: float
    evicts: bool = False

    @property
    def notice(self) -> float:
        """For how many seconds a pod is idle when it gets its condition; before an eviction, it has as long again."""
        return self.after / 2 if self.evicts else self.after


def limits_idle(quota: ResourceQuota) -> bool:
    """Whether anything is written about idle pods on a quota."""
    return IDLE_AFTER in quota.annotations


def idle_rule(quota: ResourceQuota) -> IdleRule | None:
    """What a quota says of idle pods; None for nothing, and for what can't be read. One that observes evicts nobody."""
    try:
        after = _read(quota.annotations.get(IDLE_AFTER))
    except ValueError:
        return None
    if after is None:
        return None
    evicts = quota.annotations.get(IDLE) == _EVICT and Enforcement.of(quota) is not Enforcement.OBSERVE
    return IdleRule(label_of(quota), after, evicts)


def strictest(rule: IdleRule, other: IdleRule | None) -> IdleRule:
    """The rule that holds for a pod of both quotas: one that evicts, then the shorter one."""
    return rule if other is None or (not rule.evicts, rule.after) < (not other.evicts, other.after) else other


def held_since(
    account: QuotaAccount, pod: Pod, vendors: Vendors, capacity: ClusterCapacity, now: float, placement_ttl: float
) -> float | None:
    """Since when a pod that runs could compute on cards that cost the quota; None for any other."""
    if pod.phase != "Running" or pod.started is None or pod.deletion_time is not None or not account.covers(pod):
        return None
    charge = charge_of(pod, vendors, capacity, now, placement_ttl, account.cards)
    costs = charge.placed and any(charge.exact.get(key) for key in account.hard)
    return min(now, max(pod.started, placed_at(pod, now))) if costs else None


def idle_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """The annotations about idle pods whose values aren't right, with what is wrong and would be right."""
    written = quota.annotations
    try:
        _read(written.get(IDLE_AFTER))
    except ValueError as error:
        yield IDLE_AFTER, f"{IDLE_AFTER}: {written[IDLE_AFTER]} can't be read, so it has no effect; it {error}"
    mode = written.get(IDLE)
    if mode not in (None, _WARN, _EVICT):
        yield IDLE, f"{IDLE}: {mode} isn't known, so nobody is evicted; write {_WARN} or {_EVICT}"
    elif mode is not None and not limits_idle(quota):
        yield IDLE, f"{IDLE} has no effect without {IDLE_AFTER}; set that, too"


def _read(text: str | None) -> float | None:
    """Seconds. Raises ValueError with what would be right."""
    if text is None:
        return None
    seconds = seconds_of(text, 0.0)
    if seconds < 1:
        raise ValueError("must be at least 1s")
    return seconds
