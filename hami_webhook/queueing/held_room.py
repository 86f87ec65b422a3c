"""When what pods hold of quotas ends at the latest, for the starts of those that wait (docs/spec/time.md#2.1).

Only namespaces are looked at in which pods wait for a quota that limits runtimes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged
from hami_webhook.quota.queue_order import QueueRoom
from hami_webhook.quota.runtime import SETTLED_WITHIN, STARTED_WITHIN, grace_of
from hami_webhook.quota.windows import FOREVER
from hami_webhook.state.cluster_view import ClusterView

_UNSEEN_FOR = 60.0
"""Seconds for which used may have more than pods hold: of those that just ended, or are just being created."""
_AT_ONCE = 200
"""Pods that are looked at before others have their turn."""


def _end_of(pod: Pod, released_at: float | None, now: float) -> tuple[float | None, str]:
    """When a charged pod's room is free at the latest; None where that isn't known, and why."""
    if isinstance(pod, BareClaim):
        return None, "claims"
    end = inf
    if pod.deletion_deadline is not None:  # from then on kubelet goes by the grace period of the deletion alone
        end = pod.deletion_deadline + SETTLED_WITHIN
    elif pod.active_deadline is not None:
        hold = pod.active_deadline + grace_of(pod) + SETTLED_WITHIN
        if pod.started is not None:
            end = min(pod.started, now) + hold
        elif released_at is not None and now - released_at <= STARTED_WITHIN:
            end = released_at + STARTED_WITHIN + hold
        else:
            return None, "unstarted"
    if end > FOREVER:  # tenants choose grace periods
        return None, "endless"
    return (end, "") if end > now else (None, "overdue")


class _Holdings(Struct):
    """What pods hold of one quota: with ends, in all, and how many have none, by why."""

    account: QuotaAccount
    ends: list[tuple[float, str, int]] = []
    seen: Counter[str] = Counter()
    endless: Counter[str] = Counter()

    def add(self, amounts: Mapping[str, int], end: float | None, why: str) -> None:
        self.seen.update(amounts)
        if end is not None:
            self.ends += [(end, key, amount) for key, amount in amounts.items()]
        elif amounts:
            self.endless[why] += 1


class HeldRoom:
    """Computes when held room becomes free.

    The only state is `_unseen`: since when used exceeds what pods hold, by quota and key. That is gone within
    `unseen_for` seconds, or stays for who knows how long.
    """

    def __init__(self, view: ClusterView, unseen_for: float = _UNSEEN_FOR) -> None:
        self._view = view
        self._unseen_for = unseen_for
        self._unseen: dict[tuple[str, str], float] = {}

    async def added_to(
        self,
        rooms: Mapping[str, QueueRoom],
        accounts: Mapping[str, QuotaAccount],
        released_at: Mapping[str, float],
    ) -> dict[str, QueueRoom]:
        """Return the quotas' rooms with the held amounts added.

        `released_at` maps UIDs of just released pods to their release times.
        """
        now = self._view.clock()
        holdings = {name: _Holdings(account, [], Counter(), Counter()) for name, account in accounts.items()}
        await self._add_pods(holdings.values(), released_at, now)
        unseen: dict[tuple[str, str], float] = {}
        for name, each in holdings.items():
            for key, used in each.account.used.items():
                if (more := used - each.seen[key]) > 0:
                    since = unseen[name, key] = self._unseen.get((name, key), now)
                    recent = now - since < self._unseen_for
                    each.add({key: more}, since + self._unseen_for if recent else None, "unseen")
        self._unseen = unseen
        return {
            **rooms,
            **{
                name: replace(
                    rooms[name],
                    held=each.ends,
                    endless=_in_words(each.endless),
                    unsure=not _UNSURE.isdisjoint(each.endless),
                )
                for name, each in holdings.items()
            },
        }

    async def _add_pods(self, holdings: Iterable[_Holdings], released_at: Mapping[str, float], now: float) -> None:
        view = self._view
        spaces: dict[str, list[_Holdings]] = {}
        for each in holdings:
            for namespace in each.account.quota.covered_namespaces:
                spaces.setdefault(namespace, []).append(each)
        pods = [pod for namespace in spaces for pod in view.state.by_namespace.of(namespace).values()]
        pods += [claim for claim in view.claims_in() if claim.namespace in spaces]
        for number, pod in enumerate(pods):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if pod.queued or pod.ended(now):
                continue
            end, why = _end_of(pod, released_at.get(pod.uid), now)
            for each in spaces[pod.namespace]:
                if each.account.covers(pod):
                    exact = charged(each.account, pod, view.vendors, view.capacity, now, view.placement_ttl)
                    held = each.account.counted(exact)
                    each.add({key: amount for key, amount in held.items() if amount}, end, why)


def _in_words(why: Mapping[str, int]) -> str:
    """What holds room without an end that is known."""
    return " and ".join(_WORDS[reason].format(counted(count, "pod")) for reason, count in sorted(why.items()) if count)


_UNSURE = {"overdue", "unseen", "unstarted"}
_WORDS = {
    "claims": "ResourceClaims hold devices",
    "endless": "{} without an end",
    "overdue": "{} past the deadline",
    "unseen": "amounts of no pod",
    "unstarted": "{} charged but not started, as cards or nodes are short",
}
