"""Pods that start together take their turn as one (docs/spec/queues.md#5.2).

Pure: which pods wait, and what there is of their groups, comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import GroupKey, PodGroup
from hami_webhook.quota.queue_order import Demand, Obstacle, QueueDecision, QueuedPod, Standing


class GroupTurns(Struct, frozen=True):
    """Turns: those of single pods, and one for each group of which all pods are there.

    `pods` are the UIDs of the pods that are released with a turn, by its UID. `incomplete` says of each pod that takes
    no turn what its group lacks.
    """

    turns: Sequence[QueuedPod]
    pods: Mapping[str, Sequence[str]]
    incomplete: Mapping[str, str]

    def of_each_pod(self, decision: QueueDecision, waiting: Mapping[str, QueuedPod]) -> QueueDecision:
        """A decision about the turns as one about the pods that wait."""
        released = [waiting[uid] for turn in decision.released for uid in self.pods[turn.uid]]
        standings = [
            Standing(waiting[uid], each.ahead, each.obstacle, each.own)
            for each in decision.waiting
            for uid in self.pods[each.pod.uid]
        ]
        standings += [Standing(waiting[uid], 0, Obstacle(incomplete=text)) for uid, text in self.incomplete.items()]
        return QueueDecision(released, standings)


def group_turns(
    waiting: Mapping[str, QueuedPod], pods: Mapping[str, Pod], members: Callable[[GroupKey], Sequence[Pod]]
) -> GroupTurns:
    """The turns of the pods that wait, by UID. `members` are the live pods of a group, the oldest first."""
    turns: list[QueuedPod] = []
    together: dict[str, Sequence[str]] = {}
    incomplete: dict[str, str] = {}
    groups: dict[GroupKey, PodGroup] = {}
    for uid, queued in waiting.items():
        group = PodGroup.of(pods[uid])
        if group is None:
            turns.append(queued)
            together[uid] = (uid,)
        else:
            groups[group.key] = group
    for key, group in groups.items():
        there = members(key)
        ready = [pod.uid for pod in there if pod.uid in waiting]
        lacking = what_lacks(group, there, len(ready))
        missing = 0 if lacking else max(0, group.size - sum(not pod.queued for pod in there))
        released, more = ready[:missing], ready[missing:]
        incomplete |= dict.fromkeys(more, lacking or group.surplus)
        if released:
            turn = _as_one([waiting[uid] for uid in released])
            turns.append(turn)
            together[turn.uid] = released
    return GroupTurns(turns, together, incomplete)


def what_lacks(group: PodGroup, there: Sequence[Pod], ready: int) -> str:
    """Why no pod of a group can take a turn; empty if the group is complete. `ready` wait for nothing else."""
    if differing := group.differing_sizes(there):
        return differing
    count = ready + sum(not pod.queued for pod in there)
    return "" if count >= group.size else f"{count} of {group.size} pods of pod group {group.name} are there"


def _as_one(members: Sequence[QueuedPod]) -> QueuedPod:
    """One turn for pods: of the lowest priority, since the last one came."""
    first = members[0]
    return QueuedPod(
        min(each.uid for each in members),
        first.key,
        min(each.priority for each in members),
        max(each.created for each in members),
        _sum(each.demand for each in members),
        len(members),
    )


def _sum(demands: Iterable[Demand]) -> Demand:
    total: dict[str, Counter[str]] = {}
    for demand in demands:
        for quota, amounts in demand:
            total.setdefault(quota, Counter()).update(dict(amounts))
    return tuple(sorted((quota, tuple(sorted(amounts.items()))) for quota, amounts in total.items()))
