"""What percents of the healthy cards amount to over time: limits rise at once and fall slowly (docs/spec/quota.md)."""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.devices.model import NodeView
from hami_webhook.kube.quota_fields import NO_PERCENTS
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.cluster_shares import CardSums, amounts_now, healthy_sums, with_shares
from hami_webhook.quota.percents import Seen, damped, known_amounts, next_fall
from hami_webhook.quota.recompute import Recomputed
from hami_webhook.state.cluster_view import ClusterView


class ShareHistory:
    """Which limits are about to fall, by the name of their quota. A leader that begins knows of none."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._sums: dict[CardSelection | None, CardSums] = {}
        """The healthy cards as they were since the last change of a node."""
        self._seen: dict[str, dict[str, Seen]] = {}

    def node_changed(self, before: NodeView | None, after: NodeView | None) -> bool:
        """A node was added, changed or is gone; whether there may be other healthy cards."""
        if _cards_of(before) == _cards_of(after):
            return False
        self._sums.clear()
        return True

    def with_shares(self, account: QuotaAccount) -> QuotaAccount:
        """The account with what its percents amount to now; as it is without percents, now and before."""
        quota = account.quota
        if quota.percents is NO_PERCENTS:
            return account
        vendors, now = self._view.vendors, self._view.clock()
        sums = self._sums.get(account.cards) if quota.percents.written else {}
        if sums is None:
            sums = self._sums[account.cards] = healthy_sums(account.cards, vendors, self._view.state.views())
        shown, seen = known_amounts(quota.percents), self._seen.get(quota.name, {})
        amounts, kept = {}, {}
        for key, amount in amounts_now(quota, vendors, sums).items():
            before = int(shown[key]) if key in shown else None
            amounts[key], kept[key] = damped(before, amount, seen.get(key, ()), now)
        self._seen[quota.name] = kept
        return with_shares(account, amounts, vendors)

    def due(self, name: str) -> float | None:
        """When a limit of the quota falls, in Unix seconds; None if none is about to."""
        now = self._view.clock()
        falls = (next_fall(each, now) for each in self._seen.get(name, {}).values())
        return min((at for at in falls if at is not None), default=None)

    def forget(self, name: str) -> None:
        """The quota is gone."""
        self._seen.pop(name, None)


def changed_shares(done: Recomputed) -> Iterator[str]:
    """A sentence for each limit that a recompute raised or lowered with the cards."""
    before, after = done.before.quota, done.after.quota
    if before.percents.shares == after.percents.shares:
        return
    known = known_amounts(before.percents)
    for key, amount in known_amounts(after.percents).items():
        if known.get(key) != amount:
            was = f", {known[key]} before" if key in known else ""
            yield f"{key}: {after.percents.written[key]} of the healthy cards are {amount} now{was}"


def _cards_of(view: NodeView | None) -> object:
    """What of a node decides how many healthy cards a quota counts there."""
    return None if view is None else (view.node.labels, view.inventories, view.unhealthy)
