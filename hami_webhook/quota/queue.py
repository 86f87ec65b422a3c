"""The pods that wait for quota, with what they cost and what their quotas leave (docs/spec/queues.md#3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import queue_order
from hami_webhook.quota.floors import cost_at_admission, floor_id
from hami_webhook.quota.hierarchy_charger import PodQuotas
from hami_webhook.quota.ledger import State
from hami_webhook.quota.pricing import CapacityLister
from hami_webhook.quota.queue_order import Demand, QueuedPod, QueueRoom

_AT_ONCE = 200
"""Pods that are read before others have their turn."""


@dataclass(slots=True)
class PodQueue:
    """The pods that wait, by UID, with what is free; `charged` are those whose gate is to be removed."""

    pods: dict[str, Pod] = field(default_factory=dict)
    waiting: dict[str, QueuedPod] = field(default_factory=dict)
    charged: list[Pod] = field(default_factory=list)
    rooms: dict[str, QueueRoom] = field(default_factory=dict)


def room_name(account: QuotaAccount) -> str:
    """How a quota is named among all: `team/gpu-quota`, or `AcceleratorQuota/all`."""
    return account.label if account.quota.namespaces is not None else f"{account.quota.namespace}/{account.name}"


async def read_queue(
    pods: Sequence[Pod],
    known: Callable[[Pod], PodQuotas],
    vendors: Vendors,
    capacity: CapacityLister,
) -> PodQueue:
    """The queue of these pods, of which those take part whose only gate is ours.

    Pods of namespaces whose quotas aren't known now are left out. Pods of a namespace that request the same are priced
    once, however many there are.
    """
    queue = PodQueue()
    accounts: dict[str, Sequence[QuotaAccount] | None] = {}
    demands: dict[tuple[object, ...], Demand] = {}
    for number, pod in enumerate(pods):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if len(pod.gates) > 1:
            continue
        if pod.namespace not in accounts:
            accounts[pod.namespace] = found = known_accounts(known(pod), pod.namespace)
            queue.rooms |= {room_name(each): _room(each) for each in found or ()}
        covering = accounts[pod.namespace]
        if covering is None:
            continue
        queue.pods[pod.uid] = pod
        if any((entry := each.ledger.get(pod.uid)) and entry.state is State.ADMITTED for each in covering):
            queue.charged.append(pod)
            continue
        mine = [each for each in covering if each.covers(pod)]
        request = (floor_id(pod, vendors), *[each.name for each in mine])
        demand = demands.get(request)
        if demand is None:
            demand = demands[request] = demand_of(pod, mine, vendors, capacity)
        queue.waiting[pod.uid] = QueuedPod(pod.uid, pod.key, pod.priority, pod.created or 0.0, demand)
    return queue


def known_accounts(known: PodQuotas, namespace: str) -> Sequence[QuotaAccount] | None:
    """The enforced quotas that may cover pods of a namespace; None if they aren't known."""
    if inf in (known.own.age, known.accelerator_quotas.age):
        return None
    found: Iterable[QuotaAccount] = (*known.own.accounts.values(), *known.accelerator_quotas.accounts.values())
    return [each for each in found if each.hard and each.enforced and namespace in _covered(each)]


def _covered(account: QuotaAccount) -> Iterable[str]:
    namespaces = account.quota.namespaces
    return (account.quota.namespace,) if namespaces is None else namespaces


def _room(account: QuotaAccount) -> QueueRoom:
    free = {key: limit - account.used[key] for key, limit in account.hard.items() if key in account.used}
    return QueueRoom(account.hard, free, queue_order(account.quota) if account.queues else None)


def demand_of(pod: Pod, accounts: Sequence[QuotaAccount], vendors: Vendors, capacity: CapacityLister) -> Demand:
    """What the pod costs each of these quotas while it waits."""
    found = []
    for account in accounts:
        cost = cost_at_admission(account, pod, vendors, capacity)
        amounts = tuple(sorted((key, amount) for key, amount in account.counted(cost.exact).items() if amount))
        if amounts:
            found.append((room_name(account), amounts))
    return tuple(sorted(found))
