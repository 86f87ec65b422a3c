"""What the controller saw of ledgers: a replaced ResourceQuota must not lose charges in flight.

Source: docs/spec/quota.md#9.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import RESERVATION, Entry, reservation_id
from hami_webhook.quota.recompute import vanished


class LedgerHistory:
    """Follows each quota from version to version; keeps entries that vanished unconfirmed until their time is up.

    An entry is confirmed once a pod with its id was seen. Times are Unix seconds.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._last: dict[str, QuotaAccount] = {}
        self._lost: dict[str, dict[str, Entry]] = {}
        self._pods: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        """UIDs of pods that were seen and aren't there any longer, with when."""

    def pod(self, pod: Pod, now: float) -> None:
        """A pod exists, or did."""
        self.confirm((pod.uid, reservation_id(pod.annotations.get(RESERVATION, ""))), now)

    def confirm(self, identities: Iterable[str], now: float) -> None:
        """Pods with these ids exist, or did."""
        self._pods |= dict.fromkeys(identities, now)

    def quota(self, books: QuotaAccount, now: float) -> dict[str, Entry]:
        """A version of a quota was read; the entries that were wiped from its ledger and still count."""
        uid = books.quota.uid
        last = self._last.get(uid)
        if last is None or _version(books) > _version(last):
            self._last[uid] = books
        lost = self._lost.pop(uid, {})
        if last is not None and _version(books) > _version(last):
            lost |= vanished(last, books)
        lost = {
            identity: entry
            for identity, entry in lost.items()
            if identity not in self._pods and identity not in books.ledger and not entry.expired(now, self._ttl)
        }
        if lost:
            self._lost[uid] = lost
        return lost

    def forget(self, uid: str) -> None:
        """A quota is gone."""
        self._last.pop(uid, None)
        self._lost.pop(uid, None)

    def prune(self, now: float) -> None:
        """Forget pods that no unexpired entry can be about: a pod comes within a TTL of its charge."""
        self._pods = {identity: seen for identity, seen in self._pods.items() if now - seen <= 3 * self._ttl}
        self.gone = {uid: seen for uid, seen in self.gone.items() if now - seen <= 3 * self._ttl}


def _version(books: QuotaAccount) -> int:
    text = books.quota.resource_version
    return int(text) if text.isdecimal() else 0
