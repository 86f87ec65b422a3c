"""The metrics of quotas: ours in the quotas' units (docs/spec/quota.md#11), HAMi's (docs/spec/core.md#12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from hami_webhook.assembly import Core
from hami_webhook.devices.keys import Dimension
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged
from hami_webhook.quota.pricing import Charge, charge_of
from hami_webhook.server.metric_families import gauge

_BY_KEY = ("namespace", "quota", "key")

_Charges = Mapping[str, list[tuple[Pod, Charge]]]
"""The live pods that cost something, with what they cost, by namespace."""


def quota_metrics(core: Core, zone: str) -> Iterator[Metric]:
    """Every metric of a quota; `zone` is the label that HAMi's have."""
    charges = _charges(core)
    books = [QuotaAccount.read(quota, core.vendors) for quota in core.caches.all_quotas()]
    yield from _ours(core, books, charges)
    yield from _hamis(core, books, charges, zone)


def _charges(core: Core) -> _Charges:
    now = core.clock()
    found: dict[str, list[tuple[Pod, Charge]]] = {}
    for pod in core.state.pods():
        if not pod.ended(now):
            charge = charge_of(pod, core.vendors, core.state, now, core.lapse)
            if charge.amounts:
                found.setdefault(pod.namespace, []).append((pod, charge))
    return found


def _ours(core: Core, every: list[QuotaAccount], charges: _Charges) -> Iterator[Metric]:
    used = gauge("hami_webhook_quota_used", "Used of a managed quota key, in the quota's units.", _BY_KEY)
    hard = gauge("hami_webhook_quota_hard", "Hard limit of a managed quota key.", _BY_KEY)
    waiting = gauge("hami_webhook_quota_waiting", "What pods without a placement are charged.", _BY_KEY)
    placed = gauge("hami_webhook_quota_placed", "What placed pods cost.", _BY_KEY)
    entries = gauge("hami_webhook_quota_ledger_entries", "Ledger entries.", ("namespace", "quota", "state"))
    for books in every:
        namespace, name = books.quota.namespace, books.name
        sums = {False: dict.fromkeys(books.hard, 0), True: dict.fromkeys(books.hard, 0)}
        for pod, charge in charges.get(namespace, ()):
            if scopes.matches(books.quota, pod):
                cost = charge.only(books.hard) if charge.placed else _while_waiting(core, books, pod)
                for key, amount in books.counted(cost).items():
                    sums[charge.placed][key] += amount
        for key, limit in books.hard.items():
            used.add_metric((namespace, name, key), books.used.get(key, 0))
            hard.add_metric((namespace, name, key), limit)
            waiting.add_metric((namespace, name, key), sums[False][key])
            placed.add_metric((namespace, name, key), sums[True][key])
        by_state: dict[str, int] = {}
        for entry in books.ledger.values():
            by_state[entry.state.value] = by_state.get(entry.state.value, 0) + 1
        for state, number in by_state.items():
            entries.add_metric((namespace, name, state), number)
    yield from (used, hard, waiting, placed, entries)


def _while_waiting(core: Core, books: QuotaAccount, pod: Pod) -> Mapping[str, int]:
    return charged(books, pod, core.vendors, core.state, core.clock(), core.lapse)


def _hamis(core: Core, every: list[QuotaAccount], charges: _Charges, zone: str) -> Iterator[Metric]:
    smallest: dict[tuple[str, str], tuple[int, int]] = {}
    for books in every:
        if books.quota.scopes:
            continue
        for key, limit in books.hard.items():
            this, place = (books.exact_hard(key), limit), (books.quota.namespace, key)
            smallest[place] = min(this, smallest.get(place, this))
    used = gauge("hami_resource_quota_used", "Used, memory in MiB.", ("zone", "namespace", "quota_name", "limit"))
    limits = gauge("hami_resource_quota_limit", "Written limit.", ("zone", "namespace", "quota_name"))
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
