"""As few new nodes of known shapes as first-fit decreasing finds for pods that wait for cards.

Source: docs/spec/placeholders.md#2. Fit decides on cards, kube-scheduler's filters on everything else, budgets on what
quotas leave. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct

from hami_webhook.devices.model import Inventory, NodeView
from hami_webhook.devices.pod_fit import NodeFit, PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.search import SimulatedNode, try_fit
from hami_webhook.kube.names import HOSTNAME, INSTANCE_TYPE, is_label_value
from hami_webhook.kube.new_node import new_node
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.placeholder_label import PLACEHOLDERS
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.node_resources import NodeResourcesFit
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.snapshot import SchedulerSnapshot
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import pod_budget
from hami_webhook.quota.pricing import placed_charge
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import shares_of, with_reserved
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import Steps

_MOST_SHAPES = 50
"""Shapes that are tried, those of most nodes first."""


class Shape(Struct, frozen=True, eq=False):
    """What a new node of a group is like. `cards` is how many it has, by the resource that counts them."""

    group: str
    view: NodeView
    cards: Mapping[str, int]

    @property
    def instance_type(self) -> str:
        return self.view.node.labels.get(INSTANCE_TYPE, "")


class WaitingPod(Struct, frozen=True, eq=False):
    """A pod that waits: as the caches have it, as kube-scheduler's filters and Fit read it, and its quotas."""

    pod: Pod
    info: PodInfo
    filtered: Mapping[str, object]
    request: PodRequest
    accounts: Sequence[QuotaAccount]


class NewNode(Struct, eq=False):
    """A node that doesn't exist, or hasn't registered its cards yet, and the pods that it would take."""

    shape: Shape
    room: SimulatedNode
    info: NodeInfo
    pods: list[WaitingPod]
    exists: bool = False


class Place(Enum):
    """Where a pod would go."""

    TODAY = "a node of today"
    NEW = "a new node"
    NONE = "no known shape"
    QUOTA = "its quotas leave it nothing"


def shapes_of(state: ClusterCache, vendors: Vendors, now: float) -> Sequence[Shape]:
    """The shapes of the nodes that carry the label: that of most nodes first, then the smallest.

    A node that registers what its likes don't is a shape of its own, after the others.
    """
    similar: dict[bytes, list[NodeView]] = {}
    for view in state.views():
        if view.inventories and is_label_value(group := group_of(view.node)) and group:
            devices = {key: _content(each) for key, each in view.inventories.items()}
            content = (
                group,
                view.node.labels.get(INSTANCE_TYPE),
                devices,
                view.node.taints,
                dict(view.node.allocatable),
            )
            similar.setdefault(msgspec.json.encode(content, order="sorted"), []).append(view)
    ranked = sorted(similar.values(), key=lambda views: (-len(views), _memory(views[0]), views[0].name))
    empty = state.without_any()
    found = []
    for number, views in enumerate(ranked[:_MOST_SHAPES]):
        name = f"new-{number}.hami.io"
        model = Node.from_object(new_node(node_object(views[0].node), name))
        empty.set_node(model, now)
        fresh, cards = empty.view(name), _cards(views[0], vendors)
        if fresh is not None and fresh.inventories and cards:
            found.append(Shape(group_of(model), fresh, cards))
    return found


def group_of(node: Node) -> str:
    """The group of a node, empty if it has none."""
    return node.labels.get(PLACEHOLDERS, "")


def node_object(node: Node) -> dict[str, Any]:
    """The node's JSON, as far as it is kept."""
    taints = [each for each in node.taints if isinstance(each, dict)] if isinstance(node.taints, list | tuple) else []
    return {
        "metadata": {"name": node.name, "labels": dict(node.labels), "annotations": dict(node.annotations)},
        "spec": {"taints": taints},
        "status": {"capacity": dict(node.capacity), "allocatable": dict(node.allocatable)},
    }


class Packing:
    """Puts waiting pods, one after the other, on nodes of today, on nodes that are coming, then on new nodes.

    `preempts`: pods of lower priority may go for them. `coming` are nodes without cards, with the shape of each.
    """

    def __init__(
        self,
        state: ClusterCache,
        nominations: Nominations,
        vendors: Vendors,
        shapes: Sequence[Shape],
        coming: Mapping[str, Shape],
        *,
        now: float,
        preempts: bool,
    ) -> None:
        self._state = state
        self._nominations = nominations
        self._vendors = vendors
        self._shapes = shapes
        self._now = now
        self._preempts = preempts
        self._snapshot = SchedulerSnapshot(vendors.uncounted_names)
        for node in (*state.nodes(), *(shape.view.node for shape in shapes)):
            self._snapshot.put_node(node_object(node))
        self._today = [view.name for view in state.views() if view.inventories]
        self.nodes = [self._new(shape, name) for name, shape in sorted(coming.items())]
        self._rooms: dict[tuple[str, int], SimulatedNode] = {}
        self._taken: dict[str, list[NodeFit]] = {}
        self._refused: dict[bytes, frozenset[str]] = {}
        self._numbers: dict[bytes, int] = {}
        self._spent: dict[tuple[str, str, str], dict[str, int]] = {}

    @property
    def used(self) -> Sequence[NewNode]:
        """The nodes that don't exist, or have no cards yet, and that pods need."""
        return [node for node in self.nodes if node.pods]

    def order(self, waiting: Sequence[WaitingPod]) -> Sequence[WaitingPod]:
        """Those that a known shape could hold: of the highest priority first, then the largest, then the oldest."""
        sized = []
        for each in waiting:
            found = self._first_shape(each)
            if found is not None:
                size = sum(hold.memory for hold in found[1].claims())
                sized.append(((-each.pod.priority, -size, each.pod.created or 0.0, each.pod.uid), each))
        return [each for _, each in sorted(sized, key=lambda pair: pair[0])]

    def put(self, each: WaitingPod) -> Steps[Place]:
        """Take the pod's place; interrupted after each node of today."""
        kind, refused = self._kind(each), self._refused_by(each)
        for name in self._today:
            yield
            room = None if name in refused else self._room(name, each.pod)
            fit = None if room is None else self._answer(room, kind, each)
            if room is not None and fit is not None:
                if not self._pays(each, fit, room.view):
                    return Place.QUOTA
                self._taken.setdefault(name, []).append(fit)
                self._rooms = {key: other for key, other in self._rooms.items() if key[0] != name}
                return Place.TODAY
        resources = NodeResourcesFit(each.info, self._snapshot, self._vendors.uncounted_names)
        for node in self.nodes:
            if node.shape.view.name not in refused and resources.refusal(node.info) is None:
                fit = self._answer(node.room, kind, each)
                if fit is not None:
                    return self._take(node, each, fit)
        found = self._first_shape(each)
        if found is None:
            return Place.NONE
        node = self._new(found[0], "")
        place = self._take(node, each, found[1])
        if place is Place.NEW:
            self.nodes.append(node)
        return place

    def _take(self, node: NewNode, each: WaitingPod, fit: NodeFit) -> Place:
        if not self._pays(each, fit, node.room.view):
            return Place.QUOTA
        node.room = node.room.with_fit(fit)
        node.info.add(each.info)
        node.pods.append(each)
        return Place.NEW

    def _first_shape(self, each: WaitingPod) -> tuple[Shape, NodeFit] | None:
        kind, refused = self._kind(each), self._refused_by(each)
        for shape in self._shapes:
            if shape.view.name not in refused:
                room = self._rooms.setdefault((shape.view.name, 0), SimulatedNode(shape.view, {}))
                fit = self._answer(room, kind, each)
                if fit is not None:
                    return shape, fit
        return None

    def _new(self, shape: Shape, name: str) -> NewNode:
        info = NodeInfo(shape.view.name)
        info.read(node_object(shape.view.node))
        return NewNode(shape, SimulatedNode(shape.view, {}), info, [], exists=bool(name))

    def _room(self, name: str, pod: Pod) -> SimulatedNode | None:
        """A node of today, without those that may go for the pod, and with those that were put there; None if it has
        gone meanwhile.
        """
        goes = self._preempts and pod.preemption_policy != "Never"
        key = (name, pod.priority if goes else -(2**31))
        if key not in self._rooms:
            view = self._state.view(name)
            if view is None:
                return None
            snapshot = self._nominations.snapshot(view, pod)
            gone = [each.pod.uid for each in snapshot.allocations if each.pod.priority < key[1]]
            left = snapshot.without(gone, self._vendors)
            for fit in self._taken.get(name, ()):
                left = with_reserved(left, shares_of(fit))
            self._rooms[key] = SimulatedNode(left, {})
        return self._rooms[key]

    def _kind(self, each: WaitingPod) -> int:
        """The number of the kind of pods that Fit answers as this one."""
        return self._numbers.setdefault(msgspec.json.encode(each.request.shape), len(self._numbers))

    def _answer(self, room: SimulatedNode, kind: int, each: WaitingPod) -> NodeFit | None:
        """The pod's placement on a node, whatever its quotas leave; remembered for pods of the same kind."""
        if kind not in room.answers:
            fit, _ = try_fit(room.view, each.request, self._vendors, None)
            room.answers[kind] = None if fit is None else (fit, room)
        answer = room.answers[kind]
        return None if answer is None else answer[0]

    def _refused_by(self, each: WaitingPod) -> frozenset[str]:
        """The nodes and shapes that kube-scheduler's filters refuse the pod, as if no pod were there."""
        spec = each.info.spec
        kind = msgspec.json.encode(
            (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints, each.info.requests)
        )
        if kind not in self._refused:
            self._refused[kind] = frozenset(self._snapshot.filter_nodes(each.filtered).refusals)
        return self._refused[kind]

    def _pays(self, each: WaitingPod, fit: NodeFit, view: NodeView) -> bool:
        """Whether its quotas leave the pod that much, after those that were put before it; if so, it is counted."""
        claims = fit.claims()

        def others(account: QuotaAccount) -> Mapping[str, int]:
            placed = self._state.placed_besides(each.pod, account, self._now)
            spent = self._spent.get(_key(account), {})
            return {key: amount + spent.get(key, 0) for key, amount in placed.items()}

        ttl = self._state.placement_ttl
        budget = pod_budget(each.pod, each.accounts, others, self._vendors, self._state.capacity, self._now, ttl)
        if budget is not None and not budget.on(view).admits(claims):
            return False
        exact = placed_charge(claims, each.pod.kinds, self._vendors).exact
        for account in each.accounts:
            if account.covers(each.pod):
                spent = self._spent.setdefault(_key(account), {})
                for key, amount in account.counted(exact).items():
                    spent[key] = spent.get(key, 0) + amount
        return True


def _cards(view: NodeView, vendors: Vendors) -> Mapping[str, int]:
    """How many cards the node offers by each resource; no more than kubelet counts."""
    found = {}
    for key, inventory in view.inventories.items():
        name = vendors[key].count_name
        offered = parse_whole(view.node.allocatable.get(name)) or 0
        if name and offered and inventory.devices:
            found[name] = min(len(inventory.devices), offered)
    return found


def _content(inventory: Inventory) -> Sequence[tuple[object, ...]]:
    return sorted((each.type, each.memory, each.cores, each.slots, each.healthy) for each in inventory.devices)


def _memory(view: NodeView) -> int:
    return sum(device.memory for each in view.inventories.values() for device in each.devices)


def _key(account: QuotaAccount) -> tuple[str, str, str]:
    return account.quota.kind, account.quota.namespace, account.quota.name


def requested_labels(node: NewNode) -> Iterator[tuple[str, str]]:
    """The labels of the shape that its pods name: a node without them is none for them."""
    labels = node.shape.view.node.labels
    for each in node.pods:
        spec = each.info.spec
        named = set(spec.node_selector or ())
        required = spec.affinity and spec.affinity.node_affinity
        selector = required and required.required_during_scheduling_ignored_during_execution
        for term in (selector and selector.node_selector_terms) or ():
            named |= {rule.key for rule in term.match_expressions or () if rule.key}
        yield from ((key, labels[key]) for key in sorted(named - {HOSTNAME}) if key in labels)
