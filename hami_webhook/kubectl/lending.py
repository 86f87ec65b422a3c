"""What quotas with a nominal have of their own, borrow and lend, as `kubectl hami quota` shows it (docs/queues.md).

Pure: the accounts of all AcceleratorQuotas that could be read come in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hami_webhook.quota.account import QuotaAccount


class LendingUse(Struct, frozen=True):
    """Of one key of a quota, in its unit: its nominal, what it uses beyond that, and what others use of it.

    Which team's amount another one borrows isn't written anywhere: it is split by what each leaves unused.
    """

    nominal: int
    borrowed: int
    lent: int


def lending_of(account: QuotaAccount, key: str, accounts: Sequence[QuotaAccount]) -> LendingUse | None:
    """How a quota lends and borrows a key; None if it has no nominal of it."""
    if key not in account.nominal:
        return None
    nominal, used = account.nominal[key], account.used.get(key, 0)
    comparable = [each for each in accounts if key in each.hard and (key in each.in_bytes) == (key in account.in_bytes)]
    spaces = account.quota.covered_namespaces
    shared = [each for each in comparable if not each.nominal and spaces & each.quota.covered_namespaces]
    if not shared:
        return LendingUse(nominal, max(0, used - nominal), 0)
    common = min(shared, key=lambda each: each.hard[key])
    teams = [
        each
        for each in comparable
        if key in each.nominal and common.quota.covered_namespaces & each.quota.covered_namespaces
    ]
    rest = max(0, common.hard[key] - sum(each.nominal[key] for each in teams))  # nobody's own: it is borrowed first
    borrowed = sum(max(0, each.used.get(key, 0) - each.nominal[key]) for each in teams)
    unused = sum(max(0, each.nominal[key] - each.used.get(key, 0)) for each in teams)
    own = max(0, nominal - used)
    lent = min(own, max(0, borrowed - rest) * own // unused) if unused else 0
    return LendingUse(nominal, max(0, used - nominal), lent)
