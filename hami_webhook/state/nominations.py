"""Devices kept for pods that others were evicted for, until they come (docs/preemption.md#nominated-pods).

The pod's annotations store a nomination, so it survives a restart. It counts from the decision on, before a watch
shows these annotations. kube-scheduler's own, for CPU and memory, are read off `nominatedNodeName`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.placement_annotations import NOMINATED_NODE, NOMINATED_UNTIL
from hami_webhook.devices.pod_fit import BadRequest, NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.devices.reasons import UNRESOLVABLE, Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot, Shares, joined, shares_of, with_reserved

_OVERDUE = 30.0
"""Seconds past its deadline for which a pod under deletion is still expected to go."""


class Nomination(Struct, frozen=True):
    """A pod for which others were evicted from a node, and the Unix time until which the node's freed devices are
    reserved.
    """

    pod: Pod
    node: str
    until: float


class Nominations:
    """The nominated pods of a cluster, and the pods whose eviction was decided.

    `clock` gives Unix seconds; `card_policy` is the default order of cards.
    """

    def __init__(
        self, state: ClusterCache, vendors: Vendors, *, clock: Callable[[], float], card_policy: str = "spread"
    ) -> None:
        self.state = state
        self.vendors = vendors
        self.clock = clock
        self._card_policy = card_policy
        self._by_node: dict[str, dict[str, Nomination]] = {}
        self._nodes: dict[str, str] = {}
        self._decided: set[str] = set()
        self._evicted: dict[str, float] = {}
        self._watching: list[tuple[Callable[[Pod], None], Callable[[str], None]]] = []

    def watch(self, changed: Callable[[Pod], None], gone: Callable[[str], None]) -> None:
        """Call `changed` with each added or changed pod, `gone` with the UID of each deleted one, before updating."""
        self._watching.append((changed, gone))

    # what is known of pods

    def set_pod(self, pod: Pod) -> None:
        """A pod was added or changed."""
        for changed, _ in self._watching:
            changed(pod)
        if pod.deletion_time is not None:
            self._evicted.pop(pod.uid, None)
        node = pod.annotations.get(NOMINATED_NODE, "")
        until = pod.annotations.get(NOMINATED_UNTIL, "")
        if pod.node_name or pod.terminal or pod.deletion_time is not None:
            self.withdraw(pod.uid)
        elif node and until.isdecimal():
            self._decided.discard(pod.uid)
            self._put(Nomination(pod, node, float(until[:18])))
        elif pod.uid in self._decided:  # not written yet
            known = self.of(pod.uid)
            assert known is not None
            self._put(replace(known, pod=pod))
        elif pod.nominated_node:  # by kube-scheduler, which withdraws it itself
            self._put(Nomination(pod, pod.nominated_node, inf))
        else:
            self.withdraw(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        for _, gone in self._watching:
            gone(uid)
        self._evicted.pop(uid, None)
        self.withdraw(uid)

    def nominate(self, places: Sequence[tuple[Pod, str]], until: float, victims: Mapping[str, float]) -> None:
        """Reserve nodes' devices for a pod, or for a group's pods.

        `victims` maps the victims' UIDs to the times by which they should be gone.
        """
        for pod, node in places:
            self._put(Nomination(pod, node, until))
            self._decided.add(pod.uid)
        self._evicted |= victims

    def withdraw(self, uid: str) -> None:
        """Remove a pod's nomination: it was placed or deleted, or no longer needs the node."""
        self._decided.discard(uid)
        node = self._nodes.pop(uid, None)
        if node is not None:
            pods = self._by_node[node]
            del pods[uid]
            if not pods:
                del self._by_node[node]

    def spare(self, uid: str) -> None:
        """Forget that a pod was to be evicted."""
        self._evicted.pop(uid, None)

    def _put(self, nomination: Nomination) -> None:
        decided = nomination.pod.uid in self._decided
        self.withdraw(nomination.pod.uid)
        self._nodes[nomination.pod.uid] = nomination.node
        self._by_node.setdefault(nomination.node, {})[nomination.pod.uid] = nomination
        if decided:
            self._decided.add(nomination.pod.uid)

    # what follows from it

    def of(self, uid: str) -> Nomination | None:
        """A pod's nomination."""
        node = self._nodes.get(uid)
        return None if node is None else self._by_node[node][uid]

    def all(self) -> list[Nomination]:
        return [nomination for pods in self._by_node.values() for nomination in pods.values()]

    def nodes_kept_from(self, pod: Pod) -> set[str]:
        """The nodes where devices may be kept from a pod."""
        return {node for node in self._by_node if self._before(pod, node)}

    def is_kept_from(self, pod: Pod, node: str) -> bool:
        """Whether devices of the node may be kept from the pod."""
        return node in self._by_node and bool(self._before(pod, node))

    def view(self, view: NodeView, pod: Pod) -> NodeView:
        """The node as the pod may use it: without what is kept for others of at least its priority."""
        return with_reserved(view, self._reserved(view, pod))

    def snapshot(self, view: NodeView, pod: Pod) -> NodeSnapshot:
        """Return the node's snapshot for the search for victims for the pod."""
        allocations, ending = self.state.allocations(view.name), self.ending(view.name)
        return NodeSnapshot(view, allocations, self._reserved(view, pod), ending)

    def candidates(self, pod: Pod, failed: Mapping[str, Rejection]) -> Iterator[NodeSnapshot]:
        """Yield snapshots of the nodes that refused the pod, except those where evictions can't help.

        Each is taken when it is yielded.
        """
        return self.snapshots(pod, (name for name, why in failed.items() if not why.labels() <= UNRESOLVABLE))

    def snapshots(self, pod: Pod, names: Iterable[str]) -> Iterator[NodeSnapshot]:
        """Yield snapshots of the named nodes that are known, each taken when it is yielded."""
        for name in names:
            if (view := self.state.view(name)) is not None:
                yield self.snapshot(view, pod)

    def ending(self, node: str) -> set[str]:
        """Return the UIDs of pods on the node that hold devices and are being evicted or deleted."""
        return self.going(allocation.pod for allocation in self.state.allocations(node))

    def going(self, pods: Iterable[Pod]) -> set[str]:
        """The UIDs of those of the pods that are expected to go."""
        now = self.clock()
        return {pod.uid for pod in pods if now < self._gone_by(pod) + _OVERDUE}

    def waits(self, pod: Pod, node: str) -> bool:
        """Return whether the pod should wait for the node: pods of lower priority, with or without devices, are
        ending there.
        """
        now = self.clock()
        return any(
            each.node_name == node and each.priority < pod.priority and now < self._gone_by(each) + _OVERDUE
            for each in self.state.pods()
        )

    def gone_by(self, pods: Collection[Pod]) -> float:
        """When the last of the pods is expected to be gone (Unix seconds), now if there are none."""
        return max(map(self._gone_by, pods), default=self.clock())

    def _gone_by(self, pod: Pod) -> float:
        """Unix seconds; long past for a pod that stays."""
        return self._evicted.get(pod.uid, 0.0) if pod.deletion_time is None else pod.deletion_time

    def _before(self, pod: Pod, node: str) -> list[Nomination]:
        """The nominated pods of a node that come before a pod, the first to come first; not those of its group, with
        which it is placed.
        """
        group = PodGroup.of(pod)
        found = [
            each
            for each in self._by_node.get(node, {}).values()
            if each.pod.uid != pod.uid
            and (group is None or (other := PodGroup.of(each.pod)) is None or other.key != group.key)
            and each.pod.priority >= pod.priority
            and self.clock() < each.until
            and not self.state.holds_devices(each.pod.uid)
        ]
        return sorted(found, key=lambda each: (-each.pod.priority, each.until, each.pod.uid))

    def _reserved(self, view: NodeView, pod: Pod) -> Shares:
        """What is taken of the node's cards by the nominated pods before a pod, once all that are ending have gone."""
        before = self._before(pod, view.name)
        if not before:
            return {}
        rest = NodeSnapshot(view, self.state.allocations(view.name), {}, self.ending(view.name))
        for nomination in before:
            request = self._request(nomination.pod)
            fit = request and fit_pod(rest.without((), self.vendors), request, self.vendors, None)
            if isinstance(fit, NodeFit):
                rest = replace(rest, reserved=joined(rest.reserved, shares_of(fit)))
        return rest.reserved

    def _request(self, pod: Pod) -> PodRequest | None:
        try:
            return read_pod_request(pod, self.vendors, self._card_policy)
        except (BadRequest, ValueError):
            return None
