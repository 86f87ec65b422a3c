"""Preemption for a pod group that doesn't fit: who goes for all of it, or nobody (docs/spec/queues.md#5.5).

Each member is nominated to its node, so that what is freed is kept for it, and all are placed together once the victims
have ended. It must not search again and again for groups that never fit: what it found nobody for, it leaves for a
while, and the namespace's other groups for as long as the search was worth.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from msgspec import structs

from hami_webhook.devices.pod_fit import shape_of
from hami_webhook.evictions.decisions import Decisions
from hami_webhook.evictions.executor import Eviction
from hami_webhook.evictions.group_victims import (
    GroupPreemptor,
    GroupVictims,
    Member,
    NoVictims,
    group_effort,
    selecting_group_victims,
)
from hami_webhook.evictions.policies import GROUP
from hami_webhook.evictions.quota_room import GroupBudgets
from hami_webhook.evictions.search import SearchBudget
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.pod_group import GroupKey
from hami_webhook.scheduling.framework import Handle, keep_latest
from hami_webhook.scheduling.placer import CycleState, Placer
from hami_webhook.time_slices import TimeSlices

_ROUNDS = 3
"""What changed on nodes while victims were looked for has them looked for again as often."""
_LEFT_ALONE = 30.0
"""Seconds after which victims are looked for again for a group that had none."""
_PAUSE, _PAUSE_PER_FIT = 1.0, 0.004
"""Seconds for which none are for other groups of its namespace, and for each Fit of that search: a tenth of a core."""
_LIMITED = "nobody is evicted for it now"
_REMEMBERED = 1024


class GroupPreemption:
    """Evicts pods for groups that don't fit; `decisions` carry it out."""

    def __init__(self, handle: Handle, placer: Placer, decisions: Decisions) -> None:
        self._state = handle.state
        self._vendors = handle.vendors
        self._clock = handle.clock
        self._placer = placer
        self._nominations = decisions.nominations
        self._limits = decisions.limits
        self._decisions = decisions
        self._left_alone: OrderedDict[GroupKey, tuple[float, str]] = OrderedDict()
        """Until when victims aren't looked for again, for a group, and why."""
        self._paused: dict[str, float] = {}
        """Until when they aren't for any group of a namespace."""

    async def consider(
        self,
        key: GroupKey,
        due: Sequence[Pod],
        near: Collection[str],
        names: Collection[str],
        quotas: Sequence[ResourceQuota],
    ) -> str:
        """Choose victims for the members `due` of a group, which don't all fit on the nodes offered.

        Return a sentence, empty if no pod is evicted. `near` are the nodes of those that are bound. Raises
        `ClusterError`.
        """
        pods = [shown for pod in due if (shown := self._state.pod(pod.uid)) is not None]
        if len(pods) < len(due) or not pods:
            return ""
        if (why := self._postponed(key, pods, names)) is not None:
            return why
        group = await self._preemptor(key, pods, near, quotas)
        if group is None:
            return ""
        effort = group_effort()
        found = await self._search(group, names, effort)
        if found is None or not self._are_there(pods):
            self._pause(key, effort)
            return ""
        if isinstance(found, NoVictims):
            self._decisions.counts["no-candidates"] += 1
            return self._leave_alone(key, effort, "" if found is NoVictims.NOBODY else found.value)
        eviction = Eviction(GROUP, [(pod, found.nodes[pod.uid]) for pod in pods], found.pods)
        if not found.pods:
            if self._decisions.keep(eviction, found.ending) and not found.ending:
                self._decisions.try_again(key[0], self._clock())  # all would have fitted, in this order
            return self._leave_alone(key, effort, "it waits for pods that are ending")
        number = len(found.pods)
        victims = f"{number} pods of lower priority" if number > 1 else "1 pod of lower priority"
        match self._decisions.decide(eviction, found.ending):
            case "dry-run":
                return self._leave_alone(key, effort, f"{victims} would be evicted for it")
            case "limited":
                return self._leave_alone(key, effort, _LIMITED)
        return f"{victims} {'are' if number > 1 else 'is'} evicted for it"

    def nominated_node(self, uid: str) -> str:
        """The node that is kept for a member; empty for none."""
        nomination = self._nominations.of(uid)
        return "" if nomination is None else nomination.node

    def _postponed(self, key: GroupKey, pods: Sequence[Pod], names: Collection[str]) -> str | None:
        """What is said where nobody is looked for now; None if somebody may be."""
        if any(pod.preemption_policy == "Never" for pod in pods):
            self._decisions.counts["policy-never"] += 1
            return ""
        now, offered = self._clock(), set(names)
        kept = [each for pod in pods if (each := self._nominations.of(pod.uid)) is not None]
        waits = any(self._limits.waits(pod.uid) for pod in pods)
        if waits or any(self._decisions.may_be_from_before(each) for each in kept):
            self._decisions.counts["waiting"] += 1
            return "pods that were evicted for it are ending"
        if any(now < each.until and each.node not in offered for each in kept):  # it offers a part of many nodes
            return "cards are kept for it on nodes that kube-scheduler doesn't offer now"
        self._paused = {name: until for name, until in self._paused.items() if now < until}
        until, why = self._left_alone.get(key, (0.0, ""))
        if now < until:
            self._decisions.try_again(f"{key[0]}/", until)
            return why
        if key[0] in self._paused:
            self._decisions.try_again(key[0], self._paused[key[0]])
            return ""
        reached = self._limits.reached(GROUP, pods, 1)
        if reached is None:
            return None
        self._decisions.report_limit(pods[0], GROUP, reached)
        return _LIMITED

    def _leave_alone(self, key: GroupKey, effort: SearchBudget, why: str) -> str:
        self._pause(key, effort)
        keep_latest(self._left_alone, key, (self._clock() + _LEFT_ALONE, why), _REMEMBERED)
        return why

    def _pause(self, key: GroupKey, effort: SearchBudget) -> None:
        """Look at no group of the namespace for as long as the search was worth."""
        fits = group_effort().fits - effort.fits
        self._paused[key[0]] = self._clock() + max(_PAUSE, _PAUSE_PER_FIT * fits)

    async def _preemptor(
        self, key: GroupKey, pods: Sequence[Pod], near: Collection[str], quotas: Sequence[ResourceQuota]
    ) -> GroupPreemptor | None:
        """The group with what its members request; None if one can't be placed as it is."""
        found: list[tuple[Pod, CycleState]] = []
        members = []
        for pod in pods:
            shape = shape_of(pod)
            state = next((state for known, state in found if known == shape), None)
            if state is None:
                considered = await self._placer.consider(pod, [], quotas)
                if not isinstance(considered, CycleState):
                    return None
                state = considered
                found.append((shape, state))
            members.append(Member(pod, state.request))
        priority = min(pod.priority for pod in (*pods, *self._state.by_namespace.members(key)))
        budgets = GroupBudgets(found[0][1].accounts, self._state, self._state.capacity, self._vendors, self._clock())
        disruption = self._decisions.budgets.left()
        return GroupPreemptor(members, [*near], priority, budgets, self._vendors, disruption, self._clock())

    async def _search(
        self, group: GroupPreemptor, names: Collection[str], effort: SearchBudget
    ) -> GroupVictims | NoVictims | None:
        """The victims, on nodes that are now as they were looked at; None if they change too often."""
        slices, pod = TimeSlices(), structs.replace(group.members[0].pod, priority=group.priority)
        for _ in range(_ROUNDS):
            nodes = self._nominations.snapshots(pod, sorted(names))
            found = await slices.run(selecting_group_victims(group, nodes, effort))
            if isinstance(found, NoVictims) or not slices.interruptions:
                return found
            again = self._nominations.snapshots(pod, [each.name for each in found.looked_at])
            now = {node.name: node for node in again}
            if all(each.name in now and each.same_as(now[each.name]) for each in found.looked_at):
                return found
        return None

    def _are_there(self, pods: Sequence[Pod]) -> bool:
        shown = [self._state.pod(pod.uid) for pod in pods]
        return all(pod is not None and not pod.node_name and pod.deletion_time is None for pod in shown)
