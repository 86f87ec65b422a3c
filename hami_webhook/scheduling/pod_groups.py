"""Pods that start together are placed all or none (docs/spec/queues.md#5.3).

When the first member is filtered, devices are found for each, and held as assumed placements: for all others they are
taken, and each member is answered with its own node. Where one finds none all are let go. What is held lasts as long as
members are being bound; what was bound stays, also if the process ends, so those that are placed in part come first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import NoReturn

from msgspec import Struct

from hami_webhook.cluster.api import Conflict, NotFound, Unavailable
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest, may_request_cards, shape_of
from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.pod_group import GroupKey, PodGroup
from hami_webhook.scheduling.framework import Handle, keep_latest
from hami_webhook.scheduling.node_locks import LockContended
from hami_webhook.scheduling.placer import AssumedPlacement, CycleState, Placer, Unschedulable
from hami_webhook.scheduling.post_filter import GroupPostFilter
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.time_slices import TimeSlices

logger = logging.getLogger(__name__)

HELD_FOR = 30.0
"""Seconds from the search, or from the last member that was bound, for which devices are held for the others."""

_EVERY = 2.0
"""Seconds between two looks at what is held for too long."""

_TRIES = 8
"""How many nodes found for earlier members are tried before all nodes are filtered again."""

_IN_PART = 8
"""Other groups, placed in part, that are searched devices for before a group is."""

_TRIED_AGAIN = (Conflict, LockContended, NotFound, Unavailable)
"""Binds that fail so are tried again, with the pod as it is then, in the pod's turn at the node, or as it may be bound.
"""

_REMEMBERED = 1024


class _Holds(Struct):
    """What is held for a group's members that aren't bound, by UID, until Unix seconds."""

    placements: dict[str, AssumedPlacement]
    until: float


class _Failure(Struct, frozen=True):
    """A search that failed: for which members, on the nodes as of a generation, and what it came to."""

    members: frozenset[str]
    as_of: int
    text: str


class _Due(Struct, frozen=True):
    """The members of a group that are to be placed, the oldest first, and the nodes where others are bound."""

    group: PodGroup
    members: Sequence[Pod]
    nodes: Collection[str]


class PodGroups:
    """Holds devices for the members of pod groups. `binding` are the UIDs of pods whose bind is under way."""

    def __init__(
        self,
        handle: Handle,
        placer: Placer,
        queue: RequeueTrigger,
        quotas_of: Callable[[str], Awaitable[Sequence[ResourceQuota]]],
        binding: Collection[str],
        preemption: GroupPostFilter | None = None,
    ) -> None:
        self._state = handle.state
        self._vendors = handle.vendors
        self._clock = handle.clock
        self._placer = placer
        self._queue = queue
        self._quotas_of = quotas_of
        self._binding = binding
        self._preemption = preemption
        self._holds: dict[GroupKey, _Holds] = {}
        self._searching = asyncio.Lock()
        self._in_part: dict[GroupKey, None] | None = None
        """Groups of which a part may be bound and nothing is held; None before they were looked for."""
        self._failures: OrderedDict[GroupKey, _Failure] = OrderedDict()
        self._not_offered: OrderedDict[GroupKey, dict[str, set[str]]] = OrderedDict()
        """Nodes that were held for members and that kube-scheduler didn't offer them, by UID."""

    async def run(self) -> NoReturn:
        """Let go what is held for too long, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            self.expire()

    async def place(self, pod: Pod, group: PodGroup, names: Sequence[str]) -> str | Unschedulable:
        """The node of a member, with devices held there, and for the others elsewhere; or why none are.

        `names` are the nodes that kube-scheduler offers this member. Raises `ClusterError`.
        """
        self.expire()
        node = self._offered_hold(pod, group, names)
        if node:
            return node
        async with self._searching:
            node = self._offered_hold(pod, group, names)  # of a search that was waited for
            if node:
                return node
            self._let_go(group.key)
            due = self._due(pod, group)
            if isinstance(due, str):
                return self._refused(pod, names, due)
            known = self._failures.get(group.key)
            members = frozenset(member.uid for member in due.members)
            if known is not None and (known.members, known.as_of) == (members, self._state.generations.latest):
                text = known.text
            else:
                await self._finish_others(group.key, names)
                text = await self._search(due, names)
            if text:
                return self._refused(pod, names, await self._with_preemption(text, due, names))
        if len(members) > 1:
            self._queue.freed()  # those that were refused before have a place now
        placement = self.placement(pod.uid)
        return (
            Unschedulable(error=f"pod {pod.key} was deleted, or has other labels")
            if placement is None
            else placement.node
        )

    def placement(self, uid: str) -> AssumedPlacement | None:
        """What is held for a member."""
        key = self._group_of(uid)
        return None if key is None else self._holds[key].placements[uid]

    def replace(self, uid: str, placement: AssumedPlacement) -> None:
        """Note that a member was placed again on its node."""
        key = self._group_of(uid)
        if key is not None:
            self._holds[key].placements[uid] = placement

    def bound(self, uid: str) -> None:
        """Note that a member was bound, which restarts the time of the others."""
        key = self._group_of(uid)
        if key is not None:
            self._drop(key, uid)
            if key in self._holds:
                self._holds[key].until = self._clock() + HELD_FOR

    def bind_failed(self, uid: str, error: BaseException) -> bool:
        """A pod wasn't bound, or it isn't known; whether it is a member for which devices are held.

        All devices are let go then, unless another try may succeed with them.
        """
        key = self._group_of(uid)
        if key is None:
            return False
        if isinstance(error, Exception) and not isinstance(error, _TRIED_AGAIN):
            self._state.forget(uid, self._clock())
            self._drop(key, uid)
            self._let_go(key)
            self._queue.freed()
        return True

    def expire(self) -> None:
        """Let go what is held for too long, and what was held for pods that are bound or gone."""
        now = self._clock()
        for key, holds in list(self._holds.items()):
            for uid in list(holds.placements):
                pod = self._state.pod(uid)
                if pod is None or pod.node_name or pod.terminal or pod.deletion_time is not None:
                    if pod is not None and not pod.node_name:
                        self._state.forget(uid, now)
                    self._drop(key, uid)
            if key in self._holds and now >= holds.until and self._let_go(key):
                logger.info(
                    "devices of a pod group are let go: a member wasn't bound in time",
                    extra={"namespace": key[0], "pod_group": key[1]},
                )
                self._queue.freed()

    def _group_of(self, uid: str) -> GroupKey | None:
        """The group for which something is held for this pod."""
        pod = self._state.pod(uid)
        group = None if pod is None else PodGroup.of(pod)
        if group is None or group.key not in self._holds or uid not in self._holds[group.key].placements:
            return None
        return group.key

    def _offered_hold(self, pod: Pod, group: PodGroup, names: Collection[str]) -> str:
        """Return the node held for the pod, if it is offered; empty if all nodes have to be searched again."""
        held = self._holds.get(group.key)
        placement = None if held is None else held.placements.get(pod.uid)
        if placement is None or not self._state.holds_devices(pod.uid):
            return ""
        if placement.node in names:
            return placement.node
        known = self._not_offered.get(group.key, {})
        known.setdefault(pod.uid, set()).add(placement.node)
        keep_latest(self._not_offered, group.key, known, _REMEMBERED)
        self._let_go(group.key)
        return ""

    def _refused(self, pod: Pod, names: Sequence[str], text: str) -> Unschedulable:
        self._placer.record(pod, "Warning", "FilteringFailed", text)
        return Unschedulable(dict.fromkeys(names, Rejection(bare=text)))

    def _let_go(self, key: GroupKey) -> bool:
        """Give up what is held for a group's members but those that are being bound; whether there was anything."""
        holds = self._holds.get(key)
        if holds is None:
            return False
        now, gone = self._clock(), [uid for uid in holds.placements if uid not in self._binding]
        for uid in gone:
            self._state.forget(uid, now)
            del holds.placements[uid]
        if not holds.placements:
            del self._holds[key]
        if self._in_part is not None:
            self._in_part[key] = None
        return bool(gone)

    def _drop(self, key: GroupKey, uid: str) -> None:
        """Nothing is held any longer for this member."""
        placements = self._holds[key].placements
        del placements[uid]
        if not placements:
            del self._holds[key]

    # the search

    def _due(self, pod: Pod | None, group: PodGroup) -> _Due | str:
        """The members to be placed; or why not. `pod` is the one that is filtered, as kube-scheduler knows it."""
        by_namespace = self._state.by_namespace
        known = {member.uid: member for member in by_namespace.members(group.key)}
        if pod is not None:
            known[pod.uid] = pod
        if differing := group.differing_sizes(known.values()):
            return differing
        scheduler = next(iter(known.values())).scheduler_name if pod is None else pod.scheduler_name
        bound = [member for member in known.values() if member.node_name]
        free = [
            member
            for member in known.values()
            if not member.node_name and not member.gated and member.scheduler_name == scheduler
        ]
        free.sort(key=lambda member: (member.created or 0.0, member.uid))
        ready = len(bound) + len(free) + len(by_namespace.completed(group.key, known.values()))
        if ready < group.size:
            return f"{ready} of {group.size} pods of pod group {group.name} are ready to be placed"
        due = free[: max(0, group.size - len(bound))]
        if pod is not None and pod.uid not in {member.uid for member in due}:
            return group.surplus
        # one whose request can't be meant fits nowhere, and so doesn't its group
        members = [each for each in due if each.uid not in self._binding and may_request_cards(each, self._vendors)]
        return _Due(group, members, {member.node_name: None for member in bound})

    async def _finish_others(self, own: GroupKey, names: Sequence[str]) -> None:
        """Hold devices for groups of which a part is bound, the oldest first: they would wait for this one for ever."""
        if self._in_part is None:
            self._in_part = dict.fromkeys(self._state.by_namespace.groups())
        waiting: list[_Due] = []
        for key in list(self._in_part):
            members = self._state.by_namespace.members(key)
            group = PodGroup.of(members[0]) if members else None
            due = "" if group is None or key in self._holds else self._due(None, group)
            if isinstance(due, str) or not due.members or not due.nodes:
                del self._in_part[key]
            elif key != own:
                waiting.append(due)
        waiting.sort(key=lambda due: due.members[0].created or 0.0)
        for due in waiting[:_IN_PART]:
            known = self._failures.get(due.group.key)
            if known is None or known.as_of != self._state.generations.latest:
                await self._search(due, names)

    async def _with_preemption(self, text: str, due: _Due, names: Sequence[str]) -> str:
        """Why the group doesn't fit, and what is done about it."""
        if self._preemption is None:
            return text
        key, kept = due.group.key, self._kept(due)
        done = await self._preemption.consider(key, due.members, due.nodes, names, await self._quotas_of(key[0]))
        if kept != self._kept(due):  # members are tried on other nodes first
            self._failures.pop(key, None)
        return f"{text}; {done}" if done else text

    def _kept(self, due: _Due) -> list[str]:
        """The nodes that are kept for members."""
        return [] if self._preemption is None else [self._preemption.nominated_node(pod.uid) for pod in due.members]

    async def _search(self, due: _Due, names: Sequence[str]) -> str:
        """Hold devices for all members; or hold none, and why not."""
        key, now = due.group.key, self._clock()
        quotas = await self._quotas_of(key[0])
        found: list[tuple[Pod, CycleState, AssumedPlacement]] = []
        shapes: list[_Shape] = []
        near = list(due.nodes)
        not_offered = self._not_offered.get(key, {})
        complete = False
        try:
            for member in due.members:
                refused = not_offered.get(member.uid, ())
                offered = [name for name in names if name not in refused] if refused else names
                shape = _shape_among(shapes, member, offered)
                chosen = await self._one(member, shape, near, quotas, len(due.members) - len(found))
                if chosen is None:
                    break
                placement = self._placer.assume(chosen)
                found.append((member, chosen, placement))
                if placement.node not in near:
                    near.append(placement.node)
            complete = len(found) == len(due.members)
        finally:
            if not complete:
                for member, _, _ in found:
                    self._state.forget(member.uid, now)
        if not complete:
            text = f"{len(found)} of {len(due.members)} pods of pod group {due.group.name} fit"
            members = frozenset(member.uid for member in due.members)
            keep_latest(self._failures, key, _Failure(members, self._state.generations.latest, text), _REMEMBERED)
            self._not_offered.pop(key, None)
            if found:
                self._queue.freed()  # others may have been refused for what was held meanwhile
            return text
        placements = {member.uid: placement for member, _, placement in found}
        self._holds[key] = _Holds(placements, self._clock() + HELD_FOR)
        self._failures.pop(key, None)
        for member, chosen, _ in found:
            self._placer.record_placed(member, chosen)
        return ""

    async def _one(
        self, member: Pod, shape: _Shape, near: Sequence[str], quotas: Sequence[ResourceQuota], left: int
    ) -> CycleState | None:
        """A member with its devices, on a node of the others if one takes it; None if no node does."""
        kept = "" if self._preemption is None else self._preemption.nominated_node(member.uid)
        if kept in shape.offered:
            found = await self._fitted(member, [kept], quotas)
            if found is not None:
                return found
        close = [name for name in near[shape.full :] if name in shape.offered]
        if close:
            found = await self._fitted(member, close, quotas)
            if found is not None:
                return found
            shape.full = len(near)
        for _ in range(_TRIES):
            node = shape.take(left)
            if not node:
                break
            found = await self._fitted(member, [node], quotas)
            if found is not None:
                return found
        # what was found for members before may be taken by now
        again = await self._placer.consider(member, [*shape.offered], quotas)
        if not isinstance(again, CycleState):
            return None
        shape.rooms = await self._rooms(again)
        node = shape.take(left)
        return await self._fitted(member, [node], quotas) if node else None

    async def _fitted(self, member: Pod, names: Sequence[str], quotas: Sequence[ResourceQuota]) -> CycleState | None:
        """A member with its devices on the best of these nodes; None if none takes it."""
        found = await self._placer.consider(member, names, quotas, choose=True)
        return found if isinstance(found, CycleState) and found.best is not None else None

    async def _rooms(self, found: CycleState) -> dict[str, int]:
        """The fitting nodes, the best first, with how many more such pods each may take, about."""
        slices = TimeSlices()
        rooms = {}
        for rank in self._placer.ranked(found):
            view = self._state.view(rank.node)
            rooms[rank.node] = 0 if view is None else min(_times(view, found.request), default=0)
            await slices.interrupt()
        return rooms


class _Shape(Struct):
    """The search for members that are equal for Fit: the nodes offered to them, and those found, with their rooms.

    Of the nodes near the members before them the first `full` take none of them any more.
    """

    pod: Pod
    names: Sequence[str]
    offered: dict[str, None]
    rooms: dict[str, int] = {}
    full: int = 0

    def take(self, left: int) -> str:
        """The next node: the best that takes all that are left, else the one that takes most; empty for none."""
        chosen, most = "", -1
        for node, room in self.rooms.items():
            if room > most:
                chosen, most = node, room
            if room >= left:
                chosen = node
                break
        self.rooms.pop(chosen, None)
        return chosen


def _shape_among(shapes: list[_Shape], member: Pod, names: Sequence[str]) -> _Shape:
    """The search for a member's shape; a new one for the first of them."""
    pod = shape_of(member)
    known = next((each for each in shapes if each.names is names and each.pod == pod), None)
    if known is None:
        known = _Shape(pod, names, dict.fromkeys(names))
        shapes.append(known)
    return known


def _times(view: NodeView, request: PodRequest) -> Iterator[int]:
    """For each request of a container, how often the free part of the node's cards has what it asks for."""
    for row in request.rows:
        for vendor, wanted in row.items():
            inventory = view.inventories.get(vendor)
            cards = 0
            for device in () if inventory is None else inventory.devices:
                if view.has_free_slot(device):
                    used = view.used(vendor, device.uuid)
                    needs = (
                        (device.slots - used.slots, wanted.slots),
                        (device.memory - used.memory, wanted.memory.on(device.memory)),
                        (device.cores - used.cores, wanted.cores),
                    )
                    cards += min(free // need for free, need in needs if need > 0)
            yield cards // max(1, wanted.count)
