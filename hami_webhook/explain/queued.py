"""A pod that waits for quota: what it waits for, and what would let it in (docs/explain.md#waiting-for-quota). Pods of
groups: docs/spec/queues.md#5.

The numbers are those of the quotas as they were read: the pod's condition may be a minute older.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hami_webhook.devices.registry import Vendors
from hami_webhook.explain.report import Change, Step
from hami_webhook.kube.message_text import first_of
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup, pod_group_fault
from hami_webhook.queueing.pod_queue import demand_of, room_of
from hami_webhook.queueing.words import (
    ahead_in,
    kept_in,
    note_in,
    quota_named,
    refused_in,
    resource_of,
    start_in,
    waiting_sentence,
    with_durations,
)
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.pricing import ClusterCapacity, charge_of
from hami_webhook.quota.queue_order import Shortfall
from hami_webhook.state.cluster_cache import ClusterCache

ABOVE_NAMESPACES = "AcceleratorQuota"
_MOST_NAMED = 3
"""Pods that a sentence names."""


class QuotaWait(Struct, frozen=True):
    """The first line about a pod that waits for quota, and what would let it in as far as its quotas go.

    `changes` are alternatives; `smaller` is the change of its own request that needs no look at nodes.
    """

    sentence: str
    changes: Sequence[Change] = ()
    smaller: Sequence[Change] = ()


def quota_wait(
    pod: Pod,
    accounts: Sequence[QuotaAccount],
    state: ClusterCache,
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    assume_ttl: float,
    said: str,
    *,
    complete: bool,
) -> QuotaWait:
    """What a pod with our scheduling gate waits for; `said` is the sentence of its condition, empty if it has none.

    `accounts` are those of the quotas that cover it, all if `complete`: else the condition knows of others. `now` is in
    Unix seconds, `assume_ttl` in seconds.
    """
    if PodGroup.of(pod) is not None or refused_in(said):
        said = with_durations(said, now)
        text = said[:1].upper() + said[1:] or f"Waits for quota: {gate_step(pod, state)}"
        return QuotaWait(text)
    enforced = {account.room_name: account for account in accounts if account.enforced}
    lacks = [*_lacks(demand_of(pod, [*enforced.values()], vendors, capacity), enforced)]
    never = any(lack.requested > lack.hard for lack in lacks)
    others = [
        part
        for part in (with_durations(note_in(said), now), kept_in(said), with_durations(start_in(said), now))
        if part
    ]
    text = waiting_sentence(lacks, others, ahead_in(said), never=never)
    if said and not complete and (not lacks or ABOVE_NAMESPACES in said):
        text = with_durations(said[:1].upper() + said[1:], now)
    if not lacks:
        return QuotaWait(text)
    living = [each for each in state.pods_in(pod.namespace) if each.uid != pod.uid and not each.ended(now)]

    def free(lack: Shortfall) -> Step | None:
        account = enforced[lack.quota]
        held = {}
        for each in living if not never else ():
            charge = charge_of(each, vendors, capacity, now, assume_ttl, account.cards)
            amount = account.counted(charge.exact).get(lack.key, 0) if account.covers(each) else 0
            if amount:
                held[each.name] = amount
        return _free(lack, pod.namespace, held)

    freeing = [step for lack in lacks if (step := free(lack)) is not None]
    changes = [Change(freeing)] if len(freeing) == len(lacks) else []
    return QuotaWait(text, [*changes, Change([*map(_raise, lacks)])], [*_smaller(pod, lacks)])


def _free(lack: Shortfall, namespace: str, held: Mapping[str, int]) -> Step | None:
    """That other pods of the namespace give up what is lacking, by name what each holds; None if that isn't enough."""
    short = lack.requested - lack.free
    if sum(held.values()) < short:
        return None
    names = sorted(held, key=lambda name: (-held[name], name))
    text = f"free {short} {resource_of(lack.key)} in {namespace} (held by {first_of(names, _MOST_NAMED)})"
    pods = [f"{namespace}/{name}" for name in names]
    return Step("free", text, f"{lack.quota}/{lack.key}", {lack.key: short}, pods)


def _lacks(
    demand: Sequence[tuple[str, Sequence[tuple[str, int]]]], accounts: dict[str, QuotaAccount]
) -> Iterator[Shortfall]:
    for quota, amounts in demand:
        room = room_of(accounts[quota])
        for key, amount in amounts:
            free = room.free.get(key, 0)
            if amount > free:
                yield Shortfall(quota, key, amount, free, room.hard[key])


def _raise(lack: Shortfall) -> Step:
    to = lack.hard + lack.requested - lack.free
    text = f"raise {resource_of(lack.key)} of {quota_named(lack.quota)} from {lack.hard} to {to}"
    return Step("quota", text, f"{lack.quota}/{lack.key}", {"from": lack.hard, "to": to})


def _smaller(pod: Pod, lacks: Sequence[Shortfall]) -> Iterator[Change]:
    """To ask for as many as are free, where only one resource of one container is lacking."""
    resources = {resource_of(lack.key) for lack in lacks}
    free = min((lack.free for lack in lacks), default=0)
    if len(resources) != 1 or free <= 0:
        return
    (resource,) = resources
    asking = [each for each in pod.containers if resource in each.limits or resource in each.requests]
    if len(asking) == 1 and all(lack.requested == _amount(asking[0].limits.get(resource)) for lack in lacks):
        text = f"ask for {free} {resource} instead of {lacks[0].requested}"
        yield Change([Step("request", text, asking[0].name, {resource: free})])


def _amount(written: object) -> int | None:
    text = str(written)
    return int(text) if text.isdecimal() and len(text) < 19 else None


def group_notes(pod: Pod, state: ClusterCache) -> list[str]:
    """Which group the pod is of, and how many of its pods are there; or why it is of none."""
    group = PodGroup.of(pod)
    if group is None:
        fault = pod_group_fault(pod)
        return [f"it is of no pod group: {fault}"] if fault else []
    there, placed = _count(group, state)
    return [
        f"it is of pod group {group.name}, whose {group.size} pods are placed all or none: "
        f"{there} are there, {placed} on nodes"
    ]


def gate_step(pod: Pod, state: ClusterCache) -> str:
    """What has to happen until the scheduling gate of quota is removed."""
    group = PodGroup.of(pod)
    if group is None:
        return "its quotas must have room for it, in its turn"
    there, _ = _count(group, state)
    if there < group.size:
        return f"all {group.size} pods of pod group {group.name} must be there; {there} are"
    return f"its quotas must have room for pod group {group.name}, in its turn"


def _count(group: PodGroup, state: ClusterCache) -> tuple[int, int]:
    members = state.by_namespace.there(group.key)
    return len(members), sum(bool(pod.node_name) for pod in members)
