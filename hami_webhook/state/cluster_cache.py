"""The cluster as devices and usage, kept incrementally from events of nodes and pods. Pods bound without our placement
hold what Fit would give them.

Source: docs/spec/core.md#3 and #10.4.

A node has a generation that grows with every change; its `NodeView` is immutable and replaced only then.

Our own decisions count before a watch shows them: a late event must not free assumed devices, nor a late answer
restore a deleted pod. The cache may be stale, so locks, Bindings and quota writes are conditional on the version
that it read. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo

from msgspec.structs import replace

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.model import BadRequest, Device, Inventory, NodeView, Usage
from hami_webhook.devices.placement_annotations import NODE, TIME, placement_counts
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import placed_by_others
from hami_webhook.quota.ledger import charge_ids
from hami_webhook.quota.placed_charges import PlacedCharges
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.state.assumed_pods import AssumedPods
from hami_webhook.state.node_cache import NodeCache, Problem
from hami_webhook.state.node_entry import NodeEntry
from hami_webhook.state.pod_allocations import (
    CardKey,
    PodAllocation,
    PodShare,
    shares,
    usage_by_card,
)
from hami_webhook.state.pods_by_namespace import PodsByNamespace
from hami_webhook.state.pods_by_node import PodsByNode
from hami_webhook.state.presumed_usage import unplaced_vendors

_TIME_DIGITS = 18
"""As many digits of a placement's time as are read."""


class ClusterCache(NodeCache):
    """What the scheduler knows: the nodes with their cards, the pods, and what these hold."""

    def __init__(
        self,
        vendors: Vendors,
        *,
        placement_ttl: float = 300.0,
        zone: tzinfo | None = None,
        claimed: ClaimCache | None = None,
    ) -> None:
        super().__init__(vendors, zone)
        self.claimed = claimed or ClaimCache(())
        self.placement_ttl = placement_ttl
        self._pods: dict[str, Pod] = {}
        self.by_namespace = PodsByNamespace()
        self._allocations: dict[str, PodAllocation] = {}
        self._pods_by_node = PodsByNode(vendors.foreign_node_of)
        self._unplaced = PodsByNode(lambda pod: pod.node_name if unplaced_vendors(pod, vendors) else "")
        self._unbound: dict[str, float] = {}
        self._assumed = AssumedPods()
        self._charges = PlacedCharges()
        self.departures = 0
        """How many pods were seen to end or to go since the beginning: quotas may count less from then on."""
        self.expirations = 0
        """The number of placements that expired unbound since the start."""

    @property
    def capacity(self) -> ClusterCapacity:
        """The cards by themselves: Fit knows what claims hold of them, and nothing of what claims cost."""
        return ClusterCapacity(self)

    @property
    def gone(self) -> Mapping[str, None]:
        """The ledger ids of pods that are gone, the latest last."""
        return self._assumed.gone

    def with_just(self, node: Node, pods: Iterable[Pod], now: float) -> ClusterCache:
        """Return a cache of only this node, with just these pods, and with what ResourceClaims hold."""
        other = ClusterCache(self._vendors, placement_ttl=self.placement_ttl, zone=self._zone, claimed=self.claimed)
        other.set_node(node, now)
        for pod in pods:
            other.set_pod(pod, now)
        return other

    # events

    def set_pod(self, pod: Pod, now: float) -> None:
        """A pod was added or changed. Events of one pod come in order, but may be late: see `assume`."""
        before = self._pods.get(pod.uid)
        if before is not None and before.namespace != pod.namespace:
            self.remove_pod(pod.uid)
        if pod.terminal and before is not None and not before.terminal:
            self.departures += 1
        self._keep(self._assumed.observe(pod), now)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self.departures += 1
            self._charges.gone(pod.namespace, uid)
            self.by_namespace.drop(pod)
        self._pods_by_node.drop(uid)
        self._touch_all(self._unplaced.drop(uid))
        self._assumed.remove(uid, charge_ids(uid, {} if pod is None else pod.annotations) if uid else ())
        self._release(uid)

    def assume(self, pod: Pod, now: float) -> None:
        """Count the placement that the pod carries from now on: it is being written, or was just written.

        It counts even if it reads like one given up before. Until an event shows the placement or the Binding, or
        the placement is forgotten or expires, versions without it count as older. Nothing happens if the pod is
        known to be deleted.
        """
        if pod.uid in self.gone:
            return
        self._assumed.assume(pod, self._pods.get(pod.uid))
        self._keep(pod, now)

    def forget(self, uid: str, now: float) -> bool:
        """Drop an assumed placement that won't be written or bound. Return whether there was one."""
        held = self.release(uid)
        observed = self._assumed.forget(uid)
        if observed is not None:
            self._keep(observed, now)
        return held

    def release(self, uid: str) -> bool:
        """Forget a placement that wasn't bound, because the pod is to be placed again. Return whether there was one."""
        pod = self._pods.get(uid)
        if pod is None or pod.node_name or NODE not in pod.annotations:
            return False
        self._assumed.give_up(pod)
        held = uid in self._allocations
        self._release(uid)
        return held

    def is_revoked(self, pod: Pod) -> bool:
        """Whether the placement that the pod carries was given up here, so that others may have its cards."""
        return self._assumed.is_given_up(pod)

    def claims_changed(self, node: str) -> None:
        """Note that claims hold other devices of a node than before."""
        self._touch_all((node,))

    def _keep(self, pod: Pod, now: float) -> None:
        self.now = max(self.now, now)
        self._pods_by_node.keep(pod)
        self._touch_all(self._unplaced.keep(pod))
        self._pods[pod.uid] = pod
        self.by_namespace.keep(pod)
        self._charges.changed(pod.namespace, pod.uid)
        self._settle(pod, now)

    def tick(self, now: float) -> None:
        """Expire handshakes, and placements that were never bound."""
        self.now = max(self.now, now)
        expired = [uid for uid, deadline in self._unbound.items() if now >= deadline]
        for uid in expired:
            self._assumed.forget(uid)
            self._release(uid)
        self.expirations += len(expired)
        super().tick(now)

    def without_any(self) -> ClusterCache:
        """Return an empty cache that reads nodes and pods as this one does."""
        return ClusterCache(self._vendors, placement_ttl=self.placement_ttl, zone=self._zone)

    # queries

    def view(self, name: str) -> NodeView | None:
        """The node as it is now; None if it isn't known."""
        entry = self._nodes.get(name)
        if entry is None or entry.node is None:
            return None
        entry.view = entry.view or entry.viewed(self._vendors, self.claimed.on(name), self._unplaced.on(name))
        return entry.view

    def allocations(self, name: str) -> Sequence[PodAllocation]:
        """The pods that hold cards of the node."""
        entry = self._nodes.get(name)
        return () if entry is None else tuple(entry.allocations.values())

    def holds_devices(self, uid: str) -> bool:
        """Whether the pod has a placement that counts."""
        return uid in self._allocations

    def usage_of(self, uid: str) -> Mapping[CardKey, Usage]:
        """What the pod's placement uses of each card, as long as it counts."""
        held = self._allocations.get(uid)
        return {} if held is None else usage_by_card([held], held.shares)

    def views(self) -> Iterator[NodeView]:
        """Every known node, by name."""
        for name in sorted(self._nodes):
            view = self.view(name)
            if view is not None:
                yield view

    def pods_in(self, namespace: str) -> list[Pod]:
        return list(self.by_namespace.of(namespace).values())

    def placed_besides(self, pod: Pod, account: QuotaAccount, now: float) -> dict[str, int]:
        """What the other placed pods that the quota covers cost it."""
        sums = dict.fromkeys(account.hard, 0)
        for namespace in account.quota.namespaces or (pod.namespace,):
            pods = self.by_namespace.of(namespace)
            more = (self._vendors, ClusterCapacity(self), now, self.placement_ttl)
            if account.cards is not None:
                found = placed_by_others(account, pod, pods.values(), *more)
            else:
                found = self._charges.of_others(account, pod, namespace, pods, *more)
            for key, amount in found.items():
                sums[key] += amount
        return sums

    def pod(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def observed(self, uid: str) -> Pod | None:
        """The pod as it was last observed, without what is assumed of it."""
        known = self._pods.get(uid)
        return None if known is None else self._assumed.observed(uid, known)

    def pods(self) -> Iterable[Pod]:
        return self._pods.values()

    def foreign_pods_on(self, node: str) -> list[Pod]:
        """The live pods on a node that concern another scheduler, by UID."""
        return self._pods_by_node.on(node)

    def held(self, vendor: Vendor, pod: Pod) -> Debit | None:
        view = self.view(pod.node_name)
        return infer_usage(view, vendor, pod, self._vendors) if view is not None else None

    # how it is kept

    def _read_cards(self, entry: NodeEntry, now: float, known: Node | None) -> bool:
        are_others = super()._read_cards(entry, now, known)
        for allocation in list(entry.allocations.values()) if are_others else ():
            self._settle(allocation.pod, now)  # what an entry takes may depend on its card
        return are_others

    def _settle(self, pod: Pod, now: float) -> None:
        """Count what the pod holds, in place of what it held so far."""
        allocation = self._allocation_of(pod, now)
        known = self._allocations.get(pod.uid)
        if known is not None and allocation is not None and known.same_as(allocation):
            return
        self._release(pod.uid, keep_notes=True)
        if allocation is None:
            return
        if not pod.node_name:
            self._unbound[pod.uid] = int(pod.annotations[TIME][:_TIME_DIGITS]) + self.placement_ttl
        if allocation.shares:
            entry = self._nodes.setdefault(allocation.node, NodeEntry(allocation.node))
            entry.allocations[pod.uid] = self._allocations[pod.uid] = allocation
            self._recount(entry, allocation.shares)

    def _allocation_of(self, pod: Pod, now: float) -> PodAllocation | None:
        """What the pod's annotations say it holds, None while they don't count; what can't be read is noted."""
        counts = placement_counts(pod, now, self.placement_ttl) and not self.is_revoked(pod)
        texts: list[str] = []
        held: dict[CardKey, PodShare] = {}
        if counts and NODE in pod.annotations and not pod.terminal:
            for vendor in self._vendors.allocated_in(pod.annotations):
                try:
                    held |= shares(vendor, pod, self._cards(pod, vendor))
                except BadAnnotation as error:
                    texts.append(f"{vendor.keys.allocated} can't be read, so its cards aren't known: {error}")
                except Exception as error:
                    self._vendors.faults.record("usage", pod.node_name or pod.annotations[NODE], error)
                    texts.append(f"{vendor.keys.allocated} can't be read, by a fault of ours ({type(error).__name__})")
        self._note(("Pod", pod.uid), Problem("Pod", pod.namespace, pod.name, "; ".join(dict.fromkeys(texts))))
        if not held and not texts:
            return None
        return PodAllocation(pod, pod.node_name or pod.annotations[NODE], held)

    def _cards(self, pod: Pod, vendor: Vendor) -> dict[str, Device]:
        """The vendor's cards by UUID on the pod's node."""
        entry = self._nodes.get(pod.node_name or pod.annotations[NODE])
        inventory = entry.inventories.get(vendor.key) if entry is not None else None
        return {device.uuid: device for device in inventory.devices} if inventory is not None else {}

    def _release(self, uid: str, *, keep_notes: bool = False) -> None:
        self._unbound.pop(uid, None)
        if not keep_notes:
            self._problems.pop(("Pod", uid), None)
        gone = self._allocations.pop(uid, None)
        if gone is None:
            return
        entry = self._nodes[gone.node]
        del entry.allocations[uid]
        self._recount(entry, gone.shares)
        if entry.node is None and not entry.allocations:
            self._drop(gone.node)

    def _recount(self, entry: NodeEntry, cards: Iterable[CardKey]) -> None:
        """Something else is taken of the given cards."""
        entry.recounted |= dict.fromkeys(cards)
        self._touch(entry)


_held: DerivedValues[Pod, dict[str, tuple[Inventory, Debit | None]]] = DerivedValues()
"""What a pod holds by vendor, with the node's devices that this was worked out with."""


def infer_usage(view: NodeView, vendor: Vendor, pod: Pod, vendors: Vendors) -> Debit | None:
    """Return the usage that Fit adds for the pod's request of one vendor; None if the node couldn't serve it.

    Fit runs on the empty node, because the order of pods is unknown, and a pod's charge must not depend on its
    neighbours. Computed once for a pod and the node's cards. Of a pod that the default scheduler or a person bound
    without our placement.
    """
    inventory = view.inventories.get(vendor.key)
    if inventory is None:
        return None
    held = _held.get(pod) or _held.keep(pod, {})
    known = held.get(vendor.key)
    if known is None or known[0] is not inventory:
        known = held[vendor.key] = (inventory, _fit_on_empty(view, vendor, pod, vendors))
    return known[1]


def _fit_on_empty(view: NodeView, vendor: Vendor, pod: Pod, vendors: Vendors) -> Debit | None:
    try:
        requested = [vendor.request_in_pod(each, pod) if vendor.named_by(each) else None for each in pod.containers]
        terms = vendor.terms(pod, "")
    except (BadRequest, ValueError):
        return None
    pod_request = PodRequest(
        pod, [{vendor.key: request} if request else {} for request in requested], {vendor.key: terms}
    )
    fitted = fit_pod(replace(view, usage={}, closed=frozenset(), unhealthy={}), pod_request, vendors, None)
    if not isinstance(fitted, NodeFit):
        return None
    return per_vendor(fitted.claims(), pod.kinds, init_finished=pod.init_finished).get(vendor.key)
