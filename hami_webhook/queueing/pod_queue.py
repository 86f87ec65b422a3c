"""The pods that wait for quota, with what they cost and what their quotas leave (docs/spec/queues.md#3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf

from msgspec import Struct

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.quota.account import QuotaAccount, limiting
from hami_webhook.quota.enforcement import queue_order
from hami_webhook.quota.floors import cost_at_admission, floor_id
from hami_webhook.quota.known_quotas import PodQuotas
from hami_webhook.quota.ledger import State
from hami_webhook.quota.limits import limited_at
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.queue_order import OF_SUBJECT, Demand, QueuedPod, QueueRoom
from hami_webhook.quota.runtime import limits_runtime, longest_hold
from hami_webhook.quota.subjects import groups_of, subject_of

_AT_ONCE = 200
"""Pods that are read before others have their turn."""

_PRICED_AGAIN_AFTER, _MOST_AGAIN = 5.0, 200
"""Seconds for which a demand that depends on cards is believed, and how many are priced again in a round."""


_Request = tuple[str, tuple[str, ...]]
"""A pod's floor id, which says its namespace and what it requests, and the quotas that cover it, where these count some
pods only."""


class PodQueue(Struct):
    """The pods that wait, by UID, with what is free; `charged` are those whose gate is to be removed, in turn.

    A charged pod of a group stays among the waiting pods, but costs its quotas nothing more.
    """

    pods: dict[str, Pod] = {}
    waiting: dict[str, QueuedPod] = {}
    charged: list[Pod] = []
    rooms: dict[str, QueueRoom] = {}
    accounts: dict[str, QuotaAccount] = {}
    """The quotas of namespaces with one that limits runtimes, by the names of their rooms."""


class DemandCache:
    """What the pods that wait cost, kept from one round to the next (docs/architecture.md, the table of caches).

    Tenants choose how many different pods wait, and what one costs takes 0.1 ms to compute.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[_Request, tuple[Demand, object, float]] = {}
        """With the terms under which it is right, and when it is priced again."""
        self._used: dict[_Request, tuple[Demand, object, float]] = {}
        self._again = 0

    @property
    def now(self) -> float:
        """The time, in Unix seconds."""
        return self._clock()

    def begin(self) -> None:
        """A round begins: what the last one didn't use is dropped."""
        self._found, self._used, self._again = self._used, {}, 0

    def of(self, request: _Request, terms: object, compute: Callable[[], tuple[Demand, bool]]) -> Demand:
        """The demand of pods with this request; `compute` gives it, and whether it follows from the pod alone."""
        used = self._used.get(request)
        if used is not None:
            return used[0]
        found, now = self._found.get(request), self._clock()
        if found is not None and found[1] == terms:
            if now < found[2] or self._again >= _MOST_AGAIN:
                self._used[request] = found
                return found[0]
            self._again += 1
        demand, fixed = compute()
        self._used[request] = demand, terms, inf if fixed else now + _PRICED_AGAIN_AFTER
        return demand


class _Covering:
    """The enforced quotas that may cover pods of a namespace, and what they have in common for all of these."""

    __slots__ = ("accounts", "charged", "scoped", "terms")

    def __init__(self, accounts: Sequence[QuotaAccount]) -> None:
        self.accounts = accounts
        self.scoped = any(each.quota.scopes or each.quota.pod_selector is not None or each.subject for each in accounts)
        self.terms = [(each.room_name, each.hard, each.in_bytes, each.cards) for each in accounts]
        self.charged = {
            identity for each in accounts for identity, entry in each.ledger.items() if entry.state is State.ADMITTED
        }


async def read_queue(
    pods: Sequence[Pod],
    known: Callable[[Pod], PodQuotas],
    vendors: Vendors,
    capacity: ClusterCapacity,
    demands: DemandCache,
    since: Mapping[str, float] = {},
) -> PodQueue:
    """Build the queue of those pods whose only scheduling gate is ours.

    `since` maps UIDs to the time from which only our gate was left, where it is known better than from the pod.

    Pods of namespaces whose quotas aren't known now are left out. Pods of a namespace that request the same are priced
    once, however many there are.
    """
    queue = PodQueue()
    namespaces: dict[str, Sequence[QuotaAccount] | None] = {}
    coverings: dict[tuple[object, ...], _Covering] = {}
    demands.begin()
    for number, pod in enumerate(pods):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if len(pod.gates) > 1:
            continue
        if pod.namespace not in namespaces:
            found = namespaces[pod.namespace] = known_accounts(known(pod), pod.namespace)
            if any(limits_runtime(each.quota) for each in found or ()):
                queue.accounts |= {each.room_name: each for each in found or ()}
        found = namespaces[pod.namespace]
        if found is None:
            continue
        limited = [each.quota.per for each in found if each.quota.per is not None]
        subjects = (pod.namespace, *[(subject_of(per, pod), groups_of(per, pod)) for per in limited])
        covering = coverings.get(subjects)
        if covering is None:
            accounts = limiting(found, pod)
            of_now = [limited_at(each, demands.now) for each in accounts]
            queue.rooms |= {each.room_name: room_of(each, _spent(each, demands.now)) for each in of_now}
            covering = coverings[subjects] = _Covering(accounts)
        queue.pods[pod.uid] = pod
        if pod.uid in covering.charged:
            if PodGroup.of(pod) is None:
                queue.charged.append(pod)
                continue
            demand: Demand = ()
        else:
            names = tuple([each.label for each in covering.accounts if each.covers(pod)]) if covering.scoped else ()
            compute = partial(_priced, pod, covering.accounts, vendors, capacity)
            demand = demands.of((floor_id(pod, vendors), names), covering.terms, compute)
        began = max(pod.waits_since, since.get(pod.uid, 0.0))
        runtime = None if pod.active_deadline is None else longest_hold(pod)
        queue.waiting[pod.uid] = QueuedPod(pod.uid, pod.key, pod.priority, began, demand, runtime=runtime)
    # some may be charged in one of their quotas only: what another leaves is for the first of them
    queue.charged.sort(key=lambda pod: (-pod.priority, pod.waits_since, pod.uid))
    return queue


def known_accounts(known: PodQuotas, namespace: str) -> Sequence[QuotaAccount] | None:
    """The enforced quotas that may cover pods of a namespace; None if they aren't known."""
    if inf in (known.own.age, known.accelerator_quotas.age):
        return None
    found: Iterable[QuotaAccount] = (*known.own.accounts.values(), *known.accelerator_quotas.accounts.values())
    return [each for each in found if each.hard and each.enforced and namespace in each.quota.covered_namespaces]


def _spent(account: QuotaAccount, now: float) -> Mapping[str, str]:
    """The keys of which the quota's budget is spent, with a sentence for each."""
    return {} if account.time_budget is None else account.time_budget.spent_keys(now)


def room_of(account: QuotaAccount, spent: Mapping[str, str] = {}) -> QueueRoom:
    """What a quota leaves to those who wait."""
    free = {key: limit - account.used[key] for key, limit in account.hard.items() if key in account.used}
    own = {key: amount - account.used.get(key, 0) for key, amount in account.nominal.items()}
    return QueueRoom(
        account.hard
        if not account.unshared
        else {key: account.hard[key] for key in account.hard.keys() - account.unshared},
        free,
        queue_order(account.quota) if account.queues else None,
        OF_SUBJECT if account.subject else len(account.quota.namespaces or ()),
        own or None,
        spent,
        f"{account.quota.kind}/{account.name}" if account.subject else "",
        account.subject,
        timed=limits_runtime(account.quota),
        schedule=account.schedule,
    )


def demand_of(pod: Pod, accounts: Sequence[QuotaAccount], vendors: Vendors, capacity: ClusterCapacity) -> Demand:
    """What the pod costs each of these quotas that covers it while it waits."""
    return _priced(pod, accounts, vendors, capacity)[0]


def _priced(
    pod: Pod, accounts: Sequence[QuotaAccount], vendors: Vendors, capacity: ClusterCapacity
) -> tuple[Demand, bool]:
    """The same, and whether that follows from the pod alone, whatever cards there are."""
    found, fixed = [], True
    for account in accounts:
        if account.covers(pod):
            cost = cost_at_admission(account, pod, vendors, capacity)
            fixed = fixed and account.is_fixed(cost)
            amounts = tuple(sorted((key, amount) for key, amount in account.counted(cost.exact).items() if amount))
            if amounts:
                found.append((account.room_name, amounts))
    return tuple(sorted(found)), fixed
