"""Pods that start together take their turn as one (docs/spec/queues.md#5.2).

In a queue of single pods, those of two groups would start one by one until the quota is full. Each group would then
hold cards, and wait for the other's for ever. So a group is one turn, which costs what its pods cost together. It is
ready once all of them are there. It passes nobody: it has the lowest priority of its pods, and the time of the last.

Pods of a group come one by one, end, and are replaced. So each round counts who is there: those that wait, that run,
and that succeeded. It releases only as many as the group lacks, and the rest are surplus. No member waits in silence:
each gets the words for what its group lacks.

Groups with Kueue's fast admission may begin before all are there. Theirs are single turns that stand beside each other:
of two such groups one starts after the other, and neither gets only a part.

Pure: which pods wait, and what there is of their groups, comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import FastGroup, GroupKey, PodGroup
from hami_webhook.quota.queue_order import Demand, PendingReason, QueueDecision, QueuedPod, QueuePosition

_TOGETHER = 10.0
"""Seconds within which pods of a group with fast admission were created that have their turns one after the other: else
one pod that can't start would keep a place for all that come later."""

_SETTLES = 3.0
"""Seconds after which no further pod of such a group is waited for."""


class GroupTurns(Struct, frozen=True):
    """Turns: those of single pods, and one for each group of which all pods are there.

    `pods` are the UIDs of the pods that are released with a turn, by its UID. `incomplete` says of each pod that takes
    no turn what its group lacks.
    """

    turns: Sequence[QueuedPod]
    pods: Mapping[str, Sequence[str]]
    incomplete: Mapping[str, str]

    def of_each_pod(self, decision: QueueDecision, waiting: Mapping[str, QueuedPod]) -> QueueDecision:
        """Convert a decision about turns into one about the waiting pods."""
        released = [waiting[uid] for turn in decision.released for uid in self.pods[turn.uid]]
        standings = [
            QueuePosition(waiting[uid], each.ahead, each.obstacle, each.own, each.start)
            for each in decision.waiting
            for uid in self.pods[each.pod.uid]
        ]
        standings += [
            QueuePosition(waiting[uid], 0, PendingReason(incomplete=text)) for uid, text in self.incomplete.items()
        ]
        return QueueDecision(released, standings)


def group_turns(
    waiting: Mapping[str, QueuedPod], pods: Mapping[str, Pod], members: Callable[[GroupKey], Sequence[Pod]], now: float
) -> GroupTurns:
    """The turns of the pods that wait, by UID.

    `members` returns a group's live pods, the oldest first, and its pods that succeeded.
    """
    turns: list[QueuedPod] = []
    together: dict[str, Sequence[str]] = {}
    incomplete: dict[str, str] = {}
    groups: dict[GroupKey, PodGroup] = {}
    fast: dict[FastGroup, list[QueuedPod]] = {}
    for uid, queued in waiting.items():
        group = PodGroup.of(pods[uid])
        if group is None:
            together[uid] = (uid,)
            if (of := FastGroup.of(pods[uid])) is not None:
                fast.setdefault(of, []).append(queued)
            else:
                turns.append(queued)
        else:
            groups[group.key] = group
    for of, beginning in fast.items():
        if lacking := _what_lacks_to_begin(of, members(of.key), now):
            incomplete |= {each.uid: lacking for each in beginning}
        else:
            turns += _one_after_the_other(beginning)
    for key, group in groups.items():
        there = members(key)
        ready = [pod.uid for pod in there if pod.uid in waiting]
        lacking = what_lacks(group, there, len(ready))
        # one that succeeded makes its group complete, but holds nothing: no more than the size run at a time
        missing = 0 if lacking else max(0, group.size - sum(not pod.queued and not pod.terminal for pod in there))
        released, more = ready[:missing], ready[missing:]
        incomplete |= dict.fromkeys(more, lacking or group.surplus)
        if released:
            turn = _as_one([waiting[uid] for uid in released])
            turns.append(turn)
            together[turn.uid] = released
    return GroupTurns(turns, together, incomplete)


def what_lacks(group: PodGroup, there: Sequence[Pod], ready: int) -> str:
    """Explain why no pod of a group can take a turn; empty if it is complete.

    `ready` is the number that only our gate holds.
    """
    if differing := group.differing_sizes(pod for pod in there if not pod.terminal):
        return differing
    count = ready + sum(not pod.queued for pod in there)
    return "" if count >= group.size else f"{count} of {group.size} pods of pod group {group.name} are there"


def _what_lacks_to_begin(group: FastGroup, there: Sequence[Pod], now: float) -> str:
    """Why no pod of a group with fast admission takes a turn yet; empty if others are running, or the group settled.

    Kueue lets go those that are there; those of a StatefulSet that makes one after the other aren't waited for.
    """
    if not there or not all(pod.queued for pod in there):
        return ""
    ready = sum(not pod.gated_by_others for pod in there)
    settled = len(there) >= group.size or now - (there[-1].created or 0.0) >= _SETTLES
    return (
        ""
        if settled and ready == len(there)
        else f"{ready} of {max(group.size, len(there))} pods of its group in Kueue are there"
    )


def _one_after_the_other(members: Sequence[QueuedPod]) -> Iterable[QueuedPod]:
    """The turns of pods that others' turns aren't to come between: two such groups would each get a part."""
    first = min(members, key=lambda each: each.turn)
    for each in members:
        near = each.priority == first.priority and each.created - first.created <= _TOGETHER
        yield structs.replace(each, created=first.created, beside=first.uid) if near else each


def _as_one(members: Sequence[QueuedPod]) -> QueuedPod:
    """One turn for pods: of the lowest priority, since the last one came."""
    first, runtimes = members[0], [each.runtime for each in members]
    return QueuedPod(
        min(each.uid for each in members),
        first.key,
        min(each.priority for each in members),
        max(each.created for each in members),
        _sum(each.demand for each in members),
        len(members),
        runtime=None if None in runtimes else max(filter(None, runtimes)),
    )


def _sum(demands: Iterable[Demand]) -> Demand:
    total: dict[str, Counter[str]] = {}
    for demand in demands:
        for quota, amounts in demand:
            total.setdefault(quota, Counter()).update(dict(amounts))
    return tuple(sorted((quota, tuple(sorted(amounts.items()))) for quota, amounts in total.items()))
