"""The metrics of quotas: ours in the quotas' units (docs/spec/quota.md#11), HAMi's (docs/spec/core.md#12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from hami_webhook.assembly import Core
from hami_webhook.devices.keys import Dimension
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged
from hami_webhook.quota.pricing import Charge, charge_of

_BY_KEY = ("namespace", "quota", "key")

_Charges = Mapping[str, list[tuple[Pod, Charge]]]
"""The live pods that cost something, with what they cost, by namespace."""


def quota_metrics(core: Core, zone: str) -> Iterator[Metric]:
    """Every metric of a quota; `zone` is the label that HAMi's have."""
    charges = _charges(core)
    accounts = [QuotaAccount.read(quota, core.vendors) for quota in core.caches.all_quotas()]
    yield from _ours(core, accounts, charges)
    yield from _hamis(core, accounts, charges, zone)


def _charges(core: Core) -> _Charges:
    now = core.clock()
    found: dict[str, list[tuple[Pod, Charge]]] = {}
    for pod in core.state.pods():
        if not pod.ended(now):
            charge = charge_of(pod, core.vendors, core.state, now, core.placement_ttl)
            if charge.amounts:
                found.setdefault(pod.namespace, []).append((pod, charge))
    return found


def _ours(core: Core, accounts: list[QuotaAccount], charges: _Charges) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "hami_webhook_quota_used", "Used of a managed quota key, in the quota's units.", labels=_BY_KEY
    )
    hard = GaugeMetricFamily("hami_webhook_quota_hard", "Hard limit of a managed quota key.", labels=_BY_KEY)
    waiting = GaugeMetricFamily(
        "hami_webhook_quota_waiting", "What pods without a placement are charged.", labels=_BY_KEY
    )
    placed = GaugeMetricFamily("hami_webhook_quota_placed", "What placed pods cost.", labels=_BY_KEY)
    entries = GaugeMetricFamily(
        "hami_webhook_quota_ledger_entries", "Ledger entries.", labels=("namespace", "quota", "state")
    )
    for account in accounts:
        namespace, name = account.quota.namespace, account.name
        sums = {False: dict.fromkeys(account.hard, 0), True: dict.fromkeys(account.hard, 0)}
        for pod, charge in charges.get(namespace, ()):
            if scopes.matches(account.quota, pod):
                cost = charge.only(account.hard) if charge.placed else _while_waiting(core, account, pod)
                for key, amount in account.counted(cost).items():
                    sums[charge.placed][key] += amount
        for key, limit in account.hard.items():
            used.add_metric((namespace, name, key), account.used.get(key, 0))
            hard.add_metric((namespace, name, key), limit)
            waiting.add_metric((namespace, name, key), sums[False][key])
            placed.add_metric((namespace, name, key), sums[True][key])
        by_state: dict[str, int] = {}
        for entry in account.ledger.values():
            by_state[entry.state.value] = by_state.get(entry.state.value, 0) + 1
        for state, number in by_state.items():
            entries.add_metric((namespace, name, state), number)
    yield from (used, hard, waiting, placed, entries)


def _while_waiting(core: Core, account: QuotaAccount, pod: Pod) -> Mapping[str, int]:
    return charged(account, pod, core.vendors, core.state, core.clock(), core.placement_ttl)


def _hamis(core: Core, accounts: list[QuotaAccount], charges: _Charges, zone: str) -> Iterator[Metric]:
    smallest: dict[tuple[str, str], tuple[int, int]] = {}
    for account in accounts:
        if account.quota.scopes:
            continue
        for key, limit in account.hard.items():
            this, place = (account.exact_hard(key), limit), (account.quota.namespace, key)
            smallest[place] = min(this, smallest.get(place, this))
    used = GaugeMetricFamily(
        "hami_resource_quota_used", "Used, memory in MiB.", labels=("zone", "namespace", "quota_name", "limit")
    )
    limits = GaugeMetricFamily(
        "hami_resource_quota_limit", "Written limit.", labels=("zone", "namespace", "quota_name")
    )
    totals: dict[tuple[str, str], int] = {}
    for namespace, found in charges.items():
        for _, charge in found:
            for key, amount in charge.amounts.items():
                totals[namespace, key] = totals.get((namespace, key), 0) + amount
    for namespace, key in sorted({*totals, *smallest}):
        counted_by = core.vendors.quota_keys[key]
        factor = max((q.factor for _, q in counted_by if q.dimension is Dimension.MEMORY), default=1)
        name, (_, known) = key.removeprefix("limits."), smallest.get((namespace, key), (0, None))
        used.add_metric((zone, namespace, name, str(known or 0)), totals.get((namespace, key), 0) * factor)
        if known is not None:
            limits.add_metric((zone, namespace, name), known)
    yield from (used, limits)
