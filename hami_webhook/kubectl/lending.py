"""What quotas with a nominal have of their own, borrow and lend, as `kubectl hami quota` shows it (docs/queues.md).

Pure: the accounts of all AcceleratorQuotas that could be read come in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hami_webhook.kubectl.report import KeyUse
from hami_webhook.quota.account import QuotaAccount


def with_lending(found: KeyUse, account: QuotaAccount, accounts: Sequence[QuotaAccount]) -> KeyUse:
    """A key of a quota with its nominal, what the quota uses beyond that, and what others use of it; as it is if the
    quota has no nominal of it.

    Which team's amount another one borrows isn't written anywhere: it is split by what each leaves unused.
    """
    key = found.key
    if key not in account.nominal:
        return found
    nominal, used = account.nominal[key], account.used.get(key, 0)
    comparable = [each for each in accounts if key in each.hard and (key in each.in_bytes) == (key in account.in_bytes)]
    spaces = account.quota.covered_namespaces
    shared = [each for each in comparable if not each.nominal and spaces & each.quota.covered_namespaces]
    if not shared:
        return replace(found, nominal=nominal, borrowed=max(0, used - nominal), lent=0)
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
    return replace(found, nominal=nominal, borrowed=max(0, used - nominal), lent=lent)
