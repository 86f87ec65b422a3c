"""The sums of placed pods' charges by namespace, updated with each change of a pod, so that queries needn't visit all
pods.

Source: docs/spec/quota.md#8.

A pod is settled if its charge can't change before the pod does: it is bound for good, or doesn't count. The sums
include or omit it for good. Only the others are looked at with each query: placements that aren't bound yet, pods that
are being deleted.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hami_webhook.devices.placement_annotations import NODE, placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ScopeRequirement
from hami_webhook.kube.selectors import LabelSelector
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.pricing import Charge, ClusterCapacity, charge_of, is_settled

_MOST_SCOPES = 64

_Scope = tuple[tuple[ScopeRequirement, ...], LabelSelector | None, str, str]
"""Which pods of a namespace an account counts: by scopes, by labels, and by a label or the user of this name."""


class _Sums(Struct):
    """Exact amounts by key added up, of pods in a quota's scope: as they are, and rounded up to units pod by pod."""

    like: QuotaAccount
    exact: dict[str, int] = {}
    units: dict[str, int] = {}

    def add(self, pod: Pod, charge: Charge, sign: int = 1) -> None:
        if not self.like.counts(pod):  # the namespace is right
            return
        for key, amount in charge.exact.items():
            unit = self.like.bytes_per_unit.get(key, 1)
            self.exact[key] = self.exact.get(key, 0) + sign * amount
            self.units[key] = self.units.get(key, 0) + sign * -(-amount // unit)

    def counted(self, account: QuotaAccount) -> dict[str, int]:
        """The sums of the quota's keys as it counts them."""
        return {key: (self.exact if key in account.in_bytes else self.units).get(key, 0) for key in account.hard}


class _Space(Struct):
    """A namespace: pods in the sums with what they cost, pods to be looked at each time, sums by scopes."""

    settled: dict[str, tuple[Pod, Charge]] = {}
    unsettled: set[str] = set()
    sums: dict[_Scope, _Sums] = {}


class PlacedCharges:
    """The charges of a namespace's placed pods, except one. The caller reports every change of a pod."""

    def __init__(self) -> None:
        self._spaces: dict[str, _Space] = {}

    def changed(self, namespace: str, uid: str) -> None:
        """A pod was added or changed."""
        space = self._spaces.setdefault(namespace, _Space())
        self._unsettle(space, uid)
        space.unsettled.add(uid)

    def gone(self, namespace: str, uid: str) -> None:
        space = self._spaces.get(namespace)
        if space is None:
            return
        self._unsettle(space, uid)
        space.unsettled.discard(uid)
        if not space.unsettled and not space.settled:
            del self._spaces[namespace]

    def of_others(
        self,
        account: QuotaAccount,
        pod: Pod,
        namespace: str,
        pods: Mapping[str, Pod],
        vendors: Vendors,
        capacity: ClusterCapacity,
        now: float,
        placement_ttl: float,
    ) -> dict[str, int]:
        """As `placed_by_others` in one namespace; `pods` are all of it, by UID."""
        space = self._spaces.get(namespace) or _Space()
        sums = self._sums_of(space, account)
        unsettled: list[tuple[Pod, Charge]] = []
        for uid in list(space.unsettled):
            other = pods[uid]
            if other.terminal or not (other.node_name or NODE in other.annotations):
                space.unsettled.discard(uid)  # it doesn't count, and won't before it changes
                continue
            charge = charge_of(other, vendors, capacity, now, placement_ttl)
            if other.node_name and other.deletion_time is None and is_settled(other, vendors, charge):
                space.unsettled.discard(uid)
                if charge.placed:
                    space.settled[uid] = other, charge
                    for each in space.sums.values():
                        each.add(other, charge)
            elif charge.placed and placement_counts(other, now, placement_ttl) and not other.ended(now):
                unsettled.append((other, charge))
        found = _Sums(account, dict(sums.exact), dict(sums.units))
        for other, charge in unsettled:
            if other.uid != pod.uid:
                found.add(other, charge)
        if pod.uid in space.settled:
            found.add(*space.settled[pod.uid], -1)
        return found.counted(account)

    def _sums_of(self, space: _Space, account: QuotaAccount) -> _Sums:
        quota, per = account.quota, account.quota.per
        of_label = per.label if per is not None and account.subject else ""
        scope = quota.scopes, quota.pod_selector, of_label, account.subject
        sums = space.sums.get(scope)
        if sums is None:
            if len(space.sums) >= _MOST_SCOPES:
                space.sums.clear()
            sums = space.sums[scope] = _Sums(account)
            for pod, charge in space.settled.values():
                sums.add(pod, charge)
        return sums

    def _unsettle(self, space: _Space, uid: str) -> None:
        known = space.settled.pop(uid, None)
        if known is not None:
            for sums in space.sums.values():
                sums.add(*known, -1)
