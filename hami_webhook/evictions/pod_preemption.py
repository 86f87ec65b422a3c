"""Preemption for a pod that no node takes: who goes for it, or besides those of kube-scheduler (docs/preemption.md).

It is decided before the pod's filter is answered, so the next pod finds the devices kept; `Decisions` write to the
cluster afterwards, so kube-scheduler isn't kept waiting. It must not evict for a pod that others are ending for
already, nor beyond a tenant's limits, nor place: the pod is filtered and bound as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hami_webhook.evictions.decisions import Decisions
from hami_webhook.evictions.executor import Eviction
from hami_webhook.evictions.group_preemption import GroupPreemption
from hami_webhook.evictions.limits import LimitReached
from hami_webhook.evictions.policies import COMPLETION
from hami_webhook.evictions.quota_room import quota_room
from hami_webhook.evictions.search import SearchBudget
from hami_webhook.evictions.victims import (
    Preemptor,
    Victims,
    choosing_node,
    selecting_victims,
)
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import CycleState, Placer
from hami_webhook.scheduling.post_filter import GroupPostFilter
from hami_webhook.scheduling.protocol import Proposal
from hami_webhook.state.node_snapshot import NodeSnapshot
from hami_webhook.state.nominations import Nomination
from hami_webhook.time_slices import TimeSlices

_ROUNDS = 3
"""A node that changed while victims were looked for is looked at again as often."""


class Preemption:
    """The extender's `PostFilter`: evicts pods for those that no node takes. `decisions` are carried out while they
    run; `groups` is for pods that start together.
    """

    def __init__(self, handle: Handle, placer: Placer, decisions: Decisions) -> None:
        self._state = handle.state
        self._vendors = handle.vendors
        self._clock = handle.clock
        self._placer = placer
        self._nominations = decisions.nominations
        self._limits = decisions.limits
        self.decisions = decisions
        self.groups: GroupPostFilter = GroupPreemption(handle, placer, decisions)
        self._offered_again: str = ""

    async def consider(self, pod: Pod, found: CycleState) -> None:
        """Decide who is evicted for a pod that fits on none of the nodes that kube-scheduler offered.

        The decision uses the nodes as `found` has them, or the chosen node as it is when the search ends. It is made
        only if the API server shows the pod with this priority, whatever the request contains.
        """
        shown = self._state.pod(pod.uid)
        if shown is None or shown.priority != pod.priority:
            return
        nominated = self._nominations.of(pod.uid)
        if self._is_postponed(pod, found.candidates, nominated):
            return
        room = quota_room(pod, found.accounts, self._nominations)
        preemptor = Preemptor(
            found.request, found.budget, self._vendors, self.decisions.budgets.left(), self._clock(), room
        )
        victims = await self._choose(preemptor, found, nominated)
        shown = self._state.pod(pod.uid)
        if shown is None or shown.node_name or shown.deletion_time is not None:
            return
        if victims is None:
            self._find_no_victims(pod, nominated)
        else:
            ending = self._nominations.ending(victims.node) | (room.ending if room is not None else set())
            self.decisions.decide(Eviction(preemptor.policy, [(pod, victims.node)], victims.pods), ending)

    def awaited(self, pod: Pod) -> str:
        """The node that the pod is nominated to, while kube-scheduler sees its victims ending there; else empty.

        kube-scheduler evicts nobody for the pod then, and leaves it nominated.
        """
        node = pod.nominated_node
        return node if node and self._limits.are_seen_ending(pod.uid, node) else ""

    def _is_postponed(self, pod: Pod, names: Sequence[str], nominated: Nomination | None) -> bool:
        """Whether nobody is looked for now: the pod evicts nobody, waits already, or is offered more nodes at once."""
        if pod.preemption_policy == "Never":
            self.decisions.counts["policy-never"] += 1
            return True
        if pod.nominated_node and [pod.nominated_node] == [*names] and self._offered_again != pod.uid:
            # kube-scheduler tries the nominated node by itself first, and offers the others after that
            self._offered_again = pod.uid
            return True
        self._offered_again = ""
        waits = self._limits.waits(pod.uid)
        if not waits and nominated is not None and nominated.node not in names:
            waits = self._nominations.waits(pod, nominated.node)  # kube-scheduler evicts there, for CPU or memory
        if waits:
            self.decisions.counts["waiting"] += 1
        return waits

    def _find_no_victims(self, pod: Pod, nominated: Nomination | None) -> None:
        """No eviction would help the pod; a nomination of this process ends with that."""
        if nominated is not None and self.decisions.may_be_from_before(nominated):
            self.decisions.counts["waiting"] += 1
            return
        self.decisions.counts["no-candidates"] += 1
        if nominated is not None:
            self.decisions.withdraw(pod)

    async def complete(
        self, pod: Pod, proposed: Mapping[str, Proposal], quotas: Sequence[ResourceQuota]
    ) -> dict[str, Proposal]:
        """kube-scheduler's candidates with all victims that the pod needs there, its devices counted too.

        Nodes where evictions wouldn't help are left out. If pods are already being evicted for this pod, all nodes are.
        So are those where pods would be evicted for devices beyond the limits.
        """
        nominated = self._nominations.of(pod.uid)
        if self._limits.waits(pod.uid) or (nominated is not None and self._nominations.waits(pod, nominated.node)):
            return {}
        found = await self._placer.consider(pod, [*proposed], quotas)
        if found is None:
            return dict(proposed)
        if not isinstance(found, CycleState):
            return {}
        room = quota_room(pod, found.accounts, self._nominations)
        if nominated is not None and room is not None and room.ending:
            return {}
        preemptor = Preemptor(found.request, found.budget, self._vendors, self.decisions.budgets.left(), self._clock())
        completed, slices = {}, TimeSlices()
        victims_by_node: dict[str, Sequence[Pod]] = {}
        reached: LimitReached | None = None
        for node, proposal in proposed.items():
            victims = await self._victims_beside(proposal, preemptor, node, slices)
            if victims is None or (victims.pods and self.decisions.dry_run):
                continue
            if victims.pods and (over_limit := self._limits.reached(COMPLETION, [pod], len(victims.pods))):
                reached = over_limit
                continue
            victims_by_node[node] = victims.pods
            more = [each.uid for each in victims.pods]
            completed[node] = Proposal((*proposal.victims, *more), proposal.violations + victims.violations)
        if reached is not None:
            self.decisions.report_limit(pod, COMPLETION, reached)
        if any(victims_by_node.values()):  # kube-scheduler evicts those of one node
            uids = {each.uid for pods in victims_by_node.values() for each in pods}
            self._limits.evicted([pod], uids, max(map(len, victims_by_node.values())))
        return completed

    async def _victims_beside(
        self, proposal: Proposal, preemptor: Preemptor, node: str, slices: TimeSlices
    ) -> Victims | None:
        """The victims that the pod needs on a node once those proposed are gone; None where evictions don't help."""
        view = self._state.view(node)
        if view is None:
            return None
        snapshot = self._nominations.snapshot(view, preemptor.pod)
        ending = {*snapshot.ending, *proposal.victims}
        return await slices.run(selecting_victims(preemptor, replace(snapshot, ending=ending), SearchBudget(64, 512)))

    async def _choose(self, preemptor: Preemptor, found: CycleState, nominated: Nomination | None) -> Victims | None:
        pod, failed, slices = preemptor.pod, found.filtered.failed, TimeSlices()
        waits_at = {node: why for node, why in failed.items() if nominated is not None and node == nominated.node}
        for node in self._nominations.candidates(pod, waits_at):
            waiting = await slices.run(selecting_victims(preemptor, node))
            if waiting is not None and not waiting.pods:  # once its victims are gone, if nobody else has to go
                return waiting
        if nominated is not None and self.decisions.may_be_from_before(nominated):
            failed = waits_at  # a former process may have evicted there already: nobody elsewhere as well
        looked_at: dict[str, NodeSnapshot] = {}
        nodes = (looked_at.setdefault(node.name, node) for node in self._nominations.candidates(pod, failed))
        victims = await slices.run(choosing_node(preemptor, nodes))
        for _ in range(_ROUNDS):
            if victims is None or not slices.interruptions:
                return victims
            # others had their turn meanwhile: who is evicted is decided on the node as it is now, or not at all
            now = next(self._nominations.candidates(pod, {victims.node: failed[victims.node]}), None)
            if now is None:
                return None
            if now.same_as(looked_at[now.name]) and self._are_there(victims.pods):
                return victims
            looked_at[now.name] = now
            victims = await slices.run(selecting_victims(preemptor, now))
        return None

    def _are_there(self, pods: Iterable[Pod]) -> bool:
        shown = [self._state.pod(each.uid) for each in pods]
        return all(each is not None and each.deletion_time is None for each in shown)
