"""What doesn't wait in queues of ours: pods whose turn another project decides, and claims.

Source: docs/spec/queues.md#6.

Those without a gate get none of ours, and are charged when they are created. What marks them is in reach of tenants, so
they get no more than the pods that wait leave: who forges a mark is refused in place of waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import GroupKey
from hami_webhook.queueing.group_turns import group_turns
from hami_webhook.queueing.pod_queue import DemandCache, demand_of, known_accounts, read_queue
from hami_webhook.quota.account import QuotaAccount, limiting
from hami_webhook.quota.known_quotas import PodQuotas
from hami_webhook.quota.limits import limited_until_end
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.queue_order import QueueDecision, decide
from hami_webhook.quota.refusals import Refusal

KUEUE = "Kueue"
_KUEUES = "kueue.x-k8s.io/"
_MANAGED, _QUEUE, _WORKLOAD = "kueue.x-k8s.io/managed", "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/workload"
_SCHEDULERS = {"volcano": "Volcano", "koord-scheduler": "Koordinator", "kai-scheduler": "KAI"}
"""By `spec.schedulerName`, also where the integration isn't configured."""

CLAIMS = "devices that are claimed are charged at once, and don't wait with them; try again later"

_VALID_FOR = 1.0
"""Seconds for which is believed what those who wait leave."""


def not_waiting(manager: str) -> str:
    """Why a pod of another manager doesn't wait."""
    return (
        f"this one is managed by {manager}, so it doesn't wait with them; try again later, or remove the mark that "
        f"makes it {manager}'s"
    )


def manager_of(pod: Pod, vendors: Vendors) -> str:
    """The project that decides when the pod runs; empty where that is nobody but us.

    Kueue marks plain pods with labels and a gate, and with an annotation those of the jobs that it let start.
    """
    labels = pod.labels
    if labels.get(_MANAGED) == "true" or labels.get(_QUEUE) or pod.annotations.get(_WORKLOAD):
        return KUEUE
    if any(gate.startswith(_KUEUES) for gate in pod.gates):
        return KUEUE
    for scheduler in vendors.foreign:
        if scheduler.scheduler_of(pod) in scheduler.scheduler_names:
            return scheduler.title
    return _SCHEDULERS.get(pod.scheduler_name, "")


class QueueHeadroom:
    """What the pods that wait leave of their quotas to those that don't wait, by the order of docs/spec/queues.md#3.

    Computed at the next use, at most once a second, because tenants decide how often it is used.
    """

    def __init__(
        self,
        queued: Callable[[], Sequence[Pod]],
        members: Callable[[GroupKey], Sequence[Pod]],
        known: Callable[[Pod], PodQuotas],
        vendors: Vendors,
        capacity: ClusterCapacity,
        clock: Callable[[], float],
    ) -> None:
        self._queued = queued
        self._members = members
        self._known = known
        self._vendors = vendors
        self._capacity = capacity
        self._clock = clock
        self._demands = DemandCache(clock)
        self._at = -inf
        self._decision = QueueDecision((), ())

    async def refusal(self, pod: Pod, why: str, capacity: ClusterCapacity | None = None) -> Refusal | None:
        """The refusal of a new pod, or claim, that would pass pods that wait; None if it doesn't.

        `why` says why the pod doesn't wait with them. Its cost (by `capacity`, if given) is subtracted from the
        remaining room for the next one.
        """
        known = known_accounts(self._known(pod), pod.namespace) or ()
        now = self._clock()
        limited = [limited_until_end(each, pod, now) for each in known]
        accounts = [each for each in limiting(limited, pod) if each.covers(pod)]
        if not any(each.queues for each in accounts) or not self._queued():
            return None
        demand = demand_of(pod, accounts, self._vendors, capacity or self._capacity)
        decision = await self._current()
        for name, amounts in demand:
            account = next(each for each in accounts if each.room_name == name)
            if name in decision.closed or _lacks(account, decision.left.get(name, {}), amounts):
                return _refuse_passing(account, why)
        for name, amounts in demand:
            left = decision.left.get(name, {})
            left.update({key: left[key] - amount for key, amount in amounts if key in left})
        return None

    async def refusal_of_claim(self, pod: Pod, capacity: ClusterCapacity | None = None) -> Refusal | None:
        """The refusal of a claim of this pod, or of this claim alone, that would pass pods that wait."""
        return await self.refusal(pod, CLAIMS, capacity)

    async def _current(self) -> QueueDecision:
        now = self._clock()
        if now - self._at >= _VALID_FOR:
            self._at = now
            queue = await read_queue(self._queued(), self._known, self._vendors, self._capacity, self._demands)
            turns = group_turns(queue.waiting, queue.pods, self._members, now).turns
            self._decision = decide(turns, queue.rooms, now)
        return self._decision


def _lacks(account: QuotaAccount, left: dict[str, int], amounts: Iterable[tuple[str, int]]) -> bool:
    """Whether a quota has room that is left to those who wait; where it has none, the charge says so."""
    return any(
        left.get(key, inf) < amount <= account.hard[key] - account.used.get(key, account.hard[key])
        for key, amount in amounts
    )


def _refuse_passing(account: QuotaAccount, why: str) -> Refusal:
    text = f"quota {account.label} queues pods, and those that wait come first: {why}"
    return Refusal(403, text, overrun=True)
