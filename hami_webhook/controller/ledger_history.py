"""The ledgers as the controller saw them last, so that a replaced ResourceQuota loses no charge in flight.

Source: docs/spec/quota.md#9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import Entry, charge_ids
from hami_webhook.quota.recompute import vanished


class LedgerHistory:
    """Follows each quota from version to version; keeps entries that vanished unconfirmed until they expire.

    An entry is confirmed once a pod with its id was seen. Times are Unix seconds.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._last: dict[str, QuotaAccount] = {}
        self._lost: dict[str, dict[str, Entry]] = {}
        self._charges: dict[str, dict[str, Entry]] = {}
        self._pods: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        """When pods that were seen were deleted, by their ids."""

    def pod(self, pod: Pod, now: float) -> None:
        """Note that a pod exists or existed."""
        self.confirm(charge_ids(pod.uid, pod.annotations), now)

    def confirm(self, identities: Iterable[str], now: float) -> None:
        """Note that pods with these ids exist or existed."""
        self._pods |= dict.fromkeys(identities, now)

    def charged(self, account: QuotaAccount, identities: Iterable[str], amounts: Mapping[str, int]) -> bool:
        """Whether the quota's ledger had an entry of these amounts under one of the ids since the last call."""
        charges = self._charges.get(account.quota.uid, {})
        entries = [charges.pop(identity, None) for identity in identities]
        return any(entry is not None and entry.amounts == amounts for entry in entries)

    def quota(self, account: QuotaAccount, now: float) -> dict[str, Entry]:
        """Note a version of a quota; returns the entries that were removed from its ledger and still count."""
        uid = account.quota.uid
        last = self._last.get(uid)
        if last is None or _version(account) > _version(last):
            self._last[uid] = account
            before = last.ledger if last is not None else {}
            charges = self._charges.setdefault(uid, {})
            charges |= {key: entry for key, entry in account.ledger.items() if before.get(key) != entry}
        lost = self._lost.pop(uid, {})
        if last is not None and _version(account) > _version(last):
            lost |= vanished(last, account)
        lost = {
            identity: entry
            for identity, entry in lost.items()
            if identity not in self._pods and identity not in account.ledger and not entry.expired(now, self._ttl)
        }
        if lost:
            self._lost[uid] = lost
        return lost

    def forget(self, uid: str) -> None:
        """Forget a quota that was deleted."""
        self._last.pop(uid, None)
        self._lost.pop(uid, None)
        self._charges.pop(uid, None)

    def prune(self, now: float) -> None:
        """Forget expired entries, and pods that no other can be of: a pod is created within a TTL of its charge."""
        for uid, charges in self._charges.items():
            self._charges[uid] = {key: entry for key, entry in charges.items() if not entry.expired(now, self._ttl)}
        self._pods = {identity: seen for identity, seen in self._pods.items() if now - seen <= 3 * self._ttl}
        self.gone = {uid: seen for uid, seen in self.gone.items() if now - seen <= 3 * self._ttl}


def _version(account: QuotaAccount) -> int:
    text = account.quota.resource_version
    return int(text) if text.isdecimal() else 0
