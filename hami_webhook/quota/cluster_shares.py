"""What percents of the healthy cards amount to, for the leader, who writes it (docs/spec/quota.md#5.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import floor

from msgspec.structs import replace

from hami_webhook.devices.keys import Dimension
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.percents import known_amounts, read_percent, written_shares

_WHOLE = 100
"""Percent of a card that has no size of its own in a quota's unit."""
CardSums = Mapping[str, Mapping[Dimension, int]]
"""By vendor how many healthy cards there are, their memory and their cores, in what quotas of the vendor count."""


def healthy_sums(cards: CardSelection | None, vendors: Vendors, views: Iterable[NodeView]) -> CardSums:
    """The healthy cards that a quota counts; None: all. It takes time with the number of cards."""
    found: dict[str, dict[Dimension, int]] = defaultdict(lambda: dict.fromkeys(Dimension, 0))
    for view in views:
        if cards is not None and not cards.on_node(view.node.labels):
            continue
        for name, inventory in view.inventories.items():
            vendor, sums = vendors[name], found[name]
            for device in inventory.devices:
                if view.is_healthy(device) and (cards is None or cards.names(device.type)):
                    sums[Dimension.COUNT] += 1
                    sums[Dimension.MEMORY] += _WHOLE if vendor.memory_is_percentage else device.memory
                    sums[Dimension.CORES] += _WHOLE if vendor.cores_in_units else device.cores
    return found


def amounts_now(quota: ResourceQuota, vendors: Vendors, sums: CardSums) -> dict[str, int]:
    """What each percent of a quota amounts to by these cards, rounded down, in the unit of its key."""
    found = {}
    for key, text in quota.percents.written.items():
        part = read_percent(text)
        if part is not None and key in vendors.quota_keys:
            of_all = sum(
                sums[vendor][each.dimension] // each.factor
                for vendor, each in vendors.quota_keys[key]
                if vendor in sums
            )
            found[key] = floor(part * of_all)
    return found


def with_shares(account: QuotaAccount, amounts: Mapping[str, int], vendors: Vendors) -> QuotaAccount:
    """The account with these amounts for its percents."""
    quota = account.quota
    shares = written_shares(quota.percents.written, amounts)
    if shares == quota.percents.shares:
        return account
    hard = {**quota.hard, **{key: str(amount) for key, amount in amounts.items()}}
    return QuotaAccount.read(replace(quota, hard=hard, percents=replace(quota.percents, shares=shares)), vendors)


def computing_shares(
    vendors: Vendors, views: Callable[[], Iterable[NodeView]]
) -> Callable[[QuotaAccount], QuotaAccount]:
    """What gives an account the amounts of its percents by these nodes, where its status doesn't have them."""

    def with_computed(account: QuotaAccount) -> QuotaAccount:
        if not account.unshared:
            return account
        known = {key: int(amount) for key, amount in known_amounts(account.quota.percents).items()}
        computed = amounts_now(account.quota, vendors, healthy_sums(account.cards, vendors, views()))
        return with_shares(account, {**computed, **known}, vendors)

    return with_computed
