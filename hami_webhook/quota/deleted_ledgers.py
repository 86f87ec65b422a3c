"""Charges in flight of deleted quotas, which a quota created in place of a deleted one takes over.

Source: docs/spec/quota.md#10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.entry_life import Event, survives
from hami_webhook.quota.ledger import LEDGER, Entry, State, decode

_SETTLED = 1.0
"""Seconds after the deletion of a quota for which pods may still be stored that were admitted before another one was
seen in its place: the time of a request, and that in which watches differ."""


class DeletedLedgers:
    """Admitted entries of the last states of deleted quotas, for `ttl` seconds from their charge."""

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._clock = clock
        self._deleted: list[tuple[ResourceQuota, Mapping[str, Entry]]] = []
        self._last: list[tuple[ResourceQuota, float]] = []
        """Those that were deleted in the last second, and when that was seen."""

    def note(self, quota: ResourceQuota) -> None:
        """A quota was deleted."""
        now = self._clock()
        self._last = [(other, at) for other, at in self._last if now - at < _SETTLED] + [(quota, now)]
        self._deleted = [(other, self._in_flight(entries)) for other, entries in self._deleted]
        self._deleted.append((quota, self._in_flight(decode(quota.annotations.get(LEDGER)))))
        self._deleted = [(other, entries) for other, entries in self._deleted if entries]

    def entries(self, account: QuotaAccount) -> dict[str, Entry]:
        """Return the entries that a new quota (without used yet) takes over, by ledger id.

        From quotas of its namespace and scopes, or from an AcceleratorQuota of its name, that counted the same cards.
        """
        found: dict[str, Entry] = {}
        if account.is_known:
            return found
        for quota, entries in self._deleted:
            if not may_follow(account, quota):
                continue
            for identity, entry in self._in_flight(entries).items():
                amounts = entry.only(account.hard)
                if amounts:
                    found[identity] = Entry(
                        State.ADMITTED,
                        entry.time,
                        amounts,
                        namespace=entry.namespace,
                        attempt=entry.attempt,
                        subject=entry.subject,
                    )
        return found

    def settled_in(self, account: QuotaAccount) -> float:
        """Return the seconds to wait until pods are stored that were admitted between a quota's deletion and its
        replacement.
        """
        ends = (at + _SETTLED for quota, at in self._last if may_follow(account, quota))
        return max(0.0, max(ends, default=0.0) - self._clock())

    def _in_flight(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        now = self._clock()
        return {
            identity: entry
            for identity, entry in entries.items()
            if survives(entry, Event.REPLACED) and not entry.expired(now, self._ttl)
        }


def may_follow(account: QuotaAccount, deleted: ResourceQuota) -> bool:
    """Return whether the quota replaces the deleted one: equal kind, namespace (or name), scopes and cards."""
    quota = account.quota
    return (
        quota.uid != deleted.uid
        and (quota.namespaces is None or quota.name == deleted.name)
        and (quota.kind, quota.namespace, quota.scopes) == (deleted.kind, deleted.namespace, deleted.scopes)
        and account.cards == CardSelection.of(deleted)
    )
