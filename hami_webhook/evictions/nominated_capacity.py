"""Whether pods would find cards once others are gone: Fit on each node as it is then (docs/spec/queues.md#7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set

from msgspec.structs import replace

from hami_webhook.devices.pod_fit import BadRequest, PodRequest, read_pod_request, shape_of
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.step_limit import FIT_STEPS
from hami_webhook.evictions.search import Exhausted, SearchBudget, SimulatedNode, Trials
from hami_webhook.kube.objects import Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot, joined
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import Steps

_FITS = 4096
"""Times that Fit is tried for all pods of one round: some 0.4 s."""


class NominatedCapacity:
    """The cluster's cards in one round: `place` takes cards for pods, which those after them don't find.

    `gone` are the UIDs of pods that are as good as gone. Pods under deletion count as gone, too.
    """

    def __init__(self, state: ClusterCache, nominations: Nominations, vendors: Vendors, gone: Set[str]) -> None:
        self._state = state
        self._nominations = nominations
        self._vendors = vendors
        self._gone = set(gone)
        self._nodes: dict[str, NodeSnapshot] = {}
        self._there: dict[str, frozenset[str]] = {}
        self._trials = Trials(self._nodes, vendors, SearchBudget(_FITS, 0, _FITS * FIT_STEPS))
        self._shapes: list[Pod] = []

    @property
    def exhausted(self) -> bool:
        """Return whether the round has used up its effort."""
        return self._trials.effort.fits <= 0

    def fitting(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[bool]:
        """Whether all these pods fit once those are gone."""
        return (yield from self._placing(pods, gone)) is not None

    def place(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[None]:
        """Place `pods` on the cards that are free once the pods `gone` have ended."""
        rooms = yield from self._placing(pods, gone)
        self._gone |= gone
        for name, room in (rooms or {}).items():
            node = self._nodes[name]
            self._nodes[name] = replace(node, reserved=joined(node.reserved, room.shares))
            self._trials.forget(name)

    def _placing(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[dict[str, SimulatedNode] | None]:
        """The nodes with these pods, one after the other; None if one finds no place."""
        rooms: dict[str, SimulatedNode] = {}
        all_gone = gone | self._gone
        for pod in pods:
            try:
                request = read_pod_request(pod, self._vendors, "spread")
            except (BadRequest, ValueError):
                return None
            if request is None:
                continue
            for name in self._names(pod, rooms):
                yield
                room = rooms.get(name) or self._room(name, pod, all_gone)
                after = None if room is None else self._answer(room, request)
                if after is not None:
                    rooms[name] = after
                    break
            else:
                return None
        return rooms

    def _names(self, pod: Pod, near: Collection[str]) -> Iterator[str]:
        """The nodes that the pod's nodeSelector allows, those of others of its group first."""
        selector = pod.node_selector or {}
        for name in (*near, *(node.name for node in self._state.nodes() if node.name not in near)):
            node = self._state.node(name)
            if node is not None and selector.items() <= node.labels.items():
                yield name

    def _room(self, name: str, pod: Pod, gone: Set[str]) -> SimulatedNode | None:
        if name not in self._nodes:
            view = self._state.view(name)
            if view is None:
                return None
            self._nodes[name] = snapshot = self._nominations.snapshot(view, pod)
            self._there[name] = frozenset(each.pod.uid for each in snapshot.allocations)
        return self._trials.node(name, self._there[name] & gone)

    def _answer(self, room: SimulatedNode, request: PodRequest) -> SimulatedNode | None:
        """The node with one more pod."""
        shape = shape_of(request.pod)
        if shape not in self._shapes:
            self._shapes.append(shape)
        try:
            found = None if self.exhausted else self._trials.answer(room, self._shapes.index(shape), request)
        except Exhausted:
            return None
        return None if found is None else found[1]
