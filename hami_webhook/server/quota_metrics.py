"""The metrics of quotas: ours in the quotas' units (docs/spec/quota.md#11), HAMi's (docs/spec/core.md#12)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from hami_webhook.devices.keys import Dimension
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.held_time import MILLIS_PER_HOUR
from hami_webhook.quota.pricing import Charge, charge_of
from hami_webhook.quota.subjects import groups_shown, sums_of_others
from hami_webhook.server.exposition import ZONE, Family, Sample
from hami_webhook.state.cluster_view import ClusterView

_BY_KEY = ("namespace", "quota", "key")
_USED = Family("hami_webhook_quota_used", "Used of a managed quota key, in the quota's units.", _BY_KEY)
_HARD = Family("hami_webhook_quota_hard", "Hard limit of a managed quota key.", _BY_KEY)
_WAITING = Family("hami_webhook_quota_waiting", "Charges of pods without a placement.", _BY_KEY)
_PLACED = Family("hami_webhook_quota_placed", "Charges of placed pods.", _BY_KEY)
_BY_QUOTA_KEY = ("quota", "key")
_ACCELERATOR_USED = Family("hami_webhook_accelerator_quota_used", "As hami_webhook_quota_used.", _BY_QUOTA_KEY)
_ACCELERATOR_HARD = Family("hami_webhook_accelerator_quota_hard", "As hami_webhook_quota_hard.", _BY_QUOTA_KEY)
_ACCELERATOR_WAITING = Family("hami_webhook_accelerator_quota_waiting", "As hami_webhook_quota_waiting.", _BY_QUOTA_KEY)
_ACCELERATOR_PLACED = Family("hami_webhook_accelerator_quota_placed", "As hami_webhook_quota_placed.", _BY_QUOTA_KEY)
_BUDGET = Family(
    "hami_webhook_accelerator_quota_budget_hours",
    "Amount times hours that the budget allows in a period.",
    _BY_QUOTA_KEY,
)
_BUDGET_SPENT = Family(
    "hami_webhook_accelerator_quota_budget_spent_hours", "What of it was held in the present period.", _BY_QUOTA_KEY
)
_BUDGET_UNSEEN = Family(
    "hami_webhook_accelerator_quota_budget_unseen_hours",
    "An upper bound of the hours missing in spent, for pods that ended while no controller watched.",
    _BY_QUOTA_KEY,
)
_SUMS = (_USED, _HARD, _WAITING, _PLACED)
_ACCELERATOR_SUMS = (_ACCELERATOR_USED, _ACCELERATOR_HARD, _ACCELERATOR_WAITING, _ACCELERATOR_PLACED)
_BY_SUBJECT = ("quota", "subject", "key")
_SUBJECT_USED = Family(
    "hami_webhook_accelerator_quota_subject_used",
    "Used by a subject of a quota with limits for each: of the 100 that use most, and of the others together.",
    _BY_SUBJECT,
)
_SUBJECT_HARD = Family(
    "hami_webhook_accelerator_quota_subject_hard", "The limit of each of these subjects.", _BY_SUBJECT
)
_MOST_SUBJECTS = 100
"""Subjects of a quota that have samples of their own."""
_OTHERS = "(others)"
"""The label of the sum of all others; no user name of Kubernetes' own has it."""
_ENTRIES = Family("hami_webhook_quota_ledger_entries", "Ledger entries.", ("namespace", "quota", "state"))
_OBSERVED = Family(
    "hami_webhook_quota_observed",
    "Charges that a quota without room let pass, as it only observes.",
    ("namespace", "quota"),
    is_counter=True,
)
_QUEUED = Family(
    "hami_webhook_quota_queued_pods", "Pods that wait for room in a quota that queues.", ("namespace", "quota")
)
_QUEUED_OLDEST = Family(
    "hami_webhook_quota_queued_oldest_seconds", "For how long the oldest of them has waited.", ("namespace", "quota")
)
_HAMIS_USED = Family("hami_resource_quota_used", "Used, memory in MiB.", ("zone", "namespace", "quota_name", "limit"))
_HAMIS_LIMIT = Family("hami_resource_quota_limit", "Written limit.", ("zone", "namespace", "quota_name"))
_AT_ONCE = 20
"""Pods or quotas that are gone through before a renderer may pause."""

_NamespaceKey = tuple[str, str]

_Charges = Mapping[str, list[tuple[Pod, Charge]]]
"""The live pods, and the claims that are no pod's, that cost something, with what they cost, by namespace."""


def quota_metrics(cluster: ClusterView, pods: Sequence[Pod]) -> Iterator[Metric]:
    """Every metric of a quota."""
    charges: dict[str, list[tuple[Pod, Charge]]] = {}
    totals: Counter[_NamespaceKey] = Counter()
    now = cluster.clock()
    for number, pod in enumerate((*pods, *cluster.claims_in())):
        if number % _AT_ONCE == 0:
            yield _USED.of(())
        if not pod.ended(now):
            charge = charge_of(pod, cluster.vendors, cluster.capacity, now, cluster.placement_ttl)
            if charge.amounts:
                charges.setdefault(pod.namespace, []).append((pod, charge))
                totals.update({(pod.namespace, key): amount for key, amount in charge.amounts.items()})
    accounts: list[QuotaAccount] = []
    accelerator_quotas = cluster.caches.accelerator_quotas.all()
    for number, quota in enumerate((*cluster.caches.all_quotas(), *accelerator_quotas)):
        if number % _AT_ONCE == 0:
            yield _USED.of(())
        accounts.append(QuotaAccount.read(quota, cluster.vendors))
    yield from _ours(cluster, accounts, charges)
    yield from _queues(
        accounts, [pod for pod in pods if pod.queued and not pod.gated_by_others and not pod.ended(now)], now
    )
    yield from _budgets(accounts, now)
    yield from _hamis(cluster, accounts, totals)


def _budgets(accounts: list[QuotaAccount], now: float) -> Iterator[Metric]:
    """What budgets allow and what of them is spent, in hours."""
    samples: dict[Family, list[Sample]] = {family: [] for family in (_BUDGET, _BUDGET_SPENT, _BUDGET_UNSEEN)}
    for account in accounts:
        budget = account.time_budget
        if budget is None:
            continue
        for key, amount in budget.amounts.items():
            unseen = 0 if budget.state is None else budget.state.unseen.get(key, 0)
            for family, held in zip(samples, (amount, budget.spent(key, now), unseen), strict=True):
                samples[family].append(((account.name, key), held / MILLIS_PER_HOUR))
    for family, found in samples.items():
        yield from family.in_pieces(found)


def _ours(cluster: ClusterView, accounts: list[QuotaAccount], charges: _Charges) -> Iterator[Metric]:
    samples: dict[Family, list[Sample]] = {family: [] for family in (*_SUMS, *_ACCELERATOR_SUMS, _ENTRIES, _OBSERVED)}
    for account in accounts:
        namespace, name = account.quota.namespace, account.name
        if account.observed or not account.enforced:
            samples[_OBSERVED].append(((namespace, name), account.observed))
        selected = account.quota.namespaces
        sums = yield from _sums_by_placed(cluster, account, charges)
        for key, limit in account.hard.items():
            values = account.used.get(key, 0), limit, sums[False][key], sums[True][key]
            for family, value in zip(_SUMS if selected is None else _ACCELERATOR_SUMS, values, strict=True):
                samples[family].append(((namespace, name, key) if selected is None else (name, key), value))
        for state, number in Counter(entry.state.value for entry in account.ledger.values()).items():
            samples[_ENTRIES].append(((namespace, name, state), number))
    for family, found in (*samples.items(), *_by_subject(accounts).items()):
        yield from family.in_pieces(found)


def _by_subject(accounts: Sequence[QuotaAccount]) -> dict[Family, list[Sample]]:
    """What subjects use, and may use, of quotas that have limits for each: bounded, however many there are."""
    used: list[Sample] = []
    hard: list[Sample] = []
    for account in accounts:
        subjects = account.subjects
        if subjects is None:
            continue
        shown, groups = subjects.by_use(account.hard)[:_MOST_SUBJECTS], groups_shown(account.quota)
        for subject in shown:
            own = account.of_subject(subject, groups.get(subject, ()))
            used += [((account.name, subject, key), own.used.get(key, 0)) for key in own.hard]
            hard += [((account.name, subject, key), limit) for key, limit in own.hard.items()]
        if len(shown) < len(subjects.used):
            rest = sums_of_others(subjects.used, set(shown))
            used += [((account.name, _OTHERS, key), rest.get(key, 0)) for key in subjects.hard]
    return {_SUBJECT_USED: used, _SUBJECT_HARD: hard}


def _queues(accounts: list[QuotaAccount], pods: Sequence[Pod], now: float) -> Iterator[Metric]:
    """How many of these pods, which wait, each quota covers that queues, and since when."""
    samples: dict[Family, list[Sample]] = {_QUEUED: [], _QUEUED_OLDEST: []}
    by_namespace: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod.namespace].append(pod)
    for account in accounts:
        if account.queues:
            covered = account.quota.covered_namespaces
            waiting = (pod for namespace in covered for pod in by_namespace.get(namespace, ()))
            created = [pod.waits_since or now for pod in waiting if account.covers(pod)]
            labels = account.quota.namespace, account.name
            samples[_QUEUED].append((labels, len(created)))
            samples[_QUEUED_OLDEST].append((labels, max(0.0, now - min(created, default=now))))
        yield _QUEUED.of(())
    for family, found in samples.items():
        yield from family.in_pieces(found)


def _sums_by_placed(
    cluster: ClusterView, account: QuotaAccount, charges: _Charges
) -> Generator[Metric, None, dict[bool, dict[str, int]]]:
    """What a quota counts of the pods that wait (False) and of those that are placed (True), by key."""
    sums = {False: dict.fromkeys(account.hard, 0), True: dict.fromkeys(account.hard, 0)}
    namespaces = sorted(account.quota.covered_namespaces)
    for number, (pod, charge) in enumerate(each for covered in namespaces for each in charges.get(covered, ())):
        if number % _AT_ONCE == 0:
            yield _USED.of(())
        if account.covers(pod):
            cost = _placed(cluster, account, pod, charge) if charge.placed else _while_waiting(cluster, account, pod)
            for key, amount in account.counted(cost).items():
                sums[charge.placed][key] += amount
    return sums


def _placed(cluster: ClusterView, account: QuotaAccount, pod: Pod, charge: Charge) -> Mapping[str, int]:
    def on_cards(cards: CardSelection) -> Charge:
        return charge_of(pod, cluster.vendors, cluster.capacity, cluster.clock(), cluster.placement_ttl, cards)

    return account.part(charge, on_cards).only(account.hard)


def _while_waiting(cluster: ClusterView, account: QuotaAccount, pod: Pod) -> Mapping[str, int]:
    return charged(account, pod, cluster.vendors, cluster.capacity, cluster.clock(), cluster.placement_ttl)


def _hamis(cluster: ClusterView, accounts: list[QuotaAccount], totals: Counter[_NamespaceKey]) -> Iterator[Metric]:
    smallest: dict[_NamespaceKey, tuple[int, int]] = {}
    for account in accounts:
        if account.quota.scopes or account.cards is not None or account.quota.namespaces is not None:
            continue
        for key, limit in account.hard.items():
            this, place = (account.exact_hard(key), limit), (account.quota.namespace, key)
            smallest[place] = min(this, smallest.get(place, this))

    def used() -> Iterator[Sample]:
        for namespace, key in sorted({*totals, *smallest}):
            counted_by = cluster.vendors.quota_keys[key]
            factor = max((q.factor for _, q in counted_by if q.dimension is Dimension.MEMORY), default=1)
            _, limit = smallest.get((namespace, key), (0, 0))
            labels = ZONE, namespace, key.removeprefix("limits."), str(limit)
            yield labels, totals[namespace, key] * factor

    yield from _HAMIS_USED.in_pieces(used())
    limits = (
        ((ZONE, namespace, key.removeprefix("limits.")), limit) for (namespace, key), (_, limit) in smallest.items()
    )
    yield from _HAMIS_LIMIT.in_pieces(limits)
