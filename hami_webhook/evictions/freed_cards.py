"""Whether pods would find cards once others are gone: Fit on each node as it is then (docs/spec/queues.md#7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set

from msgspec.structs import replace

from hami_webhook.devices.model import DeviceShare
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.step_limit import StepLimit
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import BadRequest, NodeFit, PodRequest, fit_pod, read_pod_request, shape_of
from hami_webhook.scheduling.node_snapshot import NodeSnapshot
from hami_webhook.scheduling.nominations import Nominations
from hami_webhook.scheduling.pod_allocations import CardKey
from hami_webhook.time_slices import Steps

_FITS = 4096
"""Times that Fit is tried for all pods of one round: some 0.4 s."""

Shares = dict[str, dict[CardKey, list[DeviceShare]]]
"""What is taken of cards, by node."""


class FreedCards:
    """The cluster's cards in one round: `place` takes cards for pods, which those after them don't find.

    `gone` are the UIDs of pods that are as good as gone. What is under deletion is gone, too.
    """

    def __init__(self, state: ClusterCache, nominations: Nominations, vendors: Vendors, gone: Set[str]) -> None:
        self._state = state
        self._nominations = nominations
        self._vendors = vendors
        self._gone = set(gone)
        self._taken: Shares = {}
        self._left = _FITS
        self._snapshots: dict[str, tuple[NodeSnapshot, frozenset[str]]] = {}
        self._full: set[tuple[int, str, frozenset[str]]] = set()
        self._shapes: list[Pod] = []

    @property
    def exhausted(self) -> bool:
        """Whether as much was tried as one round may."""
        return self._left <= 0

    def fitting(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[bool]:
        """Whether all these pods fit once those are gone."""
        return (yield from self._placing(pods, gone)) is not None

    def place(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[None]:
        """Those go for these, which take what they find then."""
        taken = yield from self._placing(pods, gone)
        self._gone |= gone
        self._full.clear()
        if taken is not None:
            self._taken = taken

    def _placing(self, pods: Sequence[Pod], gone: Set[str]) -> Steps[Shares | None]:
        taken = {node: {card: [*shares] for card, shares in cards.items()} for node, cards in self._taken.items()}
        near: dict[str, None] = {}
        for pod in pods:
            try:
                request = read_pod_request(pod, self._vendors, "spread")
            except (BadRequest, ValueError):
                return None
            if request is None:
                continue
            for node in self._nodes(pod, near):
                yield
                fit = self._fit(node, request, {*gone, *self._gone}, taken)
                if fit is not None:
                    break
            else:
                return None
            near[node] = None
            cards = taken.setdefault(node, {})
            for row in fit.rows:
                for vendor, allocation in row.items():
                    for device in allocation.devices:
                        cards.setdefault((vendor, device.uuid), []).append(device.share)
        return taken

    def _nodes(self, pod: Pod, near: Collection[str]) -> Iterator[str]:
        """The nodes that the pod's nodeSelector allows, those of others of its group first."""
        selector = pod.node_selector or {}
        for name in (*near, *(node.name for node in self._state.nodes() if node.name not in near)):
            node = self._state.node(name)
            if node is not None and selector.items() <= node.labels.items():
                yield name

    def _fit(self, name: str, request: PodRequest, gone: Set[str], taken: Shares) -> NodeFit | None:
        snapshot, there = self._snapshot(name, request.pod)
        if snapshot is None:
            return None
        mine, on_it = taken.get(name, {}), there & gone
        key = (self._shape(request.pod), name, on_it)
        if key in self._full or self.exhausted:
            return None
        self._left -= 1
        kept = {card: [*snapshot.reserved.get(card, ()), *mine.get(card, ())] for card in {*snapshot.reserved, *mine}}
        view = replace(snapshot, reserved=kept).without(on_it, self._vendors)
        fit = fit_pod(view, request, self._vendors, None, limit=StepLimit())
        if isinstance(fit, NodeFit):
            return fit
        if mine == self._taken.get(name, {}):  # where others of its group take more there, it doesn't fit either
            self._full.add(key)
        return None

    def _snapshot(self, name: str, pod: Pod) -> tuple[NodeSnapshot | None, frozenset[str]]:
        known = self._snapshots.get(name)
        if known is None:
            view = self._state.view(name)
            if view is None:
                return None, frozenset()
            snapshot = self._nominations.snapshot(view, pod)
            known = self._snapshots[name] = snapshot, frozenset(each.pod.uid for each in snapshot.allocations)
        return known

    def _shape(self, pod: Pod) -> int:
        """A number for all pods that are equal for Fit."""
        shape = shape_of(pod)
        if shape not in self._shapes:
            self._shapes.append(shape)
        return self._shapes.index(shape)
